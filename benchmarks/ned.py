"""The seed's tables for NED on unseen classes: accuracy and calibration, clean and corrupted, and unknown classes.

    python benchmarks/ned.py            finish what is missing (about 40 minutes), write docs/results/confidence.md
    python benchmarks/ned.py --quick    one data set, one division; neither ledger nor page are touched

Each data set is held by a model trained by its recipe, kept in the cache. Half of each unseen class is the support, the
other half asks; this is repeated over seeds, and intervals resample the classes. Corrupted queries are a fixed sample
of 1,000 of the first division. Each finished cell is a line of `ned.jsonl`; a run that is stopped goes on where it was.
Needs the data (NEARKIN_DATA or --data-root) and the extras `train` and `audit`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nearkin.api import fit_run
from nearkin.audits import Subject, subject_of_model
from nearkin.audits.calibration import OURS, fit_estimators, tell_strangers
from nearkin.audits.confidence_pictures import draw_severities
from nearkin.audits.corruption import corrupted_tables, draw_rows, tables_of
from nearkin.audits.division import divide
from nearkin.confidence import NED, NeighbourEstimator, evaluate, sweep_k
from nearkin.confidence.evaluation import USUAL_KS
from nearkin.data.catalogue import cache_directory
from nearkin.data.corruptions import CORRUPTIONS, SEVERITIES
from nearkin.data.sources import open_data
from nearkin.metrics.binned import accuracy_and_ece, resample_means
from nearkin.recipe import load_recipe
from nearkin.report import draw_reliability, draw_sensitivity
from nearkin.training import Run

RECIPES = {"cub200": "cub-frozen", "cifar100": "cifar100", "omniglot": "omniglot"}
NAMES = {"cub200": "CUB-200-2011", "cifar100": "CIFAR-100", "omniglot": "Omniglot"}
SEEDS = (0, 1, 2, 3, 4)
QUERIES = 1000
RESAMPLES = 2000
LEDGER = Path(__file__).with_suffix(".jsonl")
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "results" / "confidence.md"
SHOWN = (
    "1NN",
    "kNN",
    "WkNN (Dudani)",
    "WkNN (Gou)",
    OURS,
    "NED, sharpened",
    "prototypes (softmax)",
    "prototypes (ratio)",
)
VOTES = ("kNN", "WkNN (Dudani)", "WkNN (Gou)")


def open_subject(data: str, data_root: Path | None) -> Subject:
    """The unseen classes of a data set, embedded by the model of its recipe, trained if it is not there yet."""
    run, dataset = Run(cache_directory() / "ned" / RECIPES[data]), open_data(data, data_root=data_root)
    if not (run.path / "card.json").exists():
        fit_run(dataset, load_recipe(RECIPES[data]), run, resume=run.exists)
    return subject_of_model(run.model(), dataset, cache_directory=cache_directory() / "features", baseline=False)


def clean_cell(subject: Subject, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy and ECE of every estimator over divisions by seeds, and what else a clean division tells."""
    tables: dict[str, list[np.ndarray]] = {name: [] for name in SHOWN}
    more: dict[str, list[Any]] = {"temperature": [], "k": [], "unknown": [], "NLL": [], "AURC": []}
    for seed in seeds:
        support, queries = divide(subject, seed)
        fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
        x, truth = subject.embeddings[queries], subject.labels[queries]
        for name, table in tables_of(fitted, x, truth).items():
            tables[name].append(table)
        more["temperature"].append(fitted[OURS].temperature_)
        more["k"].append({name: fitted[name].k for name in VOTES})
        results = {name: evaluate(estimator.predict(x), truth).values for name, estimator in fitted.items()}
        for metric in ("NLL", "AURC"):
            more[metric].append({name: values[metric] for name, values in results.items()})
        strangers = tell_strangers(subject, support, queries, seed)
        more["unknown"].append({name: result.values for name, result in strangers.items()})
    support, queries = divide(subject, seeds[0])
    return {
        "support": len(support),
        "queries": len(queries),
        "classes": len(np.unique(subject.labels)),
        "seeds": list(seeds),
        **compared({name: np.array(found) for name, found in tables.items()}),
        **more,
        "bandwidths": bandwidths(subject, support),
        "sweep": sweep(subject, support, queries),
    }


def compared(tables: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means with intervals over classes, and those of the differences to NED, of tables (sets, C, bins, 3)."""
    found = {name: resample_means(table, resamples=RESAMPLES) for name, table in tables.items()}
    values, draws = found[OURS]
    means, differences = {}, {}
    for name, (mean, drawn) in found.items():
        means[name] = {
            metric: [float(mean[place]), *np.quantile(np.clip(drawn[place], 0, 1), (0.025, 0.975)).tolist()]
            for place, metric in enumerate(("accuracy", "ECE"))
        }
        if name != OURS:
            apart = drawn - draws
            differences[name] = {
                metric: [float(mean[place] - values[place]), *np.quantile(apart[place], (0.025, 0.975)).tolist()]
                for place, metric in enumerate(("accuracy", "ECE"))
            }
    first = {name: table[0].sum(axis=0).tolist() for name, table in tables.items()}
    return {"means": means, "minus NED": differences, "reliability": first}


def bandwidths(subject: Subject, support: np.ndarray) -> dict[str, Any]:
    """Whether a bandwidth for each class is likelier than a shared one, on points neither was fitted to."""
    ned = NED(space=subject.space, bandwidth="auto").fit(subject.embeddings[support], subject.labels[support])
    assert ned.comparison_ is not None
    return {"shared": ned.comparison_.shared, "per class": ned.comparison_.per_class, "winner": ned.comparison_.winner}


def sweep(subject: Subject, support: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Accuracy and ECE of all estimators over neighbours, at every k."""
    x, labels = subject.embeddings, subject.labels
    fitted = fit_estimators(x[support], labels[support], subject.space)
    neighbours = {name: found for name, found in fitted.items() if isinstance(found, NeighbourEstimator)}
    found = sweep_k(neighbours, x[support], labels[support], x[queries], labels[queries], ks=USUAL_KS)
    return {
        name: {str(k): [result.values["accuracy"], result.values["ECE"]] for k, result in by_k.items()}
        for name, by_k in found.items()
    }


def corrupted_cell(subject: Subject, severities: tuple[int, ...]) -> dict[str, Any]:
    """The same estimators on corrupted queries, with clean support and clean temperature."""
    support, queries = divide(subject, SEEDS[0])
    rows = draw_rows(queries, QUERIES, SEEDS[0])
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    clean = tables_of(fitted, subject.embeddings[rows], subject.labels[rows])
    tables = corrupted_tables(subject, fitted, rows, severities)
    cells = {name: np.stack(accuracy_and_ece(table.sum(axis=2))) for name, table in tables.items()}
    flat = {name: table.reshape(-1, *table.shape[2:]) for name, table in tables.items()}
    found = compared(flat)
    return {
        "queries": len(rows),
        "severities": list(severities),
        "means": found["means"],
        "minus NED": found["minus NED"],
        "clean": {name: np.stack(accuracy_and_ece(table.sum(axis=0))).tolist() for name, table in clean.items()},
        "by severity": {name: cell.mean(axis=1).tolist() for name, cell in cells.items()},
        "by corruption": {name: dict(zip(CORRUPTIONS, cell.mean(axis=2).T.tolist(), strict=True))
                          for name, cell in cells.items()},
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Five digits are more than the data has."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read_ledger() -> dict[tuple[str, str], dict[str, Any]]:
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return {(cell["data"], cell["part"]): cell for cell in map(json.loads, lines)}


def share(triple: list[float], sign: str = "") -> str:
    value, low, high = (100 * number for number in triple)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def estimator_table(cells: dict[str, dict[str, Any]]) -> str:
    header = ["", *(f"{NAMES[data]}: {metric}" for data in cells for metric in ("accuracy", "ECE"))]
    rows = []
    for name in SHOWN:
        row = [f"**{name}**" if name == OURS else name]
        for cell in cells.values():
            row += [share(cell["means"][name][metric]) for metric in ("accuracy", "ECE")]
        rows.append(row)
    return table(header, rows)


def unknown_table(cells: dict[str, dict[str, Any]]) -> str:
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


def verdict(data: str, cell: dict[str, Any]) -> str:
    """Whether the seed's claims hold, from the intervals alone."""
    ours = cell["means"][OURS]
    rival = min(("1NN", *VOTES), key=lambda name: cell["means"][name]["ECE"][0])
    factor = cell["means"][rival]["ECE"][0] / ours["ECE"][0]
    apart = cell["minus NED"][rival]["ECE"]
    first = cell["minus NED"]["1NN"]["accuracy"]
    lowest = "lower, beyond doubt" if apart[1] > 0 else ("higher, beyond doubt" if apart[2] < 0 else "not told apart")
    gain = "more" if first[2] < 0 else ("fewer" if first[1] > 0 else "about as many")
    theirs = 100 * cell["means"][rival]["ECE"][0]
    return (
        f"- **{NAMES[data]}**: NED's ECE is {100 * ours['ECE'][0]:.1f}, that of the best vote ({rival}) {theirs:.1f}, "
        f"a factor of {factor:.1f} ({lowest}: difference {share(apart, '+')} points). NED names {gain} queries right "
        f"than 1NN ({share([-first[0], -first[2], -first[1]], '+')} points)."
    )


def flatness(cells: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name in ("kNN", "WkNN (Dudani)", "WkNN (Gou)", OURS):
        row = [name]
        for cell in cells.values():
            large = {int(k): values for k, values in cell["sweep"][name].items() if int(k) >= 10}
            for place in (0, 1):
                values = [100 * pair[place] for pair in large.values()]
                row.append(f"{min(values):.1f} to {max(values):.1f}")
        rows.append(row)
    header = ["k from 10 to 200", *(f"{NAMES[d]}: {m}" for d in cells for m in ("accuracy", "ECE"))]
    return table(header, rows)


def write_page(ledger: dict[tuple[str, str], dict[str, Any]]) -> None:
    clean = {data: ledger[data, "clean"] for data in RECIPES if (data, "clean") in ledger}
    shifted = {data: ledger[data, "corrupted"] for data in RECIPES if (data, "corrupted") in ledger}
    pictures = draw(clean, shifted)
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
    text = f"""# How sure is it? NED on unseen classes

Written by `python benchmarks/ned.py` from `benchmarks/ned.jsonl`; nothing here was typed in.

Every model is trained by its recipe ({", ".join(f"`{RECIPES[data]}`" for data in clean)}) and judged on classes it has never seen. Half of each class is the support, the other half asks;
{len(SEEDS)} divisions. Means over divisions in percent, with 95 % intervals that resample the classes. The votes have the k that names most support points right, each left out in
turn; NED has k = 200 and a temperature fitted on the support. {sizes}.

## Clean queries

{estimator_table(clean)}

{chr(10).join(verdict(data, cell) for data, cell in clean.items())}

![Reliability of all estimators on the unseen birds](../images/{pictures["reliability"]})

*CUB-200-2011, first division.*

## How much k matters

{flatness(clean)}

![Accuracy and ECE against k on the unseen birds](../images/{pictures["sensitivity"]})

*CUB-200-2011, first division; NED's temperature is fitted anew for each k.*

## Corrupted queries

Means over {len(CORRUPTIONS)} corruptions and {len(SEVERITIES)} severities of {QUERIES:,} queries of the first division; support and temperature are the clean ones.

{estimator_table(shifted)}

{chr(10).join(verdict(data, cell) for data, cell in shifted.items())}

![Accuracy and ECE against the severity of corruption, unseen birds](../images/{pictures["severity"]})

*CUB-200-2011, means over the corruptions; severity 0 is clean.*

## Unknown classes

A random half of the unseen classes has no support, another half for each division; scores should tell their queries. Means over {len(SEEDS)} divisions, with the 95 % interval over these.

{unknown_table(clean)}

## A bandwidth for each class?

The seed's eq. 18 gives every class a temperature of its own. Mean log-likelihood of support points that the temperatures were not fitted to: {wins}.
"""  # noqa: E501
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(f"\n{text}")


def draw(clean: dict[str, dict[str, Any]], shifted: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The page's pictures, by kind to file name."""
    cell = clean["cub200"]
    edges = np.arange(16) / 15
    curves, ks = {}, [int(k) for k in cell["sweep"][OURS]]
    for name, sums in cell["reliability"].items():
        counts, confidence, hits = np.array(sums).T
        held = np.where(counts > 0, counts, np.nan)
        curves[name] = (edges, counts.astype(int), confidence / held, hits / held)
    lines = {
        metric: {name: np.array([by_k[str(k)][place] for k in ks]) for name, by_k in cell["sweep"].items()}
        for place, metric in enumerate(("accuracy", "ECE"))
    }
    drawn: dict[str, Callable[[], bytes]] = {
        "reliability": lambda: draw_reliability(
            curves,
            errors={name: float(accuracy_and_ece(np.array(sums))[1]) for name, sums in cell["reliability"].items()},
        ),
        "sensitivity": lambda: draw_sensitivity(ks, lines["accuracy"], lines["ECE"]),
    }
    if "cub200" in shifted:
        part = shifted["cub200"]
        by_severity = {
            name: tuple(np.append(was, now) for was, now in zip(part["clean"][name], values, strict=True))
            for name, values in part["by severity"].items()
        }
        drawn["severity"] = lambda: draw_severities(part["severities"], by_severity).png
    for kind, make in drawn.items():
        (DOCS / "images" / f"confidence-{kind}.png").write_bytes(make())
    return {kind: f"confidence-{kind}.png" for kind in ("reliability", "sensitivity", "severity")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one data set, one division, one severity of corruption")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    if arguments.quick:
        cell = clean_cell(open_subject("cub200", arguments.data_root), SEEDS[:1])
        print(estimator_table({"cub200": cell}))
        print(verdict("cub200", cell) + " (One division; corruption and the other data sets are not checked.)")
        return 0
    ledger = read_ledger()
    for data in RECIPES:
        subject = None
        for part, measure in (("clean", clean_cell), ("corrupted", corrupted_cell)):
            if (data, part) in ledger:
                continue
            subject = subject or open_subject(data, arguments.data_root)
            values = SEEDS if part == "clean" else SEVERITIES
            ledger[data, part] = {
                "data": data,
                "part": part,
                "recipe": RECIPES[data],
                **rounded(measure(subject, values)),
            }
            with open(LEDGER, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(ledger[data, part]) + "\n")
    write_page(ledger)
    return 0


if __name__ == "__main__":
    sys.exit(main())
