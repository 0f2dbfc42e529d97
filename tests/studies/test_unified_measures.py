"""What one model for every task is judged by: equal errors, verdicts, and that methods differ in nothing else."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from nearkin.metrics import verification_from_scores

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def modules():
    names = {"parts": "parts", "measures": "measures", "statistics": "stats"}
    return {name: importlib.import_module(f"studies.unified.{module}") for name, module in names.items()}


@pytest.fixture(scope="module")
def parts(modules):
    return modules["parts"]


@pytest.fixture(scope="module")
def measures(modules):
    return modules["measures"]


@pytest.fixture(scope="module")
def statistics(modules):
    return modules["statistics"]


def test_packing_keeps_every_bit(measures):
    for count in (1, 7, 8, 1001):
        hits = np.random.default_rng(count).random(count) < 0.4
        np.testing.assert_array_equal(measures.unpack(measures.pack(hits), count), hits)


@pytest.mark.parametrize("decimals", [6, 1], ids=["distinct scores", "ties"])
def test_equal_errors_are_those_of_the_metric(measures, decimals):
    rng = np.random.default_rng(0)
    same = rng.random(400) < 0.2
    scores = (rng.normal(size=400) + 1.2 * same).round(decimals)
    order = np.argsort(scores)[::-1]
    found = measures.equal_error(*measures._error_curve(scores[order], same[order]))
    assert found == pytest.approx(verification_from_scores(scores, same).values["EER"], abs=1e-12)


def test_resampled_speakers_count_as_often_as_they_were_drawn(measures):
    rng = np.random.default_rng(1)
    speakers = np.repeat(np.arange(5), 4)
    first, second = np.triu_indices(len(speakers), k=1)
    first_of, second_of = speakers[first], speakers[second]
    scores = rng.normal(size=len(first)) + 0.8 * (first_of == second_of)
    found = measures.resampled_errors(scores, first_of, second_of, 3)
    draws = np.random.default_rng(0)
    for value in found:
        weights = np.bincount(draws.integers(5, size=5), minlength=5)
        own = first_of == second_of
        times = np.where(own, weights[first_of], weights[first_of] * weights[second_of])
        repeated = verification_from_scores(np.repeat(scores, times), np.repeat(own, times), fpr=(1.0,))
        assert value == pytest.approx(repeated.values["EER"], abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "mean", "high", "corrected", "items", "expected"),
    [
        ("higher", 0.1, 0.2, 0.01, None, "HOLDS"),
        ("higher", 0.1, 0.2, 0.01, (0.05, 0.15), "HOLDS"),
        ("higher", 0.1, 0.2, 0.01, (-0.01, 0.21), "OPEN"),
        ("higher", -0.1, 0.0, 0.01, None, "FAILS"),
        ("higher", -0.1, 0.0, 0.01, (-0.2, 0.01), "OPEN"),
        ("higher", 0.1, 0.2, 0.06, (0.05, 0.15), "OPEN"),
        ("higher", 0.1, np.nan, np.nan, (0.05, 0.15), "OPEN"),
        ("lower", -0.1, 0.0, 0.01, (-0.2, -0.1), "HOLDS"),
        ("lower", -0.1, 0.0, 0.01, (-0.2, 0.01), "OPEN"),
        ("lower", 0.1, 0.2, 0.01, None, "FAILS"),
        ("as good", -0.005, 0.001, 0.01, (-0.009, 0.0), "HOLDS"),
        ("as good", -0.005, 0.001, 0.01, (-0.02, 0.01), "OPEN"),
        ("as good", -0.008, -0.004, 0.9, None, "OPEN"),
        ("as good", -0.03, -0.011, 0.9, None, "FAILS"),
        ("as good", -0.03, -0.011, 0.9, (-0.05, -0.005), "OPEN"),
        ("as good", -0.03, np.nan, np.nan, None, "OPEN"),
    ],
)
def test_verdicts(statistics, kind, mean, high, corrected, items, expected):
    claim = statistics.Claim("", "cifar", ("a", "b"), ("c", "d"), kind)
    test = statistics.PairedTest(3, mean, mean - 1, high, 0.5)
    assert statistics.verdict(claim, test, corrected, items) == getattr(statistics, expected)


@pytest.mark.parametrize("part", ["fashion", "cifar", "pacs", "speakers", "cub", "omniglot"])
def test_methods_of_a_part_differ_in_nothing_but_the_method(parts, part):
    case = parts.PARTS[part].cases[0]
    first, second = (parts.Cell(part, name, 0, case).recipe() for name in (parts.SOFTMAX, parts.LEARNED))
    assert first.data == second.data
    assert first.training == second.training
    assert first.model == second.model.model_copy(update={"similarity": None})


def test_ablations_come_last_and_have_three_seeds(parts):
    cells = list(parts.cells_of("fashion", {}))
    ablations = [cell.name in parts.ABLATIONS for cell in cells]
    assert ablations == sorted(ablations)
    assert {cell.seed for cell in cells if cell.name == parts.NO_PAIRS} == {0, 1, 2}
    assert {cell.seed for cell in cells if cell.name == parts.SOFTMAX} == {0, 1, 2, 3, 4}
