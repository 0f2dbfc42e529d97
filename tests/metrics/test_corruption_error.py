"""Mean corruption errors against naive loops."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.metrics.corruption_error import mean_corruption_error, relative_corruption_error

RNG = np.random.default_rng(0)
OWN, THEIRS = RNG.uniform(0.2, 0.6, (15, 5)), RNG.uniform(0.3, 0.8, (15, 5))


def test_is_the_mean_of_ratios_of_sums():
    ratios = [sum(OWN[c]) / sum(THEIRS[c]) for c in range(15)]
    assert mean_corruption_error(OWN, THEIRS) == pytest.approx(sum(ratios) / 15)
    assert mean_corruption_error(THEIRS, THEIRS) == pytest.approx(1.0)
    assert mean_corruption_error(OWN) == pytest.approx(OWN.mean())


def test_relative_is_of_what_corruption_adds():
    ratios = [sum(OWN[c] - 0.1) / sum(THEIRS[c] - 0.2) for c in range(15)]
    assert relative_corruption_error(OWN, 0.1, THEIRS, 0.2) == pytest.approx(sum(ratios) / 15)


def test_a_reference_that_never_errs_gives_no_ratio():
    assert np.isnan(mean_corruption_error(OWN, np.zeros((15, 5))))


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 5))])
def test_bad_tables_are_refused(bad):
    with pytest.raises(DataError, match="table"):
        mean_corruption_error(bad)
    with pytest.raises(DataError, match="cells"):
        mean_corruption_error(OWN, THEIRS[:3])
