"""The inputs suite: separation of pixels and distance-based classifiers, against loops and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from nearkin.audits import Subject, run_suites
from nearkin.audits.subject import divide
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.metrics import class_separation, geometry_metrics
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean

LABELS = np.repeat([f"c{i}" for i in range(6)], 8)
RNG = np.random.default_rng(0)
IMAGES = np.clip(
    np.repeat(RNG.integers(60, 190, (6, 32, 32, 3)), 8, axis=0) + RNG.integers(-60, 60, (48, 32, 32, 3)), 0, 255
).astype(np.uint8)


@pytest.fixture(scope="module")
def subject():
    names = [f"{label}/{place}.png" for place, label in enumerate(LABELS)]
    data = Dataset(Manifest.from_rows(names, LABELS), ArrayStore(IMAGES, names), name="noise")
    return Subject(RNG.normal(size=(48, 4)).astype(np.float32), LABELS, Euclidean(), data=data, progress=False)


@pytest.fixture(scope="module")
def found(subject):
    return run_suites(subject, AuditSection(resamples=20), ["inputs"])


def test_separation_is_that_of_the_pixels_of_the_support(subject, found):
    support, _ = divide(subject, 0)
    pixels = IMAGES[support].reshape(len(support), -1).astype(np.float32) / 255
    for norm in ("l2", "linf"):
        expected = class_separation(pixels, LABELS[support], norm=norm)
        for name, value in expected.items():
            assert found[f"{name}, pixels {norm}"] == pytest.approx(value, rel=1e-5)
    assert found["R2, pixels"] == pytest.approx(geometry_metrics(pixels, LABELS[support])["R2"], rel=1e-5)


@pytest.mark.parametrize(("norm", "metric"), [("l2", "euclidean"), ("linf", "chebyshev")])
def test_accuracies_are_those_of_scikit_learn(subject, found, norm, metric):
    support, queries = divide(subject, 0)
    pixels = IMAGES.reshape(48, -1).astype(np.float64) / 255
    nearest = KNeighborsClassifier(1, metric=metric).fit(pixels[support], LABELS[support])
    assert found[f"1-NN accuracy, pixels {norm}"] == pytest.approx(nearest.score(pixels[queries], LABELS[queries]))
    means = {label: pixels[support][LABELS[support] == label].mean(axis=0) for label in np.unique(LABELS)}
    order = np.inf if norm == "linf" else 2
    taken = [min(means, key=lambda k, x=x: np.linalg.norm(x - means[k], ord=order)) for x in pixels[queries]]
    right = np.mean(np.array(taken) == LABELS[queries])
    assert found[f"nearest prototype accuracy, pixels {norm}"] == pytest.approx(right)
    if norm == "l2":
        centroid = NearestCentroid().fit(pixels[support], LABELS[support])
        assert right == pytest.approx(centroid.score(pixels[queries], LABELS[queries]))


def test_what_has_no_pixels_is_refused_and_the_rest_is_told(found):
    assert (found.primary, found.higher_is_better) == ("phi, pixels l2", True)
    assert "R2, pixels" in found.numbers
    assert "1-NN accuracy, pixels l2" in found.intervals
    assert any("32 x 32" in note for note in found.notes)
    with pytest.raises(DataError, match="pixels"):
        run_suites(Subject(np.eye(8), np.arange(8) // 2, Euclidean()), AuditSection(), ["inputs"])
