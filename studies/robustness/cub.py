"""NED and votes on unseen birds under attack: table 3 of Karpusha, Yun, Fehervari, on 200 images of CUB-200-2011."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.attacks import PixelEmbedder, class_codes, classifier_of_estimator
from nearkin.attacks.library import published_attack
from nearkin.attacks.region import Unit
from nearkin.audits.calibration import OURS, tables_of
from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.sources import open_data
from nearkin.data.splits import resolve_split
from nearkin.metrics.calibration import mean_intervals
from nearkin.metrics.labels import halves
from nearkin.models import PixelReader
from nearkin.training import Run, train
from studies.ned.run import as_published
from studies.robustness.measures import draw
from studies.unified.parts import ANCHOR, Cell

IMAGES = 200
EPSILONS = (0.1, 0.3)
"""Of normalised inputs, as the table is read here; its paper names no unit."""
SMALL = (0.01,)
"""Far below those, in search of a size at which something is left to compare."""
ATTACKS = {"FGSM": ("fgsm", None, None), "BIM": ("bim", 10, 0.02), "PGD": ("pgd", 40, 0.01)}
"""Name to attack, steps and length of a step; at the small epsilons steps are a tenth as long."""
ESTIMATORS = ("1NN", "kNN", "WkNN (Dudani)", "WkNN (Gou)", OURS)
SEED = 0


def run_cub(data_root: Path | None, lines: Sequence[Mapping[str, Any]], keep: Callable[[dict[str, Any]], None]) -> None:
    """Train the head, fit the estimators to half of each unseen class, and attack images of the other half."""
    if any(line["part"] == "cub" for line in lines):
        return
    dataset = open_data("cub200", data_root=data_root)
    recipe = Cell("cub", ANCHOR, SEED).recipe()
    split = resolve_split(dataset.manifest, recipe.data, SEED)
    cache = cache_directory() / "features"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(dataset, recipe, run, source="benchmark", cache_directory=cache, split=split, progress=True)
    if result.interrupted:
        raise SystemExit(130)
    unseen, model = dataset.select(split.test), result.embedder.eval()
    points = embed_items(model, unseen, cache, progress=True)
    support, queries = halves(unseen.labels, SEED)
    fitted = as_published(points[support], unseen.labels[support], model.space)
    fitted = {name: fitted[name] for name in ESTIMATORS}
    rows = queries[draw(unseen.select(queries), IMAGES)]
    pixels, truth = PixelReader(model, unseen)(rows), unseen.labels[rows]
    embed = PixelEmbedder(model)
    target = classifier_of_estimator(embed, fitted[OURS], OURS)
    codes, unit = class_codes(target.classes, truth), Unit.of("normalised", model.spec)
    line: dict[str, Any] = {"part": "cub", "cell": "ProxyAnchor head", "seed": SEED, "images": len(rows)}
    line["unattacked"] = _measured(fitted, points[rows], truth)
    line["attacked"] = {}
    began = time.perf_counter()
    for name, (attack, steps, step) in ATTACKS.items():
        for eps in (*SMALL, *EPSILONS):
            length = None if step is None else step * (0.1 if eps in SMALL else 1.0)
            done = published_attack(attack, target, pixels, codes, eps, unit=unit, steps=steps, step=length, seed=SEED)
            with torch.no_grad():
                moved = torch.cat([embed(part) for part in done.pixels.split(32)]).numpy()
            line["attacked"][f"{name} {eps:g}"] = _measured(fitted, moved, truth)
            print(name, eps, line["attacked"][f"{name} {eps:g}"], flush=True)
    line["measuring_seconds"] = round(time.perf_counter() - began, 1)
    keep(line)


def _measured(fitted: Mapping[str, Any], points: np.ndarray, truth: np.ndarray) -> dict[str, dict[str, list[float]]]:
    """Estimator to accuracy and ECE, each with its interval over classes."""
    found = {}
    for name, table in tables_of(fitted, points, truth).items():
        values = mean_intervals(table[None], seed=SEED)
        found[name] = {
            metric: [round(float(number), 4) for number in (value, *interval)]
            for metric, (value, interval) in values.items()
        }
    return found
