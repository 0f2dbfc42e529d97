"""The objective: a loss on a batch, with its miner and its regularisers, as one module.

Embeddings arrive raw, as the head gives them. Whatever compares them projects them into the space first: the
library's distances normalise, ours call `space.project`, and both treat proxies likewise.

With trained prefixes, the first dimensions of an embedding learn to do without the others. The loss is then the
weighted mean of the loss of whole embeddings, whose weight is 1, and of the same loss of their first k dimensions for
some k, projected into the space again: `(L_d + sum_k w_k L_k) / (1 + sum_k w_k)`. A mean, so that learning rates and
the weights of regularisers keep their meaning. Each size has proxies of its own, if its loss has any. When to use it:
docs/methods/prefixes.md. Reference: Kusupati et al. 2022, Matryoshka representation learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.checks import is_whole
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.models.similarity import SimilarityParts
from nearkin.objectives.miner import switching
from nearkin.objectives.proxy.bank import ClassVectors, FixedProxies, MeanProxies, NodeRows, Stepped
from nearkin.objectives.registry import (
    EVERY,
    BatchNeeds,
    EpisodeShape,
    LossEntry,
    LossShape,
    Regulariser,
    Takes,
    losses,
    miners,
    regularisers,
)
from nearkin.objectives.section import ObjectiveSection
from nearkin.registry import parameters_of
from nearkin.spaces import Representation, Space, Sphere

# Keeps the proxies' draws apart from those of a model initialised with the same seed.
_SALT = 0x10552

_SOURCES: dict[Takes, str] = {
    "attributes": "take both from Embedder.with_attributes, of a model whose pooling gives them, such as 'gsp'",
    "features": "pass what Embedder.pooled gives, of which Embedder.head makes the embeddings",
    "proxies": "choose a loss that has proxies, such as 'normface' or 'proxy-dr'",
}


@runtime_checkable
class Told(Protocol):
    """A loss that has something to log besides its value."""

    def readings(self) -> dict[str, float]:
        """Values to log for the steps since the last call."""


class Objective(nn.Module):
    """A loss plus weighted regularisers: (embeddings (B, d), labels (B,)) to a scalar.

    Args:
        name: the loss's name, for messages.
        loss: module called with embeddings and labels, and with the miner's choice when there is a miner.
        batch: the smallest batch the loss can learn from.
        miner: module that chooses pairs or triplets of a batch, or None.
        regularisers: name to (weight, module).
        supports_references: whether the loss and the miner take `ref_emb` and `ref_labels`, so that `against` works.
        loss_weight: what the loss itself is multiplied by.
        prefixes: losses of the first dimensions of embeddings, which the loss is averaged with.
        space: where embeddings are compared; None means the unit sphere.
    """

    def __init__(
        self,
        name: str,
        loss: nn.Module,
        batch: BatchNeeds,
        miner: nn.Module | None = None,
        regularisers: Mapping[str, tuple[float, nn.Module]] | None = None,
        supports_references: bool = False,
        loss_weight: float = 1.0,
        prefixes: Sequence[PrefixLoss] = (),
        space: Space | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.loss = loss
        self.batch = batch
        self.miner = miner
        self.supports_references = supports_references
        self.loss_weight = loss_weight
        self.space = Sphere() if space is None else space
        self.prefixes = nn.ModuleList(prefixes)
        terms = regularisers or {}
        self.weights = {name: weight for name, (weight, _) in terms.items()}
        self.regularisers = nn.ModuleDict({name: module for name, (_, module) in terms.items()})

    @property
    def representation(self) -> Representation:
        """What stands for a class in the episodes of the loss; "mean" for losses without episodes."""
        found: Representation = getattr(self.loss, "representation", "mean")
        return found

    def takers(self, of: Takes) -> list[str]:
        """The regularisers that take embeddings, attributes or features, by name."""
        return [name for name, module in self.regularisers.items() if _taken(module) == of]

    def forward(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        """The value to minimise, a scalar.

        Args:
            embeddings: raw, (B, d).
            labels: (B,) int64 in 0 ... classes - 1.
            attributes: (B, M) that the pooling gives, where a regulariser takes them.
            features: (B, F) that the head takes, where a regulariser takes them.
        """
        return torch.stack(list(self.parts(embeddings, labels, attributes, features).values())).sum()

    def parts(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None = None, features: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The terms that `forward` sums: "loss", and each regulariser under its name, already weighted."""
        embeddings = _precise(embeddings)
        given: dict[Takes, Tensor] = {"embeddings": embeddings}
        if attributes is not None:
            given["attributes"] = _precise(attributes)
        if features is not None:
            given["features"] = _precise(features)
        if self.takers("proxies") and isinstance(self.loss, ClassVectors):
            given["proxies"] = self.loss.class_vectors()
        self._check_given(given, len(labels))
        terms = {"loss": self._weighted_loss(embeddings, labels)}
        for name, module in self.regularisers.items():
            terms[name] = self.weights[name] * module(given[_taken(module)], labels)
        return terms

    def _check_given(self, given: Mapping[Takes, Tensor], rows: int) -> None:
        for name, module in self.regularisers.items():
            taken = _taken(module)
            if taken not in given:
                raise RecipeError(f"The regulariser '{name}' needs {taken}: {_SOURCES[taken]}.")
            if taken == "proxies":
                continue  # as many as there are classes, whatever the batch
            shape = tuple(given[taken].shape)
            width = module.width if isinstance(module, Regulariser) else None
            if len(shape) != 2 or shape[0] != rows or width not in (None, shape[1]):
                raise DataError(
                    f"The regulariser '{name}' needs {taken} of shape ({rows}, {width or 'any'}), a row for each label"
                    f"{' and the width that it was built for' if width else ''}, but got {shape}."
                )

    def _weighted_loss(self, embeddings: Tensor, labels: Tensor, **given: Tensor) -> Tensor:
        """The loss times its weight, averaged with those of the prefixes where there are any."""
        loss = compared(self.loss, self.miner, embeddings, labels, **given)
        for prefix in self._prefixes():
            loss = loss + prefix.weight * prefix(embeddings, labels, **given)
        return self.loss_weight / (1 + sum(prefix.weight for prefix in self._prefixes())) * loss

    def _prefixes(self) -> list[PrefixLoss]:
        return [module for module in self.prefixes if isinstance(module, PrefixLoss)]

    def against(self, embeddings: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor) -> Tensor:
        """The loss, without regularisers, of a batch against references instead of against itself.

        Anchors come from the batch, positives and negatives from the references. Reference i is never taken for sample
        i: a copy of a sample is one more positive, except for 'contrastive-cosine', which skips copies. Where negatives
        are switched (`objective.switch`), references of the anchor's class take their place. Gradients flow to both.

        Args:
            embeddings: raw, (B, d).
            labels: (B,) int64 in 0 ... classes - 1.
            references: proxies or remembered embeddings, raw, (R, d).
            reference_labels: (R,) int64.

        Returns:
            A scalar; zero, with a graph, where no sample finds what the loss compares it with.
        """
        self._check_references(embeddings, labels, references, reference_labels)
        embeddings = _precise(embeddings)
        references = references.to(embeddings)
        # What is left when there is nothing to compare still reaches both tensors.
        nothing = embeddings[:0].sum() + references[:0].sum()
        if len(embeddings) == 0 or len(references) == 0:
            return nothing
        # The library takes one tensor given twice for a batch compared with itself: hand it others.
        given = {"ref_emb": references.view_as(references), "ref_labels": reference_labels.view_as(reference_labels)}
        return self._weighted_loss(embeddings, labels, **given) + nothing

    def proxies(self) -> list[nn.Parameter]:
        """The trainable parameters of the loss and its like: proxies, class weights, learned margins."""
        others = {id(parameter) for parameter in self.networks()}
        return [parameter for parameter in self.parameters() if parameter.requires_grad and id(parameter) not in others]

    @property
    def has_learned_proxies(self) -> bool:
        """Whether `start_proxies` does anything: there are proxies that move, learned or by class means."""
        return any(True for _ in self._moving_proxies())

    @torch.no_grad()
    def start_proxies(self, embeddings: Tensor) -> None:
        """Put proxies that move, or a classifier's rows, where the points of their classes are.

        Args:
            embeddings: raw, (C, m, d): m items of each class. Where a class has K proxies, each gets the mean of every
                K-th of them; the rows of a tree's nodes get the mean of all classes below.
        """
        classes, items, _ = embeddings.shape
        for proxies, along, paths in self._moving_proxies():
            size = proxies.shape[1 - along]
            points = self.space.project(embeddings[..., :size].reshape(-1, size)).view(classes, items, size)
            if paths is None:
                centres = proxies.shape[along] // classes
                groups = [points[:, torch.arange(k, max(items, k + 1), centres) % items] for k in range(centres)]
                means = torch.stack([self.space.mean(group) for group in groups], dim=1).flatten(0, 1)
            else:
                means = torch.stack([self.space.mean(points[below].flatten(0, 1)) for below in paths.T > 0])
            proxies.copy_(means if along == 0 else means.T)
        for bank in self._mean_proxies():
            bank.seen.fill_(True)  # the first mean of a batch is no longer copied

    def _moving_proxies(self) -> Iterator[tuple[Tensor, int, Tensor | None]]:
        """What moves of the loss and its prefixes: proxies, their axis of classes, and what is above each class (C, N).

        The last is None where rows are of classes, not of the nodes of a tree.
        """
        for loss in (self.loss, *(prefix.loss for prefix in self._prefixes())):
            bank = getattr(loss, "bank", None)
            paths = bank.paths if isinstance(bank, NodeRows) else None
            for name, along in (("proxies", 0), ("bank.proxies", 0), ("bank.weight", 0), ("W", 1), ("fc", 1)):
                found = dict(loss.named_parameters()).get(name)
                if found is not None and found.requires_grad and found.ndim == 2:
                    yield found, along, paths
        for bank in self._mean_proxies():
            yield bank.proxies, 0, None

    def _mean_proxies(self) -> list[MeanProxies]:
        """Proxies that follow the class means, of the loss and its prefixes."""
        losses = (self.loss, *(prefix.loss for prefix in self._prefixes()))
        return [bank for loss in losses if isinstance(bank := getattr(loss, "bank", None), MeanProxies)]

    def networks(self) -> list[nn.Parameter]:
        """The trainable parameters of regularisers that learn at the head's rate: networks, not proxies."""
        networks = [m for m in self.regularisers.values() if isinstance(m, Regulariser) and m.learns_as_head]
        return [parameter for network in networks for parameter in network.parameters() if parameter.requires_grad]

    def stepped(self) -> None:
        """Called after the optimiser has made a step: proxies and scales that move by rules of their own do so now."""
        for loss in (self.loss, *(prefix.loss for prefix in self._prefixes())):
            if isinstance(loss, Stepped):
                loss.stepped()

    def readings(self) -> dict[str, float]:
        """Values to log for the steps since the last call.

        The loss's words, those of its prefixes as `<what>_first_<size>`, then `<regulariser>_<what>`.
        """
        told: dict[str, float] = self.loss.readings() if isinstance(self.loss, Told) else {}
        for prefix in self._prefixes():
            words = prefix.loss.readings() if isinstance(prefix.loss, Told) else {}
            told |= {f"{what}_first_{prefix.size}": value for what, value in words.items()}
        return told | {
            f"{name}_{what}": value
            for name, module in self.regularisers.items()
            if isinstance(module, Regulariser)
            for what, value in module.readings(self.weights[name]).items()
        }

    def check_batch(self, classes_per_batch: int, per_class: int) -> None:
        """Raise RecipeError when the loss cannot learn from such batches."""
        if per_class < self.batch.per_class:
            raise RecipeError(
                f"The loss '{self.name}' compares samples of one class with each other: set data.per_class to at "
                f"least {self.batch.per_class} (it is {per_class})."
            )
        if classes_per_batch < self.batch.classes:
            raise RecipeError(
                f"The loss '{self.name}' compares samples of different classes: a batch needs at least "
                f"{self.batch.classes} classes (data.classes_per_batch), but it would have {classes_per_batch}."
            )
        for name in self.weights:
            needed = regularisers.get(name).classes if name in regularisers else 1
            if classes_per_batch < needed:
                raise RecipeError(
                    f"The regulariser '{name}' needs batches of at least {needed} classes: set data.classes_per_batch "
                    f"to that or more (a batch would have {classes_per_batch})."
                )

    def _check_references(self, embeddings: Tensor, labels: Tensor, references: Tensor, of_references: Tensor) -> None:
        if not self.supports_references:
            raise RecipeError(
                f"The loss '{self.name}' cannot compare a batch with references: choose a pair loss such as "
                "'contrastive' instead."
            )
        for what, vectors, classes in (("batch", embeddings, labels), ("references", references, of_references)):
            if vectors.ndim != 2 or classes.shape != vectors.shape[:1]:
                raise DataError(
                    f"The {what} must be vectors (n, d) with one label each, (n,), but the shapes are "
                    f"{tuple(vectors.shape)} and {tuple(classes.shape)}."
                )
        if embeddings.shape[1] != references.shape[1]:
            raise DataError(
                f"References must have as many dimensions as the embeddings they are compared with: they have "
                f"{references.shape[1]}, the embeddings {embeddings.shape[1]}."
            )


def make_objective(
    section: ObjectiveSection,
    *,
    dimension: int,
    classes: int,
    space: Space | None = None,
    seed: int = 0,
    features: int | None = None,
    epoch_steps: int | None = None,
    episode: tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
    hierarchy: Hierarchy | None = None,
    similarity: SimilarityParts | None = None,
) -> Objective:
    """Build the objective that a recipe describes.

    Args:
        section: the recipe's `objective` section.
        dimension: size of an embedding.
        classes: number of training classes.
        space: where embeddings are compared; None means the unit sphere.
        seed: of the proxies' first values, and of miners and regularisers that draw. The global random state is left
            alone.
        features: size of the features that the head takes; only some regularisers must know.
        epoch_steps: steps of one pass through the training items; only some regularisers must know.
        episode: (shot, query), the support items and the queries of each class where batches are episodes.
        class_names: of the classes 0 ... classes - 1; only what uses a hierarchy must know.
        hierarchy: a tree over (at least) these classes; only some losses must have one.
        similarity: parts of the model that a loss of a learned similarity teaches; None: it makes its own.
    """
    if classes < 2:
        raise RecipeError(
            f"A loss needs at least 2 training classes, but there are {classes}: bring more classes, or hold fewer out."
        )
    if episode is not None and (not isinstance(episode, Sequence) or len(episode) != 2):
        raise RecipeError(f"make_objective takes two whole numbers (shot, query) as episode, not {episode!r}.")
    shot, query = (None, None) if episode is None else episode
    counts = {"features": features, "epoch_steps": epoch_steps, "episode's shot": shot, "episode's query": query}
    for what, count in counts.items():
        if count is not None and (not is_whole(count) or count < 1):
            raise RecipeError(f"make_objective takes a whole number from 1 on as {what}, not {count!r}.")
    drawn = None if episode is None else EpisodeShape(*episode)
    if not isinstance(hierarchy, Hierarchy | None):
        raise RecipeError(
            f"make_objective takes a Hierarchy, such as load_hierarchy('cifar100') gives, as hierarchy, not "
            f"{hierarchy!r}."
        )
    names = None if class_names is None else _checked_names(class_names, classes, hierarchy)
    shape = LossShape(
        dimension, classes, space or Sphere(), seed, features, epoch_steps, drawn, names, hierarchy, similarity
    )
    entry = losses.get(section.loss)
    if entry.needs_hierarchy and (hierarchy is None or names is None):
        raise RecipeError(
            f"The loss '{section.loss}' needs a tree over the classes: set data.hierarchy to a file or to a name such "
            "as cifar100 (in Python: give make_objective hierarchy= and class_names=)."
        )
    check_space(section, shape.space.name)
    with torch.random.fork_rng(devices=[]):
        drawn = np.random.SeedSequence([seed, _SALT]).generate_state(1, np.uint64)[0]
        torch.default_generator.manual_seed(int(drawn >> np.uint64(1)))
        loss = entry.factory(shape, **section.parameters)
        terms = {
            term.name: (term.weight, regularisers.get(term.name).factory(shape, **term.parameters))
            for term in section.regularisers
        }
        miner = _make_miner(section, entry, shape)
        prefixes = []
        if section.prefixes:  # last: what was drawn before is drawn alike without them
            prefixes = make_prefixes(
                section.prefixes,
                section.weights_of_prefixes(),
                shape,
                lambda cut: entry.factory(cut, **section.parameters),
                lambda cut: _make_miner(section, entry, cut),
            )
    _check_proxies(loss, terms)
    return Objective(
        section.loss, loss, entry.batch, miner, terms, entry.references, section.weight, prefixes, shape.space
    )


def _check_proxies(loss: nn.Module, terms: Mapping[str, tuple[float, nn.Module]]) -> None:
    """Refuse a regulariser that moves proxies where there are none to move."""
    for name, (_, module) in terms.items():
        learned = isinstance(loss, ClassVectors) and loss.class_vectors().requires_grad
        if _taken(module) == "proxies" and not learned:
            raise RecipeError(
                f"The regulariser '{name}' moves learned proxies, but this loss has none: {_SOURCES['proxies']}, with "
                "proxies that are learned."
            )


def _checked_names(names: Sequence[str], classes: int, hierarchy: Hierarchy | None) -> tuple[str, ...]:
    """Names of all the classes, each in the tree where there is one."""
    checked = tuple(map(str, names))
    if len(checked) != classes or len(set(checked)) != classes:
        raise RecipeError(
            f"There are {classes} classes and {len(set(checked))} different class_names: give make_objective one each."
        )
    if hierarchy is not None:
        hierarchy.check(checked)
    return checked


def check_space(section: ObjectiveSection, space: str) -> None:
    """Raise RecipeError when the loss or the miner is not defined in the space called `space`."""
    entry = losses.get(section.loss)
    if entry.spaces is not None and space not in entry.spaces:
        raise RecipeError(
            f"The loss '{section.loss}' is not defined in the space '{space}': set model.space to "
            f"{_either(entry.spaces)}, or choose another loss."
        )
    if entry.miner is None:
        return
    miner = miners.get(section.miner or entry.miner)
    if miner.spaces is not None and space not in miner.spaces:
        raise RecipeError(
            f"The miner '{miner.name}' is not defined in the space '{space}': set model.space to "
            f"{_either(miner.spaces)}, or objective.miner to 'all'."
        )


def _taken(module: nn.Module) -> Takes:
    """What a regulariser is called with; a plain module takes embeddings."""
    return module.takes if isinstance(module, Regulariser) else "embeddings"


def _precise(vectors: Tensor) -> Tensor:
    """Vectors in single precision or better.

    Exponentials overflow in half precision, and the library would cast its proxies down for good.
    """
    return vectors.float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors


def _make_miner(section: ObjectiveSection, entry: LossEntry, shape: LossShape) -> nn.Module | None:
    if entry.miner is None:
        return None
    name = section.miner or entry.miner
    if name == EVERY and not section.switch:
        return None  # a loss takes every pair by default
    miner = miners.get(name)
    defaults = {name: p.default for name, p in parameters_of(entry.factory).items() if name in miner.inherits}
    inherited: dict[str, Any] = {name: section.parameters.get(name, default) for name, default in defaults.items()}
    return switching(miner.factory(shape, **(inherited | section.miner_parameters)), section.switch, shape.seed)


def _either(names: frozenset[str]) -> str:
    return " or ".join(f"'{name}'" for name in sorted(names))


class PrefixLoss(nn.Module):
    """The loss of the first dimensions of embeddings.

    Args:
        size: how many dimensions.
        weight: what it counts beside the loss of whole embeddings, which counts 1.
        loss: for embeddings of this size.
        miner: what chooses their pairs or triplets, or None.
    """

    def __init__(self, size: int, weight: float, loss: nn.Module, miner: nn.Module | None) -> None:
        super().__init__()
        self.size = size
        self.weight = weight
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor, **given: Tensor) -> Tensor:
        """Scalar loss, without the weight, of raw embeddings (B, d), labels (B,) and, where given, references."""
        if "ref_emb" in given:
            given = given | {"ref_emb": given["ref_emb"][:, : self.size]}
        return compared(self.loss, self.miner, embeddings[:, : self.size], labels, **given)


def make_prefixes(
    sizes: Sequence[int],
    weights: Sequence[float],
    shape: LossShape,
    loss: Callable[[LossShape], nn.Module],
    miner: Callable[[LossShape], nn.Module | None],
) -> list[PrefixLoss]:
    """The loss of each size.

    Args:
        sizes: how many dimensions, each below that of the shape.
        weights: what each counts.
        shape: of whole embeddings.
        loss: makes the loss of embeddings of a shape.
        miner: makes its miner, if it has any.

    Raises:
        RecipeError: for a size that is no prefix, and for proxies that a tree has laid out: each size has a layout of
            its own, and one embedding cannot follow two.
    """
    made = []
    for size, weight in zip(sizes, weights, strict=True):
        if size >= shape.dimension:
            raise RecipeError(
                f"objective.prefixes names {size}, and embeddings have {shape.dimension} dimensions: name smaller "
                "sizes only, as the whole embedding counts anyway."
            )
        cut = replace(shape, dimension=size)
        term = PrefixLoss(size, weight, loss(cut), miner(cut))
        if any(isinstance(module, FixedProxies) for module in term.modules()):
            raise RecipeError(
                "Proxies that a tree lays out lie differently in each size, and an embedding cannot follow them all: "
                "remove objective.prefixes, or let the proxies be learned."
            )
        made.append(term)
    return made


def compared(loss: nn.Module, miner: nn.Module | None, embeddings: Tensor, labels: Tensor, **given: Tensor) -> Tensor:
    """A loss of raw embeddings (B, d) and labels (B,), by the miner's choice where there is a miner, a scalar.

    Args:
        loss: called with embeddings and labels, and with the choice.
        miner: what chooses pairs or triplets, or None.
        embeddings: raw, (B, d).
        labels: (B,) int64.
        given: `ref_emb` (R, d) and `ref_labels` (R,) to compare with instead of with the batch itself.
    """
    choice = () if miner is None else (miner(embeddings, labels, **given),)
    value: Tensor = loss(embeddings, labels, *choice, **given)
    return value.reshape(())
