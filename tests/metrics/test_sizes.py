"""The curve of retrieval against size: against the metrics by hand, intervals, the smallest size, bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap, halved_sizes, retrieval_metrics, size_curve
from nearkin.spaces import Euclidean, LipschitzBall, Sphere

LABELS = np.repeat(np.arange(10), 6)


def points(seed=0, d=16):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(10, d)) * np.geomspace(2, 0.2, d)
    return (centres[LABELS] + 0.5 * rng.normal(size=(60, d))).astype(np.float32)


def by_hand(vectors, space, size, **more):
    cut = vectors[:, :size]
    if isinstance(space, Sphere):
        cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    return retrieval_metrics(cut, LABELS, metrics=["MAP@R", "P@1"], space=space, **more)


@pytest.mark.parametrize("space", [Sphere(), Euclidean()])
def test_values_intervals_and_losses_are_those_of_truncated_vectors(space):
    curve = size_curve(points(), LABELS, [3, 8], space=space, resamples=50, seed=4)
    assert curve.sizes == (3, 8, 16)
    whole = by_hand(points(), space, 16)
    for place, size in enumerate(curve.sizes):
        wanted = by_hand(points(), space, size)
        for metric in ("MAP@R", "P@1"):
            assert curve.values[metric][place] == pytest.approx(wanted.values[metric], abs=1e-6)
            found = class_bootstrap(wanted.per_query[metric], LABELS, resamples=50, seed=4)
            assert curve.intervals[metric][place] == pytest.approx(found, abs=1e-6)
            gaps = whole.per_query[metric].astype(float) - wanted.per_query[metric]
            low, high = class_bootstrap(gaps, LABELS, resamples=50, seed=4)
            assert curve.losses[metric][place] == pytest.approx((gaps.mean(), low, high), abs=1e-6)
    assert curve.losses["MAP@R"][-1] == (0, 0, 0)


def test_a_gallery_is_cut_too():
    asked, searched = points()[::2], points()[1::2]
    curve = size_curve(asked, LABELS[::2], [4], gallery=searched, gallery_labels=LABELS[1::2], space=Euclidean())
    wanted = retrieval_metrics(
        asked[:, :4], LABELS[::2], gallery=searched[:, :4], gallery_labels=LABELS[1::2], space=Euclidean()
    )
    assert curve.values["MAP@R"][0] == pytest.approx(wanted.values["MAP@R"])


def test_the_smallest_size_goes_by_upper_ends_and_by_all_larger_sizes():
    curve = size_curve(points(), LABELS, [2, 4, 8, 12], resamples=50)
    curve.losses["MAP@R"] = ((0.0, 0.0, 0.0), (0.05, 0.0, 0.09), (0.004, 0.0, 0.011), (0.001, 0.0, 0.009), (0, 0, 0))
    assert curve.smallest_within(0.01) == 12
    assert curve.smallest_within(0.02) == 8
    assert curve.smallest_within(0.0) == 16
    assert curve.smallest_within(0.1) == 2


@pytest.mark.parametrize(
    ("dimension", "wanted"), [(128, [4, 8, 16, 32, 64, 128]), (100, [6, 12, 25, 50, 100]), (7, [7]), (8, [4, 8])]
)
def test_usual_sizes_are_halves(dimension, wanted):
    assert halved_sizes(dimension) == wanted


def test_tensors_and_json():
    curve = size_curve(torch.from_numpy(points()), LABELS.tolist(), resamples=5)
    assert json.loads(json.dumps(curve.to_dict()))["sizes"] == [4, 8, 16]


@pytest.mark.parametrize("sizes", [[0], [-1], [17], [4, 4], [2.5], [True], ["4"]])
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(DataError, match=r"16|twice"):
        size_curve(points(), LABELS, sizes)


@pytest.mark.parametrize("bad", [np.zeros(5), np.zeros((60, 0)), "abc", [[1, 2], [3]]])
def test_what_is_no_matrix_is_refused(bad):
    with pytest.raises(DataError, match=r"matrix|shape"):
        size_curve(bad, LABELS)


def test_other_spaces_are_refused():
    with pytest.raises(DataError, match="lipschitz-ball"):
        size_curve(points(), LABELS, space=LipschitzBall())
