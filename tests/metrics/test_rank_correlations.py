"""Spearman tables of any measures over runs, against scipy."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from nearkin.errors import DataError
from nearkin.metrics import holm, rank_correlations

NAMES = ["MC, prototypes", "AHD@1", "top-1"]


def rows(count=12, seed=0):
    table = np.random.default_rng(seed).normal(size=(count, 3))
    table[:, 2] -= table[:, 1]
    return [dict(zip(NAMES, values.tolist(), strict=True)) for values in table]


def test_every_pair_is_that_of_scipy_and_corrected_for_the_whole_table():
    runs = rows()
    found = rank_correlations(runs, NAMES)
    assert list(found) == list(combinations(NAMES, 2))
    for (first, second), one in found.items():
        x, y = ([run[name] for run in runs] for name in (first, second))
        assert one.spearman == pytest.approx(spearmanr(x, y).statistic)
        assert one.spearman_p == pytest.approx(spearmanr(x, y).pvalue)
        assert one.pearson == pytest.approx(pearsonr(x, y).statistic)
    corrected = holm([one.spearman_p for one in found.values()])
    assert [one.spearman_holm for one in found.values()] == pytest.approx(corrected)


def test_few_runs_have_exact_p_and_constants_none():
    runs = [{"a": float(i), "b": float(i**3), "c": 1.0} for i in range(5)]
    found = rank_correlations(runs, ["a", "b", "c"])
    assert found["a", "b"].spearman_p == pytest.approx(2 / 120)
    assert found["a", "b"].spearman_holm == pytest.approx(2 / 120)  # the others have none
    assert found["a", "c"].constant == "c"
    assert math.isnan(found["b", "c"].spearman_holm)


@pytest.mark.parametrize(
    ("runs", "of", "word"),
    [(rows(2), NAMES, "runs"), (rows(), ["top-1", "top-1"], "two measures"), (rows(), ["top-1", "AHD@2"], "AHD@1")],
)
def test_what_gives_no_table_is_refused(runs, of, word):
    with pytest.raises(DataError, match=word):
        rank_correlations(runs, of)
