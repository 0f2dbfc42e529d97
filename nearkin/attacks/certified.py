"""Randomised smoothing: the class that noisy copies of an input are mostly taken for, and how far that is certain.

`g(x) = argmax_c P(f(x + noise) = c)`, noise ~ N(0, sigma^2). If the class has at least the share p > 1/2, no change of
the input below `sigma * Phi^-1(p)` in L2 changes g. The share is bounded from below by samples, with a confidence.
Reference: Cohen, Rosenfeld, Kolter 2019, Certified adversarial robustness via randomized smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks.classifier import as_inputs, at_rest, check_counts, check_scores
from nearkin.errors import DataError

_BATCH = 128


@dataclass(frozen=True, eq=False)
class Certified:
    """What smoothing says of inputs.

    Attributes:
        codes: the class of each (B,), -1 where it abstains.
        radii: L2 radius (B,) within which that class is certain; 0 where it abstains.
        sigma: of the noise.
        alpha: how likely a wrong certificate is, for each input, at the most.
        samples: noisy copies of each input.
        counts: how many of them were taken for the class that was guessed (B,).
    """

    codes: np.ndarray
    radii: np.ndarray
    sigma: float
    alpha: float
    samples: int
    counts: np.ndarray = field(repr=False)

    def certified_accuracy(self, truth: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The share of inputs (r,) that are named rightly for certain within each of some radii (r,)."""
        right = (self.codes == np.asarray(truth)) & (self.codes >= 0)
        return np.array([float((right & (self.radii >= radius)).mean()) for radius in radii])


def certify(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    *,
    sigma: float = 0.25,
    samples: int = 1000,
    guesses: int = 100,
    alpha: float = 0.001,
    seed: int = 0,
    batch_size: int = _BATCH,
    advance: Callable[[int], None] | None = None,
) -> Certified:
    """Classify inputs (B, ...) by the smoothed classifier, each with a radius that is certain.

    Noise is added to the inputs as they are and not cut to any bounds, as the proof wants it.

    Args:
        classifier: inputs to scores (b, C); any will do, it needs no gradient.
        inputs: (B, ...).
        sigma: standard deviation of the noise, in the unit of the inputs.
        samples: noisy copies that bound the share of the class; 1,000 allow radii up to about 2.5 sigma.
        guesses: other noisy copies that choose the class.
        alpha: how likely a certificate may be wrong.
        seed: of the noise.
        batch_size: copies that are classified together.
        advance: told how many inputs are done.
    """
    inputs = as_inputs(inputs)
    check_counts(batch_size=batch_size)
    if not 0 < sigma < math.inf or not 0 < alpha < 1 or samples < 1 or guesses < 1:
        raise DataError(
            f"Smoothing needs sigma above 0, alpha between 0 and 1, and at least one sample and guess, not "
            f"sigma={sigma}, alpha={alpha}, samples={samples}, guesses={guesses}."
        )
    from scipy.stats import norm

    codes, radii, counts = [], [], []
    for number, x in enumerate(inputs):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        with at_rest(classifier):
            guess = int(_votes(classifier, x, sigma, guesses, generator, batch_size).argmax())
            votes = _votes(classifier, x, sigma, samples, generator, batch_size)
        count = int(votes[guess]) if guess < len(votes) else 0
        share = share_bound(count, samples, alpha)
        codes.append(guess if share > 0.5 else -1)
        radii.append(sigma * float(norm.ppf(share)) if share > 0.5 else 0.0)
        counts.append(count)
        if advance is not None:
            advance(1)
    return Certified(
        np.array(codes, dtype=np.int64), np.array(radii), sigma, alpha, samples, np.array(counts, dtype=np.int64)
    )


def share_bound(count: int, samples: int, alpha: float) -> float:
    """What a share is at least, with confidence 1 - alpha, if so many of the samples had it (Clopper and Pearson)."""
    from scipy.stats import beta

    return 0.0 if count == 0 else float(beta.ppf(alpha, count, samples - count + 1))


@torch.no_grad()
def _votes(
    classifier: Callable[[Tensor], Tensor], x: Tensor, sigma: float, copies: int, generator: torch.Generator, size: int
) -> np.ndarray:
    """How many noisy copies are taken for each class."""
    votes = np.zeros(0, dtype=np.int64)
    for start in range(0, copies, size):
        shape = (min(size, copies - start), *x.shape)
        scores = classifier(x + sigma * torch.empty(shape, dtype=x.dtype).normal_(generator=generator))
        check_scores(scores)
        found = np.bincount(scores.argmax(dim=1).numpy(), minlength=scores.shape[1])
        votes = found if not len(votes) else votes + found
    return votes
