"""Tables of single studies, from their ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from generators.kept import STUDIES, ledger, result
from generators.markdown import table
from nearkin.metrics import paired_permutation


def _tokens() -> str:
    """The token study: means over seeds with 95 % t intervals."""
    from scipy import stats

    measures = ("MAP@R", "inside another hull", "weight on shared tokens")
    cells = ledger("gsp_tokens")

    def told(pooling: str, measure: str) -> str:
        values = [100 * cell[measure] for cell in cells if cell["pooling"] == pooling]
        mean, half = sum(values) / len(values), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
        return f"{mean:.1f} ({max(0.0, mean - half):.1f} to {min(100.0, mean + half):.1f})"

    names = dict.fromkeys(cell["pooling"] for cell in cells)
    return table(("pooling", *measures), ((name, *(told(name, measure) for measure in measures)) for name in names))


def _attributes() -> str:
    """The transfer of attributes to unseen classes: mean and range over seeds."""
    cells = ledger("gsp_attributes")
    measures = ("l2", "cosine", "validation_MAP@R")

    def told(place: tuple[int, float], measure: str) -> str:
        values = [100 * cell[measure] for cell in cells if (cell["prototypes"], cell["mixture"]) == place]
        return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    places = sorted({(cell["prototypes"], cell["mixture"]) for cell in cells})
    header = ("prototypes", "weight of the zero-shot loss", "by l2", "by cosine", "validation MAP@R")
    return table(header, ((*map(str, place), *(told(place, measure) for measure in measures)) for place in places))


def _collage() -> str:
    """The table of the collage study, without its notes."""
    path = STUDIES / "gsp_collage" / "collage" / "table.md"
    return "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|"))


def _plankton() -> str:
    """Macro F1 of seen and unseen classes by each classifier: mean and range over seeds, beside untrained features."""
    cells = _newest("plankton")
    first = cells[0]

    def told(classes: str, metric: str) -> str:
        values = [100 * cell[classes]["values"][metric] for cell in cells]
        return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    return table(
        ("classes", "named by", "macro F1", "untrained features", "accuracy"),
        (
            (
                f"{classes}, {first[classes]['classes']}",
                classifier,
                told(classes, f"macro F1, {classifier}"),
                f"{100 * first[classes]['untrained'][f'macro F1, {classifier}']:.1f}",
                told(classes, f"accuracy, {classifier}"),
            )
            for classes in ("seen", "unseen")
            for classifier in first[classes]["F1"]
        ),
    )


def _plankton_confusions() -> str:
    """The commonest confusions of one seed, seen classes beside unseen ones."""
    cell = _newest("plankton")[0]

    def told(pairs: list[list[Any]], place: int) -> tuple[str, str]:
        if place >= len(pairs):
            return "", ""
        true, taken, rate = pairs[place]
        return f"{_species(true)} for {_species(taken)}", f"{100 * rate:.0f} %"

    most = max(len(cell[classes]["confusions"]) for classes in ("seen", "unseen"))
    return table(
        ("seen classes", "rate", "unseen classes", "rate"),
        (
            (*told(cell["seen"]["confusions"], place), *told(cell["unseen"]["confusions"], place))
            for place in range(most)
        ),
    )


def _species(name: str) -> str:
    """A class of CUB as people call it."""
    return name.partition(".")[2].replace("_", " ") or name


def _newest(name: str) -> list[dict[str, Any]]:
    """The lines of a ledger that the recipe of its last line made."""
    lines = ledger(name)
    return [line for line in lines if line["recipe"] == lines[-1]["recipe"]]


def _toy() -> str:
    """The proof of concept in two dimensions: mean and range over seeds."""
    cells = ledger("ccp_toy")
    measures = ("proxies' spread", "covering radius", "distance between classes", "MAP@R")

    def told(variant: str, measure: str) -> str:
        values = [cell[measure] for cell in cells if cell["variant"] == variant and cell[measure] is not None]
        if not values:
            return "–"
        scale, digits = (100, 1) if measure == "MAP@R" else (1, 3)
        mean, low, high = (scale * number for number in (sum(values) / len(values), min(values), max(values)))
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    variants = dict.fromkeys(cell["variant"] for cell in cells)
    return table(("", *measures), ((variant, *(told(variant, m) for m in measures)) for variant in variants))


def _ratio_table() -> str:
    """Table 1 of Kim et al. 2022: what scaling does to both formulations."""
    rows = [
        (f"{row['own']:g}", f"{row['other']:g}", *(f"{row[key]:.5g}" for key in _RATIO_COLUMNS))
        for row in result("dr_pictures")["table"]
    ]
    header = ("distance to the own class", "to the other", "p, SD-softmax", "loss", "p, DR with rho 2", "loss")
    return table(header, rows)


_RATIO_COLUMNS = ("softmax_p", "softmax_loss", "dr_p", "dr_loss")


def _peaks() -> str:
    """Where each model finds the red class most and least probable."""

    def told(found: dict[str, Any]) -> str:
        points = " and ".join(f"({', '.join(f'{value:.3g}' for value in point)})" for point in found["points"])
        return f"at infinity; in the frame {points}" if found["beyond"] else points

    rows = [
        (
            name,
            f"{row['own']:.3f}",
            told(row["largest"]),
            f"{row['largest']['p']:.3g}",
            f"{row['other']:.2g}",
            told(row["smallest"]),
            f"{row['smallest']['p']:.2g}",
        )
        for name, row in result("dr_pictures")["models"].items()
        if not name.endswith("doubled")
    ]
    header = ("", "p at red", "most probable at", "p there", "p at green", "least probable at", "p there")
    return table(header, rows)


def _unknown() -> str:
    """Galleries of unseen classes: what came back as known, and what was forecast; mean and range over draws."""
    cells = [cell for cell in ledger("unknown") if cell["part"] == "measured"]

    def told(data: str, *names: str) -> str:
        values = []
        for cell in cells:
            value = cell
            for name in names:
                value = value[name]
            if cell["data"] == data:
                values.append(100 * value)
        return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    columns = {
        "named rightly": ("named",),
        "strangers called known": ("strangers", "known"),
        "forecast": ("forecast", "strangers_known"),
        "by distance alone": ("by distance alone", "strangers"),
        "rightly named called known": ("rightly named", "known"),
        "forecast ": ("forecast", "named_known"),
        "strangers called unknown": ("strangers", "unknown"),
    }
    data = dict.fromkeys(cell["data"] for cell in cells)
    return table(("data", *columns), ((name, *(told(name, *where) for where in columns.values())) for name in data))


def _unseen(variant: str) -> list[dict[str, Any]]:
    """The cells of a variant of the study of unseen classes' geometry."""
    return [cell for cell in ledger("unseen_geometry") if cell["variant"] == variant]


def _ranged(values: Sequence[float], scale: float = 100, digits: int = 1) -> str:
    """Mean and range of values, or the only one."""
    mean, low, high = (f"{scale * one:.{digits}f}" for one in (sum(values) / len(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


_RESIDUALS = {
    "variance within classes": (100, 1),
    "shared directions": (1, 2),
    "nearest residual": (1, 2),
    "nearest residual, by chance": (1, 2),
    "same attribute": (100, 1),
    "same attribute, by chance": (100, 1),
    "NMI of residual clusters and classes": (1, 2),
    "NMI of residual clusters and attributes": (1, 2),
}
"""Measures of the residuals, what they are multiplied by, and their digits."""


def _residuals() -> str:
    """What varies inside unseen classes: mean and range over seeds."""
    cells = _unseen("multi-similarity")
    return table(
        ("measure", "multi-similarity"),
        (
            (name.replace("attributes", "designers").replace("attribute", "designer"), _ranged(values, *told))
            for name, told in _RESIDUALS.items()
            for values in [[cell["residuals"][name] for cell in cells]]
        ),
    )


def _class_means(cells: Sequence[dict[str, Any]], metric: str) -> dict[str, float]:
    """Class to the mean over seeds."""
    columns = zip(*(cell["classes"][metric] for cell in cells), strict=True)
    return {str(place): sum(values) / len(values) for place, values in enumerate(columns)}


def _difference(ours: dict[str, float], theirs: dict[str, float]) -> tuple[str, str]:
    """Points between two sets of class means, with the interval over classes, and p."""
    found = paired_permutation(ours, theirs)
    told = f"{100 * found.difference:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
    return told, "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"


def _residual_augmentation() -> str:
    """What the regulariser does to retrieval."""
    plain, ours = _unseen("multi-similarity"), _unseen("with residual-augmentation")
    rows = []
    for metric in ("MAP@R", "P@1"):
        told, p = _difference(_class_means(ours, metric), _class_means(plain, metric))
        rows.append((metric, _ranged([c[metric] for c in plain]), _ranged([c[metric] for c in ours]), told, p))
    return table(("metric", "the loss alone", "with the regulariser", "difference, points", "p"), rows)


def _reweighted() -> str:
    """MAP@R of unseen classes by power, beside the model as it is."""
    cells = _unseen("multi-similarity")
    before = _class_means(cells, "MAP@R")
    rows = [("as it is", _ranged([cell["MAP@R"] for cell in cells]), "–", "–")]
    for power in (name for name in cells[0]["re-weighted"] if name != "chosen"):
        changed = [cell["re-weighted"][power] for cell in cells]
        rows.append(
            (power, _ranged([one["MAP@R"] for one in changed]), *_difference(_class_means(changed, "MAP@R"), before))
        )
    return table(("power", "MAP@R", "difference, points", "p"), rows)


def _poincare_ball() -> str:
    """ProxyDR in the ball and on the sphere, and what norms say."""
    variants = ("Poincaré ball, curvature 0.01", "sphere", "Poincaré ball, curvature 1, rate 1e-3")
    clarity = list(_unseen(variants[0])[0]["clarity"])
    rows = []
    for variant in variants:
        cells = _unseen(variant)
        scores = [_ranged([cell["clarity"][name] for cell in cells]) for name in clarity]
        rows.append(
            (variant, str(len(cells)), *(_ranged([c[metric] for c in cells]) for metric in ("MAP@R", "P@1")), *scores)
        )
    return table(("ProxyDR in", "seeds", "MAP@R", "P@1", *(name.replace("_", " ") for name in clarity)), rows)


def _chance_constraints() -> str:
    """Violated pairs of the validation classes, Markov's bound and the covering radius, instance by instance."""
    columns = ("MAP@R", "violation", "violation_bound")
    rows = []
    for variant in ("contrastive, one proxy problem", "contrastive, CCP"):
        (cell,) = _unseen(variant)
        for row in cell["instances"]:
            shares = [f"{100 * row[f'instance_{name}']:.2f}" for name in columns]
            place = f"{row['instance']:.0f}"
            rows.append(
                (variant, place, str(int(row["instance_steps"])), *shares, f"{row['instance_covering_radius']:.3f}")
            )
    return table(("", "instance", "steps", "MAP@R", "violated pairs", "bound", "covering radius"), rows)


TABLES = {
    "unknown": _unknown,
    "gsp_tokens": _tokens,
    "gsp_attributes": _attributes,
    "gsp_collage": _collage,
    "plankton": _plankton,
    "plankton_confusions": _plankton_confusions,
    "ccp_toy": _toy,
    "residuals": _residuals,
    "residual_augmentation": _residual_augmentation,
    "reweighted": _reweighted,
    "poincare_ball": _poincare_ball,
    "chance_constraints": _chance_constraints,
    "dr_table": _ratio_table,
    "dr_peaks": _peaks,
}
