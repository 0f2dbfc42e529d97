"""What `run.py` tries: recipes with settings, under names, and the folds of validation classes that compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearkin.recipe import Recipe
from studies.random_start import load_recipe

FOLDS = 4
CUB = ["data.split=column"]


@dataclass(frozen=True)
class Candidate:
    """A recipe with settings, under a name, and the folds that it is tried on; fold 0: nothing is trained."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    folds: tuple[int, ...] = (1,)

    def load(self) -> Recipe:
        """The recipe to train."""
        return load_recipe(self.recipe, [*CUB, *self.settings])


Changes = Mapping[str, tuple[str, tuple[str, ...]]]
"""Name of a candidate to its recipe and settings."""


def trunk() -> list[Candidate]:
    """Backbones as ImageNet made them."""
    shown = [(0, 224), (1, 240), (2, 260), (2, 224)]
    return [
        Candidate(
            f"efficientnet-lite{number}, {size} px",
            "pretrained",
            (f"model.backbone=efficientnet-lite{number}", f"model.size={size}"),
            folds=(0,),
        )
        for number, size in shown
    ]


HEAD = (
    "model.backbone=efficientnet-lite2",
    "model.size=224",
    "training.max_steps=1000",
    "training.evaluate_every=50",
    "training.patience=8",
)
"""Only a head learns, from cached vectors."""


def head() -> list[Candidate]:
    """Losses, schedules and averages behind a trunk that stays as it is."""
    slow = ("training.lr=1e-4", "training.max_steps=3000")
    pairs = ("data.classes_per_batch=8", "data.per_class=4", *slow)
    changes: Changes = {
        "proxy-anchor": ("proxy-anchor", ()),
        "proxy-anchor, lr 1e-4": ("proxy-anchor", slow),
        "proxy-anchor, moving average": ("proxy-anchor", ("training.ema=0.98",)),
        "proxy-anchor, 512 dimensions": ("proxy-anchor", ("model.dimension=512",)),
        "arcface": ("arcface", ()),
        "normalized-softmax": ("normalized-softmax", ()),
        "multi-similarity, lr 1e-4": ("multi-similarity", pairs),
        "multi-similarity + CCP, lr 1e-4": ("multi-similarity-ccp", pairs),
        "contrastive on cosines + CCP": ("contrastive-cosine-ccp", ()),
    }
    return [Candidate(name, recipe, (*HEAD, *settings)) for name, (recipe, settings) in changes.items()]


UPPER = (
    "model.backbone=efficientnet-lite2",
    "model.size=224",
    "model.freeze=stage5",
    "model.frozen_batch_norm=true",
    "model.cache_dtype=float16",
    "model.cache_views={flip: true, crops: 4, crop_scale: [0.3, 1.0]}",
    "training.lr_schedule=cosine",
    "training.max_steps=240",
    "training.evaluate_every=60",
    "training.patience=null",
)
"""Stages 6, 7 and the last convolution learn, from cached maps of 14 x 14; at a tenth of the head's rate."""

EVEN = ("training.lr=1e-4", "training.backbone_lr_factor=1", "training.proxy_lr_factor=100")
"""Head and backbone at the same rate, as the authors of ProxyAnchor have it."""

AVERAGED = ("training.ema=0.98",)
LONG = ("training.max_steps=480", "training.evaluate_every=120")
LONGER = ("training.max_steps=720", "training.evaluate_every=120")
GSP = (
    "model.local_dimension=128",
    "model.pooling=gsp",
    "model.pooling_parameters={prototypes: 64, budget: 0.3, sharpness: 0.5}",
    "model.dimension=null",
    "objective.weight=0.9",
    "objective.regularisers=[{name: zero-shot, weight: 0.1}]",
)
SHARP = "model.pooling_parameters.sharpness=5"
"""What pair losses want (`gsp/run.py settings`)."""

ATTENTION = ("model.attention={}",)
ADVERSARY = ("objective.regularisers=[{name: class-adversary, weight: 0.5}]",)
PAIRS = ("data.classes_per_batch=8", "data.per_class=4", "training.lr=1e-4", "training.backbone_lr_factor=1")
SOON = ("training.evaluate_every=30", "training.chance_constrained.patience=1")
"""New proxies within 240 steps."""


def upper() -> list[Candidate]:
    """Where the upper stages learn: rates and lengths first, then what each part adds at an even rate."""
    base = "proxy-anchor"
    changes: dict[str, tuple[str, tuple[str, ...]]] = {
        "proxy-anchor": (base, ()),
        "backbone at 3e-4": (base, ("training.backbone_lr_factor=0.3",)),
        "moving average": (base, AVERAGED),
        "backbone at 3e-5": (base, ("training.backbone_lr_factor=0.03",)),
        "head and backbone at 1e-4, proxies at 1e-2": (base, EVEN),
        "moving average, 720 steps": (base, (*AVERAGED, *LONGER)),
        "all at 1e-4, proxies at 1e-2, moving average, 720 steps": (base, (*EVEN, *AVERAGED, *LONGER)),
        "even rate + GSP + zero-shot loss": (base, (*EVEN, *GSP)),
        "even rate + attention + adversary": (base, (*EVEN, *ATTENTION, *ADVERSARY)),
        "multi-similarity": ("multi-similarity", PAIRS),
        "contrastive on cosines + CCP": ("contrastive-cosine-ccp", (*PAIRS, *SOON)),
    }
    changes |= {
        "multi-similarity, moving average, 480 steps": ("multi-similarity", (*PAIRS, *AVERAGED, *LONG)),
        "multi-similarity + GSP + zero-shot loss": ("multi-similarity", (*PAIRS, *GSP, SHARP)),
    }
    return [Candidate(name, recipe, (*UPPER, *settings)) for name, (recipe, settings) in changes.items()]


STUDIES = {"trunk": trunk, "head": head, "upper": upper}
