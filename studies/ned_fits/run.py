"""How should NED be fitted? By likelihood, by calibration error, sharpened, and widened for queries that lie far away.

    python studies/ned_fits/run.py                  finish what is missing, write docs/results/ned-fits.md
    python studies/ned_fits/run.py --only cub200
    python studies/ned_fits/run.py --model runs/birds photos/     the same for a run of your own, as lines of its own
    python studies/ned_fits/run.py --embed          only train, embed and keep: all that takes long
    python studies/ned_fits/run.py --quick          one data set, one division, clean; neither ledger nor page change

A model is trained by the default recipe on training classes of each data set, and judged on its unseen classes: half
of each is the support, the other half asks, over three divisions. Corrupted queries are a fixed sample of the first
division; the support, T and k stay those of clean items. Nothing is fitted to queries: the votes' k too is the one that
names most support points right. Intervals resample classes, and those of differences are paired. Each finished cell is
a line of `ledger.jsonl`; a stopped run goes on where it was. Needs the data (NEARKIN_DATA or --data-root) and the
extras `train` and `audit`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np

from nearkin.api import fit_run
from nearkin.audits import Subject, subject_of_model
from nearkin.audits.calibration import OURS, PAPERS, fit_estimators, tables_of
from nearkin.audits.subject import divide, draw_rows
from nearkin.confidence import NED, Estimator
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.metrics.calibration import resample_means
from nearkin.recipe import load_recipe
from nearkin.training import Run
from studies.ned.run import rounded
from studies.ned_fits.page import DEFAULT, FITS, LIKELIHOOD, RIVALS, VOTES, write_page
from studies.places import located, models

SETS = ("cub200", "emoji", "omniglot")
FEWER = {"cub200": (50, 100), "omniglot": (60, 80)}
"""Sets of which only the first training and test classes are taken: embedding all of them takes much longer."""
SEEDS = (0, 1, 2)
QUERIES = 200
CORRUPTED = ("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression")
"""At least one of each family: noise, blur, weather and digital damage."""
SEVERITIES = (2, 4)
RESAMPLES = 2000
PARTS = ("clean", "corrupted")
LEDGER = located("studies/ned_fits/ledger.jsonl")


def open_set(name: str, root: Path | None) -> Dataset:
    """A data set, or the part of it that is measured."""
    folder = root or os.environ.get("NEARKIN_DATA")
    if not folder:
        raise SystemExit("Set NEARKIN_DATA, or give --data-root: the directory with the data sets.")
    dataset = open_data(Path(folder) / f"{name}.zip")
    if name not in FEWER:
        return dataset
    labels, part = dataset.labels, dataset.manifest.column("split")
    kept = [
        names[:most]
        for names, most in zip(
            (np.unique(labels[part == side]) for side in ("train", "test")), FEWER[name], strict=True
        )
    ]
    return dataset.select(np.flatnonzero(np.isin(labels, np.concatenate(kept))))


def open_subject(name: str, root: Path | None) -> Subject:
    """The unseen classes of a data set, embedded by a model of the default recipe, trained if it is not there yet."""
    run, dataset = Run(models() / "ned-fits" / name), open_set(name, root)
    if not (run.path / "card.json").exists():
        result = fit_run(dataset, load_recipe(), run, resume=run.exists)
        if result.interrupted:
            (run.path / "card.json").unlink(missing_ok=True)  # it says that the model is finished
            raise SystemExit(130)
    return embedded(run, dataset)


def embedded(run: Run, dataset: Dataset) -> Subject:
    """What a run did not train on, embedded by it."""
    return subject_of_model(run.model(), dataset, cache_directory=cache_directory() / "features", baseline=False)


def estimators_of(subject: Subject, support: np.ndarray) -> dict[str, Estimator]:
    """Votes, prototypes and every fit of NED, fitted to rows of the subject."""
    x, labels = subject.embeddings[support], subject.labels[support]
    found = fit_estimators(x, labels, subject.space)
    default, published = (found[name] for name in (OURS, PAPERS))
    assert isinstance(default, NED)
    given = {"temperature": default.temperature_, "sharpness": default.sharpness_}  # widening does not change them
    fits: dict[str, Estimator] = {}
    for name, parameters in FITS.items():
        if name in (DEFAULT, LIKELIHOOD):
            fits[name] = default if name == DEFAULT else published
        elif parameters["criterion"] == "sharpened":
            fits[name] = NED(space=subject.space, widening=parameters["widening"], **given).fit(x, labels)
        else:
            fits[name] = NED(space=subject.space, **parameters).fit(x, labels)
    return {name: found[name] for name in RIVALS if name in found} | fits


def clean_cell(subject: Subject, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Every estimator over the divisions."""
    tables: dict[str, list[np.ndarray]] = {}
    learned: dict[str, list[dict[str, float]]] = {name: [] for name in FITS}
    for seed in seeds:
        support, queries = divide(subject, seed)
        fitted = estimators_of(subject, support)
        for name, table in tables_of(fitted, subject.embeddings[queries], subject.labels[queries]).items():
            tables.setdefault(name, []).append(table)
        for name in FITS:
            learned[name].append(learned_by(fitted[name]))
    support, queries = divide(subject, seeds[0])
    return {
        "classes": len(np.unique(subject.labels)),
        "support": len(support),
        "queries": len(queries),
        "seeds": list(seeds),
        "learned": learned,
        **compared({name: np.array(found) for name, found in tables.items()}),
    }


def corrupted_cell(subject: Subject) -> dict[str, Any]:
    """Every estimator of the first division on corrupted queries."""
    support, queries = divide(subject, SEEDS[0])
    rows = draw_rows(queries, QUERIES, SEEDS[0])
    fitted = estimators_of(subject, support)
    tables: dict[str, list[np.ndarray]] = {}
    for name, severity in shifts():
        found = tables_of(fitted, embed_shifted(subject, name, severity, rows), subject.labels[rows])
        for estimator, table in found.items():
            tables.setdefault(estimator, []).append(table)
    whole = {name: np.array(found) for name, found in tables.items()}
    return {"queries": len(rows), "corruptions": list(CORRUPTED), "severities": list(SEVERITIES), **compared(whole)}


def shifts() -> list[tuple[str, int]]:
    """Corruptions and severities."""
    return [(name, severity) for name in CORRUPTED for severity in SEVERITIES]


def embed_shifted(subject: Subject, name: str, severity: int, rows: np.ndarray) -> np.ndarray:
    """Embeddings (r, d) of corrupted items; kept, so that a stopped run goes on."""
    assert subject.corrupted is not None
    return subject.corrupted(name, severity, rows)


def learned_by(ned: Estimator) -> dict[str, float]:
    """What a fit found."""
    assert isinstance(ned, NED)
    return {"T": ned.temperature_, "sharpness": ned.sharpness_, "usual": ned.widening_.usual}


def compared(tables: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Accuracy and ECE with intervals over classes of tables (sets, C, bins, 3), and paired differences.

    The fits of NED are compared with the vote that has the lowest ECE, and with 1NN.
    """
    found = {name: resample_means(table, resamples=RESAMPLES) for name, table in tables.items()}
    means = {
        name: {
            metric: [float(mean[place]), *np.quantile(np.clip(draws[place], 0, 1), (0.025, 0.975)).tolist()]
            for place, metric in enumerate(("accuracy", "ECE"))
        }
        for name, (mean, draws) in found.items()
    }
    best = min((name for name in VOTES if name in means), key=lambda name: means[name]["ECE"][0])
    return {
        "means": means,
        "best vote": best,
        "ECE minus best vote": {name: apart(found[name], found[best], 1) for name in found if name != best},
        "accuracy minus 1NN": {name: apart(found[name], found["1NN"], 0) for name in found if name != "1NN"},
    }


def apart(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray], place: int) -> list[float]:
    """The difference with its interval, from the same draws of classes."""
    value = float(ours[0][place] - theirs[0][place])
    return [value, *np.quantile(ours[1][place] - theirs[1][place], (0.025, 0.975)).tolist()]


def read_ledger() -> dict[tuple[str, str], dict[str, Any]]:
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return {(cell["name"], cell["part"]): cell for cell in map(json.loads, lines)}


def finish(name: str, subject: Subject, ledger: dict[tuple[str, str], dict[str, Any]], model: str) -> None:
    """Measure what the ledger lacks of a model."""
    for part in PARTS:
        if (name, part) in ledger:
            continue
        measured = clean_cell(subject, SEEDS) if part == "clean" else corrupted_cell(subject)
        ledger[name, part] = {"name": name, "part": part, "model": model, **rounded(measured)}
        with open(LEDGER, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(ledger[name, part]) + "\n")


def embed(subject: Subject) -> None:
    """All embeddings that `corrupted_cell` needs."""
    rows = draw_rows(divide(subject, SEEDS[0])[1], QUERIES, SEEDS[0])
    for name, severity in shifts():
        embed_shifted(subject, name, severity, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one data set, one division, clean")
    parser.add_argument("--embed", action="store_true", help="only train, embed and keep")
    parser.add_argument("--only", nargs="+", default=SETS, choices=SETS, help="only these data sets")
    parser.add_argument("--model", nargs=2, metavar=("RUN", "DATA"), help="a run of your own, on its unseen classes")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    ledger = read_ledger()
    if arguments.model:
        run = Run(Path(arguments.model[0]))
        subject = embedded(run, open_data(arguments.model[1], data_root=arguments.data_root))
        finish(run.path.resolve().name, subject, ledger, "a run of its own")
    for name in () if arguments.model else arguments.only[:1] if arguments.quick else arguments.only:
        if not arguments.quick and all((name, part) in ledger for part in PARTS):
            continue
        subject = open_subject(name, arguments.data_root)
        if arguments.quick:
            print(json.dumps(rounded(clean_cell(subject, SEEDS[:1])), indent=1))
        elif arguments.embed:
            embed(subject)
        else:
            finish(name, subject, ledger, "default recipe")
    if not (arguments.quick or arguments.embed):
        write_page(ledger)
    return 0


if __name__ == "__main__":
    sys.exit(main())
