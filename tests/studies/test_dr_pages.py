"""What is written about distance ratios, drawn and kept, must agree with the code."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize

from nearkin.recipe import load_recipe
from nearkin.spaces import Euclidean, Sphere, class_distances, distance_ratio_scores

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods" / "distance-ratio.md").read_text(encoding="utf-8")
FOUND = json.loads((ROOT / "studies" / "dr_pictures" / "result.json").read_text(encoding="utf-8"))
LOSSES = ("protonet-s", "protonet-dr", "1nn-s", "1nn-dr")


def module(path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("studies.dr_pictures.run")


@pytest.fixture(scope="module")
def models(script):
    every = [*script.plane_models(), *script.cosine_models(), *script.angle_models(), script.published_sphereface()]
    return {model.name: model for model in every}


def test_what_is_kept_still_holds(script, models):
    assert set(FOUND["models"]) == set(models)
    for name in ("SD-softmax", "DR, rho 8", "NormFace", "SphereFace, k = 0", "softmax, angle", "DR, angle, rho 2"):
        now, kept = script.measure(models[name]), FOUND["models"][name]
        for end in ("largest", "smallest"):
            np.testing.assert_allclose(now[end]["points"], kept[end]["points"], atol=2e-3)
            assert now[end]["p"] == pytest.approx(kept[end]["p"], rel=2e-3)
            assert now[end]["beyond"] == kept[end]["beyond"]
        assert (now["own"], now["other"]) == pytest.approx((kept["own"], kept["other"]), rel=2e-3)


@pytest.mark.parametrize("name", FOUND["models"])
def test_no_point_of_a_fine_grid_is_beyond_what_was_found(models, name):
    model, kept = models[name], FOUND["models"][name]
    points = np.random.default_rng(0).uniform(-model.half, model.half, (20_000, model.representatives.shape[1]))
    if isinstance(model.space, Sphere):
        points = points[np.linalg.norm(points, axis=1) > 0.1]
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    p = model.of_red(points)
    assert p.max() <= kept["largest"]["p"] + 1e-4
    assert p.min() >= kept["smallest"]["p"] - 1e-4
    assert p.max() > kept["largest"]["p"] - 0.03, "and it is not far from what was found"


@pytest.mark.parametrize("name", FOUND["models"])
def test_only_distance_ratios_peak_at_representatives(models, name):
    kept, points = FOUND["models"][name], models[name].representatives.numpy()
    peaks_at_red = np.allclose(kept["largest"]["points"], points[:1])
    others = sorted(points[1:].tolist())
    assert peaks_at_red == name.startswith("DR")
    assert (kept["smallest"]["points"] == others) == name.startswith("DR")
    assert (kept["own"] == pytest.approx(1, abs=1e-6)) == name.startswith("DR")


def test_twice_as_large_changes_softmax_only(script, models):
    line = np.random.default_rng(0).uniform(-script.FRAME, script.FRAME, (500, 2))
    for name in ("SD-softmax", "DR, rho 2", "DR, rho 8"):
        change = np.abs(models[name].of_red(line) - models[f"{name}, doubled"].of_red(2 * line)).max()
        assert (change < 1e-6) == name.startswith("DR")


def test_far_away_each_class_has_a_third(models):
    far = np.array([[1e5, 2e5], [-3e5, 0.0]])
    np.testing.assert_allclose(models["DR, rho 2"].of_red(far), 1 / 3, atol=1e-4)


def test_every_mark_of_the_front_is_in_front(script, models):
    """The caption says that the front shows the representatives, and both sides all peaks."""
    front = np.array(script.VIEWS[0])
    assert (script.SPHERE.numpy() @ front > 0).all()
    latitude = np.degrees(np.arctan2(front[2], np.hypot(*front[:2])))
    assert latitude == pytest.approx(73)
    assert "73° north" in PAGE


def test_numbers_in_the_text():
    assert f"itself {FOUND['models']['SD-softmax']['own']:.2f}" in PAGE
    assert load_recipe("protonet-dr").objective.loss == "protonet-dr"
    assert "(`rho` = 7.39)" in PAGE
    assert np.exp(2.0) == pytest.approx(7.39, abs=0.005)


def test_a_class_at_half_the_distance_and_a_power_of_the_probabilities():
    d, rho, t = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 3.0, 1.7
    p = distance_ratio_scores(d, rho).softmax(dim=0)
    assert (p[0] / p[1]).item() == pytest.approx(2**rho)
    powers = p**t / (p**t).sum()
    torch.testing.assert_close(powers, distance_ratio_scores(d, t * rho).softmax(dim=0))


def test_the_product_of_distances_is_smallest_at_a_support_point_and_not_at_the_mean():
    support = np.random.default_rng(0).normal(size=(5, 2))

    def logarithm(x):
        return np.log(np.linalg.norm(support - x, axis=1) + 1e-12).sum()

    best = min((minimize(logarithm, start, method="Nelder-Mead") for start in support + 0.1), key=lambda one: one.fun)
    assert np.linalg.norm(support - best.x, axis=1).min() < 1e-3
    assert best.fun < logarithm(support.mean(axis=0)) - 5


def test_distance_ratios_are_the_limit_of_cauchy_classes():
    distances, gamma = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64), 1e-5
    cauchy = gamma / (torch.pi * (gamma**2 + distances**2))
    torch.testing.assert_close(cauchy / cauchy.sum(), distance_ratio_scores(distances, 2.0).softmax(dim=0))


def test_the_example_runs_and_shows_what_the_text_says(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "distance-ratio.md", "exec"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    softmax, ratios = zip(*(map(json.loads, re.findall(r"\[.*?\]", line)) for line in lines), strict=True)
    assert softmax[1][0] > softmax[0][0] + 0.1
    np.testing.assert_allclose(ratios[0], ratios[1], atol=1e-6)


def test_generated_tables_have_the_numbers_of_the_article():
    filled = module(ROOT / "docs" / "generate.py").on_page_markdown(PAGE)
    assert "<!-- generated" not in filled
    assert "| 1 | 2 | 0.95257 | 0.048587 | 0.8 | 0.22314 |" in filled
    assert "| 2 | 4 | 0.99999 | 6.1442e-06 | 0.8 | 0.22314 |" in filled
    assert "| softmax, angle | 0.855 | (-0.604, -0.604, 0.52) |" in filled
    assert "at infinity; in the frame (0, 1.5)" in filled


def test_pictures_are_there():
    for name in re.findall(r"\.\./images/([\w-]+\.png)", PAGE):
        assert Image.open(ROOT / "docs" / "images" / name).width == 2 * 720
    assert len(set(re.findall(r"\.\./images/(dr-[\w-]+\.png)", PAGE))) == 3


@pytest.mark.parametrize("name", LOSSES)
def test_loss_pages_point_to_the_explanation_and_the_guide(name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert "training.schedule: episodic" in page
    assert "../guide/few-shot.md" in page
    assert "distance-ratio.md" in page or "protonet-s.md" in page
    for key, value in re.findall(r"--set (training\.episodic\.\w+)=(\d+)", page):
        assert load_recipe(name, [f"{key}={value}"]).training.schedule == "episodic"


def test_with_one_shot_the_nearest_is_the_mean():
    draw = torch.Generator().manual_seed(0)
    support, query = torch.randn(4, 1, 6, generator=draw), torch.randn(9, 6, generator=draw)
    mean, nearest = (class_distances(Euclidean(), support, query, how) for how in ("mean", "nearest"))
    torch.testing.assert_close(mean, nearest)
