"""The residuals suite: its numbers, the column it goes by, its pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from nearkin.audits import Subject, run_suites
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.metrics import residual_metrics
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean

CLASSES, POSES = np.divmod(np.arange(120), 6)
LABELS = np.array([f"c{label:02d}" for label in CLASSES])


@pytest.fixture
def subject():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 16))[CLASSES] + rng.normal(size=(6, 16))[POSES] + 0.2 * rng.normal(size=(120, 16))
    images = np.broadcast_to((40 * POSES).astype(np.uint8)[:, None, None, None], (120, 8, 8, 3)).copy()
    names = [f"{label}/{pose}.png" for label, pose in zip(LABELS, POSES, strict=True)]
    manifest = Manifest.from_rows(names, LABELS.tolist(), domain=[f"pose {pose}" for pose in POSES])
    data = Dataset(manifest, ArrayStore(images, names), name="poses")
    return Subject(points.astype(np.float32), LABELS, Euclidean(), data=data, facts={})


def test_the_numbers_are_those_of_the_metric_and_named_by_the_column(subject):
    result = run_suites(subject, AuditSection(residual_clusters=6), ["residuals"])
    expected = residual_metrics(subject.embeddings, LABELS, attributes=POSES, clusters=6).values
    assert result["shared directions"] == pytest.approx(expected["shared directions"])
    assert result["same domain"] == pytest.approx(expected["same attribute"])
    assert result["same domain"] > 0.9
    assert result["NMI of residual clusters and domain"] > 0.9
    assert result.primary == "shared directions"
    assert "nearest residual" in result.numbers
    assert result.to_dict()["details"]["residuals"]["column"] == "domain"


def test_its_pictures_show_directions_neighbours_and_clusters(subject):
    result = run_suites(subject, AuditSection(), ["residuals"])
    figures = [draw() for draw in result.drawings]
    assert [figure.title for figure in figures] == [
        "Directions that classes share",
        "Nearest residuals in other classes",
        "Clusters of residuals",
    ]
    assert all(Image.open(io.BytesIO(figure.png)).width > 100 for figure in figures)
    subject = subject.changed(picture=None)
    assert len(run_suites(subject, AuditSection(), ["residuals"]).drawings) == 1


def test_another_column_and_one_that_is_not_there(subject):
    with pytest.raises(DataError, match="residual_column"):
        run_suites(subject, AuditSection(residual_column="pose"), ["residuals"])
    plain = Subject(subject.embeddings, LABELS, Euclidean(), baseline=subject.embeddings[:, :8], facts={})
    result = run_suites(plain, AuditSection(), ["residuals"])
    assert not any("domain" in name for name in result.values)
    assert result.baseline.keys() == result.values.keys()
