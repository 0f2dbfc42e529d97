"""Every item of the documents can be run as the page on coverage says: each row of its table is run here."""

from __future__ import annotations

import importlib.util
import re
import shlex
from itertools import pairwise

import numpy as np
import pytest
import torch
import yaml

import nearkin
import nearkin.attacks
import nearkin.confidence
import nearkin.data.hierarchy
import nearkin.metrics
import nearkin.models
import nearkin.objectives
import nearkin.report
import nearkin.spaces
from nearkin import fit
from nearkin.audits import suites
from nearkin.protocol import parse_space
from nearkin.recipe import list_recipes, load_recipe

from .pages import DOCS
from .scripts import check_calls
from .test_commands import check, words_of

PAGE = DOCS / "methods" / "coverage.md"
DOCUMENTS = yaml.safe_load((DOCS / "methods" / "coverage.yaml").read_text(encoding="utf-8"))
ROWS = [(name, row) for name, rows in DOCUMENTS.items() for row in rows]
WAYS = ("recipe", "python", "command", "study")


def having(way):
    return [pytest.param(row[way], id=f"{name}: {row['item']}") for name, row in ROWS if way in row]


def test_every_row_is_whole_and_every_item_is_there_once():
    for _, row in ROWS:
        assert set(row) <= {"item", "at", "page", "none", *WAYS}
        assert row["item"]
        assert row["at"]
        assert ("none" in row) != any(way in row for way in WAYS), row["item"]
        assert (DOCS / "methods" / row["page"].partition("#")[0]).is_file(), row["page"]
        assert "python" not in row or re.search(r"\bnearkin\.\w", row["python"]), row["item"]
        assert len(row.get("none", "a reason of some words")) > 20
    for name, rows in DOCUMENTS.items():
        found = [row["item"] for row in rows]
        assert len(found) == len(set(found)), name
        assert f"<!-- generated: coverage_{name} -->" in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_row():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.on_page_markdown(PAGE.read_text(encoding="utf-8"))
    assert "<!-- generated" not in page
    assert page.count("\n| ") == len(ROWS) + 3 * len(DOCUMENTS) + 3  # and headings, lines below them, counts
    for _, row in ROWS:
        told = row.get("none") or row.get("recipe", "").split()[:1] or row.get("command") or row.get("study")
        start = f"| {row['item'].replace('|', chr(92) + '|')} | {row['at']} |"
        (line,) = [line for line in page.splitlines() if line.startswith(start)]
        told = told if isinstance(told, str) or told is None else told[0]
        assert not told or told in line
        assert f"]({row['page']})" in line


def test_little_has_no_way_to_be_run():
    assert len(ROWS) > 200
    assert sum("none" in row for _, row in ROWS) <= 0.06 * len(ROWS)


@pytest.fixture(scope="module")
def small():
    """The small data of the rows' expressions."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    names = ["a", "b", "c", "d"]
    codes = torch.arange(4).repeat_interleave(6)
    x = (np.eye(4, 8)[codes] + rng.normal(scale=0.2, size=(24, 8))).astype(np.float32)
    layer = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4)).requires_grad_(False)
    fmap = torch.rand(2, 8, 5, 5)
    return {
        "np": np,
        "torch": torch,
        "nearkin": nearkin,
        "names": names,
        "x": x,
        "t": torch.from_numpy(x),
        "labels": np.array(names)[codes],
        "codes": codes,
        "cosines": torch.rand(5, 4) * 2 - 1,
        "distances": torch.rand(24, 4) + 0.1,
        "ball": nearkin.spaces.PoincareBall(),
        "tree": nearkin.data.hierarchy.Hierarchy.from_newick("((a,b)x,(c,d)y)z;"),
        "pixels": torch.rand(4, 1, 4, 4),
        "classify": layer,
        "fmap": fmap,
        "local": fmap.flatten(2).mT.contiguous(),
    }


@pytest.mark.parametrize("expression", having("python"))
def test_functions_run(expression, small):
    for call in re.findall(r"\bnearkin((?:\.\w+)+)", expression):
        assert not any(part.startswith("_") for part in call.split("."))
    eval(expression, dict(small))


@pytest.mark.parametrize("line", having("command"))
def test_commands_are_those_of_the_command_line(line):
    words = words_of(line)
    check(words[1:], whole=True)
    for place, word in enumerate(words):
        if word == "--suite":
            suites.get(words[place + 1])
    options = dict(pairwise(words))
    if "--space" in options:
        parse_space(options["--space"])
    changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    if changes or "--recipe" in options:
        for recipe in options.get("--recipe", options.get("--recipes", "multi-similarity")).split(","):
            load_recipe(recipe, changes)


@pytest.mark.parametrize("line", having("study"))
def test_studies_exist(line):
    script, *words = shlex.split(line)
    check_calls(script, [words])


def recipes():
    return sorted({name for _, row in ROWS for name in row.get("recipe", "").split()})


def test_recipes_exist_and_those_of_the_documents_are_told():
    known = set(list_recipes())
    assert set(recipes()) <= known
    assert {name for name in known if name.startswith(("fair-", "conventional-"))} - set(recipes()) == {
        "fair-base",
        "conventional-base",
    }


IN_GUIDES = {"pacs": "domains.md", "speaker-verification": "speakers.md"}
"""Recipes of other data than images of classes; `test_blocks.py` runs the guides that train them."""


def test_guides_train_what_is_left_to_them():
    for name, guide in IN_GUIDES.items():
        assert f"--recipe {name} " in (DOCS / "guide" / guide).read_text(encoding="utf-8")


IN_TESTS = {
    "test_loop.py": "contrastive contrastive-ccp contrastive-xbm learned-similarity margin multi-similarity-ccp "
    "normface protonet-dr proxy-anchor proxy-dr triplet",
    "test_pooling_training.py": "contrastive-ccp-gsp contrastive-gsp proxy-anchor-gsp",
    "test_clusters.py": "growing-triplet",
    "test_gradients.py": "multi-similarity protonet-s",
}
"""Recipes that tests of `tests/training` train for longer than is done here."""


def test_other_tests_name_what_is_left_to_them():
    for file, names in IN_TESTS.items():
        text = (DOCS.parent / "tests" / "training" / file).read_text(encoding="utf-8")
        assert [name for name in names.split() if f'"{name}"' not in text] == [], file


def quick():
    """Those that no other test trains."""
    elsewhere = {*IN_GUIDES, *" ".join(IN_TESTS.values()).split()}
    other = [name for name in recipes() if not name.startswith("fair-") and name not in elsewhere]
    return [name for name in other if load_recipe(name).training.schedule != "adversarial"]


SMALL = {
    "gsp": ["model.local_dimension=16", "model.dimension=null", "model.pooling_parameters.prototypes=4"],
    "episodic": ["training.episodic={way: 3, shot: 1, query: 2, validation_way: 2, validation_episodes: 4}"],
    "cross-batch-memory": ["training.cross_batch_memory={batches: 2, warmup_steps: 1}"],
    "chance-constrained": ["training.chance_constrained={proxies: 2, pool: 3}"],
}
EPISODES = ["data.classes_per_batch", "data.per_class"]


@pytest.mark.parametrize("name", quick())
def test_recipes_train(name, patterns, tiny, tmp_path):
    """Two steps of every recipe that no other test trains, such as `test_fair_recipes.py`."""
    recipe = load_recipe(name)
    schedule = recipe.training.schedule
    changes = [*tiny, "training.max_steps=2", "training.evaluate_every=2", *SMALL.get(schedule, [])]
    if schedule == "episodic":
        changes = [change for change in changes if change.partition("=")[0] not in EPISODES]
    if recipe.model.pooling.startswith("gsp"):
        changes += SMALL["gsp"]
    if recipe.model.attention is not None:
        changes += ["model.cache_dtype=float32"]
    if recipe.model.frozen_batch_norm:
        changes.append("model.frozen_batch_norm=false")
    if recipe.data.hierarchy is not None or recipe.objective.loss in ("corr", "h-spherical", "hxe", "soft-labels"):
        (tmp_path / "tree.nwk").write_text(
            "((class00,class01,class02,class03)a,(class04,class05,class06)b,(class07,class08,class09)c);"
        )
        changes.append(f"data.hierarchy={tmp_path / 'tree.nwk'}")
    if recipe.model.head_start == "whitened":
        changes.append("model.head_start=random")
    model = fit(patterns, name, overrides=changes, progress=False)
    assert model.card.steps == 2
