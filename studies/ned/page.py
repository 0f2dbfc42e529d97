"""The page that `studies/ned/run.py` writes: tables, verdicts and pictures from its ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from nearkin.audits.calibration import OURS
from nearkin.data.corruptions import CORRUPTIONS
from nearkin.metrics.calibration import accuracy_and_ece
from nearkin.report import draw_reliability, draw_sensitivity, draw_shift
from studies.places import DOCS

NAMES = {"cub200": "CUB-200-2011", "cifar100": "CIFAR-100", "omniglot": "Omniglot"}
SHOWN = (
    "1NN",
    "kNN",
    "WkNN (Dudani)",
    "WkNN (Gou)",
    OURS,
    "SharpNED",
    "prototypes (softmax)",
    "prototypes (ratio)",
)
VOTES = ("kNN", "WkNN (Dudani)", "WkNN (Gou)")
FACTOR = 2.0
"""How many times lower NED's ECE is than a vote's, as the paper finds."""
PAGE = DOCS / "results" / "confidence.md"

Cells = dict[str, dict[str, Any]]


def share(triple: list[float], sign: str = "") -> str:
    value, low, high = (100 * number for number in triple)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def estimator_table(cells: Cells) -> str:
    header = ["", *(f"{NAMES[data]}: {metric}" for data in cells for metric in ("accuracy", "ECE"))]
    rows = []
    for name in SHOWN:
        row = [f"**{name}**" if name == OURS else name]
        for cell in cells.values():
            row += [share(cell["means"][name][metric]) for metric in ("accuracy", "ECE")]
        rows.append(row)
    return table(header, rows)


def unknown_table(cells: Cells) -> str:
    rows = []
    for score in cells[next(iter(cells))]["unknown"][0]:
        row = [score]
        for cell in cells.values():
            for metric in ("AUROC", "FPR@95TPR", "OSCR"):
                values = np.array([found[score][metric] for found in cell["unknown"]])
                half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
                row.append(f"{100 * values.mean():.1f} ± {100 * half:.1f}")
        rows.append(row)
    header = ["score", *(f"{NAMES[data]}: {metric}" for data in cells for metric in ("AUROC", "FPR@95TPR", "OSCR"))]
    return table(header, rows)


def k_table(cells: Cells) -> str:
    rows = []
    for name in (*VOTES, OURS, "SharpNED"):
        row = [name]
        for cell in cells.values():
            large = [pair for k, pair in cell["sweep"][name].items() if int(k) >= 10]
            for place in (0, 1):
                values = [100 * pair[place] for pair in large]
                row.append(f"{min(values):.1f} to {max(values):.1f}")
        rows.append(row)
    header = ["k from 10 to 200", *(f"{NAMES[data]}: {metric}" for data in cells for metric in ("accuracy", "ECE"))]
    return table(header, rows)


def best_vote(cell: dict[str, Any]) -> str:
    return min(("1NN", *VOTES), key=lambda name: cell["means"][name]["ECE"][0])


def verdict(data: str, cell: dict[str, Any]) -> str:
    """What the intervals say of NED against the vote with the lowest ECE, and against 1NN."""
    rival = best_vote(cell)
    ours, theirs = (100 * cell["means"][name]["ECE"][0] for name in (OURS, rival))
    apart, first = cell["minus NED"][rival]["ECE"], cell["minus NED"]["1NN"]["accuracy"]
    gain = [-first[0], -first[2], -first[1]]
    nearer = [-apart[0], -apart[2], -apart[1]]
    factor = f", a factor of {theirs / ours:.1f}" if theirs > ours else ""
    return (
        f"- **{NAMES[data]}**: ECE {ours:.1f} of NED against {theirs:.1f} of {rival}, the best vote: "
        f"{share(nearer, '+')} points{factor}. Accuracy against 1NN: {share(gain, '+')} points."
    )


def claims(clean: Cells, shifted: Cells) -> str:
    """The paper's claims, each with the data sets on which it holds here."""

    def where(cells: Cells, holds: Callable[[dict[str, Any]], bool]) -> str:
        kept = [NAMES[data] for data, cell in cells.items() if holds(cell)]
        return f"{len(kept)} of {len(cells)}" + (f" ({', '.join(kept)})" if 0 < len(kept) < len(cells) else "")

    def accurate(cell: dict[str, Any]) -> bool:
        return cell["minus NED"]["1NN"]["accuracy"][2] < 0

    def lowest(cell: dict[str, Any]) -> bool:
        return cell["minus NED"][best_vote(cell)]["ECE"][1] > 0

    def twice(cell: dict[str, Any]) -> bool:
        return cell["means"][best_vote(cell)]["ECE"][0] >= FACTOR * cell["means"][OURS]["ECE"][0]

    def flat(cell: dict[str, Any]) -> bool:
        spreads = {}
        for name in (*VOTES, OURS):
            values = [pair[1] for k, pair in cell["sweep"][name].items() if int(k) >= 10]
            spreads[name] = max(values) - min(values)
        return min(spreads, key=lambda name: spreads[name]) == OURS

    rows = [
        ["NED names more queries right than 1NN", where(clean, accurate), where(shifted, accurate)],
        ["NED has a lower ECE than 1NN and every vote", where(clean, lowest), where(shifted, lowest)],
        [f"... by a factor of {FACTOR:g} or more", where(clean, twice), where(shifted, twice)],
        ["NED's ECE varies less with k, from 10 to 200, than that of every vote", where(clean, flat), "not measured"],
    ]
    return table(["the paper's claim", "holds on, clean", "holds on, corrupted"], rows)


def write_page(ledger: dict[tuple[str, str], dict[str, Any]], queries: int, seeds: int) -> None:
    clean = {data: ledger[data, "clean"] for data in NAMES}
    shifted = {data: ledger[data, "corrupted"] for data in NAMES}
    sizes = "; ".join(
        f"{NAMES[data]}: {cell['classes']} unseen classes, {cell['support']:,} support items, "
        f"{cell['queries']:,} queries"
        for data, cell in clean.items()
    )
    wins = "; ".join(
        f"{NAMES[data]} {cell['bandwidths']['winner']} ({cell['bandwidths']['shared']:.3f} shared, "
        f"{cell['bandwidths']['per class']:.3f} per class)"
        for data, cell in clean.items()
    )
    recipes = ", ".join(f"`{cell['recipe']}`" for cell in clean.values())
    pictures = draw(clean["cub200"], shifted["cub200"])
    text = f"""# How sure is it? NED on unseen classes

What the paper on NED (see [NED and its relatives](../methods/ned.md)) finds, measured again. Written by
`python studies/ned/run.py` from `studies/ned/ledger.jsonl`.

Every model is trained by its recipe ({recipes}) and judged on classes it has never seen. Half of each class is the
support, the other half asks; {seeds} divisions. Means over divisions in percent, with 95 % intervals that resample the
classes. The votes have the k that names most support points right, each left out in turn; NED is the paper's, with
k = 200 and a temperature fitted on the support by likelihood ([other ways to fit it](ned-fits.md)). {sizes}.

{claims(clean, shifted)}

The paper (Karpusha, Yun, Fehervari) reports on CUB-200-2011, with a model that was fine-tuned throughout and is far
more accurate: 1NN 67.2, kNN 73.8 (ECE 9.2), both weighted votes 74.3 (ECE 20.5 and 20.7), NED 74.9 (ECE 2.4).

## Clean queries

{estimator_table(clean)}

{_lines(verdict(data, cell) for data, cell in clean.items())}

![Reliability of all estimators on the unseen birds](../images/{pictures["reliability"]})

*CUB-200-2011, first division.*

## How much k matters

The first division of each data set; NED's temperatures are fitted anew for each k.

{k_table(clean)}

![Accuracy and ECE against k on the unseen birds](../images/{pictures["sensitivity"]})

*CUB-200-2011. In the tables above the votes' k is chosen by accuracy; at another k they may be better calibrated.*

## Corrupted queries

Means over {len(CORRUPTIONS)} corruptions and 5 severities of {queries:,} queries of the first division; support and
temperature are the clean ones. The strengths are made for images of about 224 pixels: on those of 32 pixels (CIFAR-100)
they are harsher.

{estimator_table(shifted)}

{_lines(verdict(data, cell) for data, cell in shifted.items())}

![Accuracy and ECE against the severity of corruption, unseen birds](../images/{pictures["severity"]})

*CUB-200-2011, means over the corruptions.*

## Unknown classes

A random half of the unseen classes has no support, another half in each division; scores should tell their queries.
Means over {seeds} divisions, with the 95 % interval over these.

{unknown_table(clean)}

## A bandwidth for each class?

Eq. 18 of the paper gives every class a temperature of its own. Mean log-likelihood of support points that the
temperatures were not fitted to: {wins}.
"""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(f"\n{text}")


def _lines(parts: Any) -> str:
    return "\n".join(parts)


def draw(clean: dict[str, Any], shifted: dict[str, Any]) -> dict[str, str]:
    """The page's pictures of one data set, by kind to file name."""
    edges, curves, errors = np.arange(16) / 15, {}, {}
    for name, sums in clean["reliability"].items():
        counts, confidence, hits = np.array(sums).T
        held = np.where(counts > 0, counts, np.nan)
        curves[name] = (edges, counts.astype(int), confidence / held, hits / held)
        errors[name] = float(accuracy_and_ece(np.array(sums))[1])
    ks = [int(k) for k in clean["sweep"][OURS]]
    lines = [
        {name: np.array([by_k[str(k)][place] for k in ks]) for name, by_k in clean["sweep"].items()} for place in (0, 1)
    ]
    by_severity = {
        name: tuple(np.append(was, now) for was, now in zip(shifted["clean"][name], values, strict=True))
        for name, values in shifted["by severity"].items()
    }
    drawn = {
        "reliability": draw_reliability(curves, errors=errors),
        "sensitivity": draw_sensitivity(ks, *lines),
        "severity": draw_shift(shifted["severities"], by_severity),
    }
    for kind, picture in drawn.items():
        (DOCS / "images" / f"confidence-{kind}.png").write_bytes(picture)
    return {kind: f"confidence-{kind}.png" for kind in drawn}
