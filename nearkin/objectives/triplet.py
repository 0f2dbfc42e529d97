"""Ranking losses: a positive must be nearer to its anchor than negatives are; also the growing triplet loss.

The growing triplet loss: squared distances, every triplet counted, a margin that is raised as training goes on.
A triplet costs max(0, |a - p|^2 - |a - n|^2 + margin); the loss is the mean over all triplets that the miner chose,
those that cost nothing included. Derivation: docs/methods/growing-triplet.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.objectives.distances import OnSphere, distance_in, library, scaled_product_in
from nearkin.objectives.registry import FLAT, PAIRS, SPHERE, AcuteDegrees, LossShape, register_counters, register_loss
from nearkin.registry import NonNegative, Positive
from nearkin.spaces import Space, Sphere


@register_loss("triplet", family="pairs", batch=PAIRS, miner="semi-hard")
def triplet(shape: LossShape, *, margin: Positive = 0.0961) -> nn.Module:
    """Triplet loss: mean of (d(a, p) - d(a, n) + m)_+ over the mined triplets it is positive for.

    Distances are not squared.

    Reference: Schroff, Kalenichenko, Philbin 2015, FaceNet: a unified embedding for face recognition and clustering.
    Needs: at least two classes and two samples of each in a batch, better eight classes of four; class labels.
        Miner: 'semi-hard' unless the recipe names another; it uses the loss's margin. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: only the order of neighbours matters and classes differ in how much they spread.

    Args:
        margin: how much further than the positive a negative must be.

    Example:
        >>> section = ObjectiveSection(loss="triplet", parameters={"margin": 0.119}, miner="hard")
        >>> objective = make_objective(section, dimension=128, classes=98)
    """
    return library("losses").TripletMarginLoss(margin=margin, distance=distance_in(shape.space))


@register_loss("margin", family="pairs", batch=PAIRS, miner="distance-weighted")
def margin(
    shape: LossShape, *, margin: Positive = 0.2, beta: Positive = 1.2, nu: NonNegative = 0.0, learn_beta: bool = True
) -> nn.Module:
    """Margin loss: (d(a, p) - beta + m)_+ + (beta - d(a, n) + m)_+ over the triplets drawn, per non-zero term.

    Reference: Wu, Manmatha, Smola, Krähenbühl 2017, Sampling matters in deep embedding learning.
    Needs: at least two classes and two samples of each in a batch; class labels. Miner: 'distance-weighted' (sphere
        only) unless the recipe names another. Any space with another miner. Trains one beta a class.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: triplets work but waste most of a batch; the boundary adapts to how much each class spreads.

    Args:
        margin: half the width of the gap around the boundary.
        beta: first value of the boundary between positive and negative distances.
        nu: weight of the sum of the betas; more of it draws the boundaries in.
        learn_beta: train the boundary, one value a class; otherwise it stays where it is.

    Example:
        >>> section = ObjectiveSection(loss="margin", parameters={"beta": 1.0, "learn_beta": False})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").MarginLoss(
        margin=margin,
        beta=beta,
        nu=nu,
        learn_beta=learn_beta,
        num_classes=shape.classes if learn_beta else None,
        distance=distance_in(shape.space),
    )


@register_loss("lifted-structure", family="pairs", batch=PAIRS, miner="all")
def lifted_structure(shape: LossShape, *, pos_margin: NonNegative = 0.0, neg_margin: Positive = 1.0) -> nn.Module:
    """Lifted structure: mean over positive pairs of (d(i, j) - m+ + ln sum_n exp(m- - d_n))_+^2 / 2.

    The sum runs over the distances of i and of j to all their negatives; when j is a reference, over those of i.

    Reference: Oh Song, Xiang, Jegelka, Savarese 2016, Deep metric learning via lifted structured feature embedding.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner. Any space.
        Memory grows with (positive pairs) x (negative pairs) of the batch.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: every positive pair should face all negatives of the batch at once, without mining.

    Args:
        pos_margin: distance below which positives are near enough.
        neg_margin: distance beyond which a negative's weight fades.

    Example:
        >>> section = ObjectiveSection(loss="lifted-structure")
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return _Lifted(
        library("losses").LiftedStructureLoss(
            pos_margin=pos_margin, neg_margin=neg_margin, distance=distance_in(shape.space)
        )
    )


@register_loss("angular", family="pairs", batch=PAIRS, spaces=SPHERE, miner="all", switchable=False)
def angular(shape: LossShape, *, angle: AcuteDegrees = 45.0) -> nn.Module:
    """Angular loss: mean over positive pairs of ln(1 + sum_n exp(4 t (a + p).n - 2 (1 + t) a.p)), t = tan^2(angle).

    Reference: Wang, Zhou, Wen, Liu, Lin 2017, Deep metric learning with angular loss.
    Needs: at least two classes and two samples of each in a batch, published with N-pair batches (two of each);
        class labels. Takes a miner. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: scale differs between classes: the angle at the negative does not depend on the size of the triangle.

    Args:
        angle: upper bound of the angle at the negative, in degrees.

    Example:
        >>> section = ObjectiveSection(loss="angular", parameters={"angle": 40})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return OnSphere(library("losses").AngularLoss(alpha=angle))


@register_loss("n-pairs", family="pairs", batch=PAIRS, spaces=FLAT, references=False)
def n_pairs(shape: LossShape, *, scale: Positive = 1.0) -> nn.Module:
    """N-pair loss: mean over classes of ln(1 + sum over other classes exp(s a.n - s a.p)).

    A batch gives one pair a class; the negatives of an anchor are the positives of the other pairs.

    Reference: Sohn 2016, Improved deep metric learning with multi-class N-pair loss objective.
    Needs: two samples of each class (further ones are not used), many classes in a batch; class labels. Sphere,
        Lipschitz ball or Euclidean space; in the latter add the regulariser 'embedding-norm', as the paper does.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: there are many classes with few samples.

    Args:
        scale: what inner products are multiplied by. The paper has 1 and free norms; cosines want 10 or more.

    Example:
        >>> section = ObjectiveSection(loss="n-pairs", parameters={"scale": 16})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").NPairsLoss(distance=scaled_product_in(shape.space, scale))


class _Lifted(nn.Module):
    """Lifted structure for a batch, and its own sum for references.

    Given references, the library adds the negatives of whatever sample has the positive's index, although that index
    counts references, and it holds (positive pairs) x (negative pairs) numbers where B x R will do.
    """

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        choice: tuple[Tensor, ...] | None = None,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,), against references (R, d) when they are given."""
        if ref_emb is None or ref_labels is None:
            return self.loss(embeddings, labels, choice)
        if choice is None:
            same = labels.unsqueeze(1) == ref_labels
            choice = (*torch.where(same), *torch.where(~same))
        a, p, b, n = choice if len(choice) == 4 else (choice[0], choice[1], choice[0], choice[2])
        if len(a) == 0 or len(b) == 0:
            return embeddings[:0].sum()
        distances = self.loss.distance(embeddings, ref_emb)
        # A negative that several triplets of its anchor share counts as often, as it does in a batch.
        counts = torch.zeros_like(distances).index_put_((b, n), distances.new_ones(()), accumulate=True)
        away = _lse(self.loss.neg_margin - distances, counts)
        return (F.relu(distances[a, p] - self.loss.pos_margin + away[a]) ** 2 / 2).mean()


def _lse(values: Tensor, counts: Tensor) -> Tensor:
    """ln sum of counts * exp(values) over each row of (B, R); zero, and no gradient, where a row counts nothing."""
    some = counts > 0
    terms = (values + counts.clamp(min=1).log()).masked_fill(~some, torch.finfo(values.dtype).min)
    return terms.logsumexp(dim=1).masked_fill(~some.any(dim=1), 0)


MARGINS = ((0, 1.0), (500, 1.3), (750, 1.5))
"""Of a recipe that names none: those of the article, raised after 20 and 30 iterations, with 25 steps for one."""

_WIDEST = {"sphere": 4.0, "lipschitz-ball": 4.0}
"""The largest squared distance in spaces that have one."""


def _check_margins(given: Any) -> tuple[tuple[int, float], ...]:
    """The pairs [first step, margin] as numbers, in the order of their steps."""
    if not isinstance(given, list | tuple) or not given or not all(_is_stage(stage) for stage in given):
        raise PydanticCustomError(
            "margins",
            "Input should be a list of pairs [steps done, margin] such as [[0, 1.0], [2000, 1.3]], with whole numbers "
            "of steps from 0 on and margins above 0",
        )
    steps = [step for step, _ in given]
    if steps[0] != 0:
        raise PydanticCustomError("margins", "Input should begin with the margin of the first steps, [0, margin]")
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise PydanticCustomError("margins", "Input should have its steps in ascending order, each of them once")
    return tuple((int(step), float(margin)) for step, margin in given)


def _is_stage(given: Any) -> bool:
    """Whether it is a pair of a count and a positive number; YAML's true and .inf are neither."""
    if not isinstance(given, list | tuple) or len(given) != 2 or any(isinstance(value, bool) for value in given):
        return False
    step, margin = given
    return isinstance(step, int) and step >= 0 and isinstance(margin, int | float) and 0 < margin < math.inf


Margins = Annotated[tuple[tuple[int, float], ...], PlainValidator(_check_margins)]


@register_loss("growing-triplet", family="pairs", batch=PAIRS, miner="random", references=False)
def growing_triplet(shape: LossShape, *, margins: Margins | None = None) -> nn.Module:
    """Triplet loss of squared distances with a growing margin: mean of (|a - p|^2 - |a - n|^2 + m)_+ over all triplets.

    Triplets that cost nothing count in the mean, so the loss falls as they become more. The log has the `margin`.

    Reference: Malde, Kim 2019, Beyond image classification: zooplankton identification with deep vector space
        embeddings; article I of Kim 2023.
    Needs: at least two classes and two samples of each in a batch; class labels. Miner: 'random' unless the recipe
        names another. Any space; on the sphere distances are chords. Cannot be compared with references.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: classes are many and open, and clusters should first be found and then be set apart.

    Args:
        margins: pairs of the steps after which a margin begins to hold and that margin, the first of them [0, margin];
            None: 1.0, from 500 steps on 1.3, from 750 on 1.5.

    Example:
        >>> section = ObjectiveSection(loss="growing-triplet", parameters={"margins": [[0, 1.0], [2000, 1.3]]})
        >>> objective = make_objective(section, dimension=128, classes=65)
    """
    stages = MARGINS if margins is None else margins
    largest = max(margin for _, margin in stages)
    if largest >= (widest := _WIDEST.get(shape.space.name, math.inf)):
        raise RecipeError(
            f"Squared distances in the space '{shape.space.name}' reach {widest:g} at the most, so no triplet could "
            f"meet a margin of {largest:g}: keep objective.parameters.margins below {widest:g}."
        )
    return GrowingTriplet(stages, shape.space)


class GrowingTriplet(nn.Module):
    """The module behind the loss 'growing-triplet'. Each call in training mode counts as one step; eval mode does not.

    Args:
        margins: pairs of the steps after which a margin begins to hold, ascending from 0, and that margin.
        space: where raw embeddings are compared; on the sphere by chords.
    """

    steps: Tensor
    _steps: int

    def __init__(self, margins: Sequence[tuple[int, float]], space: Space) -> None:
        super().__init__()
        self.margins = tuple(margins)
        self.space = Sphere() if space.name == "sphere" else space
        self._triplets = library("utils.loss_and_miner_utils").convert_to_triplets
        register_counters(self, "steps")

    def margin_after(self, steps: int) -> float:
        """The margin that holds when so many steps are done."""
        return self.margins[bisect_right(self.margins, steps, key=lambda stage: stage[0]) - 1][1]

    def forward(self, embeddings: Tensor, labels: Tensor, choice: tuple[Tensor, ...] | None = None) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,) over the chosen triplets, or all; zero without any."""
        margin = self.margin_after(self._steps)
        if self.training:
            self.steps += 1
            self._steps += 1
        a, p, n = self._triplets(choice, labels, t_per_anchor="all")
        if len(a) == 0:
            return embeddings[:0].sum()
        near, far = self._distances(self.space.project(embeddings), a, p, n)
        return F.relu(near.square() - far.square() + margin).mean()

    def _distances(self, points: Tensor, a: Tensor, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (T,) and (T,) of anchors to positives and to negatives, among points (B, d)."""
        if len(a) > len(points):
            every = self.space.distance(points, points)
            return every[a, p], every[a, n]
        # One triplet an anchor needs 2 B distances, not B^2.
        pairs = self.space.distance(points[a].unsqueeze(1), torch.stack([points[p], points[n]], dim=1))
        return pairs[:, 0, 0], pairs[:, 0, 1]

    def readings(self) -> dict[str, float]:
        """The `margin` of the last step, for the log."""
        return {"margin": self.margin_after(max(self._steps - 1, 0))}
