"""Published attacks by name, through foolbox: FGSM, BIM, PGD, DeepFool, Carlini and Wagner; and Square, our own.

In norms that foolbox lacks, L1 and the combined one, FGSM, BIM and PGD are our own too.

The Square attack: random squares, kept where they help; it asks for probabilities only, never for a gradient.
What a gradient attack misses because gradients are masked, it may find.
Reference: Andriushchenko, Croce, Flammarion, Hein 2020, Square attack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nearkin.attacks.classifier import as_codes, as_inputs, at_rest, check_counts, check_scores, check_size
from nearkin.attacks.norms import COMBINED, L1, Norm, as_norm
from nearkin.attacks.pgd import climb, usual_step
from nearkin.attacks.region import PIXELS, Ball, Bounds, Unit, check_bounds
from nearkin.errors import DataError, RecipeError, require, suggestion

_AREA = 0.1
"""Share of the pixels that the first squares cover."""
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Of 10,000 queries, after which ones the area is halved."""


@torch.no_grad()
def square_attack(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    codes: Tensor,
    eps: float,
    *,
    queries: int = 500,
    bounds: Bounds = PIXELS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points (B, C, H, W) within epsilon, in L-inf, of inputs, that a classifier is less sure of or wrong about.

    Args:
        classifier: inputs to log-probabilities (b, C').
        inputs: (B, C, H, W).
        codes: true classes (B,).
        eps: the largest change of a number.
        queries: how often the classifier is asked, at the most.
        bounds: smallest and largest number.
        generator: of what is drawn; None: torch's own.
    """
    channels, height, width = inputs.shape[1:]
    stripes = _signs((len(inputs), channels, 1, width), generator)
    best = (inputs + eps * stripes).clamp(*bounds)
    margins = _margins(classifier(best), codes)
    for query in range(1, queries):
        going = torch.nonzero(margins > 0).squeeze(1)
        if not len(going):
            break
        side = _side(query, queries, height, width)
        tried = best[going]
        top = torch.randint(0, height - side + 1, (len(going),), generator=generator)
        left = torch.randint(0, width - side + 1, (len(going),), generator=generator)
        # One sign for all channels' square of an input would be weaker: each channel has its own.
        rows, columns = torch.arange(height), torch.arange(width)
        inside = ((rows >= top[:, None]) & (rows < top[:, None] + side))[:, None, :, None]
        inside = inside & ((columns >= left[:, None]) & (columns < left[:, None] + side))[:, None, None, :]
        changed = inputs[going] + eps * _signs((len(going), channels, 1, 1), generator)
        tried = torch.where(inside, changed, tried).clamp(*bounds)
        found = _margins(classifier(tried), codes[going])
        better = found < margins[going]
        best[going[better]], margins[going[better]] = tried[better], found[better]
    return best


def _side(query: int, queries: int, height: int, width: int) -> int:
    """The side of a square: smaller the further the search is."""
    scaled = query / queries * 10_000
    area = _AREA / 2 ** sum(scaled > halving for halving in _HALVINGS)
    return max(1, min(round((area * height * width) ** 0.5), height, width))


def _signs(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


def _margins(scores: Tensor, codes: Tensor) -> Tensor:
    """By how much the true class is ahead of the likeliest other (b,); not above 0: the classifier is wrong."""
    own = scores.gather(1, codes.unsqueeze(1)).squeeze(1)
    return own - scores.scatter(1, codes.unsqueeze(1), -torch.inf).amax(dim=1)


_BATCH = 32
_SQUARE_QUERIES = 500


@dataclass(frozen=True)
class _Published:
    """How foolbox calls an attack.

    Args:
        classes: its class by norm.
        steps: its default number of them; None if it has none.
        sized: whether it takes the length of a step.
        minimal: whether it looks for the smallest perturbation instead of one within epsilon.
    """

    classes: dict[str, str]
    steps: int | None
    sized: bool = False
    minimal: bool = False


_FOOLBOX = {
    "fgsm": _Published({"linf": "LinfFastGradientAttack", "l2": "L2FastGradientAttack"}, None),
    "bim": _Published({"linf": "LinfBasicIterativeAttack", "l2": "L2BasicIterativeAttack"}, 10, sized=True),
    "pgd": _Published(
        {"linf": "LinfProjectedGradientDescentAttack", "l2": "L2ProjectedGradientDescentAttack"}, 40, sized=True
    ),
    "deepfool": _Published({"linf": "LinfDeepFoolAttack", "l2": "L2DeepFoolAttack"}, 50, minimal=True),
    "cw": _Published({"l2": "L2CarliniWagnerAttack"}, 200, minimal=True),
}
_OWN, _OWN_NORMS = ("fgsm", "bim", "pgd"), (L1.name, COMBINED)
"""What climbs by our own steps, and in which norms: foolbox has no combined norm, its L1 steps change one number."""
SQUARE = "square"
ATTACKS = (*_FOOLBOX, SQUARE)
"""Names of the attacks."""
_CW_SEARCHES = 5
_ROUNDINGS = 8
"""By how many roundings of its numbers an attack may miss epsilon, besides the same share of epsilon itself."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """What an attack made of inputs.

    Attributes:
        pixels: (B, C, H, W) in [0, 1], what the attack ended with, whether it succeeded or not; the input itself where
            the end lies beyond epsilon, or would put right what was wrong.
        wrong: whether another class is named (B,), inputs that were wrong before included; with targets: whether the
            target is.
        distances: from the inputs (B,), in the unit of epsilon.
    """

    pixels: Tensor
    wrong: Tensor
    distances: Tensor


def check_attack(name: str, norm: str) -> None:
    """Refuse an attack that there is not, or not in this norm."""
    if name not in ATTACKS:
        raise RecipeError(f"There is no attack '{name}'.{suggestion(str(name), ATTACKS)}")
    norms = [*_FOOLBOX[name].classes, *(_OWN_NORMS if name in _OWN else ())] if name in _FOOLBOX else ["linf"]
    if norm not in norms:
        raise RecipeError(f"The attack '{name}' uses the norm {' or '.join(norms)}, not '{norm}'.")


def published_attack(
    name: str,
    classifier: Callable[[Tensor], Tensor],
    pixels: Tensor,
    codes: Tensor,
    eps: float,
    *,
    norm: str | Norm = "linf",
    unit: Unit | None = None,
    steps: int | None = None,
    step: float | None = None,
    targets: Tensor | None = None,
    seed: int = 0,
    batch_size: int = _BATCH,
    advance: Callable[[int], None] | None = None,
) -> Attacked:
    """Attack a classifier as the papers do.

    Inputs that are wrong already are attacked too, so that whoever else is shown the result meets no clean ones. FGSM,
    BIM and PGD give their last point, DeepFool and C&W the smallest perturbation they find, which counts if it is
    within epsilon.

    Args:
        name: one of `ATTACKS`.
        classifier: pixels (b, C, H, W) in [0, 1] to log-probabilities (b, C').
        pixels: (B, C, H, W) in [0, 1].
        codes: true classes (B,), int64.
        eps: radius of the ball.
        norm: "l1", "l2", "linf", or a `Norm` such as the combined one, in the unit; C&W is of L2, Square of L-inf.
        unit: of eps; None: pixels.
        steps: how many (for Square: queries); None: 10 for BIM, 40 for PGD, 50 for DeepFool, 200 for C&W, 500 for
            Square. FGSM always has one.
        step: length of a step of BIM and PGD, in the unit; None: 2.5 eps / steps. Others have no such length.
        targets: a class (B,) that each input shall be named as, for FGSM, BIM, PGD and C&W; None: any but its own.
        seed: of what is drawn.
        batch_size: inputs that are attacked together.
        advance: told how many inputs are done.
    """
    check_attack(name, norm if isinstance(norm, str) else norm.name)
    measured = as_norm(norm)
    check_size(eps)
    check_counts(steps=steps, batch_size=batch_size)
    if step is not None and not 0 < step < math.inf:
        raise DataError(f"The step size must be a number above 0, not {step!r}.")
    pixels = as_inputs(pixels)
    codes = as_codes(codes, pixels)
    if pixels.ndim != 4:
        raise DataError(f"Published attacks change images (n, C, H, W), not inputs of shape {tuple(pixels.shape)}.")
    unit = Unit.pixels() if unit is None else unit
    check_bounds(pixels, PIXELS)
    aimed = codes if targets is None else as_codes(targets, pixels)
    if targets is not None:
        if name in (SQUARE, "deepfool"):
            raise DataError(f"The attack '{name}' has no target: use fgsm, bim, pgd or cw.")
        if bool((aimed == codes).any()):
            raise DataError("The target of an input is its own class: choose another one.")

    def hit(scores: Tensor, rows: Tensor) -> Tensor:
        named = scores.argmax(dim=1)
        return named != codes[rows] if targets is None else named == aimed[rows]

    numbers, model = unit.of_pixels(pixels).clamp(*unit.bounds), unit.taken_by(classifier)
    run: Callable[[Tensor, Tensor], Tensor]
    rounding = _ROUNDINGS * torch.finfo(torch.float32).eps
    most = eps * (1 + rounding) + measured.reach(pixels[:1].numel(), rounding * max(map(abs, unit.bounds)))
    found, wrong = pixels.clone(), torch.zeros(len(pixels), dtype=torch.bool)
    distances = torch.zeros(len(pixels), dtype=numbers.dtype)
    if name == SQUARE:
        queries = _SQUARE_QUERIES if steps is None else steps
        run = partial(square_attack, model, eps=eps, queries=queries, bounds=unit.bounds)
    elif measured.name in _OWN_NORMS or (name == "fgsm" and targets is not None):  # foolbox's FGSM has no target
        run = _own(name, model, unit, measured, steps, step, eps, targeted=targets is not None)
    else:
        run = _foolbox(name, model, unit, measured.name, steps, step, eps, targeted=targets is not None)
    with at_rest(classifier):
        for start in range(0, len(pixels), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(pixels)))
            with torch.no_grad():
                scores = model(numbers[rows])
            check_scores(scores, codes[rows])
            before = hit(scores, rows)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed * 1_000_003 + start)
                moved = unit.to_pixels(run(numbers[rows], aimed[rows]).detach())
            far = measured.length((unit.of_pixels(moved) - numbers[rows]).flatten(1))
            with torch.no_grad():
                after = hit(classifier(moved), rows)
            # Nobody would hand in what an attack put right.
            kept = (far <= most) & (after | ~before)
            found[rows[kept]], distances[rows[kept]] = moved[kept], far[kept]
            wrong[rows] = before | (after & kept)
            if advance is not None:
                advance(len(rows))
    return Attacked(found, wrong, distances)


def _own(
    name: str,
    model: Callable[[Tensor], Tensor],
    unit: Unit,
    norm: Norm,
    steps: int | None,
    step: float | None,
    eps: float,
    targeted: bool,
) -> Callable[[Tensor, Tensor], Tensor]:
    """What attacks numbers (b, C, H, W) of classes, or towards them (b,), by our own steps."""
    default = _FOOLBOX[name].steps
    count = 1 if default is None else default if steps is None else steps
    length = usual_step(eps, count) if step is None or default is None else step

    def run(x: Tensor, codes: Tensor) -> Tensor:
        ball = Ball(x.flatten(1), eps, norm, unit.bounds)
        sign = -1.0 if targeted else 1.0

        def raised(points: Tensor) -> Tensor:
            return sign * functional.cross_entropy(model(points.view(x.shape)), codes, reduction="none")

        start = ball.draw() if name == "pgd" else ball.centres
        return climb(raised, start, ball, steps=count, step=length).view(x.shape)

    return run


def _foolbox(
    name: str,
    model: Callable[[Tensor], Tensor],
    unit: Unit,
    norm: str,
    steps: int | None,
    step: float | None,
    eps: float,
    targeted: bool = False,
) -> Callable[[Tensor, Tensor], Tensor]:
    """What attacks numbers (b, C, H, W) of classes, or towards them (b,), through foolbox."""
    foolbox: Any = require("foolbox", "audit")
    told = _FOOLBOX[name]
    options: dict[str, Any] = {}
    if told.steps is not None:
        options["steps"] = told.steps if steps is None else steps
        if told.sized:
            options["abs_stepsize"] = usual_step(eps, options["steps"]) if step is None else step
    if name == "cw":
        options["binary_search_steps"] = _CW_SEARCHES
    published = getattr(foolbox.attacks, told.classes[norm])(**options)
    wrapped = foolbox.PyTorchModel(_Module(model).eval(), bounds=unit.bounds, device="cpu")

    def run(x: Tensor, codes: Tensor) -> Tensor:
        criterion = foolbox.criteria.TargetedMisclassification(codes) if targeted else codes
        raw, clipped, _ = published(wrapped, x, criterion, epsilons=None if told.minimal else eps)
        return raw if told.minimal else clipped

    return run


class _Module(torch.nn.Module):
    """A function as the module that foolbox wants."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
