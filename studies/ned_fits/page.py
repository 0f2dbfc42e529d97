"""The page that `studies/ned_fits/run.py` writes from its ledger."""

from __future__ import annotations

from typing import Any

from nearkin.confidence.ned import DEFAULT_CRITERION, DEFAULT_WIDENING
from studies.page_tables import table
from studies.places import DOCS

LIKELIHOOD = "likelihood (the paper's)"
FITS: dict[str, dict[str, Any]] = {
    LIKELIHOOD: {"criterion": "likelihood", "widening": 0.0},
    "calibration": {"criterion": "calibration", "widening": 0.0},
    "sharpened": {"criterion": "sharpened", "widening": 0.0},
    "sharpened, widened by 0.5": {"criterion": "sharpened", "widening": 0.5},
    "sharpened, widened by 1": {"criterion": "sharpened", "widening": 1.0},
}
"""Ways to fit NED, by what the tables call them."""
RIVALS = ("1NN", "kNN", "WkNN (Dudani)", "WkNN (Gou)", "prototypes (softmax)", "prototypes (ratio)", "SharpNED")
VOTES = RIVALS[1:4]
DEFAULT = next(
    name for name, fit in FITS.items() if fit == {"criterion": DEFAULT_CRITERION, "widening": DEFAULT_WIDENING}
)
NAMES = {"cub200": "CUB-200-2011", "emoji": "emoji", "omniglot": "Omniglot"}
PAGE = DOCS / "results" / "ned-fits.md"

Ledger = dict[tuple[str, str], dict[str, Any]]


def share(triple: list[float], sign: str = "") -> str:
    """A value in percent with its interval."""
    value, low, high = (100 * number for number in triple)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def estimator_table(cells: dict[str, dict[str, Any]]) -> str:
    """Accuracy and ECE of all estimators on all data sets."""
    head = ["", *(f"{NAMES.get(name, name)}: {metric}" for name in cells for metric in ("accuracy", "ECE"))]
    rows = []
    for name in (*RIVALS, *FITS):
        row = [f"**{name}**" if name == DEFAULT else name]
        for cell in cells.values():
            means = cell["means"].get(name)
            row += ["–"] * 2 if means is None else [share(means[metric]) for metric in ("accuracy", "ECE")]
        rows.append(row)
    return table(head, rows)


def paired_table(cells: dict[str, dict[str, Any]]) -> str:
    """Differences of every fit to the vote with the lowest ECE, and to 1NN, on all data sets."""
    head = [""]
    for name, cell in cells.items():
        shown = NAMES.get(name, name)
        head += [f"{shown}: ECE minus that of {cell['best vote']}", f"{shown}: accuracy minus that of 1NN"]
    rows = []
    for name in FITS:
        row = [f"**{name}**" if name == DEFAULT else name]
        for cell in cells.values():
            row += [share(cell[column][name], "+") for column in ("ECE minus best vote", "accuracy minus 1NN")]
        rows.append(row)
    return table(head, rows)


def verdict(cells: dict[str, dict[str, Any]]) -> str:
    """What the paired intervals say of the default."""
    told = []
    for name, cell in cells.items():
        low, high = cell["ECE minus best vote"][DEFAULT][1:]
        ours, theirs = (cell["means"][each]["ECE"][0] for each in (DEFAULT, cell["best vote"]))
        shown = NAMES.get(name, name)
        word = "below" if high < 0 else "above" if low > 0 else "not told apart from"
        half = ", and at most half of it" if 2 * ours <= theirs else ""
        gained = cell["accuracy minus 1NN"][DEFAULT]
        right = "below" if gained[2] < 0 else "above" if gained[1] > 0 else "not told apart from"
        told.append(
            f"- **{shown}**: ECE {100 * ours:.1f}, {word} the {100 * theirs:.1f} of {cell['best vote']}, the best "
            f"vote{half}; accuracy {right} that of 1NN."
        )
    return "\n".join(told)


def learned_table(cells: dict[str, dict[str, Any]]) -> str:
    """Temperature and sharpness of every fit, means over divisions."""
    head = ["", *(f"{NAMES.get(name, name)}: {what}" for name in cells for what in ("T", "sharpness"))]
    rows = []
    for name in FITS:
        row = [name]
        for cell in cells.values():
            found = cell["learned"][name]
            row += [f"{sum(fit[key] for fit in found) / len(found):.3g}" for key in ("T", "sharpness")]
        rows.append(row)
    return table(head, rows)


def write_page(ledger: Ledger) -> None:
    """Write the page, if every part of a model is there."""
    names = sorted({name for name, _ in ledger}, key=lambda name: (name not in NAMES, name))
    clean, shifted = (
        {name: ledger[name, part] for name in names if (name, part) in ledger} for part in ("clean", "corrupted")
    )
    if not clean or clean.keys() != shifted.keys():
        return
    first, divisions = next(iter(shifted.values())), len(next(iter(clean.values()))["seeds"])
    corruptions, severities = ", ".join(first["corruptions"]), " and ".join(map(str, first["severities"]))
    sizes = "; ".join(
        f"{NAMES.get(name, name)}: {cell['classes']} unseen classes, {cell['support']:,} support items, "
        f"{cell['queries']:,} queries, {cell['model']}"
        for name, cell in clean.items()
    )
    text = f"""# How should NED be fitted?

What the criteria of [NED](../methods/ned.md#the-temperature) are worth on unseen classes, clean and corrupted. Written
by `python studies/ned_fits/run.py` from `studies/ned_fits/ledger.jsonl`.

Half of each unseen class is the support, the other half asks; {divisions} divisions, means in percent, 95 % intervals
over classes. T, sharpness, the usual distance and the votes' k are fitted to the clean support alone. {sizes}.

The models are heads on frozen features that [start whitened](../methods/start.md), trained by the default recipe; of
CUB-200-2011 the first 50 training classes trained it, and of Omniglot the first 60 characters, 80 others test. No
fine-tuned model has been measured yet: `--model RUN DATA` adds any run. Attacks are not part of this.

**{DEFAULT}** is the default of `NED`; galleries have the same, with class sizes taken out. Its widening of 0.5 was
chosen by these very tables, among 0, 0.5 and 1: that choice, unlike T and k, has seen the queries.

## Clean queries

{verdict(clean)}

{estimator_table(clean)}

Differences in points, paired: the same draws of classes for both.

{paired_table(clean)}

## Corrupted queries

Means over {len(first["corruptions"])} corruptions ({corruptions}) in the severities {severities}, {first["queries"]}
queries of the first division each.

{verdict(shifted)}

{estimator_table(shifted)}

{paired_table(shifted)}

## What was fitted

{learned_table(clean)}
"""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(f"\n{text}")
