"""What is written about each loss: its docstring, its page, its recipe. All three must agree with the code."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml

from nearkin.data.hierarchy import Hierarchy
from nearkin.objectives import ObjectiveSection, losses, make_objective, miners, regularisers
from nearkin.recipe import load_recipe
from nearkin.registry import parameters_of
from nearkin.spaces import Euclidean, make_space

PAGES = Path(__file__).parents[2] / "docs" / "methods"
CLASSES = Hierarchy.from_nested(["a", "b", ["c", "d"]])
FACTORIES = [*(losses.get(name) for name in losses), *(regularisers.get(name) for name in regularisers)]


@pytest.mark.parametrize("entry", FACTORIES, ids=lambda entry: entry.name)
def test_docstring_follows_the_template(entry):
    text = inspect.getdoc(entry.factory)
    headings = ["Reference:", "Needs:", "Inputs:", "Use when:", "Example:"]
    places = [text.find(f"\n{heading}") for heading in headings]
    assert -1 not in places
    assert places == sorted(places)
    for name in parameters_of(entry.factory):
        assert re.search(rf"^    {name}: \w", text, re.MULTILINE), f"{name} is not described"


@pytest.mark.parametrize("entry", FACTORIES, ids=lambda entry: entry.name)
def test_docstring_example_runs(entry):
    names = {one.__name__: one for one in (ObjectiveSection, make_objective, Euclidean, Hierarchy)}
    example = doctest.DocTestParser().get_doctest(entry.factory.__doc__, names, entry.name, None, 0)
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0
    given = (torch.randn(4, 128), torch.tensor([0, 0, 1, 1]), torch.rand(4, 6), torch.rand(4, 512))
    assert torch.is_tensor(example.globs["objective"](*given))


@pytest.mark.parametrize("name", miners.names())
def test_miners_say_what_they_choose(name):
    assert inspect.getdoc(miners.get(name).factory)


@pytest.mark.parametrize("name", losses.names())
def test_page_has_the_parameters_of_the_code(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    declared = {key: parameter.default for key, parameter in parameters_of(losses.get(name).factory).items()}
    assert {key: yaml.safe_load(value) for key, value in rows.items()} == declared
    for part in ("## When", "## What it needs", "## Use", "## Reference", f"--recipe {name} "):
        assert part in page


@pytest.mark.parametrize("name", losses.names())
def test_overrides_on_a_page_are_valid(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    overrides = re.findall(r"--set objective\.(\S+?)=(\S+)", page)
    assert overrides or not parameters_of(losses.get(name).factory)
    for key, text in overrides:
        if key == "miner":
            ObjectiveSection(loss=name, miner=text)
        else:
            ObjectiveSection(loss=name, parameters={key.removeprefix("parameters."): yaml.safe_load(text)})


def test_index_lists_everything():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    for name in losses:
        assert f"[`{name}`]({name}.md) | {losses.get(name).family} |" in index
    for name in (*miners, *regularisers):
        assert f"| `{name}` |" in index


def test_a_loss_of_your_own_works_as_the_index_shows(monkeypatch):
    monkeypatch.setattr(losses, "_entries", dict(losses._entries))
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", index, re.DOTALL)[1], {"__name__": "mine"})
    section = ObjectiveSection(loss="pull-to-mean", parameters={"weight": 2})
    assert make_objective(section, dimension=4, classes=3)(torch.randn(6, 4), torch.arange(6) % 3) > 0


@pytest.mark.parametrize("name", losses.names())
def test_recipe(name):
    text = (resources.files("nearkin.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    assert re.match(r"# .+ \(.+ (19|20)\d\d.*\): ", text), "the first line names the paper and says when to use it"
    tree = yaml.safe_load(text)
    if losses.get(name).family == "episodes":
        check_episodic_recipe(name, tree)
        return
    assert tree["extends"] == "base"
    section = ObjectiveSection(**tree["objective"])
    assert section.loss == name
    known = {"class_names": CLASSES.classes, "hierarchy": CLASSES} if losses.get(name).needs_hierarchy else {}
    space = make_space(tree.get("model", {}).get("space", "sphere"))
    objective = make_objective(section, dimension=8, classes=4, space=space, **known)
    data = {"classes_per_batch": 16, "per_class": 4} | tree.get("data", {})
    objective.check_batch(data["classes_per_batch"], data["per_class"])
    # What a learned similarity learns is part of the model.
    learns = losses.get(name).family not in ("pairs", "similarity") and bool(objective.proxies())
    assert ("proxy_lr_factor" in tree.get("training", {})) == learns


def check_episodic_recipe(name, tree):
    assert tree.get("extends") == (None if name == "protonet-s" else "protonet-s"), "they differ in little else"
    recipe = load_recipe(name)
    assert recipe.objective.loss == name
    assert recipe.training.schedule == "episodic"
    assert (recipe.training.episodic.shot > 1) == name.startswith("1nn"), "with one shot 1-NN is the prototype's"
    assert recipe.data.per_class == recipe.training.episodic.shot + recipe.training.episodic.query
