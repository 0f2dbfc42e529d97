"""NED behind other losses, and at every k: table 4, figures 1 and 2 of its paper, on unseen birds of CUB-200-2011.

    python studies/ned_losses/run.py            finish what is missing (some minutes)
    python studies/ned_losses/run.py --quick    one loss, one division; the ledger is not touched

A head on the cached features of a frozen EfficientNet-Lite0 is trained by each of the losses that the paper has: the
normalised softmax of its tables 1 and 2, and the three of its appendix. Half of each unseen class is the support, the
other half asks, as in `ned`; divisions are repeated over seeds, and intervals resample the classes. What is kept of
every k is how many queries of each class were named right. Each finished loss is a line of `ledger.jsonl`; a run
that is stopped goes on where it was. Needs the data: NEARKIN_DATA or --data-root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.api import fit_run
from nearkin.audits import Subject, subject_of_model
from nearkin.audits.calibration import OURS, tables_of
from nearkin.audits.subject import divide
from nearkin.confidence import NeighbourEstimator
from nearkin.confidence.evaluation import USUAL_KS
from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.metrics.labels import label_codes
from nearkin.search import exact
from nearkin.training import Run
from studies.cub_frozen.run import SETTINGS
from studies.ned.page import VOTES
from studies.ned.run import RESAMPLES, SEEDS, as_published, compared, rounded
from studies.places import located
from studies.random_start import load_recipe

LOSSES = ("normalized-softmax", "triplet", "n-pairs", "proxy-nca")
"""Recipes; the triplets are semi-hard."""
SHOWN = ("1NN", *VOTES, OURS)
MODEL_SEED = 0
SMALLEST_BIN = 0.01
"""Share of the queries that a bin must hold to be looked at by itself."""
LEDGER = located("studies/ned_losses/ledger.jsonl")


def run_loss(dataset: Any, loss: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Train a head and let every estimator answer for it."""
    recipe = load_recipe(loss, [*SETTINGS, f"training.seed={MODEL_SEED}"])
    with tempfile.TemporaryDirectory() as folder:
        result = fit_run(dataset, recipe, Run(Path(folder) / "run"), progress=True)
    subject = subject_of_model(
        result.embedder, dataset, cache_directory=cache_directory() / "features", baseline=False, progress=True
    )
    return {"loss": loss, "seconds": round(result.state.seconds, 1), **answers(subject, seeds)}


def answers(subject: Subject, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy, ECE, sums by class, and hits by class at every k, over divisions by seeds."""
    tables: dict[str, list[np.ndarray]] = {name: [] for name in SHOWN}
    hits: dict[str, dict[str, np.ndarray]] = {name: {} for name in (*VOTES, OURS)}
    ks, temperatures = [], []
    for seed in seeds:
        support, queries = divide(subject, seed)
        fitted = as_published(subject.embeddings[support], subject.labels[support], subject.space)
        fitted = {name: fitted[name] for name in SHOWN}
        for name, table in tables_of(fitted, subject.embeddings[queries], subject.labels[queries]).items():
            tables[name].append(table)
        ks.append({name: fitted[name].k for name in VOTES})
        temperatures.append(fitted[OURS].temperature_)
        for name in hits:
            for k, found in hits_by_k(fitted[name], subject, support, queries).items():
                hits[name][k] = hits[name].get(k, 0) + found
    stacked = {name: np.array(found) for name, found in tables.items()}
    by_class = {name: found.sum(axis=(0, 2)) for name, found in stacked.items()}
    return rounded(
        {
            "seeds": list(seeds),
            **compared(stacked),
            "worst bin minus NED": worst_bins({name: found.sum(axis=0) for name, found in stacked.items()}),
            "asked by class": by_class[OURS][:, 0].astype(int).tolist(),
            "confidence by class": {name: found[:, 1].tolist() for name, found in by_class.items()},
            "hits by class": {name: found[:, 2].astype(int).tolist() for name, found in by_class.items()},
            "hits by class and k": {
                name: {k: found.astype(int).tolist() for k, found in by_k.items()} for name, by_k in hits.items()
            },
            "k": ks,
            "temperature": temperatures,
        }
    )


def worst_bins(tables: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """The greatest gap of a bin between confidence and accuracy, minus NED's, with its interval over classes.

    Args:
        tables: counts, sums of confidence and hits by class and bin, (C, bins, 3), the same classes in all.
    """
    classes = len(tables[OURS])
    times = np.random.default_rng(0).multinomial(classes, np.full(classes, 1 / classes), size=RESAMPLES)
    found, drawn = {}, {}
    for name, table in tables.items():
        kept = table[:, table[..., 0].sum(axis=0) >= SMALLEST_BIN * table[..., 0].sum()]
        found[name] = float(_worst(kept.sum(axis=0)))
        # Resamples have more noise in their bins than the data: moved back by their mean excess, as ECE's are.
        draws = _worst((times @ kept.reshape(classes, -1)).reshape(RESAMPLES, -1, 3))
        drawn[name] = draws - draws.mean() + found[name]
    return {
        name: [found[name] - found[OURS], *np.quantile(drawn[name] - drawn[OURS], (0.025, 0.975)).tolist()]
        for name in tables
        if name != OURS
    }


def _worst(sums: np.ndarray) -> np.ndarray:
    """The greatest gap (...,) of bins (..., bins, 3)."""
    return (np.abs(sums[..., 2] - sums[..., 1]) / np.maximum(sums[..., 0], 1)).max(axis=-1)


def hits_by_k(
    estimator: NeighbourEstimator, subject: Subject, support: np.ndarray, queries: np.ndarray
) -> dict[str, np.ndarray]:
    """Queries of each class that are named right (C,), at every k, what is fitted being fitted anew."""
    x, labels = subject.embeddings, subject.labels
    own = exact(x[support], k=USUAL_KS[-1], space=estimator.space)
    near = exact(x[queries], x[support], k=USUAL_KS[-1], space=estimator.space)
    (codes,) = label_codes(labels[queries])
    found = {}
    for k in USUAL_KS:
        at_k = estimator.with_k(k).fit(x[support], labels[support], neighbours=(own[0][:, :k], own[1][:, :k]))
        right = at_k.predict_proba(near[0][:, :k], near[1][:, :k]).labels == labels[queries]
        found[str(k)] = np.bincount(codes, weights=right)
    return found


def read_ledger() -> dict[str, dict[str, Any]]:
    """Loss to what was found."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return {line["loss"]: line for line in map(json.loads, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one loss, one division; the ledger is not touched")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    dataset = open_data("cub200", data_root=arguments.data_root)
    if arguments.quick:
        print(json.dumps(run_loss(dataset, LOSSES[0], SEEDS[:1])["means"], indent=2))
        return 0
    for loss in LOSSES:
        if loss not in read_ledger():
            line = run_loss(dataset, loss, SEEDS)
            with open(LEDGER, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(loss, {name: found["ECE"][0] for name, found in line["means"].items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
