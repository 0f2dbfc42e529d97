"""Speed of training's parts: a loss with its backward pass, miners, a memory of references, balanced batches.

Many of our losses and miners are those of pytorch-metric-learning behind a recipe's section. The ratio is then what the
section costs; the note of such a line says so, as the module itself tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from peers_cases import OURS, Case
from peers_packages import OML
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearkin.data import BalancedBatchSampler
from nearkin.objectives import Objective, ObjectiveSection, make_objective

SEED = 0
CLASSES, DIMENSION = 100, 128
BATCH = (32, 4)
"""Classes in a batch, and items of each."""
REPEATS = 20
MARGIN = 0.2
ANGLE = 28.6
REFERENCES, QUERIES = 8_192, 64
SAMPLED = (51_200, 1_024)
"""Items and classes of the data that batches are drawn from."""

Step = Callable[[], float]


def cases() -> list[Case]:
    """The comparisons that the installed packages allow."""
    return [*_losses(), _hard_triplets(), _arcface(), _semi_hard(), _against_references(), _balanced()]


def _batch() -> tuple[Tensor, Tensor]:
    """Raw embeddings (B, d) and labels (B,)."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.arange(BATCH[0]).repeat_interleave(BATCH[1])
    return torch.randn(len(labels), DIMENSION, generator=generator), labels


def _objective(loss: str, miner: str | None = None, **parameters: float) -> Objective:
    section = ObjectiveSection(loss=loss, miner=miner, parameters=parameters)
    return make_objective(section, dimension=DIMENSION, classes=CLASSES, seed=SEED)


def _step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, labels: Tensor) -> Step:
    """Forward and backward to the embeddings, and to proxies where there are any."""

    def step() -> float:
        leaf = x.clone().requires_grad_()
        value = loss(leaf, labels)
        value.backward()
        return value.item()

    return step


def _close(mine: float, theirs: float) -> bool:
    return math.isclose(mine, theirs, rel_tol=1e-4)


def _note(objective: Objective) -> str:
    """Whether what is ours calls PML's."""
    parts = [module for module in objective.modules() if type(module).__module__.startswith("pytorch_metric_learning")]
    kinds = {type(module).__module__.split(".")[1] for module in parts}
    wrapped = [kind for kind in ("losses", "miners") if kind in kinds]
    return f"ours calls PML's {' and '.join(wrapped)}" if wrapped else "ours is written anew"


# ---------------------------------------------------------------- losses


def _losses() -> list[Case]:
    """Losses that PML has as well, with the same parameters and the same proxies."""
    proxied = _objective("proxy-anchor", margin=0.1, alpha=32)
    anchors = losses.ProxyAnchorLoss(CLASSES, DIMENSION, margin=0.1, alpha=32)
    _copy(proxied, anchors.proxies)
    pairs: dict[str, tuple[Objective, Callable[[Tensor, Tensor], Tensor]]] = {
        "contrastive": (
            _objective("contrastive", pos_margin=0.0, neg_margin=0.5),
            losses.ContrastiveLoss(pos_margin=0.0, neg_margin=0.5),
        ),
        "multi-similarity": (
            _objective("multi-similarity", alpha=2, beta=40, base=0.5),
            losses.MultiSimilarityLoss(alpha=2, beta=40, base=0.5),
        ),
        "supervised contrastive": (_objective("supcon", temperature=0.1), losses.SupConLoss(temperature=0.1)),
        "Proxy Anchor": (proxied, anchors),
    }
    x, labels = _batch()
    return [
        Case(
            "training",
            f"{name} loss, forward and backward, batch {len(x)}",
            {OURS: _step(mine, x, labels), "PML": _step(theirs, x, labels)},
            _close,
            REPEATS,
            _note(mine),
        )
        for name, (mine, theirs) in pairs.items()
    ]


def _hard_triplets() -> Case:
    """The furthest positive and the nearest negative of every anchor; all three project to the unit sphere."""
    x, labels = _batch()
    mine = _objective("triplet", "hard", margin=MARGIN)
    miner, loss = miners.BatchHardMiner(), losses.TripletMarginLoss(margin=MARGIN)
    contenders = {
        OURS: _step(mine, x, labels),
        "PML": _step(lambda points, classes: loss(points, classes, miner(points, classes)), x, labels),
    }
    if OML.version:
        from oml.losses import TripletLossWithMiner
        from oml.miners import HardTripletsMiner

        other = TripletLossWithMiner(margin=MARGIN, miner=HardTripletsMiner())
        contenders["OML"] = _step(lambda points, classes: other(normalize(points), classes.tolist()), x, labels)
    what = f"hardest triplets and their loss, forward and backward, batch {len(x)}"
    return Case("training", what, contenders, _close, REPEATS, _note(mine))


def _arcface() -> Case:
    x, labels = _batch()
    mine = _objective("arcface", margin=ANGLE, scale=64)
    theirs = losses.ArcFaceLoss(CLASSES, DIMENSION, margin=ANGLE, scale=64)
    _copy(mine, theirs.W)
    contenders = {OURS: _step(mine, x, labels), "PML": _step(theirs, x, labels)}
    if OML.version:
        from oml.losses import ArcFaceLoss

        other = ArcFaceLoss(DIMENSION, CLASSES, m=math.radians(ANGLE), s=64)
        _copy(mine, other.weight)
        contenders["OML"] = _step(other, x, labels)
    what = f"ArcFace of {CLASSES} classes, forward and backward, batch {len(x)}"
    return Case("training", what, contenders, _close, REPEATS, _note(mine))


def _copy(objective: Objective, into: nn.Parameter) -> None:
    """Give another's proxies our values; PML's classification losses keep them as columns."""
    [proxies] = objective.proxies()
    with torch.no_grad():
        into.copy_(proxies if into.shape == proxies.shape else proxies.T)


# ---------------------------------------------------------------- miners, references, batches


def _semi_hard() -> Case:
    x, labels = _batch()
    mine = _objective("triplet", "semi-hard", margin=MARGIN)
    theirs = miners.TripletMarginMiner(margin=MARGIN, type_of_triplets="semihard")
    contenders: dict[str, Callable[[], Tensor]] = {
        OURS: partial(_chosen, mine.miner, x, labels),
        "PML": partial(_chosen, theirs, x, labels),
    }
    what = f"semi-hard triplets of a batch of {len(x)}"
    return Case("training", what, contenders, _alike, REPEATS, "ours is written anew")


def _chosen(miner: nn.Module | None, x: Tensor, labels: Tensor) -> Tensor:
    """Triplets (t, 3)."""
    if miner is None:
        raise SystemExit("The objective has no miner to compare")
    return torch.stack(miner(x, labels), dim=1)


def _alike(mine: Tensor, theirs: Tensor) -> bool:
    """The same triplets, but for a few whose distances differ by less than float32 can tell."""
    first, second = (set(map(tuple, found.tolist())) for found in (mine, theirs))
    return len(first ^ second) <= 1e-4 * len(first | second)


def _against_references() -> Case:
    """What a memory of earlier batches asks of a loss at every step."""
    generator = torch.Generator().manual_seed(SEED)
    x, references = (torch.randn(n, DIMENSION, generator=generator) for n in (QUERIES, REFERENCES))
    labels, of_references = (torch.randint(CLASSES, (n,), generator=generator) for n in (QUERIES, REFERENCES))
    mine = _objective("contrastive", pos_margin=0.0, neg_margin=0.5)
    theirs = losses.ContrastiveLoss(pos_margin=0.0, neg_margin=0.5)
    contenders = {
        OURS: _step(lambda points, classes: mine.against(points, classes, references, of_references), x, labels),
        "PML": _step(
            lambda points, classes: theirs(points, classes, ref_emb=references, ref_labels=of_references), x, labels
        ),
    }
    what = f"contrastive loss of {QUERIES} items against {REFERENCES:,} references, forward and backward"
    return Case("training", what, contenders, _close, 3, _note(mine))


def _balanced() -> Case:
    items, classes = SAMPLED
    labels = np.arange(items) % classes
    per_batch, per_class = BATCH
    ours = BalancedBatchSampler(labels, per_batch, per_class, seed=SEED)
    drawn = classes * per_class
    pml = MPerClassSampler(labels, per_class, batch_size=per_batch * per_class, length_before_new_iter=drawn)
    contenders: dict[str, Callable[[], np.ndarray]] = {
        OURS: lambda: ours.plan(0),
        "PML": lambda: np.reshape(list(pml), (-1, per_batch * per_class)),
    }
    if OML.version:
        from oml.samplers import BalanceSampler

        oml = BalanceSampler(labels, per_batch, per_class)
        contenders["OML"] = lambda: np.array(list(oml))
    what = f"an epoch of {classes // per_batch} balanced batches of {per_batch} x {per_class} from {items:,} items"
    note = "ours orders all items, so that a class's items all come before one comes again"
    return Case("training", what, contenders, partial(_balanced_alike, labels), 3, note)


def _balanced_alike(labels: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> bool:
    """As many batches, each of as many classes with as many items; which ones is chance."""
    counts = [sorted(np.unique(labels[row], return_counts=True)[1].tolist()) for row in theirs]
    return mine.shape == theirs.shape and all(count == [BATCH[1]] * BATCH[0] for count in counts)
