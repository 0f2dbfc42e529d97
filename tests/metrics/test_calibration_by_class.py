"""ECE from class tables against calibration_metrics, and the intervals that resampling classes gives."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.metrics import calibration_metrics
from nearkin.metrics.calibration import accuracy_and_ece, class_table, mean_intervals, resample_means


def answers(seed, n=400, classes=9, shift=0.0):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).astype(np.float32)
    confidence[:20] = rng.choice([0.0, 1.0, 0.2, 7 / 15], 20)
    return confidence, rng.random(n) < confidence - shift, np.arange(n) % classes


@pytest.mark.parametrize("bins", [1, 4, 10, 15])
def test_summed_tables_give_accuracy_and_ece(bins):
    confidence, correct, codes = answers(0, shift=0.1)
    table = class_table(confidence, correct, codes, bins)
    assert table.shape == (9, bins, 3)
    expected = calibration_metrics(confidence, correct, bins=bins).values
    accuracy, ece = accuracy_and_ece(table.sum(axis=0))
    assert accuracy == pytest.approx(expected["accuracy"])
    assert ece == pytest.approx(expected["ECE"], abs=1e-6)
    assert accuracy_and_ece(table[4])[0] == correct[codes == 4].mean()


def test_resampled_means_are_those_of_drawn_classes():
    tables = np.stack([class_table(*answers(seed)) for seed in (1, 2)])
    values, means = resample_means(tables, resamples=5, seed=3)
    times = np.random.default_rng(3).multinomial(9, np.full(9, 1 / 9), size=5)
    naive = np.empty((2, 5))
    for row, drawn in enumerate(times):
        chosen = np.repeat(np.arange(9), drawn)
        naive[:, row] = np.mean([accuracy_and_ece(table[chosen].sum(axis=0)) for table in tables], axis=0)
    expected = np.mean([accuracy_and_ece(table.sum(axis=0)) for table in tables], axis=0)
    np.testing.assert_allclose(values, expected)
    np.testing.assert_allclose(means, naive + (expected - naive.mean(axis=1))[:, None])


def test_intervals_hold_the_value_and_shrink_with_more_classes():
    widths = []
    for classes in (10, 160):
        found = mean_intervals(class_table(*answers(5, n=8000, classes=classes, shift=0.15))[None])
        for value, (low, high) in found.values():
            assert low < value < high
        widths.append(np.ptp(found["accuracy"][1]))
    rng = np.random.default_rng(0)  # classes that differ: now their number matters
    uneven = []
    for classes in (10, 160):
        codes = np.arange(8000) % classes
        confidence = np.full(8000, 0.5, np.float32)
        correct = rng.random(8000) < rng.random(classes)[codes]
        uneven.append(np.ptp(mean_intervals(class_table(confidence, correct, codes)[None])["accuracy"][1]))
    assert uneven[1] < uneven[0] / 2
    assert max(widths) < uneven[0]
