"""Projected gradient ascent (FGSM, BIM, PGD) for any goal in any region, and the goals of an adversary.

`x <- project(x + step * steepest(gradient))`. One step of the whole radius from the input is FGSM, many small ones from
the input are BIM, and from a random point of the region PGD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from nearkin._moved import renamed
from nearkin.attacks.classifier import Classifier, as_codes, as_inputs, at_rest, check_counts, check_scores
from nearkin.attacks.norms import Norm, as_norm
from nearkin.attacks.region import PIXELS, Ball, Bounds, Region, check_bounds
from nearkin.errors import DataError, suggestion
from nearkin.spaces import Space

_STEP = 2.5
"""A step is so many times the radius over the number of steps, by default: the ball can be crossed."""


class Goal(Protocol):
    """What an attack wants of inputs."""

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What to raise (b,), differentiable, and whether the aim is reached (b,), at points (b, D) of some inputs."""


@dataclass(frozen=True, eq=False)
class AscentResult:
    """What an attack found.

    Attributes:
        points: the worst point (B, D) of each input: one that reaches the aim if there was any, else of highest value.
        values: what was raised, there (B,).
        reached: whether the aim was reached (B,).
    """

    points: Tensor
    values: Tensor
    reached: Tensor

    def take(self, rows: Tensor, points: Tensor, values: Tensor, reached: Tensor) -> None:
        """Take in points (b, D) of inputs `rows` (b,) where they are worse for the defender than what is known."""
        before = self.reached[rows]
        better = (reached & ~before) | ((reached == before) & (values > self.values[rows]))
        places = rows[better]
        self.points[places], self.values[places] = points[better], values[better].to(self.values)
        self.reached[places] = reached[better]


def nothing_found(points: Tensor) -> AscentResult:
    """What is known of points (B, D) before anything was tried: themselves."""
    return AscentResult(
        points.clone(),
        torch.full((len(points),), -torch.inf, dtype=points.dtype, device=points.device),
        torch.zeros(len(points), dtype=torch.bool, device=points.device),
    )


def usual_step(radius: float, steps: int) -> float:
    """The default size of a step."""
    return _STEP * radius / steps if steps > 1 else radius


def ascend(goal: Goal, start: Tensor, region: Region, *, steps: int, step: float) -> AscentResult:
    """Climb from `start` (B, D), inside the region; an input whose aim is reached is left alone from then on.

    Args:
        goal: what to raise.
        start: where to begin, (B, D).
        region: what must not be left.
        steps: how many; 0 looks at the start alone.
        step: length of each, in the region's norm.
    """
    if steps < 0 or not step >= 0:
        raise DataError(f"An attack needs at least 0 steps of a positive size, not {steps} of {step}.")
    found = nothing_found(start)
    points, rows = start, torch.arange(len(start), device=start.device)
    for left in range(steps, -1, -1):
        with torch.set_grad_enabled(left > 0):
            x = points.detach().requires_grad_(left > 0)
            values, reached = goal(x, rows)
            total = values.sum()
        found.take(rows, points, values.detach(), reached)
        going = ~reached
        if left == 0 or not bool(going.any()):
            break
        if not total.requires_grad:
            raise DataError(
                "The classifier has no gradient: attack a similar one that has, or use the attack 'square'."
            )
        (gradient,) = torch.autograd.grad(total, x)
        rows = rows[going]
        points = _moved(points[going], gradient[going], region.select(rows), step)
    return found


def climb(raised: Callable[[Tensor], Tensor], start: Tensor, region: Region, *, steps: int, step: float) -> Tensor:
    """Where so many steps lead (B, D), whatever is met on the way: what training perturbs its inputs by.

    Args:
        raised: points (B, D) to values (B,).
        start: where to begin, (B, D).
        region: what must not be left.
        steps: how many.
        step: length of each, in the region's norm.
    """
    points = start
    for _ in range(steps):
        with torch.enable_grad():
            x = points.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(raised(x).sum(), x)
        points = _moved(points, gradient, region, step)
    return points


@torch.no_grad()
def _moved(points: Tensor, gradient: Tensor, region: Region, step: float) -> Tensor:
    """Points (B, D) after one step."""
    # Where there is no number there is no way up: such a coordinate stays.
    slope = gradient.nan_to_num(0.0)
    if region.norm.sparse and region.bounds is not None:
        low, high = region.bounds
        slope = slope.masked_fill(((points <= low) & (slope < 0)) | ((points >= high) & (slope > 0)), 0.0)
    return region.project(points + step * region.norm.steepest(slope))


Raised = Literal["cross-entropy", "margin"]


@dataclass(eq=False)
class Misclassify:
    """Make a classifier name another class.

    Args:
        classifier: inputs (b, *shape) to log-probabilities (b, C), or scores of which these are the softmax.
        codes: the true class of each input (B,), int64.
        shape: of one input.
        raised: "cross-entropy" of the true class, or the "margin" by which the likeliest other class is ahead: unlike
            the former it has a gradient where the classifier is very sure.
    """

    classifier: Callable[[Tensor], Tensor]
    codes: Tensor
    shape: tuple[int, ...]
    raised: Raised = "cross-entropy"

    def __post_init__(self) -> None:
        if self.raised not in get_args(Raised):
            raise DataError(
                f"An attack does not raise '{self.raised}'.{suggestion(str(self.raised), get_args(Raised))}"
            )

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What is raised (b,), and whether another class is named (b,), of points (b, D) of inputs `rows` (b,)."""
        scores = self.classifier(points.view(-1, *self.shape))
        check_scores(scores, self.codes[rows])
        own = self.codes[rows].unsqueeze(1)
        wrong = scores.argmax(dim=1) != own.squeeze(1)
        if self.raised == "cross-entropy":
            return -torch.log_softmax(scores, dim=1).gather(1, own).squeeze(1), wrong
        of_own = scores.gather(1, own).squeeze(1)
        others = scores.scatter(1, own, -torch.inf)
        return others.amax(dim=1) - of_own, wrong


@dataclass(eq=False)
class NameAs:
    """Make a classifier name a chosen class.

    Args:
        classifier: inputs (b, *shape) to log-probabilities (b, C), or scores of which these are the softmax.
        targets: the chosen class of each input (B,), int64.
        shape: of one input.
    """

    classifier: Callable[[Tensor], Tensor]
    targets: Tensor
    shape: tuple[int, ...]

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability (b,) of the chosen class, and whether it is named (b,), of points (b, D)."""
        scores = self.classifier(points.view(-1, *self.shape))
        wanted = self.targets[rows]
        check_scores(scores, wanted)
        values = torch.log_softmax(scores, dim=1).gather(1, wanted.unsqueeze(1)).squeeze(1)
        return values, scores.argmax(dim=1) == wanted


class _InGallery:
    """What goals of retrieval share: queries as points, and how far they are from a gallery."""

    embed: Callable[[Tensor], Tensor]
    gallery: Tensor
    space: Space
    shape: tuple[int, ...]

    def distances(self, points: Tensor) -> Tensor:
        """Distances (b, n) of inputs (b, D) to the gallery."""
        return self.space.distance(self.embed(points.view(-1, *self.shape)), self.gallery)


@dataclass(eq=False)
class PushAway(_InGallery):
    """Make the nearest neighbour of a query one of another class.

    Args:
        embed: inputs (b, *shape) to points of the space (b, d).
        gallery: what is searched (n, d); the queries themselves are not in it.
        codes: classes (n,) of the gallery.
        own: classes (B,) of the queries, each with items in the gallery, and others.
        space: how points are compared.
        shape: of one input.
    """

    embed: Callable[[Tensor], Tensor]
    gallery: Tensor
    codes: Tensor
    own: Tensor
    space: Space
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.same = self.own.unsqueeze(1) == self.codes
        if not bool(self.same.any(dim=1).all()) or bool(self.same.all(dim=1).any()):
            raise DataError("A query can be pushed away from its class if the gallery has items of it, and others.")

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """By how much the own class is farther than the nearest other (b,), and whether it is (b,)."""
        distances = self.distances(points)
        same = self.same[rows]
        own = distances.masked_fill(~same, torch.inf).amin(dim=1)
        other = distances.masked_fill(same, torch.inf).amin(dim=1)
        return own - other, own > other


@dataclass(eq=False)
class PullTo(_InGallery):
    """Make a chosen item the nearest neighbour of a query.

    Args:
        embed: inputs (b, *shape) to points of the space (b, d).
        gallery: what is searched (n, d).
        targets: places (B,) in the gallery of what each query shall find first.
        space: how points are compared.
        shape: of one input.
    """

    embed: Callable[[Tensor], Tensor]
    gallery: Tensor
    targets: Tensor
    space: Space
    shape: tuple[int, ...]

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the distance to the target (b,), and whether nothing is nearer (b,)."""
        distances = self.distances(points)
        near = distances.gather(1, self.targets[rows].unsqueeze(1)).squeeze(1)
        return -near, near <= distances.amin(dim=1)


@dataclass(eq=False)
class OfInputs:
    """A goal of some of the inputs, which are counted anew.

    Args:
        goal: of all inputs.
        chosen: which ones (b,).
    """

    goal: Goal
    chosen: Tensor

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the goal says of points (b, D) of the chosen inputs `rows` (b,)."""
        return self.goal(points, self.chosen[rows])


BATCH = 32
"""Inputs that are attacked together, by default."""


def attack(
    goal: Goal,
    inputs: Tensor,
    eps: float,
    *,
    norm: str | Norm = "linf",
    steps: int = 40,
    step: float | None = None,
    restarts: int = 1,
    random_start: bool = True,
    bounds: Bounds | None = PIXELS,
    seed: int = 0,
    batch_size: int = BATCH,
    advance: Callable[[int], None] | None = None,
) -> AscentResult:
    """Look for the worst point of the ball around each input; its points come flat, (B, D).

    Args:
        goal: what to raise; it knows inputs by their places.
        inputs: (B, ...), inside the bounds.
        eps: radius of the ball, in the unit of the inputs.
        norm: "l2", "linf", or a `Norm`.
        steps: how many steps each climb has. One, not from a random start, with step=eps is FGSM.
        step: length of each; None: 2.5 eps / steps, or eps if there is one step.
        restarts: how often to begin; only inputs whose aim is not reached begin again.
        random_start: begin at a random point of the ball the first time, too, not at the input.
        bounds: smallest and largest value of an input; None: any.
        seed: of the random starts.
        batch_size: inputs that are attacked together.
        advance: told how many inputs are done.
    """
    if restarts < 1:
        raise DataError(f"restarts must be at least 1, not {restarts}.")
    check_counts(batch_size=batch_size)
    inputs = as_inputs(inputs)
    check_bounds(inputs, bounds)
    flat = inputs.detach().flatten(1)
    norm = as_norm(norm)
    length = usual_step(eps, steps) if step is None else step
    worst = nothing_found(flat)
    for start in range(0, len(flat), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(flat)), device=flat.device)
        part = OfInputs(goal, rows)
        ball = Ball(flat[rows], eps, norm, bounds)
        found = ascend(part, flat[rows], ball, steps=0, step=0.0)  # the input itself may do
        generator = torch.Generator(device=flat.device).manual_seed(seed * 1_000_003 + start)
        for number in range(restarts):
            left = torch.nonzero(~found.reached).squeeze(1)
            if not len(left):
                break
            begin = ball.draw(generator) if random_start or number else ball.centres
            seen = ascend(OfInputs(part, left), begin[left], ball.select(left), steps=steps, step=length)
            found.take(left, seen.points, seen.values, seen.reached)
        worst.take(rows, found.points, found.values, found.reached)
        if advance is not None:
            advance(len(rows))
    return worst


def attack_classifier(
    classifier: Classifier | Callable[[Tensor], Tensor],
    inputs: Tensor,
    codes: Tensor,
    eps: float,
    *,
    raised: Raised = "cross-entropy",
    targets: Tensor | None = None,
    **options: object,
) -> AscentResult:
    """Look for wrongly classified points near inputs (B, ...) of classes `codes` (B,); options as for `attack`.

    With `targets` (B,), chosen classes, only a point that is named so counts, and its log-probability is raised.
    """
    inputs = as_inputs(inputs)
    codes, shape = as_codes(codes, inputs), tuple(inputs.shape[1:])
    goal: Goal = Misclassify(classifier, codes, shape, raised)
    if targets is not None:
        chosen = as_codes(targets, inputs)
        if bool((chosen == codes).any()):
            raise DataError("The target of an input is its own class: choose another one.")
        goal = NameAs(classifier, chosen, shape)
    with at_rest(classifier):
        return attack(goal, inputs, eps, **options)  # type: ignore[arg-type]


__getattr__ = renamed(__name__, Found="AscentResult")
