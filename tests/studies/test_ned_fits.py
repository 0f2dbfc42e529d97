"""The study of NED's fits: paired differences, the best vote, and the page that is committed."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.audits import Subject
from nearkin.metrics.calibration import class_table
from nearkin.spaces import Sphere
from studies.ned_fits import page, run


def tables(confidence, seed=0):
    """Answers of one estimator to 12 queries of each of 10 classes, in two sets, three of four right."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(10), 12)
    return np.array([class_table(np.full(120, confidence), rng.random(120) < 0.75, codes) for _ in range(2)])


def test_differences_are_paired_and_the_best_vote_is_the_best_calibrated():
    votes = {"1NN": tables(1.0), "kNN": tables(0.4), "WkNN (Dudani)": tables(0.7), "WkNN (Gou)": tables(0.99)}
    found = run.compared({**votes, "alike": tables(0.7), "better": tables(0.75)})
    assert found["best vote"] == "WkNN (Dudani)"
    assert found["ECE minus best vote"]["alike"] == [0, 0, 0]
    assert found["accuracy minus 1NN"]["better"] == [0, 0, 0]
    value, low, high = found["ECE minus best vote"]["kNN"]
    assert value == pytest.approx(found["means"]["kNN"]["ECE"][0] - found["means"]["WkNN (Dudani)"]["ECE"][0])
    assert low <= value <= high


def test_every_fit_is_what_it_is_called():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 10)
    points = (rng.normal(size=(8, 6))[labels] + 0.8 * rng.normal(size=(80, 6))).astype(np.float32)
    fitted = run.estimators_of(Subject(points, labels, Sphere()), np.arange(80))
    for name, parameters in page.FITS.items():
        assert fitted[name].widening_.power == parameters["widening"]
        assert (fitted[name].sharpness_ == 1) == (parameters["criterion"] != "sharpened")
    assert set(page.RIVALS) <= set(fitted)


def test_the_committed_page_is_what_the_ledger_says(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PAGE", tmp_path / "results" / "page.md")
    (tmp_path / "results").mkdir()
    page.write_page(run.read_ledger())
    committed = (run.LEDGER.parents[2] / "docs" / "results" / "ned-fits.md").read_text()
    assert (tmp_path / "results" / "page.md").read_text() == committed
