"""What is written about poolings: docstrings, pages and their examples must agree with the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from nearkin.models.pooling import list_poolings, poolings
from nearkin.objectives import regularisers
from nearkin.recipe import list_recipes, load_recipe
from nearkin.registry import parameters_of

PAGES = Path(__file__).parents[2] / "docs" / "methods"
NAMES = ["gap", "gap+gmp", "gem", "gmp", "stats", "gsp", "gsp+gmp"]
ALTERNATIVES = ["generalized-max", "crow", "cbam", "delf", "gsop", "solar", "smk", "netvlad", "ot", "weldon"]


def blocks(name, language):
    text = (PAGES / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def parameter_rows(name):
    text = (PAGES / name).read_text(encoding="utf-8")
    return {key: yaml.safe_load(value) for key, value in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """A page registers a pooling of its own: it must not stay for other tests."""
    monkeypatch.setattr(poolings, "_entries", dict(poolings._entries))


def test_all_are_registered():
    assert set(NAMES + ALTERNATIVES) <= set(list_poolings())


@pytest.mark.parametrize("name", NAMES + ALTERNATIVES)
def test_docstrings_say_when_it_helps(name):
    text = inspect.getdoc(poolings.get(name))
    assert "\nUse when: " in text
    if name not in ("gap", "gmp", "gap+gmp"):
        assert re.search(r"\nReference: .+ (19|20)\d\d", text)
    if text.endswith("for the parameters.") or "for the parameters.\n" in text:
        return
    for parameter in list(inspect.signature(poolings.get(name)).parameters)[1:]:
        assert re.search(rf"^    {parameter}: \w", text, re.MULTILINE), parameter


@pytest.mark.parametrize("page", ["poolings.md", "gsp.md", "average-pooling.md"])
def test_examples_run(page):
    names = {"__name__": page}
    found = blocks(page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)
    if page == "average-pooling.md":
        error = (names["pcc"] - names["features"].mean(1)).norm(dim=1).max()
        nearest = (names["points"].unsqueeze(1) - names["prototypes"]).norm(dim=2).amin(1)
        assert error <= nearest.max() + 1e-5


@pytest.mark.parametrize("page", ["poolings.md", "zero-shot.md"])
def test_settings_are_valid(page, tmp_path):
    for number, block in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(f"extends: contrastive\n{block}", encoding="utf-8")
        load_recipe(path)


def test_pages_have_the_parameters_of_the_code():
    declared = inspect.signature(poolings.get("gsp")).parameters
    assert parameter_rows("gsp.md") == {name: declared[name].default for name in list(declared)[1:]}
    of_loss = parameters_of(regularisers.get("zero-shot").factory)
    assert parameter_rows("zero-shot.md") == {name: parameter.default for name, parameter in of_loss.items()}


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-gsp")])
def test_recipes_are_those_of_the_paper(name):
    recipe = load_recipe(name)
    proxies = "proxy" in name
    assert recipe.model.pooling_parameters == {"prototypes": 64, "budget": 0.3, "sharpness": 0.5 if proxies else 5}
    assert (recipe.model.local_dimension, recipe.model.dimension) == (128, None)
    assert recipe.objective.weight == pytest.approx(0.9)
    assert [(term.name, term.weight) for term in recipe.objective.regularisers] == [("zero-shot", 0.1)]
    assert name.removesuffix("-gsp") in list_recipes()
