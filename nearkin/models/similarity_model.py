"""One model for four tasks: an embedder with a learned similarity, class prototypes and a dense layer."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.data.dataset import Dataset
from nearkin.data.stores import FolderStore, ZipStore
from nearkin.errors import DataError, ModelError, suggestion
from nearkin.models.embedder import Embedder, Features
from nearkin.models.items import Items, open_collection
from nearkin.models.similarity import LearnedSpace, PairSimilarity, PrototypeBank, SimilarityParts
from nearkin.models.similarity_sides import PairScore, fused
from nearkin.search import exact
from nearkin.spaces import Space


def _file_identities(items: Any) -> list[str] | None:
    """What tells files apart, one for each item; None where items are no files."""
    if isinstance(items, Dataset):
        store = items.store
        if isinstance(store, FolderStore):
            return [os.path.realpath(store.root / path) for path in items.manifest.paths]
        if isinstance(store, ZipStore):
            return [f"{os.path.realpath(store.path)}!{store.prefix}{path}" for path in items.manifest.paths]
        return [f"{id(store)}!{path}" for path in items.manifest.paths]
    if isinstance(items, str | Path):
        items = [items]
    if isinstance(items, Sequence) and all(isinstance(item, str | Path) for item in items):
        return [os.path.realpath(item) for item in items]
    return None


def _same_file_positions(queries: Any, gallery: Any) -> list[list[int]]:
    """The places in the gallery that hold the same file as each query; none at all where either are no files."""
    asked, there = _file_identities(queries), _file_identities(gallery)
    if asked is None or there is None:
        return []
    places: dict[str, list[int]] = {}
    for place, file in enumerate(there):
        places.setdefault(file, []).append(place)
    return [places.get(file, []) for file in asked]


Classifier = Literal["sim", "dol"]

_CLASSIFIERS = ("sim", "dol")
_PAIR_SCORES = get_args(PairScore)


@dataclass(frozen=True, eq=False)
class Classification:
    """What a model takes items for.

    Attributes:
        labels: the likeliest class (n,) of each.
        probabilities: of every class (n, C), float32.
        classes: names of the C classes.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    classes: tuple[str, ...]


class SimilarityModel(Embedder):
    """An embedder that learned how to compare: it classifies, takes in new classes, verifies and retrieves.

    Its space is a `LearnedSpace`: galleries, confidence, audits and searches compare by the learned similarity.
    Make one with a recipe that has `model.similarity`, such as 'learned-similarity'.

    Reference: *Learning semantic similarities for prototypical classifiers*.

    Args:
        encoder: the parts of an embedder; its space is where the embeddings live. Not to be used by itself afterwards.
        network: the similarity of two embeddings.
        classes: names of the classes that the prototypes and the dense layer stand for.
        dense: whether there is a dense layer.
    """

    network: PairSimilarity
    prototypes: PrototypeBank
    dense: nn.Linear | None
    space: LearnedSpace

    def __init__(self, encoder: Embedder, network: PairSimilarity, classes: Sequence[str], dense: bool = True) -> None:
        parts = encoder.local, encoder.attention, encoder.size_feature
        super().__init__(encoder.backbone, encoder.pooling, encoder.head, encoder.space, encoder.card, *parts)
        if network.dimension != self.dimension:
            raise ModelError(
                f"The similarity takes embeddings of {network.dimension} dimensions, but the model's have "
                f"{self.dimension}: pass PairSimilarity the model's dimension."
            )
        self.network = network
        self.classes = tuple(classes)
        self.prototypes = PrototypeBank(len(self.classes), self.dimension, encoder.space)
        self.dense = nn.Linear(self.dimension, len(self.classes)) if dense else None
        self.space = LearnedSpace(encoder.space, network)

    @property
    def base(self) -> Space:
        """Where the embeddings live, compared by nothing but their places."""
        return self.space.base

    @property
    def parts(self) -> SimilarityParts:
        """What the loss teaches besides the embedding."""
        return SimilarityParts(self.network, self.prototypes, self.dense)

    def taught_by_loss(self) -> list[nn.Module]:
        """The network and the dense layer."""
        return [self.network] if self.dense is None else [self.network, self.dense]

    def class_scores(self, points: Tensor, by: Classifier = "sim") -> Tensor:
        """Scores (B, C) of embeddings (B, d), whose softmax are the class probabilities; differentiable.

        Args:
            points: points of the base space.
            by: "sim": the similarity to the prototypes; "dol": the dense output layer.
        """
        return self.parts.class_scores(points, self._classifier(by), at_rest=not self.training)

    def log_probabilities(self, inputs: Features, by: Classifier = "sim", start: str | None = None) -> Tensor:
        """Log-probabilities (B, C) of normalised inputs, with gradients down to these: what attacks ask for.

        Args:
            inputs: as of `forward`.
            by: as of `class_scores`.
            start: as of `forward`.
        """
        return functional.log_softmax(self.class_scores(self.embed(inputs, start=start), by), dim=1)

    @torch.no_grad()
    def classify(
        self, items: Items, by: Classifier = "sim", *, batch_size: int = 32, progress: bool = False
    ) -> Classification:
        """Tell which of its classes items are of.

        Args:
            items: as of `encode`, or embeddings, float (n, d).
            by: "sim": the class whose prototype is most similar; "dol": the dense output layer.
            batch_size: samples that go through the network together.
            progress: show a bar.
        """
        points = torch.from_numpy(self._points(items, batch_size, progress)).to(self._device)
        scores = self.parts.class_scores(points, self._classifier(by), at_rest=True)
        probabilities = scores.softmax(dim=1).cpu().numpy()
        names = np.array(self.classes, dtype=object)
        return Classification(names[probabilities.argmax(axis=1)], probabilities, self.classes)

    @torch.no_grad()
    def few_shot(
        self, support: Items, labels: Sequence[Any] | None = None, *, progress: bool = False
    ) -> SimilarityModel:
        """A model of other classes that shares everything but the prototypes: these are means of the support.

        Nothing is trained, and this model stays as it is. The dense layer knows the old classes only, so the new model
        has none. Encoder and similarity are the same objects in both.

        Args:
            support: a few items of each class: a folder of classes, a zip, manifest or Dataset, which bring their
                labels; or items as of `encode`, or embeddings, float (n, d), with `labels`.
            labels: one for each item.
            progress: show a bar.
        """
        support = open_collection(support)
        if labels is None:
            if not isinstance(support, Dataset):
                raise DataError("A support without a folder of classes needs labels, one for each item: give labels=.")
            labels = list(support.labels)
        points = self._points(support, 32, progress)
        if not len(points):
            raise DataError("The support has no items: give at least one of each class.")
        names = _checked_labels(labels, len(points))
        classes = sorted(set(names))
        twin = copy.copy(self)
        twin._modules = dict(self._modules)
        twin.classes = tuple(classes)
        twin.prototypes = PrototypeBank(len(classes), self.dimension, self.base).to(self._device)
        means = [self.base.mean(torch.from_numpy(points[names == name])) for name in classes]
        twin.prototypes.points.copy_(torch.stack(means))
        twin.dense = None
        counts = {name: int((names == name).sum()) for name in classes}
        # What was measured was measured with other prototypes.
        twin.card = replace(self.card, validation=None, selected_on=None, few_shot={"items": counts})
        return twin

    def verify(self, a: Items, b: Items, by: PairScore = "cosine+sim", *, progress: bool = False) -> np.ndarray:
        """How alike pairs are, (n,) float32, higher the more: accept from a threshold of your choice on.

        Args:
            a: enrolled items, as of `encode`, or embeddings, float (n, d).
            b: as many items to be compared with them, one to one.
            by: "sim": the learned similarity, a logit; "cosine": of the embeddings; "cosine+sim": the mean of
                `sigmoid(S)` and `(1 + cosine) / 2`, from 0 to 1; "raw-sum": S plus the cosine, as in the paper.
            progress: show a bar.
        """
        return self.pair_scores(self._points(a, 32, progress), self._points(b, 32, progress), by)

    @torch.no_grad()
    def pair_scores(self, a: np.ndarray, b: np.ndarray, by: PairScore = "cosine+sim") -> np.ndarray:
        """The same of embeddings (n, d) and (n, d)."""
        _check_name(by, _PAIR_SCORES, "score pairs")
        left, right = (torch.from_numpy(self._vectors(points)).to(self._device) for points in (a, b))
        if len(left) != len(right):
            raise DataError(
                f"Pairs are compared one to one, but there are {len(left)} items on one side and {len(right)} on the "
                f"other: pass as many of each."
            )
        cosine = functional.cosine_similarity(left, right)
        if by == "cosine":
            return cosine.cpu().numpy()
        similarity = self.network.table(right.unsqueeze(1), left.unsqueeze(1), at_rest=True)[:, 0, 0]
        return fused(similarity, cosine, by).cpu().numpy()

    def retrieve(
        self,
        gallery: Items,
        k: int = 10,
        queries: Items | None = None,
        *,
        exclude: Any | None = None,
        by: PairScore = "sim",
        progress: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k gallery items most similar to each query: (scores, indices), each (q, k), most similar first.

        A query never finds itself: without `queries` every item of the gallery is looked for among the others, and a
        query that is the same file as items of the gallery does not find those.

        Args:
            gallery: items as of `encode`, or embeddings, float (n, d).
            k: how many.
            queries: as above; default: the gallery itself.
            exclude: the index (q,) of the gallery item that a query must not find, -1 for none; None: by file.
            by: the score that compares, as of `verify`.
            progress: show a bar.
        """
        _check_name(by, _PAIR_SCORES, "retrieve")
        gallery = open_collection(gallery)
        there = self._points(gallery, 32, progress)
        if queries is None or queries is gallery:
            points: tuple[Any, Any] = there, None
            most, same = 0, []
            available, why = len(there) - (exclude is None), "each item is looked for among the others"
        else:
            queries = open_collection(queries)
            points = self._points(queries, 32, progress), there
            same = _same_file_positions(queries, gallery) if exclude is None else []
            most = max(map(len, same), default=0)
            available, why = len(there) - most, "a query does not find its own file" if most else "that is all"
        if isinstance(k, int) and k > available:
            raise DataError(
                f"k is {k}, but only {available} items can be found ({why}): ask for fewer, or pass more items."
            )
        space = "cosine" if by == "cosine" else LearnedSpace(self.base, self.network, by)
        distances, indices = exact(*points, k + most, space=space, exclude=exclude)
        found, places = float(by == "cosine") - distances.cpu().numpy(), indices.cpu().numpy()
        if most:
            own = np.array([np.isin(row, hidden) for row, hidden in zip(places, same, strict=True)])
            kept = np.argsort(own, axis=1, kind="stable")[:, :k]
            found, places = np.take_along_axis(found, kept, axis=1), np.take_along_axis(places, kept, axis=1)
        return found, places

    def architecture(self) -> dict[str, Any]:
        """Everything but the weights, as JSON-safe values from which `Embedder.load` builds the model again."""
        return super().architecture() | {
            "space": self.base.to_dict(),
            "similarity": {**self.network.to_dict(), "classes": list(self.classes), "dense": self.dense is not None},
        }

    @property
    def _device(self) -> torch.device:
        return self.prototypes.points.device

    def _classifier(self, by: Classifier) -> Classifier:
        _check_name(by, _CLASSIFIERS, "classify items")
        if by == "dol" and self.dense is None:
            raise ModelError("The model has no dense layer for these classes: classify by 'sim'.")
        return by

    def _points(self, items: Items, batch_size: int, progress: bool) -> np.ndarray:
        """Embeddings float32 (n, d) of items, or of what are embeddings already: every matrix of floats."""
        if isinstance(items, Tensor) and items.ndim == 2 and items.is_floating_point():
            return self._vectors(items)
        if isinstance(items, np.ndarray) and items.ndim == 2 and np.issubdtype(items.dtype, np.floating):
            return self._vectors(items)
        return self.encode(items, batch_size=batch_size, progress=progress)

    def _vectors(self, points: Any) -> np.ndarray:
        """Embeddings float32 (n, d), refused where they cannot be this model's."""
        given = points.detach().float().cpu().numpy() if isinstance(points, Tensor) else np.asarray(points)
        if given.ndim != 2 or given.shape[1] != self.dimension:
            raise DataError(
                f"Embeddings of this model have the shape (n, {self.dimension}), but these have {given.shape}: pass "
                f"embeddings of that shape, or grey images as uint8."
            )
        vectors = np.ascontiguousarray(given, dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise DataError(
                f"{len(bad)} of {len(vectors)} embeddings hold NaN or infinite values, the first is row {bad[0]}: "
                "check what made them."
            )
        return vectors


def _check_name(given: str, known: Sequence[str], what: str) -> None:
    if given not in known:
        raise ModelError(f"This model cannot {what} by '{given}'.{suggestion(str(given), known)}")


def _checked_labels(labels: Sequence[Any], items: int) -> np.ndarray:
    """One name (n,) for each item."""
    if isinstance(labels, str) or len(labels) != items:
        given = "one text" if isinstance(labels, str) else f"{len(labels)} labels"
        raise DataError(f"The support has {items} items and {given}: pass one label for each item.")
    for place, label in enumerate(labels):
        if label is None or label != label or str(label) == "":
            raise DataError(f"Item {place} of the support has no label: add one, or remove the item.")
    return np.array([str(label) for label in labels], dtype=object)
