"""What is written about adversarial training must agree with the code, and its recipes must train."""

from __future__ import annotations

import re
import shlex
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from nearkin.recipe import AdversarialSection, list_recipes, load_recipe
from nearkin.training import Run, train
from nearkin.training.fit import make_learner
from nearkin.training.strategies.adversarial import _TOLD

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["methods/adversarial-training.md", "guide/robust-training.md"]
RECIPES = [name for name in list_recipes() if load_recipe(name).training.schedule == "adversarial"]


def text(page):
    return (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_trained(page):
    commands = [shlex.split(line) for line in re.findall(r"^nearkin train .*$", text(page), re.M)]
    assert commands
    for words in commands:
        changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        made = load_recipe(words[words.index("--recipe") + 1], changes)
        make_learner(made, "image", 20, validated=True)


def test_the_table_has_the_settings_of_the_code():
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text(PAGES[0]), re.M))
    told = {key: float(Fraction(value)) if "/" in value else yaml.safe_load(value) for key, value in rows.items()}
    assert told == AdversarialSection().model_dump()


def test_the_pages_name_every_recipe():
    assert len(RECIPES) == 7
    for page in PAGES:
        assert set(RECIPES) <= set(re.findall(r"`([\w-]+)`", text(page)))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_train(name, patterns, tmp_path):
    small = ["data.classes_per_batch=4", "data.per_class=2", "data.workers=0", "data.split=fraction"]
    short = ["training.max_steps=2", "training.evaluate_every=2", "training.log_every=1", "data.val_classes=0.3"]
    recipe = load_recipe(name, [*small, *short, "training.adversarial.steps=1"])
    run = Run(tmp_path / "run")
    train(patterns, recipe, run, source="patterns", cache_directory=tmp_path, progress=False)
    rows = [row for row in run.history() if "adv_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]


def test_the_page_tells_of_what_the_log_has():
    told = set(re.findall(r"`((?:clean|adv)_\w+|pairing_loss)`", text(PAGES[0])))
    assert told == set(_TOLD)
