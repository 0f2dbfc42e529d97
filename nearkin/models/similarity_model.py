"""One model for four tasks: an embedder with a learned similarity, class prototypes and a dense layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.errors import DataError, ModelError, suggestion
from nearkin.models.embedder import Embedder
from nearkin.models.features import Features
from nearkin.models.items import Items
from nearkin.models.learned_space import LearnedSpace
from nearkin.models.prototypes import PrototypeBank
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_parts import SimilarityParts
from nearkin.search import exact
from nearkin.spaces import Space

Classifier = Literal["sim", "dol"]
PairScore = Literal["sim", "cosine", "cosine+sim"]

_CLASSIFIERS = ("sim", "dol")
_PAIR_SCORES = ("sim", "cosine", "cosine+sim")


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
        super().__init__(
            encoder.backbone,
            encoder.pooling,
            encoder.head,
            encoder.space,
            encoder.card,
            encoder.local,
            encoder.attention,
        )
        if network.dimension != self.dimension:
            raise ModelError(
                f"The similarity is for embeddings of {network.dimension} dimensions and the model's have "
                f"{self.dimension}: give PairSimilarity the model's dimension."
            )
        self.network = network
        self.classes = tuple(classes)
        self.prototypes = PrototypeBank(len(self.classes), self.dimension)
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
        return self.parts.class_scores(points, self._classifier(by))

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
        probabilities = self._at_rest(self.class_scores, points, by).softmax(dim=1).cpu().numpy()
        names = np.array(self.classes, dtype=object)
        return Classification(names[probabilities.argmax(axis=1)], probabilities, self.classes)

    @torch.no_grad()
    def few_shot(
        self, support: Items, labels: Sequence[Any] | None = None, *, progress: bool = False
    ) -> SimilarityModel:
        """A model of other classes that shares everything but the prototypes: these are means of the support.

        Nothing is trained, and this model stays as it is. The dense layer knows the old classes only, so the new model
        has none.

        Args:
            support: a few items of each class: a folder of classes, a zip, manifest or Dataset, which bring their
                labels; or items as of `encode`, or embeddings, float (n, d), with `labels`.
            labels: one for each item.
            progress: show a bar.
        """
        if labels is None:
            if isinstance(support, str | Path):
                support = open_data(support, progress=False)
            if not isinstance(support, Dataset):
                raise DataError("A support without a folder of classes needs labels, one for each item: give labels=.")
            labels = [str(name) for name in support.labels]
        points = self._points(support, 32, progress)
        names = np.array([str(label) for label in labels], dtype=object)
        if len(names) != len(points) or not len(points):
            raise DataError(f"The support has {len(points)} items and {len(names)} labels: give one label each.")
        classes = sorted(set(names))
        twin = copy.copy(self)
        twin._modules = dict(self._modules)
        twin.classes = tuple(classes)
        twin.prototypes = PrototypeBank(len(classes), self.dimension).to(self._device)
        means = [self.base.mean(torch.from_numpy(points[names == name])) for name in classes]
        twin.prototypes.points.copy_(torch.stack(means))
        twin.dense = None
        return twin

    def verify(self, a: Items, b: Items, by: PairScore = "cosine+sim", *, progress: bool = False) -> np.ndarray:
        """How alike pairs are, (n,) float32, higher the more: accept from a threshold of your choice on.

        Args:
            a: enrolled items, as of `encode`, or embeddings, float (n, d).
            b: as many items to be compared with them, one to one.
            by: "sim": the learned similarity, a logit; "cosine": of the embeddings; "cosine+sim": the mean of
                `sigmoid(S)` and `(1 + cosine) / 2`, from 0 to 1.
            progress: show a bar.
        """
        return self.pair_scores(self._points(a, 32, progress), self._points(b, 32, progress), by)

    @torch.no_grad()
    def pair_scores(self, a: np.ndarray, b: np.ndarray, by: PairScore = "cosine+sim") -> np.ndarray:
        """The same of embeddings (n, d) and (n, d)."""
        _check_name(by, _PAIR_SCORES, "pairs are not scored")
        left, right = (torch.as_tensor(points).float().to(self._device) for points in (a, b))
        if left.shape != right.shape or left.ndim != 2:
            raise DataError(
                f"Pairs are compared one to one, and there are {len(left)} items on one side and {len(right)} on the "
                "other: give as many of each."
            )
        cosine = functional.cosine_similarity(left, right)
        if by == "cosine":
            return cosine.cpu().numpy()
        similarity = self._at_rest(self.network, left, right)
        scores = similarity if by == "sim" else (similarity.sigmoid() + (1 + cosine) / 2) / 2
        return scores.cpu().numpy()

    def retrieve(
        self,
        gallery: Items,
        k: int = 10,
        queries: Items | None = None,
        *,
        exclude: Any | None = None,
        progress: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k gallery items most similar to each query: (similarities, indices), each (q, k), most similar first.

        A query never finds itself: without `queries` every item of the gallery is looked for among the others, and a
        query that is the same file as an item of the gallery does not find that item.

        Args:
            gallery: items as of `encode`, or embeddings, float (n, d).
            k: how many.
            queries: likewise; None: the gallery itself.
            exclude: the index (q,) of the gallery item that a query must not find, -1 for none.
            progress: show a bar.
        """
        there = self._points(gallery, 32, progress)
        if queries is None or queries is gallery:
            distances, indices = self._at_rest(exact, there, None, k, space=self.space, exclude=exclude)
        else:
            hidden = _same_files(queries, gallery) if exclude is None else exclude
            asked = self._points(queries, 32, progress)
            distances, indices = self._at_rest(exact, asked, there, k, space=self.space, exclude=hidden)
        return -distances.cpu().numpy(), indices.cpu().numpy()

    def architecture(self) -> dict[str, Any]:
        """Everything but the weights, as JSON-safe values from which `Embedder.load` builds the model again."""
        return super().architecture() | {
            "space": self.base.to_dict(),
            "similarity": {**self.network.to_dict(), "classes": list(self.classes), "dense": self.dense is not None},
        }

    @property
    def _device(self) -> torch.device:
        return self.prototypes.points.device

    def _classifier(self, by: str) -> Classifier:
        _check_name(by, _CLASSIFIERS, "items are not classified")
        if by == "dol" and self.dense is None:
            raise ModelError("The model has no dense layer for these classes: classify by 'sim'.")
        return "dol" if by == "dol" else "sim"

    def _at_rest(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a function while the similarity drops nothing out."""
        before = self.network.training
        self.network.eval()
        try:
            return function(*arguments, **options)
        finally:
            self.network.train(before)

    def _points(self, items: Items, batch_size: int, progress: bool) -> np.ndarray:
        """Embeddings float32 (n, d) of items, or of what are embeddings already."""
        if isinstance(items, np.ndarray | Tensor) and items.ndim == 2 and items.shape[1] == self.dimension:
            vectors = items.detach().cpu().numpy() if isinstance(items, Tensor) else items
            if np.issubdtype(vectors.dtype, np.floating):
                return np.ascontiguousarray(vectors, dtype=np.float32)
        return self.encode(items, batch_size=batch_size, progress=progress)


def _check_name(given: str, known: Sequence[str], what: str) -> None:
    if given not in known:
        raise ModelError(f"With this model {what} by '{given}'.{suggestion(str(given), known)}")


def _same_files(queries: Any, gallery: Any) -> np.ndarray | None:
    """The gallery item (q,) that is the same file as each query, -1 for none; None where items are no files."""
    asked, there = _files(queries), _files(gallery)
    if asked is None or there is None:
        return None
    places = {file: place for place, file in enumerate(there)}
    return np.array([places.get(file, -1) for file in asked], dtype=np.int64)


def _files(items: Any) -> list[str] | None:
    """What tells files apart; None where items are something else."""
    if isinstance(items, Dataset):
        return [f"{items.store!r}/{path}" for path in items.manifest.paths]
    if isinstance(items, str | Path):
        items = [items]
    if isinstance(items, Sequence) and all(isinstance(item, str | Path) for item in items):
        return [str(Path(item).resolve()) for item in items]
    return None
