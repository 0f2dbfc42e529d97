"""Every recipe and network made small, so that the commands of the pages can be run as they stand.

A recipe is validated as the page has it, then again with fewer steps, smaller inputs and fewer resamples. What a page
says about a method is kept: loss, schedule, pooling, space, what is frozen and cached, which suites are run.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn import manifold

from nearkin import protocol
from nearkin.audits import attacks, result
from nearkin.metrics import class_bootstrap
from nearkin.models import start
from nearkin.models.backbones import efficientnet
from nearkin.models.backbones.base import backbones, initialise
from nearkin.recipe import Recipe
from nearkin.report import canvas

SIDE = 32
"""Pixels that networks made for larger images are given here."""

STAGES = tuple((1, *rest) for _, *rest in efficientnet._STAGES)
HEAD = 320
"""Of EfficientNet-Lite: one block for each stage, and a quarter of the features."""

CAPS = {
    "data": {"classes_per_batch": 3, "per_class": 3, "workers": 0, "audio_seconds": 0.2},
    "model": {"size": SIDE},
    "training": {
        "max_steps": 3,
        "evaluate_every": 2,
        "log_every": 1,
        "head_warmup_steps": 1,
        "warmup_steps": 1,
        "cluster_items": 4,
        "hierarchy_items": 4,
        "gradient_cache": 4,
    },
    "audit": {
        "resamples": 20,
        "corrupted_queries": 10,
        "severities": [3],
        "pooling_classes": 3,
        "pooling_items": 4,
        "pooling_prototypes": 4,
        "fewshot_queries": 2,
        "fewshot_episodes": 10,
        "untrained_items": 3,
        "geometry_items": 20,
        "attacked_queries": 4,
        "attack_steps": 2,
        "voronoi_items": 8,
        "smoothed_queries": 2,
        "smoothing_samples": 10,
    },
}
SCHEDULES = {
    "episodic": {"way": 3, "shot": 2, "query": 2, "validation_way": 2, "validation_episodes": 4, "record_every": 1},
    "chance_constrained": {"proxies": 2, "pool": 3},
    "cross_batch_memory": {"batches": 2, "warmup_steps": 1},
    "adversarial": {"steps": 2},
}


def smaller(recipe: Recipe) -> dict[str, Any]:
    """The tree of a valid recipe with everything above its cap brought down to it."""
    tree = recipe.model_dump(mode="json", exclude_unset=True)
    full = recipe.model_dump(mode="json")
    for section, caps in CAPS.items():
        _lower(tree.setdefault(section, {}), full[section], caps)
    schedule = recipe.training.schedule.replace("-", "_")
    if schedule in SCHEDULES:
        _lower(tree["training"].setdefault(schedule, {}), full["training"][schedule], SCHEDULES[schedule])
    if schedule == "adversarial" and full["training"][schedule]["attack"] == "fgsm":
        tree["training"][schedule]["steps"] = 1
    if schedule == "episodic":
        for name in ("classes_per_batch", "per_class"):  # what the episode says
            tree["data"].pop(name, None)
    if full["model"]["backbone"].startswith("tdnn"):
        tree["model"]["size"] = full["model"]["size"]  # mel bands
    return tree


def _lower(tree: dict[str, Any], full: dict[str, Any], caps: dict[str, Any]) -> None:
    for name, cap in caps.items():
        now = full.get(name)  # an episode says what its batch is
        if isinstance(cap, list):
            tree[name] = cap
        elif now is not None:
            tree[name] = min(now, cap)


_REAL = {name: backbones.get(name) for name in backbones if name.startswith("efficientnet-lite")}


def _build(name: str, spec: Any) -> Any:
    with mock.patch.multiple(efficientnet, _STAGES=STAGES, _HEAD=HEAD):
        return _REAL[name].build(spec)


def _load(backbone: Any) -> None:
    """Always the same weights, which tell images apart as published ones do; tests/models loads those."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        initialise(backbone)


_DRAWN: set[Any] = set()
_SAVE = Figure.savefig


def _save(figure: Any, file: Any, **options: Any) -> None:
    """Draw the first picture of every function that draws; those after it are blank."""
    drawer = sys._getframe(2).f_code  # which called canvas.to_png
    if drawer in _DRAWN:
        Image.new("L", tuple(map(int, figure.bbox.size)), 255).save(file, "png")
    else:
        _DRAWN.add(drawer)
        _SAVE(figure, file, **options)


def shrink(monkeypatch: Any) -> None:
    """From now on recipes that are loaded and networks are small, benchmarks train two models, and pictures are coarse.

    A head starts from one ridge instead of the best of six: each is a decomposition of all features for every fold.
    """
    monkeypatch.setattr(canvas, "_DPI", 40)
    monkeypatch.setattr(Figure, "savefig", _save)
    monkeypatch.setattr(manifold, "TSNE", partial(manifold.TSNE, max_iter=250))
    monkeypatch.setattr(attacks, "_QUERIES", 20)
    monkeypatch.setattr("nearkin.training.start.class_bootstrap", partial(class_bootstrap, resamples=20))
    monkeypatch.setattr(result, "_PAIRS", 400)
    for name, value in (("RIDGES", (1.0,)), ("STRONG_RIDGES", ()), ("_FOLDS", 2)):
        monkeypatch.setattr(start, name, value)
    whole = Recipe.model_validate

    def validate(tree: Any, **options: Any) -> Recipe:
        return whole(smaller(whole(copy.deepcopy(tree), **options)))

    monkeypatch.setattr(Recipe, "model_validate", validate)
    for name, entry in backbones._entries.items():
        if entry.kind == "image":
            own = {"build": partial(_build, name), "load_weights": _load} if name in _REAL else {}
            monkeypatch.setitem(backbones._entries, name, replace(entry, size=min(entry.size, SIDE), **own))
    benchmark = protocol.run_benchmark

    def run_benchmark(*given: Any, folds: int = 4, seeds: int = 3, jobs: int = 1, **options: Any) -> Any:
        # Processes of their own would not know of what is small here; tests/protocol has them.
        assert jobs >= 1
        return benchmark(*given, folds=min(folds, 2), seeds=min(seeds, 1), **options)

    monkeypatch.setattr(protocol, "run_benchmark", run_benchmark)
