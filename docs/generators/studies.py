"""Tables of single studies, from their ledgers."""

from __future__ import annotations

from typing import Any

from generators.kept import STUDIES, ledger, result
from generators.markdown import table


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


TABLES = {
    "unknown": _unknown,
    "gsp_tokens": _tokens,
    "gsp_attributes": _attributes,
    "gsp_collage": _collage,
    "plankton": _plankton,
    "plankton_confusions": _plankton_confusions,
    "ccp_toy": _toy,
    "dr_table": _ratio_table,
    "dr_peaks": _peaks,
}
