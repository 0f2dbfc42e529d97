"""Every recipe and network made small, so that the commands of the pages can be run as they stand.

A recipe is validated as the page has it, then again with fewer steps, smaller inputs and fewer resamples. What a page
says about a method is kept: loss, schedule, pooling, space, what is frozen and cached, which suites are run.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from nearkin import protocol
from nearkin.audits import result
from nearkin.models import start
from nearkin.models.backbones.base import backbones
from nearkin.recipe import Recipe
from nearkin.report import canvas

SIDE = 32
"""Pixels that networks made for larger images are given here."""

CAPS = {
    "data": {"classes_per_batch": 3, "per_class": 3, "workers": 0, "audio_seconds": 0.2},
    "model": {"size": SIDE},
    "training": {
        "max_steps": 3,
        "evaluate_every": 3,
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
    if full["model"]["backbone"] == "tdnn":
        tree["model"]["size"] = full["model"]["size"]  # mel bands
    return tree


def _lower(tree: dict[str, Any], full: dict[str, Any], caps: dict[str, Any]) -> None:
    for name, cap in caps.items():
        now = full.get(name)  # an episode says what its batch is
        if isinstance(cap, list):
            tree[name] = cap
        elif now is not None:
            tree[name] = min(now, cap)


def shrink(monkeypatch: Any) -> None:
    """From now on recipes that are loaded are small, benchmarks train two models for each, and pictures are coarse.

    A head starts from one ridge instead of the best of six: each is a decomposition of 1,280 features for every fold.
    """
    monkeypatch.setattr(canvas, "_DPI", 40)
    monkeypatch.setattr(result, "_PAIRS", 400)
    for name, value in (("RIDGES", (1.0,)), ("STRONG_RIDGES", ()), ("_FOLDS", 2)):
        monkeypatch.setattr(start, name, value)
    whole = Recipe.model_validate

    def validate(tree: Any, **options: Any) -> Recipe:
        return whole(smaller(whole(copy.deepcopy(tree), **options)))

    monkeypatch.setattr(Recipe, "model_validate", validate)
    for name, entry in backbones._entries.items():
        if entry.kind == "image":
            monkeypatch.setitem(backbones._entries, name, replace(entry, size=min(entry.size, SIDE)))
    benchmark = protocol.run_benchmark

    def run_benchmark(*given: Any, folds: int = 4, seeds: int = 3, jobs: int = 1, **options: Any) -> Any:
        # Processes of their own would not know of what is small here; tests/protocol has them.
        assert jobs >= 1
        return benchmark(*given, folds=min(folds, 2), seeds=min(seeds, 1), **options)

    monkeypatch.setattr(protocol, "run_benchmark", run_benchmark)
