"""Finding wrong labels: 5 % of the labels of real embeddings are made wrong, and the gallery is asked for suspects.

    python benchmarks/suspects.py            the table (a few minutes); writes benchmarks/suspects.json
    python benchmarks/suspects.py --check    exit code 0 only if every bar that was checked holds
    python benchmarks/suspects.py --quick    one draw of errors; nothing is written

The embeddings are those of unseen classes by the models of studies/ned/run.py, which must be in the cache already; a
data set whose model or images are missing is printed as not checked. A wrong label is any other class, each as likely.
Labels that were wrong before count as false alarms, so the figures are lower bounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the repository, to import studies

import numpy as np

from nearkin.data.catalogue import cache_directory
from nearkin.errors import NearkinError
from nearkin.gallery.calibration import fit_calibration
from nearkin.gallery.review import suspicious_labels
from nearkin.gallery.sqlite.store import SqliteStore
from nearkin.gallery.store import Record
from nearkin.gallery.values import Settings
from nearkin.spaces import Space
from studies.ned.run import RECIPES, open_subject

SHARE = 0.05
SEEDS = (10, 11, 12, 13, 14)
"""Draws of errors; the order of suspects was chosen on others (0, 1, 2)."""
DATA = ("cub200", "cifar100")
RESULT = Path(__file__).with_suffix(".json")

BARS: dict[str, tuple[str, str, float]] = {
    "cub200": ("precision of the first n suspects, n labels made wrong, CUB-200 (100 unseen classes)", ">=", 0.70),
    "cifar100": ("precision of the first n suspects, n labels made wrong, CIFAR-100 (50 unseen classes)", ">=", 0.37),
}


def inject(labels: np.ndarray, share: float, seed: int) -> tuple[list[str], np.ndarray]:
    """Labels (n,) of which a share is another class, and which these are, bools (n,)."""
    rng = np.random.default_rng(seed)
    names, codes = np.unique(labels.astype(str), return_inverse=True)
    wrong = np.zeros(len(codes), bool)
    wrong[rng.choice(len(codes), round(share * len(codes)), replace=False)] = True
    codes[wrong] = (codes[wrong] + rng.integers(1, len(names), int(wrong.sum()))) % len(names)
    return names[codes].tolist(), wrong


def measure(embeddings: np.ndarray, labels: np.ndarray, space: Space, seed: int) -> dict[str, float]:
    """How well suspects are the labels that were made wrong.

    Returns:
        "precision of the first n": of n suspects, where n labels are wrong; places left empty count as false alarms.
        "precision" and "recall": of all suspects. "suspects": how many there are over n. "accuracy": of the gallery.
    """
    noisy, wrong = inject(labels, SHARE, seed)
    points = np.ascontiguousarray(embeddings, np.float32)
    with TemporaryDirectory() as directory:
        settings = Settings("benchmark", points.shape[1], space.to_dict())
        store = SqliteStore.create(Path(directory) / "suspects.gallery", settings)
        store.write([Record(str(row), label) for row, label in enumerate(noisy)], points)
        calibration = fit_calibration(store, space)
        found = suspicious_labels(store, calibration, limit=len(points))
        store.close()
    hits = wrong[[int(suspect.item.id) for suspect in found]]
    n = int(wrong.sum())
    return {
        "precision of the first n": float(hits[:n].sum() / n),
        "precision": float(hits.mean()) if len(hits) else 0.0,
        "recall": float(hits.sum() / n),
        "suspects": len(found) / n,
        "accuracy": float(calibration.identification.accuracy or 0),
    }


def measure_data(data: str, seeds: tuple[int, ...], data_root: Path | None) -> dict[str, Any] | None:
    """Means over draws, and the draws; None where the model or the data is not at hand."""
    if not (cache_directory() / "ned" / RECIPES[data] / "card.json").exists():
        return None
    try:
        subject = open_subject(data, data_root)
    except (NearkinError, OSError):
        return None
    rows = [measure(subject.embeddings, subject.labels, subject.space, seed) for seed in seeds]
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {**means, "draws": [round(row["precision of the first n"], 4) for row in rows]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar that was checked holds")
    parser.add_argument("--quick", action="store_true", help="one draw of errors; nothing is written")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    figures = {data: measure_data(data, seeds, arguments.data_root) for data in DATA}
    print("\n| what | measured | all suspects: precision, recall | bar | |\n|---|---|---|---|---|")
    holds = True
    for data, (meaning, sign, bar) in BARS.items():
        cell = figures[data]
        if cell is None:
            print(f"| {meaning} | not checked: the model or the data is not at hand | | {sign} {bar:g} | |")
            continue
        met = cell["precision of the first n"] >= bar
        holds &= met
        print(
            f"| {meaning} | {cell['precision of the first n']:.3f} | {cell['precision']:.3f}, {cell['recall']:.3f} "
            f"| {sign} {bar:g} | {'holds' if met else 'FAILS'} |"
        )
    if not arguments.quick and all(figures.values()):
        machine = {"cpu": platform.processor() or platform.machine(), "numpy": np.__version__}
        RESULT.write_text(json.dumps({"machine": machine, "figures": figures, "bars": BARS}, indent=2) + "\n")
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
