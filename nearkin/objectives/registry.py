"""Losses, miners and regularisers by name, with what each needs and takes.

Their parameters are the keyword-only arguments of their factories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from nearkin.data.hierarchy import Hierarchy
from nearkin.models.similarity import SimilarityParts
from nearkin.registry import Registry
from nearkin.spaces import Space

AcuteDegrees = Annotated[float, Field(gt=0, lt=90)]
MarginDegrees = Annotated[float, Field(gt=-180, lt=90)]
Portion = Annotated[float, Field(ge=0, lt=1)]
"""Of a whole that something must be left of."""
LayerSize = Annotated[int, Field(ge=1, le=65_536)]
"""Of a hidden layer: a larger one is a mistake that would otherwise only show when memory runs out."""

Given = Tensor | None
"""What only some calls bring: references, attributes or features."""

Takes = Literal["embeddings", "attributes", "features", "proxies"]
"""Raw embeddings (B, d), the attributes (B, M) that the pooling gives, the features (B, F) that the head takes, or the
points (C, d) that stand for the classes in the loss."""


class Regulariser(nn.Module):
    """Base of the regularisers: called with what it takes and labels (B,), it gives a scalar.

    Attributes:
        takes: what it is called with.
        width: how many columns that must have; None: any.
        learns_as_head: whether its parameters learn at the head's rate, `training.lr`, and not at that of proxies.
    """

    takes: Takes = "embeddings"
    width: int | None = None
    learns_as_head: bool = False

    def readings(self, weight: float = 1.0) -> dict[str, float]:
        """Values to log for the steps since the last call; none by default.

        Args:
            weight: what the term is multiplied by.
        """
        return {}


def register_counters(module: nn.Module, *names: str) -> None:
    """Give a module counts from 0 on: buffers for checkpoints, and the same as plain numbers, `_` before their names.

    To read the buffers at every step would make a GPU wait. Loading a checkpoint sets both.
    """

    def recall(loaded: nn.Module, _: Any) -> None:
        for name in names:
            setattr(loaded, f"_{name}", int(getattr(loaded, name)))

    for name in names:
        module.register_buffer(name, torch.zeros((), dtype=torch.int64))
        setattr(module, f"_{name}", 0)
    module.register_load_state_dict_post_hook(recall)


def mixed_seed(*parts: int) -> int:
    """One seed of several numbers, as torch's generators take it."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def drawing_by(device: torch.device, *parts: int) -> Iterator[None]:
    """Inside the block torch's generators draw what belongs to these numbers; outside they are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(mixed_seed(*parts))
        yield


Family = Literal["pairs", "proxies", "classification", "episodes", "similarity"]
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

SPHERE = frozenset({"sphere"})
"""Spaces for what is written in cosines."""
FLAT = frozenset({"sphere", "lipschitz-ball", "euclidean"})
"""Spaces for what is written in inner products."""


@dataclass(frozen=True)
class EpisodeShape:
    """How an episode divides the items of each of its classes.

    Attributes:
        shot: support items, which come first.
        query: items that are classified by them.
    """

    shot: int
    query: int

    @property
    def per_class(self) -> int:
        """Items of each class."""
        return self.shot + self.query


@dataclass(frozen=True)
class LossShape:
    """What a factory must know of the run.

    Attributes:
        dimension: size of an embedding.
        classes: number of training classes; labels are 0 ... classes - 1.
        space: where embeddings are compared.
        seed: of what the module draws while it is used; its first values come from the global generator.
        features: size of the features that the head takes; None if unknown.
        epoch_steps: steps of one pass through the training items; None if unknown.
        episode: how batches are episodes; None where they are not.
        class_names: of the classes 0 ... classes - 1; None if unknown.
        hierarchy: a tree over (at least) these classes; None where there is none.
        similarity: parts of the model that the loss teaches; None: the loss has its own.
    """

    dimension: int
    classes: int
    space: Space
    seed: int = 0
    features: int | None = None
    epoch_steps: int | None = None
    episode: EpisodeShape | None = None
    class_names: tuple[str, ...] | None = None
    hierarchy: Hierarchy | None = None
    similarity: SimilarityParts | None = None


@dataclass(frozen=True)
class BatchNeeds:
    """The smallest batch a loss can learn from: distinct classes, and samples of each."""

    classes: int = 1
    per_class: int = 1


PAIRS = BatchNeeds(classes=2, per_class=2)
"""Positives and negatives come from the batch itself."""


@dataclass(frozen=True)
class LossEntry:
    """A loss by name.

    Attributes:
        name: as in recipes.
        factory: `factory(shape, **parameters)` builds the module; its signature declares the parameters.
        family: what the batch is compared with: itself, proxies, class weights behind a softmax, its own support, or
            itself and prototypes by a similarity that is learned too.
        batch: the smallest batch it can learn from.
        spaces: names of the spaces it is defined in; None means any.
        miner: the miner used unless the recipe names another; None means that it takes no miner.
        references: whether a batch can be compared with given vectors instead of with itself; the module then takes
            them as `ref_emb` (R, d) and `ref_labels` (R,), and so does its miner.
        needs_hierarchy: whether it cannot be built without a tree over the classes.
        switchable: whether a negative of the miner's choice may be an item of the anchor's class; not where labels
            decide, or where a pair is either positive or negative.
    """

    name: str
    factory: Callable[..., nn.Module]
    family: Family
    batch: BatchNeeds
    spaces: frozenset[str] | None
    miner: str | None
    references: bool
    needs_hierarchy: bool = False
    switchable: bool = True


@dataclass(frozen=True)
class MinerEntry:
    """A miner by name; `inherits` are the parameters it takes over from the loss unless the recipe sets them."""

    name: str
    factory: Callable[..., nn.Module]
    spaces: frozenset[str] | None
    inherits: frozenset[str]


@dataclass(frozen=True)
class RegulariserEntry:
    """A regulariser by name.

    Attributes:
        name: as in recipes.
        factory: `factory(shape, **parameters)` builds a module that takes raw embeddings (B, d) and labels (B,) to a
            scalar; one that takes something else, or has something to log, is a `Regulariser`.
        classes: how many distinct classes it needs in a batch.
    """

    name: str
    factory: Callable[..., nn.Module]
    classes: int


losses: Registry[LossEntry] = Registry("loss")
EVERY = "all"
"""The miner that leaves every pair to the loss."""

miners: Registry[MinerEntry] = Registry("miner")
regularisers: Registry[RegulariserEntry] = Registry("regulariser")


def register_loss(
    name: str,
    *,
    family: Family,
    batch: BatchNeeds | None = None,
    spaces: frozenset[str] | None = None,
    miner: str | None = None,
    references: bool | None = None,
    needs_hierarchy: bool = False,
    switchable: bool = True,
) -> Callable[[Factory], Factory]:
    """File a loss factory under `name`; see `LossEntry` for the rest.

    Unless told otherwise, the losses of the family "pairs" take references and the others do not.
    """
    needs, compares = batch or BatchNeeds(), family == "pairs" if references is None else references

    def file(factory: Factory) -> Factory:
        entry = LossEntry(name, factory, family, needs, spaces, miner, compares, needs_hierarchy, switchable)
        losses.register(name)(entry)
        return factory

    return file


def register_miner(
    name: str, *, spaces: frozenset[str] | None = None, inherits: frozenset[str] = frozenset()
) -> Callable[[Factory], Factory]:
    """File a miner factory under `name`; see `MinerEntry` for the rest."""

    def file(factory: Factory) -> Factory:
        miners.register(name)(MinerEntry(name, factory, spaces, inherits))
        return factory

    return file


def register_regulariser(name: str, *, classes: int = 1) -> Callable[[Factory], Factory]:
    """File a regulariser factory under `name`; see `RegulariserEntry` for the rest."""

    def file(factory: Factory) -> Factory:
        regularisers.register(name)(RegulariserEntry(name, factory, classes))
        return factory

    return file
