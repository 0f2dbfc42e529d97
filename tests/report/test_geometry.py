"""Pictures of geometry: what they hold, and what they do without anything to show."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.report.geometry import (
    _running_median,
    correlation_title,
    draw_distance_pairs,
    draw_measures,
    draw_reweighting,
    draw_spectra,
)

BLUE, VERMILION = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
POWERS = [0, 0.5, 1]


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def has(png, colour):
    return (np.abs(pixels(png) - colour).max(-1) < 6).sum() > 200


def test_spectra_of_any_size_share_a_picture():
    flat, steep = np.ones(7), np.geomspace(1, 1e-4, 300)
    one, both = draw_spectra({"flat": flat}), draw_spectra({"flat": flat, "steep": steep})
    assert has(both, BLUE)
    assert has(both, VERMILION)
    assert not has(one, VERMILION)
    assert draw_spectra({"flat": 5 * flat}) == one  # multiples of the average
    assert draw_spectra({}) == draw_spectra({"none": np.zeros(3), "empty": np.zeros(0)}) == b""


def test_pairs_of_distances_have_a_panel_for_each_norm():
    rng = np.random.default_rng(0)
    x = rng.random(500)
    one = draw_distance_pairs({correlation_title("l2", 0.5): (x, x**2)})
    two = draw_distance_pairs({"l2": (x, x**2), "linf": (rng.random(500), x)})
    assert pixels(one).shape[1] < pixels(two).shape[1] == 1440
    assert has(two, VERMILION)
    assert draw_distance_pairs({}) == draw_distance_pairs({"a": (np.ones(4), x[:4])}) == b""
    with pytest.raises(DataError, match="4"):
        draw_distance_pairs({"a": (x[:3], x[:4])})
    assert correlation_title("l2", np.nan) == "l2: MC –"


def test_the_running_median_follows_and_holds_equal_places_together():
    x = np.linspace(0, 1, 1001)
    at, median = _running_median(x, 3 * x)
    assert len(at) == 20
    np.testing.assert_allclose(median, 3 * np.array(at))
    at, _ = _running_median(np.minimum(x, 0.5), x)
    assert len(set(at)) == len(at)


def test_reweighting_has_a_panel_for_each_measure():
    measures = {"MAP@R": [0.1, 0.2, 0.15], "phi": [2, 1, np.nan], "rho": [np.nan] * 3}
    png = draw_reweighting(POWERS, measures, unchanged={"MAP@R": 0.12}, shares=["MAP@R"], chosen=0.5)
    assert has(png, BLUE)
    assert pixels(png).shape == (520, 1440, 3)
    more = {f"m{i}": [1, 2, 3] for i in range(4)}
    assert pixels(draw_reweighting(POWERS, more)).shape[0] == 920
    assert draw_reweighting(POWERS, {"rho": [np.nan] * 3}) == b""
    with pytest.raises(DataError, match="power"):
        draw_reweighting(POWERS, {"rho": [1]})


@pytest.mark.parametrize("runs", [3, 12])
def test_runs_are_points(runs):
    rows = [{"MAP@R": 0.1 * i, "phi": i**2, "rho": np.nan} for i in range(runs)]
    names = [f"run {i}" for i in range(runs)]
    png = draw_measures(rows, names, {"phi": "phi: r 1", "rho": "", "lost": ""}, "MAP@R")
    assert png.startswith(b"\x89PNG")
    assert draw_measures(rows, names, {"rho": "", "lost": ""}, "MAP@R") == b""
