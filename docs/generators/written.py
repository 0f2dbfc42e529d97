"""Tables that studies have written, whole or in part."""

from __future__ import annotations

from functools import partial

from generators.kept import STUDIES


def _written(study: str, name: str) -> str:
    """A table that a study, such as `fewshot` or `taxonomy`, has written."""
    path = STUDIES / study / "tables" / f"{name}.md"
    return path.read_text(encoding="utf-8").strip()


def _rows_written(study: str, name: str, words: tuple[str, ...]) -> str:
    """Of a table that a study has written, the rows that begin or go on with one of the words."""
    head, line, *rows = _written(study, name).splitlines()
    kept = [row for row in rows if any(f"| {word} |" in row for word in words)]
    return "\n".join([head, line, *kept])


TABLES = {
    **{
        f"fewshot_{name.replace('-', '_')}": partial(_written, "fewshot", name)
        for name in ("accuracy", "scaled", "speed", "dynamics", "long", "scaled-dynamics")
    },
    "fewshot_protonet": partial(_rows_written, "fewshot", "accuracy", ("ProtoNet",)),
    "fewshot_nearest": partial(_rows_written, "fewshot", "accuracy", ("1-NN",)),
    **{f"taxonomy_{name}": partial(_written, "taxonomy", name) for name in ("runs", "spaces")},
    **{f"taxonomy_options{part}": partial(_written, "taxonomy", f"options{part}") for part in ("", "_tests", "_scale")},
    **{
        f"taxonomy_{task}{part}": partial(_written, "taxonomy", task + part)
        for task in ("cifar", "omniglot")
        for part in (
            "",
            "_correlations",
            "_tests",
            "_tests_last",
            "_tests_tree",
            "_tests_informed",
            "_ranks",
            "_scale",
        )
    },
    "taxonomy_corr": partial(
        _rows_written, "taxonomy", "cifar", ("CORR, MDS", "NormFace, MDS", "NormFace, standard", "softmax")
    ),
    "taxonomy_proxies": partial(
        _rows_written,
        "taxonomy",
        "cifar",
        (
            "NormFace, standard",
            "NormFace, EMA",
            "NormFace, MDS",
            "NormFace, dynamic",
            "ProxyDR, standard",
            "ProxyDR, EMA",
            "ProxyDR, MDS",
            "ProxyDR, dynamic",
        ),
    ),
    **{
        f"unified_{name}": partial(_written, "unified", name)
        for name in (
            *("claims", "further", "runs", "rates", "parameters"),
            *("fashion", "cifar", "pacs", "pacs_differences", "speakers", "cub", "omniglot"),
        )
    },
    **{
        f"robustness_{name}": partial(_written, "robustness", name)
        for name in (
            *("toy", "fashion", "masking", "claims", "trades"),
            *("cifar", "changes", "correlations", "cub", "runs"),
        )
    },
    **{
        f"similarity_forms_{name}": partial(_written, "similarity_forms", name)
        for name in ("differences", "cub20", "emoji", "cifar")
    },
    "tree_losses": partial(_written, "tree_losses", "losses"),
}
