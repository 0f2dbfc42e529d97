"""The card: what a stranger must know of a trained model to use and to judge it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from nearkin._version import __version__
from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN
from nearkin.data.hierarchy import Hierarchy
from nearkin.data.splits import Split
from nearkin.models import Embedder
from nearkin.recipe import Recipe
from nearkin.training.loop import LoopState

_SEEN = "other items of the same classes"


def make_card(
    dataset: Dataset,
    split: Split,
    recipe: Recipe,
    state: LoopState,
    source: str,
    fingerprint: str,
    notes: Sequence[str],
    validation: dict[str, float],
    hierarchy: Hierarchy | None = None,
    finished: bool = True,
) -> dict[str, Any]:
    """What a stranger must know of a trained model to use and to judge it."""
    labels = dataset.labels
    classes = {
        "train": sorted(set(labels[split.train])),
        "val": sorted(set(labels[split.val])),
        "test": sorted(set(labels[split.test])),
    }
    return {
        "recipe": recipe.model_dump(mode="json"),
        "data": {
            "name": dataset.name,
            "source": source,
            "kind": dataset.kind,
            "items": len(dataset),
            "fingerprint": fingerprint,
            "notes": list(notes),
        },
        "classes": classes,
        **_domains(dataset, split),
        "selected_on": _SEEN if recipe.data.classes_are_seen and classes["val"] else _selected_on(classes),
        **({} if hierarchy is None else {"hierarchy": hierarchy.to_newick()}),
        "validation": validation,
        "finished": finished,
        "steps": state.step,
        "best_step": state.best_step,
        "seconds": round(state.seconds, 1),
        "versions": {"nearkin": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _domains(dataset: Dataset, split: Split) -> dict[str, dict[str, list[str]]]:
    """Which domains trained, validated and are left for the audit; nothing where the data has none."""
    if not dataset.manifest.has(COLUMN):
        return {}
    domains = dataset.manifest.column(COLUMN)
    parts = {"train": split.train, "val": split.val, "test": split.test}
    return {"domains": {part: sorted({str(name) for name in domains[rows]}) for part, rows in parts.items()}}


def started_from(embedder: Embedder) -> dict[str, Any]:
    """Which model the backbone's first weights came from, and what classes it knew; nothing where there was none."""
    return {name: value for name, value in embedder.card.items() if name == "started_from"}


def _selected_on(classes: dict[str, list[str]]) -> str | None:
    """What chose the weights; a protocol may let the test classes do it, and then everybody must know."""
    if not classes["val"]:
        return None
    return "test classes" if classes["val"] == classes["test"] else "validation classes"
