"""Any deployed inference as a classifier that can be attacked: pixels to differentiable log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.attacks.neighbour_scores import NeighbourScores
from nearkin.confidence import NED, Estimator, KNNVote
from nearkin.errors import DataError
from nearkin.models import Embedder, SimilarityModel
from nearkin.models.similarity_model import Classifier as Inference
from nearkin.models.tuning import as_channels_last, inference_copy


class Classifier(nn.Module):
    """What is attacked: inputs to log-probabilities of classes, with a gradient down to the inputs.

    Called with pixels (B, C, H, W) in [0, 1], it gives (B, C'). Any module with the same contract and a `classes`
    may take its place.

    Args:
        embed: inputs to points of a space (B, d).
        log_probabilities: points to log-probabilities (B, C'), or to scores of which these are the softmax.
        classes: names of the C' classes.
        name: what to call it in tables.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        log_probabilities: Callable[[Tensor], Tensor],
        classes: Sequence[Any],
        name: str,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.log_probabilities = log_probabilities
        self.classes = tuple(classes)
        self.name = name

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities (B, C') of inputs."""
        return torch.log_softmax(self.log_probabilities(self.embed(inputs)), dim=1)


class PixelEmbedder(nn.Module):
    """A model made for attacks: a copy in eval mode, tuned for speed, from pixels in [0, 1] to points of its space.

    Args:
        embedder: the model, which is not touched.
    """

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        if embedder.spec.kind != "image":
            raise DataError(
                f"Attacks change pixels, and this model takes {embedder.spec.kind}: give a model of images, or attack "
                "a module of your own."
            )
        self.model = inference_copy(embedder)

    def forward(self, pixels: Tensor) -> Tensor:
        """Points of the space (B, d) of pixels (B, C, H, W) in [0, 1], with gradients down to these."""
        return self.model.embed(as_channels_last(self.model.normalise(pixels)))


def classifier_of_estimator(
    model: Embedder | PixelEmbedder, estimator: Estimator, name: str | None = None
) -> Classifier:
    """Classify by neighbours or prototypes, as a fitted estimator does: NED over a gallery, nearest prototype.

    NED answers as deployed and slopes as its whole support does (`NeighbourScores`). Plain votes have no gradient:
    attack NED over the same support and see what the votes make of what it finds.

    Args:
        model: what embeds.
        estimator: fitted to embeddings of the same model.
        name: what to call it; None: the estimator's class.
    """
    if isinstance(estimator, KNNVote):
        raise DataError(
            "A vote has no gradient to attack by: attack NED over the same support, and ask the vote what it makes of "
            "what was found."
        )
    classes = estimator.classes_.tolist()
    scores = NeighbourScores(estimator) if isinstance(estimator, NED) else estimator.log_proba
    return Classifier(_embedder(model), scores, classes, name or type(estimator).__name__)


def classifier_of_similarity(model: SimilarityModel | PixelEmbedder, by: Inference = "sim") -> Classifier:
    """Classify by a model's own prototypes and learned similarity ("sim"), or by its dense layer ("dol")."""
    copied = _embedder(model)
    twin = copied.model
    if not isinstance(twin, SimilarityModel):
        raise DataError("This model has no learned similarity to classify by: attack an estimator over a support.")
    twin.class_scores(twin.prototypes.points[:1], by)  # a way that the model has not is refused here, not later
    return Classifier(copied, lambda points: twin.class_scores(points, by), twin.classes, by.upper())


def classifier_of_scores(
    model: Embedder | PixelEmbedder, scores: Callable[[Tensor], Tensor], classes: Sequence[Any], name: str = "softmax"
) -> Classifier:
    """Classify by the softmax of scores (B, C') of points (B, d), such as `class_scores` of a loss with proxies."""
    return Classifier(_embedder(model), scores, classes, name)


def class_codes(classes: Sequence[Any], labels: Any) -> Tensor:
    """Labels (n,) as places among the classes, int64.

    Raises:
        DataError: a label is none of the classes.
    """
    book = {name: code for code, name in enumerate(classes)}
    named = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    unknown = [label for label in named if label not in book]
    if unknown:
        raise DataError(
            f"The label {unknown[0]!r} is none of the {len(book)} classes of this classifier: attack items of classes "
            "that it knows."
        )
    return torch.tensor([book[label] for label in named], dtype=torch.int64)


def _embedder(model: Embedder | PixelEmbedder) -> PixelEmbedder:
    return model if isinstance(model, PixelEmbedder) else PixelEmbedder(model)
