"""Correlations over runs against scipy and against table 5.6, recomputed from the tables it comes from."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from nearkin.errors import DataError
from nearkin.metrics import geometry_correlations, holm

# Tables 5.1 and 5.4 (CIFAR-10), 5.2 and 5.5 (SVHN) of Kim 2023.
CIFAR = {
    "MC": [0.0818, 0.1586, 0.2109, 0.3003, 0.2719],
    "phi": [15.0003, 5.1692, 4.2946, 2.0631, 2.6684],
    "R2": [0.8709, 0.6993, 0.6590, 0.4814, 0.5456],
    "d_DoV": [32, 51, 76, 75, 71],
    "rho": [2.4053, 1.6701, 0.9996, 1.4570, 1.3003],
}
SVHN = {
    "MC": [-0.0118, 0.0301, 0.1003, 0.1737, 0.0134, 0.0371],
    "phi": [26.6981, 12.4786, 4.9135, 1.7879, 15.2928, 15.0282],
    "R2": [0.9231, 0.8488, 0.6885, 0.4458, 0.8731, 0.8711],
    "d_DoV": [21, 35, 48, 52, 34, 31],
    "rho": [2.3753, 2.8203, 2.5358, 2.2234, 2.6031, 2.5739],
}
PRINTED = {  # table 5.6: Pearson, Spearman
    "CIFAR": {
        "phi": (-0.9058, -1.0),
        "R2": (-0.9917, -1.0),
        "d_DoV": (0.9115, 0.7),
        "rho": (-0.7513, -0.6),
    },
    "SVHN": {
        "phi": (-0.9082, -0.9429),
        "R2": (-0.9860, -0.9429),
        "d_DoV": (0.9337, 0.8286),
        "rho": (-0.5271, -0.3714),
    },
}
MEASURES = ("phi", "R2", "d_DoV", "rho")


def rows(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("name", ["CIFAR", "SVHN"])
def test_the_printed_table_comes_from_the_printed_tables(name):
    table = {"CIFAR": CIFAR, "SVHN": SVHN}[name]
    found = geometry_correlations(rows(table), MEASURES, "MC")
    for measure, (pearson, spearman) in PRINTED[name].items():
        one = found.measures[measure]
        assert one.pearson == pytest.approx(pearson, abs=2e-3)  # the print rounds what it correlates
        assert one.spearman == pytest.approx(spearman, abs=1e-4)
        assert one.pearson_p == pytest.approx(pearsonr(table[measure], table["MC"]).pvalue)
        assert one.runs == len(table["MC"])


def test_perfect_ranks_of_few_runs_are_no_proof():
    """The t distribution gives 0 to five runs in perfect order; of 120 orders two are as good."""
    one = geometry_correlations(rows(CIFAR), ["phi"], "MC").measures["phi"]
    assert spearmanr(CIFAR["phi"], CIFAR["MC"]).pvalue < 1e-20
    assert one.spearman_p == pytest.approx(2 / math.factorial(5))


@pytest.mark.parametrize("n", [3, 4, 6, 8])
@pytest.mark.parametrize("ties", [False, True])
def test_the_exact_p_is_that_of_a_loop_over_all_orders(n, ties):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(2, n))
    if ties:
        x[1], y[0] = x[0], y[-1]
    one = geometry_correlations([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], ["x"], "y").measures["x"]
    if n <= 6:
        observed = spearmanr(x, y).statistic
        agree = [abs(spearmanr(x, order).statistic) >= abs(observed) - 1e-9 for order in permutations(y)]
        assert one.spearman_p == pytest.approx(np.mean(agree))
    assert 0 < one.spearman_p <= 1


def test_many_runs_have_the_p_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    y = x + rng.normal(size=20)
    one = geometry_correlations([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], ["x"], "y").measures["x"]
    assert (one.pearson, one.pearson_p) == pytest.approx(tuple(pearsonr(x, y)))
    assert (one.spearman, one.spearman_p) == pytest.approx(tuple(spearmanr(x, y)))


def test_all_p_values_of_the_table_are_corrected_together():
    found = geometry_correlations(rows(SVHN), MEASURES, "MC").measures
    p = [one.pearson_p for one in found.values()] + [one.spearman_p for one in found.values()]
    held = [one.pearson_holm for one in found.values()] + [one.spearman_holm for one in found.values()]
    assert held == pytest.approx(holm(p))


def test_what_does_not_vary_is_told_and_not_counted():
    table = {**SVHN, "d_DoV": [7] * 6}
    found = geometry_correlations(rows(table), MEASURES, "MC")
    one = found.measures["d_DoV"]
    assert one.constant == "d_DoV"
    assert math.isnan(one.pearson)
    assert math.isnan(one.spearman_holm)
    others = geometry_correlations(rows(SVHN), ("phi", "R2", "rho"), "MC").measures
    assert all(found.measures[name] == other for name, other in others.items())
    flat = geometry_correlations(rows({**SVHN, "MC": [0.5] * 6}), ["phi"], "MC").measures["phi"]
    assert flat.constant == "MC"
    told = found.to_dict()
    assert told["against"] == "MC"
    assert told["measures"]["d_DoV"]["pearson"] is None
    assert told["measures"]["phi"]["runs"] == 6


def test_values_that_are_not_finite_are_left_out():
    table = {**SVHN, "phi": [math.inf, math.nan, *SVHN["phi"][2:]]}
    one = geometry_correlations(rows(table), ["phi"], "MC").measures["phi"]
    assert one.runs == 4
    assert one.pearson == pytest.approx(pearsonr(SVHN["phi"][2:], SVHN["MC"][2:]).statistic)
    none = geometry_correlations(rows({**SVHN, "phi": [math.nan] * 6}), ["phi"], "MC").measures["phi"]
    assert (none.runs, none.constant) == (0, "")
    assert math.isnan(none.pearson)


def test_too_few_runs_and_missing_measures_are_refused():
    with pytest.raises(DataError, match="3"):
        geometry_correlations(rows(SVHN)[:2], ["phi"], "MC")
    with pytest.raises(DataError, match="'phi'"):
        geometry_correlations(rows(SVHN), ["ph"], "MC")
