"""What `run.py` tries, stage by stage: the recipe `fine-tune` with one setting changed at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearkin.recipe import Recipe, load_recipe

FOLDS = 4
COMMON = (
    "data.split=column",
    "data.workers=0",  # one thread a process: decoding takes turns with computing
    "training.full_rate_classes=0",  # the rates are what they say
    "training.full_rate_items=0",
)


@dataclass(frozen=True)
class Candidate:
    """A recipe with settings, under a name, and the folds that it is tried on; the most telling ones come first."""

    name: str
    settings: tuple[str, ...] = ()
    recipe: str = "fine-tune"
    folds: tuple[int, ...] = (1,)

    def load(self) -> Recipe:
        """The recipe to train."""
        return load_recipe(self.recipe, [*COMMON, *self.settings])


PILOT = ("training.max_steps=600", "training.evaluate_every=300", "model.size=192")
PROXIES = (
    "objective.loss=proxy-anchor",
    "objective.parameters={margin: 0.1, alpha: 32}",
    "data.classes_per_batch=32",
    "data.per_class=1",
    "training.proxy_lr_factor=100",
)
CONTRASTIVE = ("objective.loss=contrastive", "objective.parameters={pos_margin: 0.0, neg_margin: 0.3841}")


def pilots() -> list[Candidate]:
    """600 steps of EfficientNet-Lite0 at 192 px, everything at 1e-4, and one thing changed in each of the others.

    The entries of a whitened head are near 1e-3: at 1e-4 the first steps change it by a tenth each.
    """
    changes: dict[str, tuple[str, ...]] = {
        "trunk at 1e-4": (),
        "head at 1e-5": ("training.lr=1e-5", "training.backbone_lr_factor=10"),
        "efficientnet-lite2, 224 px": ("model.backbone=efficientnet-lite2", "model.size=224"),
        "head at 1e-5, trunk at 3e-5": ("training.lr=1e-5", "training.backbone_lr_factor=3"),
        "proxy-anchor": PROXIES,
        "contrastive": CONTRASTIVE,
        "moving average": ("training.ema=0.99",),
        "224 px": ("model.size=224",),
        "trunk at 3e-4": ("training.backbone_lr_factor=3",),
        "256 px": ("model.size=256",),
        "batch of 16 x 4": ("data.classes_per_batch=16",),
        "GeM": ("model.pooling=gem",),
        "GAP + GMP": ("model.pooling=gap+gmp",),
        "batch norms learn": ("model.frozen_batch_norm=false",),
        "crops from 0.16": ("data.crop_scale=[0.16, 1.0]",),
        "trunk at 3e-5": ("training.backbone_lr_factor=0.3",),
        "trunk at 1e-5": ("training.backbone_lr_factor=0.1",),
        "trunk at 3e-6": ("training.backbone_lr_factor=0.03",),
    }
    return [Candidate(name, (*PILOT, *settings)) for name, settings in changes.items()]


WINNER: tuple[str, ...] = ()
"""What the pilots chose, beyond the recipe `fine-tune`; empty until they have."""

LONG = ("training.max_steps=3000", "training.evaluate_every=500")
CCP = (
    "training.schedule=chance-constrained",
    "training.chance_constrained={proxies: 8, pool: 12, proximal: 2e-4, patience: 1}",
)
GSP = (
    "model.local_dimension=128",
    "model.pooling=gsp",
    "model.pooling_parameters={prototypes: 64, budget: 0.3, sharpness: 5}",
    "model.dimension=null",
    "objective.weight=0.9",
    "objective.regularisers=[{name: zero-shot, weight: 0.1}]",
)
ADVERSARY = ("model.attention={}", "objective.regularisers=[{name: class-adversary, weight: 0.5}]")


def folds() -> list[Candidate]:
    """What the pilots chose, for long, on all four folds."""
    return [Candidate("winner", (*WINNER, *LONG), folds=(1, 2, 3, 4))]


def methods() -> list[Candidate]:
    """The winner, as long, with what the documents add to a loss; two folds. Compare with `winner` of stage folds."""
    changes = {
        "winner + CCP": CCP,
        "winner + GSP + zero-shot loss": GSP,
        "winner + attended stages + adversary": ADVERSARY,
    }
    return [Candidate(name, (*WINNER, *LONG, *more), folds=(1, 2)) for name, more in changes.items()]


STAGES: dict[str, Callable[[], list[Candidate]]] = {"pilots": pilots, "folds": folds, "methods": methods}
