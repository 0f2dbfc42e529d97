"""What is written about attention to earlier stages and about the class adversary must agree with the code."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from nearkin.errors import RecipeError
from nearkin.models import ModelSection, build_embedder, cache_point
from nearkin.models.section import AttentionSection
from nearkin.objectives import regularisers
from nearkin.objectives.adversary import coefficient_for
from nearkin.recipe import DEFAULT_RECIPE, list_recipes, load_recipe
from nearkin.registry import parameters_of
from nearkin.training.fit import make_learner

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["methods/attention.md", "methods/class-adversary.md"]
GUIDE = "guide/recipes.md"


def text(page):
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", text(page), flags=re.DOTALL)


def defaults(page):
    """The rows of the table of settings: name and default."""
    settings = re.search(r"^## Settings$(.*?)^## ", text(page), re.M | re.S)[1]
    return {key: yaml.safe_load(value) for key, value in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", settings, re.M)}


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page):
    names = {"__name__": page}
    (block,) = blocks(page, "python")
    exec(compile(block, page, "exec"), names)
    if page == PAGES[0]:
        assert {stage: weights.shape for stage, weights in names["weights"].items()} == {
            "stage5": (2, 14, 14),
            "stage6": (2, 7, 7),
            "stage7": (2, 7, 7),
        }
        assert names["features"].shape == (2, 624)
        torch.testing.assert_close(names["embeddings"], names["embedder"](names["images"]))
    else:
        assert all(p.grad is not None for p in names["objective"].networks())
        names = ("coefficient", "turns", "first_turn", "last_turn", "loss", "accuracy")
        assert set(re.findall(r"`class-adversary_(\w+)`", text(page))) == set(names)


@pytest.mark.parametrize("page", [*PAGES, GUIDE])
def test_recipes_can_be_trained(page, tmp_path):
    """Every file as it stands, or as a change of a recipe with a frozen trunk; weights are not needed for that."""
    found = [block for block in blocks(page, "yaml") if not block.startswith("# yaml-language-server")]
    assert found
    for number, block in enumerate(found):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block if "extends:" in block else f"extends: contrastive\n{block}", encoding="utf-8")
        make_learner(load_recipe(path, ["model.pretrained=false"]), "image", 20, validated=True)


@pytest.mark.parametrize("page", [*PAGES, GUIDE])
def test_commands_name_recipes_that_can_be_trained(page):
    commands = [shlex.split(line) for line in re.findall(r"^nearkin train .*$", text(page), re.M)]
    assert commands
    for words in commands:
        recipe = words[words.index("--recipe") + 1] if "--recipe" in words else DEFAULT_RECIPE
        if recipe in list_recipes():
            changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
            here = [change for change in changes if not change.startswith("model.start=")]  # no such run exists
            made = load_recipe(recipe, [*here, "model.pretrained=false"])
            make_learner(made, "image", 20, validated=True)


@pytest.mark.parametrize("page", [*PAGES, GUIDE])
def test_short_overrides_are_valid(page):
    for change in re.findall(r"`--set (model\.attention\S*)`", text(page)):
        assert load_recipe("contrastive", [change]).model.attention is not None


def test_features_of_a_frozen_trunk_are_refused_as_the_page_says():
    term = "objective.regularisers=[{name: class-adversary, weight: 0.5}]"
    with pytest.raises(RecipeError, match="vectors"):
        make_learner(load_recipe("proxy-anchor", [term, "model.pretrained=false"]), "image", 20, validated=True)


def test_tables_have_the_settings_of_the_code():
    section = AttentionSection()
    assert defaults(PAGES[0]) == {name: getattr(section, name) for name in AttentionSection.model_fields}
    declared = parameters_of(regularisers.get("class-adversary").factory)
    assert defaults(PAGES[1]) == {name: parameter.default for name, parameter in declared.items()}


def test_coefficients_are_those_of_the_code():
    rows = re.findall(r"^\| ([\d.]+) \| ([-+]?[\d.]+) \| (.+) \|$", text(PAGES[1]), re.M)
    assert [float(loss) for loss, _, _ in rows] == [4.6, 3.0, 1.5, 0.5]
    for loss, told, side in rows:
        found = 0.5 * float(coefficient_for(torch.tensor(float(loss)), 1.5))
        assert float(told) == pytest.approx(found, abs=5e-4)
        assert side == {-1: "help", 0: "take no notice", 1: "hinder"}[int(math.copysign(found != 0, found))]
    assert math.log(4) < 1.5 < math.log(5)


def test_recipes_of_the_page_exist_and_are_as_told():
    named = set(re.findall(r"`((?:triplet|angular|proxy-nca)-[\w-]+)`", text(PAGES[1]))) - {"triplet-adapt-adv-smooth"}
    assert named == {name for name in list_recipes() if name.endswith(("-adv", "-energy", "-gdfl"))}
    for name in named:
        recipe = load_recipe(name)
        assert recipe.model.dimension == 64
        assert (recipe.model.attention is None) == name.endswith("-energy")
        assert recipe.model.attention is None or not recipe.model.attention.append
        terms = [(term.name, term.weight, term.parameters.get("kind")) for term in recipe.objective.regularisers]
        expected = {
            "gdfl": [],
            "energy": [("energy-confusion", 0.1, None)],
            "soft-adv": [("class-adversary", 0.5, "soft")],
            "adapt-adv": [("class-adversary", 0.5, "adaptive")],
        }
        assert terms == next(wanted for ending, wanted in expected.items() if name.endswith(ending))


@pytest.mark.parametrize("name", ["bn-inception", "efficientnet-lite0", "resnet18", "resnet20", "resnet50", "conv4"])
def test_stages_and_sizes_are_those_of_the_backbones(name):
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \| (.*) \| (.*) \|$", text(PAGES[0]), re.M)
    embedder = build_embedder(ModelSection(backbone=name, attention={}, freeze="all")).eval()
    spec = embedder.spec
    with torch.inference_mode():
        cut = embedder.cut(torch.zeros(1, spec.channels, spec.size, spec.size), cache_point(embedder))
    maps = {stage: map_ for stage, map_ in cut.items() if map_.ndim == 4}
    assert re.findall(r"`(\w+)`", row[0]) == list(maps)
    assert row[1] == ", ".join(f"{map_.shape[2]} × {map_.shape[3]}" for map_ in maps.values())
    assert row[2] == ", ".join(str(map_.shape[1]) for map_ in maps.values())
    if name == "efficientnet-lite0":
        numbers = sum(part.numel() for part in cut.values())
        assert f"{numbers:,} numbers, {2 * numbers:,} bytes" in text(PAGES[0])
        assert f"{2 * cut['pooling'].numel():,} bytes: {round(numbers / cut['pooling'].numel())} times" in text(
            PAGES[0]
        )
        assert f"10,000 images take {4e4 * numbers / 1e9:.1f} GB" in text(PAGES[0])
        multiplied = sum(map_[0].numel() * embedder.pooling.out_channels for map_ in maps.values())
        assert f"| {multiplied / 1e6:.0f} million |" in text(PAGES[0])
