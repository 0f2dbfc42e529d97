"""The toy of generalized sum pooling: a linear program, its smoothed form, and what each keeps of a coloured region."""

from __future__ import annotations

import importlib
import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="module")
def toy():
    return importlib.import_module("studies.gsp_toy.run")


def fixed_point(costs, budget, sharpness, steps=40_000):
    """Pooling weights (n,) by the iteration of Proposition 5.2.1, for costs (n, m)."""
    kernel = np.exp(-sharpness * costs.numpy()).sum(axis=1)
    t = 1.0
    for _ in range(steps):
        left = 1 / len(kernel) / (1 + t * kernel)
        t = budget / (kernel @ left)
    return (1 / len(kernel) - left) / budget


def test_half_of_the_map_is_coloured_and_lies_nearer_to_the_prototypes(toy):
    features, coloured = toy.make_map()
    assert features.shape == (10, 10, 3)
    assert (features.min(), features.max()) == (pytest.approx(0.15, abs=0.15), pytest.approx(0.85, abs=0.15))
    assert coloured.sum() == 50
    nearest = toy.costs_of(features).min(dim=1).values.reshape(10, 10).numpy()
    assert nearest[coloured].max() < nearest[~coloured].min()


@pytest.mark.parametrize("seed", range(5))
def test_an_underestimated_budget_makes_the_linear_program_drop_most_of_the_region(toy, seed):
    features, coloured = toy.make_map(seed)
    weights = toy.solve(features)[toy.LINEAR]
    assert weights.sum() == pytest.approx(1)
    assert weights[~coloured].max() == pytest.approx(0, abs=1e-9)
    assert (weights[coloured] < 1e-9).sum() == 30
    assert weights[weights > 1e-9] == pytest.approx(1 / 20)


@pytest.mark.parametrize("seed", range(5))
def test_the_smoothed_solution_keeps_the_region_and_ignores_the_green(toy, seed):
    features, coloured = toy.make_map(seed)
    told = toy.measure(toy.solve(features)["sharpness 5"], coloured)
    assert told["kept"] == 50
    assert told["coloured"] > 0.95
    assert told["least"] > 0.45
    assert told["ratio"] > 5


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("sharpness", [1.0, 5.0, 20.0])
def test_the_smoothed_weights_are_the_fixed_point_of_the_print(toy, budget, sharpness):
    costs = toy.costs_of(toy.make_map()[0])
    found = toy.smooth_weights(costs, budget, sharpness)
    np.testing.assert_allclose(found, fixed_point(costs, budget, sharpness), rtol=1e-6)


def test_between_its_limits_it_is_average_pooling_and_the_linear_program(toy):
    costs = toy.costs_of(toy.make_map()[0])
    np.testing.assert_allclose(toy.smooth_weights(costs, 0.2, 1e-6), np.full(100, 0.01), rtol=1e-5)
    np.testing.assert_allclose(toy.smooth_weights(costs, 0.2, 1e5), toy.linear_weights(costs, 0.2), atol=1e-3)


def test_with_the_right_budget_the_linear_program_takes_the_region_and_nothing_else(toy):
    features, coloured = toy.make_map()
    np.testing.assert_allclose(toy.solve(features, 0.5)[toy.LINEAR], coloured / 50, atol=1e-9)


def test_the_linear_program_moves_mass_along_the_cheapest_costs(toy):
    costs = torch.tensor([[0.5, 0.1], [0.2, 0.9], [0.7, 0.8], [0.3, 0.4]], dtype=torch.float64)
    # A budget of 0.6 of four positions: the two nearest in full, 0.1 of the 0.25 of the third.
    assert toy.linear_weights(costs, 0.6) == pytest.approx([0.25 / 0.6, 0.25 / 0.6, 0, 0.1 / 0.6])


def test_what_is_measured(toy):
    coloured = np.array([[True, True], [False, False]])
    told = toy.measure(np.array([[0.6, 0.04], [0.35, 0.01]]), coloured)
    assert told == pytest.approx({"coloured": 0.64, "kept": 1, "least": 0.08, "ratio": 0.04 / 0.35})


@pytest.mark.pixels
def test_the_picture_is_drawn_and_the_bars_hold(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy, "PICTURE", tmp_path / "toy.png")
    monkeypatch.setattr(sys, "argv", ["gsp_toy.py"])
    assert toy.main() == 0
    assert Image.open(io.BytesIO((tmp_path / "toy.png").read_bytes())).width == 1440
    assert "30 of 50" in capsys.readouterr().out.splitlines()[-1]
    (tmp_path / "toy.png").unlink()
    monkeypatch.setattr(sys, "argv", ["gsp_toy.py", "--check"])
    assert toy.main() == 0
    assert not (tmp_path / "toy.png").exists()
    monkeypatch.setattr(toy, "BUDGET", 0.5)
    assert toy.main() == 1
