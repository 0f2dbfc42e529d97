"""Regularisers that learn nothing themselves: norms, spread, confusion of classes, residuals of other classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import RecipeError
from nearkin.objectives.registry import FLAT, LossShape, Regulariser, register_regulariser
from nearkin.registry import Positive
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


@register_regulariser("residual-augmentation", classes=2)
def residual_augmentation(shape: LossShape, *, amount: Positive = 1.0, scale: Positive = 10.0) -> nn.Module:
    """Vary each item as items of another class vary: the cross-entropy of f + amount * r to the class means.

    r is the residual, the point minus the mean of its class, of an item of another class; class scores are
    -scale d^2 to the class means of the batch.

    Reference: Kim 2023, section 6.2.2, which proposes augmentation by estimated intra-class variance; after Lin et al.
        2018, Deep variational metric learning.
    Needs: at least two classes and two samples of each in a batch. Sphere, Lipschitz ball or Euclidean space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes vary alike (`nearkin audit RUN --suite residuals` tells), and each has few items.

    Args:
        amount: what residuals are multiplied by before they are added.
        scale: what negative squared distances are multiplied by before the softmax.

    Example:
        >>> term = {"name": "residual-augmentation", "weight": 0.5}
        >>> section = ObjectiveSection(loss="multi-similarity", regularisers=[term])
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    if shape.space.name not in FLAT:
        raise RecipeError(
            f"The regulariser 'residual-augmentation' adds points, which the space '{shape.space.name}' cannot: set "
            "model.space to sphere, lipschitz-ball or euclidean."
        )
    return ResidualAugmentation(shape.space, amount, scale)


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


class ResidualAugmentation(Regulariser):
    """The module behind the regulariser 'residual-augmentation'.

    Residuals come from the class after an item's own in the batch's order, item by item, so nothing is drawn: batches
    put classes together at random. They are constants: what is learned is where items and means lie, not to vary less.

    Args:
        space: where embeddings are projected and compared.
        amount: what residuals are multiplied by before they are added.
        scale: what negative squared distances are multiplied by before the softmax.
    """

    def __init__(self, space: Space, amount: float = 1.0, scale: float = 10.0) -> None:
        super().__init__()
        self.space = space
        self.amount = amount
        self.scale = scale

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over embeddings (B, d) with labels (B,); zero for one class."""
        classes, belongs = labels.unique(return_inverse=True)
        if len(classes) < 2:
            return 0.0 * embeddings.sum()
        points = self.space.project(embeddings)
        member = functional.one_hot(belongs, len(classes)).to(points.dtype)
        means = (member / member.sum(dim=0)).T @ points  # (C, d)
        residuals = (points - means[belongs]).detach()
        varied = self.space.project(points + self.amount * residuals[partners(belongs)])
        scores = -self.scale * self.space.distance(varied, self.space.project(means)).square()
        return functional.cross_entropy(scores, belongs)


def partners(belongs: Tensor) -> Tensor:
    """Of each item (B,) one of the class that follows its own, the last being followed by the first.

    The i-th item of a class has the i-th of the next one, from the first again where that is smaller.

    Args:
        belongs: classes (B,) from 0 to C - 1, each with an item, C at least 2.
    """
    order = torch.argsort(belongs, stable=True)
    sizes = torch.bincount(belongs)
    starts = sizes.cumsum(0) - sizes
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    within = place - starts[belongs]
    following = (belongs + 1) % len(sizes)
    return order[starts[following] + within % sizes[following]]
