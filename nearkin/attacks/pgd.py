"""Our own PGD: batches, restarts, any goal, any norm, inside the box of pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nearkin.attacks.ascent import Found, Goal, ascend, nothing_found, usual_step
from nearkin.attacks.checks import as_codes, as_inputs, at_rest, check_counts
from nearkin.attacks.classifier import Classifier
from nearkin.attacks.goals import Misclassify, OfInputs, Raised
from nearkin.attacks.norms import Norm, as_norm
from nearkin.attacks.region import PIXELS, Ball, Bounds, check_bounds
from nearkin.errors import DataError

BATCH = 32
"""Inputs that are attacked together, unless told otherwise."""


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
) -> Found:
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
        raise DataError(f"An attack begins at least once, not {restarts} times.")
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
    **options: object,
) -> Found:
    """Look for wrongly classified points near inputs (B, ...) of classes `codes` (B,); options as of `attack`."""
    inputs = as_inputs(inputs)
    goal = Misclassify(classifier, as_codes(codes, inputs), tuple(inputs.shape[1:]), raised)
    with at_rest(classifier):
        return attack(goal, inputs, eps, **options)  # type: ignore[arg-type]
