"""The tables of the paper on NED, measured again on unseen classes, clean and corrupted, and with unknown classes.

    python studies/ned/run.py            finish what is missing (about 40 minutes), write docs/results/confidence.md
    python studies/ned/run.py --only "omniglot clean"
    python studies/ned/run.py --quick    one data set, one division; neither ledger nor page are touched

Each data set is held by a model trained by its recipe, kept in the cache. Half of each unseen class is the support, the
other half asks; this is repeated over seeds, and intervals resample the classes. Corrupted queries are a fixed sample
of 1,000 of the first division. Each finished cell is a line of `ledger.jsonl`; a stopped run goes on where it was.
Needs the data (NEARKIN_DATA or --data-root) and the extras `train` and `audit`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

import numpy as np

from nearkin.api import fit_run
from nearkin.audits import Subject, subject_of_model
from nearkin.audits.calibration import OURS, PAPERS, fit_estimators, tables_of, tell_strangers
from nearkin.audits.corruption import corrupted_tables
from nearkin.audits.subject import divide, draw_rows
from nearkin.confidence import NED, Estimator, NeighbourEstimator, evaluate, sweep_k
from nearkin.confidence.evaluation import USUAL_KS
from nearkin.data.catalogue import cache_directory
from nearkin.data.corruptions import CORRUPTIONS, SEVERITIES
from nearkin.data.sources import open_data
from nearkin.metrics.calibration import accuracy_and_ece, resample_means
from nearkin.spaces import Space
from nearkin.training import Run
from studies.ned.page import SHOWN, VOTES, estimator_table, verdict, write_page
from studies.places import located, models
from studies.random_start import load_recipe

RECIPES = {"cub200": "cub-frozen", "cifar100": "cifar100", "omniglot": "omniglot"}
SEEDS = (0, 1, 2, 3, 4)
QUERIES = 1000
RESAMPLES = 2000
PARTS = ("clean", "corrupted")
CELLS = [f"{data} {part}" for data in RECIPES for part in PARTS]
LEDGER = located("studies/ned/ledger.jsonl")


def open_subject(data: str, data_root: Path | None) -> Subject:
    """The unseen classes of a data set, embedded by the model of its recipe, trained if it is not there yet."""
    run, dataset = Run(models() / "ned" / RECIPES[data]), open_data(data, data_root=data_root)
    if not (run.path / "card.json").exists():
        result = fit_run(dataset, load_recipe(RECIPES[data]), run, resume=run.exists)
        if result.interrupted:
            (run.path / "card.json").unlink(missing_ok=True)  # it says that the model is finished
            raise SystemExit(130)
    return subject_of_model(run.model(), dataset, cache_directory=cache_directory() / "features", baseline=False)


def as_published(support: np.ndarray, labels: np.ndarray, space: Space) -> dict[str, Estimator]:
    """The estimators of an audit, with NED as its paper fits it in the place of ours."""
    found = fit_estimators(support, labels, space)
    return {OURS: found.pop(PAPERS)} | {name: estimator for name, estimator in found.items() if name != OURS}


def clean_cell(subject: Subject, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy and ECE of every estimator over divisions by seeds, and what else a clean division tells."""
    tables: dict[str, list[np.ndarray]] = {name: [] for name in SHOWN}
    more: dict[str, list[Any]] = {"temperature": [], "k": [], "unknown": [], "NLL": [], "AURC": []}
    for seed in seeds:
        support, queries = divide(subject, seed)
        fitted = as_published(subject.embeddings[support], subject.labels[support], subject.space)
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
    fitted = as_published(x[support], labels[support], subject.space)
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
    fitted = as_published(subject.embeddings[support], subject.labels[support], subject.space)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one data set, one division, no corruption")
    parser.add_argument("--only", nargs="+", default=[], choices=CELLS, help="only these cells; writes no page")
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
        for part, measure in zip(PARTS, (clean_cell, corrupted_cell), strict=True):
            if (data, part) in ledger or (arguments.only and f"{data} {part}" not in arguments.only):
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
    if not arguments.only:
        write_page(ledger, QUERIES, len(SEEDS))
    print("\n".join(verdict(data, ledger[data, "clean"]) for data in RECIPES if (data, "clean") in ledger))
    return 0


if __name__ == "__main__":
    sys.exit(main())
