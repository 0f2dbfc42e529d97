"""The examples of the guide to few-shot learning run as they are written, and its settings are those there are."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from nearkin.audits import suites
from nearkin.metrics.dynamics import DYNAMICS
from nearkin.metrics.fewshot import REPRESENTATIONS
from nearkin.recipe import AuditSection, EpisodicSection, load_recipe

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "few-shot.md"
TEXT = GUIDE.read_text(encoding="utf-8")
LOSSES = ("protonet-s", "protonet-dr", "1nn-s", "1nn-dr")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_examples_run(capsys):
    names = {}
    for part in blocks("python"):
        exec(compile(part, str(GUIDE), "exec"), names)
    assert 0.3 < names["result"].accuracy < 0.95
    assert names["low"] < names["result"].accuracy < names["high"]
    assert len(names["hardest"]) == 3
    assert set(names["five"]) == set(REPRESENTATIONS)
    assert len({found.accuracy for found in names["five"].values()}) == 3
    assert names["learned"].representation == "product"
    assert names["gap"].interval[0] < names["gap"].difference < names["gap"].interval[1]
    assert "20-way 5-shot" in set(names["audit"])
    assert capsys.readouterr().out.count("%") > 8


def test_its_recipes_settings_and_suites_are_there():
    for name in re.findall(r"--recipe (\S+)", TEXT) + re.findall(r"^\| \[`(\S+?)`\]", TEXT, flags=re.M):
        assert load_recipe(name).training.schedule == "episodic"
    for command in re.findall(r"^nearkin audit (.*)$", TEXT, flags=re.M):
        assert all(name in suites for name in re.search(r"--suite (\S+)", command)[1].split(","))
    (section,) = blocks("yaml")
    given = yaml.safe_load(section)["audit"]
    assert AuditSection(suites=given["suites"]) == AuditSection.model_validate(given)  # the defaults are told as such
    told = dict(re.findall(r"^\| `training\.episodic\.(\w+)` \| (\S+) ", TEXT, flags=re.M))
    assert told == {
        name: "as" if name == "validation_way" else str(field.default)
        for name, field in EpisodicSection.model_fields.items()
    }


def test_it_names_every_measure_of_the_dynamics():
    assert all(f"`{name}`" in TEXT for name in DYNAMICS)


@pytest.mark.parametrize("page", ["guide/few-shot", *(f"methods/{one}" for one in LOSSES)])
def test_its_trainings_are_recipes_and_show_other_spaces(page):
    text = (GUIDE.parents[1] / f"{page}.md").read_text(encoding="utf-8")
    spaces = {}
    for command in re.findall(r"^nearkin train .*$", text, flags=re.M):
        words = shlex.split(command)
        overrides = [after for before, after in pairwise(words) if before == "--set"]
        recipe = load_recipe(words[words.index("--recipe") + 1], overrides)
        spaces[recipe.model.space] = recipe.model.space_parameters
    assert spaces == {"euclidean": {}, "sphere": {"metric": "angle"}, "poincare-ball": {}}
