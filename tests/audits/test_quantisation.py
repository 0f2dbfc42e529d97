"""What 8 bits cost: calibrated on what trained, measured on what did not, in pairs."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.audits.quantisation import calibration_batches, compare_quantised, divide_for_int8, processor
from nearkin.errors import DataError
from nearkin.metrics import retrieval_metrics
from nearkin.models import ModelSection, build_embedder
from nearkin.models.card import Card, CardData, CardParts

NAMES = [f"class{number:02d}" for number in range(10)]


def card(dataset, trained, held_out):
    return Card(
        classes=CardParts(trained, test=held_out),
        data=CardData(fingerprint=dataset.fingerprint()),
        recipe={"data": {"split": "fraction"}},
    )


def test_only_training_classes_calibrate_and_only_others_are_measured(patterns):
    division = divide_for_int8(patterns, card(patterns, NAMES[:6], NAMES[6:9]))
    assert set(patterns.labels[division.calibration]) == set(NAMES[:6])
    assert set(patterns.labels[division.measured]) == set(NAMES[6:9])
    assert len(division.calibration) == 48
    again = divide_for_int8(patterns, card(patterns, NAMES[:6], NAMES[6:9]))
    assert np.array_equal(division.calibration, again.calibration)


def test_a_model_that_does_not_say_what_trained_it_calibrates_on_half_of_the_classes(patterns):
    division = divide_for_int8(patterns, Card())
    seen, measured = (set(patterns.labels[rows]) for rows in (division.calibration, division.measured))
    assert len(seen) == len(measured) == 5
    assert not seen & measured
    assert "random" in division.notes[0]


def test_where_all_classes_trained_other_items_are_measured_and_it_is_said(patterns, monkeypatch):
    with pytest.raises(DataError, match="measure"):
        divide_for_int8(patterns, card(patterns, NAMES, []))
    monkeypatch.setattr("nearkin.audits.quantisation.CALIBRATION_ITEMS", 30)
    division = divide_for_int8(patterns, card(patterns, NAMES, []))
    assert sorted([*division.calibration, *division.measured]) == list(range(80))
    assert "train" in division.notes[0]


def test_data_without_training_classes_is_refused(patterns):
    with pytest.raises(DataError, match="classes"):
        divide_for_int8(patterns, card(patterns, ["others"], NAMES))


def test_the_difference_is_that_of_the_same_queries(patterns):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    from nearkin.models.onnx import OnnxEncoder
    from nearkin.models.onnx.file import quantise, serialised

    embedder = build_embedder(ModelSection(backbone="conv4", size=16, dimension=None)).eval()
    division = divide_for_int8(patterns, card(patterns, NAMES[:5], NAMES[5:]))
    content, description = serialised(embedder)
    small, _ = quantise(content, description, calibration_batches(patterns, division, embedder))
    result = compare_quantised(embedder, (content, small), patterns, division, progress=False)
    part = patterns.select(np.flatnonzero(np.isin(patterns.labels, NAMES[5:])))
    before, after = (
        retrieval_metrics(vectors, part.labels, metrics=["MAP@R"]).per_query["MAP@R"]
        for vectors in (embedder.encode(part, progress=False), OnnxEncoder(small).encode(part, progress=False))
    )
    assert result.float32 == pytest.approx(before.mean(), abs=1e-6)
    assert result.int8 == pytest.approx(after.mean(), abs=1e-6)
    assert result.difference == pytest.approx(result.int8 - result.float32, abs=1e-9)
    assert result.low <= result.difference <= result.high
    assert result.high - result.low < 0.3
    assert (result.classes, result.items, result.calibration_items) == (5, 40, 40)
    assert result.int8_bytes == len(small) < result.float32_bytes == len(content)
    assert result.speed > 0
    assert result.to_dict()["processor"] == processor()
