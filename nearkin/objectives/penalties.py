"""Regularisers that learn nothing themselves: the norm of embeddings, their spread, and the confusion of classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.objectives.registry import LossShape, Regulariser, register_regulariser
from nearkin.spaces import Space


@register_regulariser("embedding-norm")
def embedding_norm(shape: LossShape) -> nn.Module:
    """Mean squared norm of the raw embeddings.

    Reference: Sohn 2016, Improved deep metric learning with multi-class N-pair loss objective, section 3.2.2.
    Needs: any batch.
    Inputs: raw embeddings (B, d), labels (B,), unused.
    Use when: norms drift: with inner products in Euclidean space, or on the sphere, where long raw embeddings learn
        ever more slowly.

    Example:
        >>> section = ObjectiveSection(loss="n-pairs", regularisers=[{"name": "embedding-norm", "weight": 0.002}])
        >>> objective = make_objective(section, dimension=128, classes=100, space=Euclidean())
    """
    return EmbeddingNorm()


@register_regulariser("koleo")
def koleo(shape: LossShape) -> nn.Module:
    """Spread the batch evenly: minus the mean of ln(distance to the nearest other embedding).

    Reference: Sablayrolles, Douze, Schmid, Jégou 2019, Spreading vectors for similarity search.
    Needs: at least two samples in a batch. Any space; distances are the space's own.
    Inputs: raw embeddings (B, d), labels (B,), unused: same-class neighbours are spread too, so keep the weight low.
    Use when: embeddings crowd into a small part of the space, and unseen classes with them.

    Example:
        >>> section = ObjectiveSection(loss="proxy-anchor", regularisers=[{"name": "koleo", "weight": 0.1}])
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return KoLeo(shape.space)


@register_regulariser("energy-confusion", classes=2)
def energy_confusion(shape: LossShape) -> nn.Module:
    """Confuse classes: the mean squared distance between samples of two classes, which the loss wants apart.

    Reference: Chen, Deng 2019, Energy confused adversarial metric learning for zero-shot image retrieval and
        clustering; in this form Al-Kaabi, Monsefi, Zabihzadeh 2021, A framework to enhance generalization of deep
        metric learning methods, equation 7.
    Needs: at least two classes in a batch. Any space; distances are the space's own.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: a loss fits the training classes too well; keep the weight low, for it works against the loss.

    Example:
        >>> section = ObjectiveSection(loss="triplet", regularisers=[{"name": "energy-confusion", "weight": 0.1}])
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return EnergyConfusion(shape.space)


class EmbeddingNorm(Regulariser):
    """The module behind the regulariser 'embedding-norm'."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Mean of |f|^2 over embeddings (B, d)."""
        return embeddings.square().sum(dim=1).mean()


class KoLeo(Regulariser):
    """The module behind the regulariser 'koleo', the differential entropy estimate of Kozachenko and Leonenko.

    Args:
        space: where embeddings are projected and compared.
    """

    # Copies of a sample in a batch are at distance zero: a floor keeps the logarithm finite.
    _FLOOR = 1e-6

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """-mean_i ln min_{j != i} d(i, j) over embeddings (B, d); zero for a single one."""
        if len(embeddings) < 2:
            return 0.0 * embeddings.sum()
        points = self.space.project(embeddings)
        distances = self.space.distance(points, points)
        itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
        nearest = distances.masked_fill(itself, torch.inf).amin(dim=1)
        return -nearest.clamp(min=self._FLOOR).log().mean()


class EnergyConfusion(Regulariser):
    """The module behind the regulariser 'energy-confusion'.

    Args:
        space: where embeddings are projected and compared.
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean, over all pairs of classes in the batch, of the mean d(i, j)^2 of their samples; zero for one class.

        Embeddings are (B, d), labels (B,).
        """
        classes, belongs = labels.unique(return_inverse=True)
        if len(classes) < 2:
            return 0.0 * embeddings.sum()
        points = self.space.project(embeddings)
        squares = self.space.distance(points, points).square()
        member = functional.one_hot(belongs, len(classes)).to(squares.dtype)
        member = member / member.sum(dim=0)
        between = member.T @ squares @ member  # (C, C): means over the samples of two classes
        return between[~torch.eye(len(classes), dtype=torch.bool, device=between.device)].mean()
