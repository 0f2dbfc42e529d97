"""What every attack asks of what it is given: inputs that are numbers, classes that there are, a model at rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.errors import DataError


def as_inputs(given: Any) -> Tensor:
    """Inputs (B, ...) as a tensor of floats, all finite; arrays are taken too."""
    inputs = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        kind = f"{inputs.dtype} of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(given).__name__
        raise DataError(f"Inputs to attack are a tensor of floats (n, ...), one row each, not {kind}: convert them.")
    if not bool(torch.isfinite(inputs).all()):
        raise DataError("Some inputs hold NaN or infinite values: leave them out.")
    return inputs


def as_codes(given: Any, inputs: Tensor) -> Tensor:
    """Classes of inputs as int64 (B,), places among the classes; arrays and lists are taken too."""
    codes = torch.as_tensor(given)
    if codes.shape != inputs.shape[:1] or codes.is_floating_point() or codes.dtype == torch.bool:
        raise DataError(
            f"Each of {len(inputs)} inputs needs its class as a whole number, see class_codes, and {codes.dtype} of "
            f"shape {tuple(codes.shape)} was given."
        )
    return codes.to(torch.int64)


def check_size(eps: float) -> None:
    """Refuse what is no size of a perturbation."""
    if isinstance(eps, bool) or not isinstance(eps, int | float | np.number) or not 0 <= float(eps) < math.inf:
        raise DataError(f"The size of a perturbation is a number from 0 on, not {eps!r}.")


def check_counts(least: int = 1, **counts: int | None) -> None:
    """Refuse counts, given by name, that are no whole numbers from `least` on; None passes."""
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least):
            raise DataError(f"{name} must be a whole number from {least} on, not {count!r}.")


def check_scores(scores: Any, codes: Tensor | None = None) -> None:
    """Refuse what is no table of finite scores (b, C), or has no column for some of the classes (b,)."""
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise DataError("What is attacked must give scores (b, C), a row for each input and a column for each class.")
    if not bool(torch.isfinite(scores.detach()).all()):
        raise DataError("What is attacked gives scores that are NaN or infinite: check the model.")
    if codes is not None and len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < scores.shape[1]:
        raise DataError(
            f"What is attacked has {scores.shape[1]} classes, and inputs are said to be of the classes "
            f"{int(codes.min())} to {int(codes.max())}, counted from 0: give places among its classes."
        )


@contextmanager
def at_rest(classifier: Callable[..., Any]) -> Iterator[None]:
    """Inside the block a module drops nothing out, moves no running statistic, and its weights take no gradients."""
    if not isinstance(classifier, nn.Module):
        yield
        return
    modes = {part: part.training for part in classifier.modules()}
    learned = [parameter for parameter in classifier.parameters() if parameter.requires_grad]
    classifier.eval()
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for parameter in learned:
            parameter.requires_grad_(True)
