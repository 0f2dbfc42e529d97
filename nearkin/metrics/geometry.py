"""The shape of an embedding in seven numbers: how discriminative it is, and in how many directions it varies."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.intervals import Interval
from nearkin.metrics.separation import SEPARATION, ClassMoments, class_moments
from nearkin.metrics.spectrum import significant_directions, singular_spectrum, spectral_decay

GEOMETRY = (*SEPARATION, "rho", "d_DoV")
"""The measures, in the order of tables."""


def geometry_metrics(embeddings: Any, labels: Any) -> dict[str, float]:
    """D_inter, D_intra, phi, pi_ratio, R2, rho and d_DoV of embeddings, which are brought to length 1 first.

    A class of one item has no spread: it counts with 0 in D_intra and R2, and with no pair in pi_ratio. If no class
    spreads, phi is infinite and R2 is 1; if the class means coincide, phi is 0 and pi_ratio infinite; if all points do,
    these are NaN. None of these is better the higher: what suits depends on the task. Nothing of size n x n is held.

    Reference: Kim 2023, section 2.4, after Liu et al. 2020 (phi), Roth et al. 2020 (pi_ratio, rho) and Kornblith et al.
        2021 (R2). Definitions and corrections: docs/methods/geometry.md.

    Example:
        >>> import numpy as np
        >>> from nearkin.metrics import geometry_metrics
        >>> points = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 3]
        >>> sorted(geometry_metrics(points, np.arange(60) % 3))
        ['D_inter', 'D_intra', 'R2', 'd_DoV', 'phi', 'pi_ratio', 'rho']

    Args:
        embeddings: array or tensor (n, d) with d >= 2, none of them zero.
        labels: n labels of any hashable kind; at least two classes, one of them with two items.
    """
    moments = class_moments(embeddings, labels)
    spectrum = singular_spectrum(embeddings)
    return {
        **{name: float(value[0]) for name, value in moments.separation().items()},
        "rho": spectral_decay(spectrum),
        "d_DoV": float(significant_directions(spectrum)),
    }


def separation_intervals(
    moments: ClassMoments, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Percentile intervals (low, high) of D_inter, D_intra, phi, pi_ratio and R2, with the classes drawn anew.

    Items are not drawn: a class's mean and spread are known far better than what other classes would be like. There are
    none of rho and d_DoV: a resample has fewer different classes and so fewer directions, whatever the embedding is.

    Args:
        moments: of the classes, as `class_moments` gives them.
        resamples: how many times classes are drawn.
        level: share of the resamples inside the interval.
        seed: the same seed gives the same intervals.
    """
    if resamples < 1 or not 0 < level < 1:
        raise DataError(f"An interval needs resamples >= 1 and a level between 0 and 1, not {resamples} and {level}.")
    classes = len(moments.sizes)
    drawn = np.random.default_rng(seed).multinomial(classes, np.full(classes, 1 / classes), size=resamples)
    # Of a class drawn alone there are no pairs.
    drawn = drawn[(drawn > 0).sum(axis=1) > 1]
    if not len(drawn):
        return {}
    ends = [(1 - level) / 2, (1 + level) / 2]
    found = {}
    for name, values in moments.separation(drawn).items():
        if np.isfinite(values).all():
            low, high = np.quantile(values, ends)
            found[name] = (float(low), float(high))
    return found
