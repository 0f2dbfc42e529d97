"""Every method has a page that is complete, and what the pages show comes from code and ledgers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from nearkin.confidence import estimators, unknown_scores
from nearkin.models.pooling import list_poolings
from nearkin.objectives import losses, miners, regularisers
from nearkin.recipe import TrainingSection
from nearkin.search import rerankers

ROOT = Path(__file__).parents[1]
METHODS, IMAGES = ROOT / "docs" / "methods", ROOT / "docs" / "images"
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(METHODS.glob("*.md"))
    if path.stem not in ("index", "coverage")
}
INDEX = (METHODS / "index.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"`(python (?:benchmarks|studies)/|nearkin |pytest )")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections(page: str) -> dict[str, str]:
    """Heading to text."""
    parts = re.split(r"(?m)^## (.*)$", page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_maths_a_picture_and_its_sections(name):
    page = PAGES[name]
    assert "```text\n" in page, "the maths"
    pictures = re.findall(r"!\[[^\]]+\]\(\.\./images/([^)]+)\)", page)
    assert pictures
    assert [picture for picture in pictures if not (IMAGES / picture).is_file()] == []
    headings = re.findall(r"(?m)^## (.*)$", page)
    for wanted in ("When", "Cost", "Result", "Reference"):
        assert headings.count(wanted) == 1, wanted
        assert sections(page)[wanted].strip(), wanted


@pytest.mark.parametrize("name", PAGES)
def test_a_result_names_its_command_and_pages_name_scripts_that_exist(name, generate):
    filled = generate.on_page_markdown(PAGES[name])
    assert "<!-- generated" not in filled
    assert COMMAND.search(sections(filled)["Result"])
    assert [
        path
        for path in re.findall(r"python ((?:benchmarks|studies)/[\w/]+\.py)", filled)
        if not (ROOT / path).is_file()
    ] == []


@pytest.mark.parametrize("loss", losses.names())
def test_every_loss_has_a_page_with_its_cost_and_is_in_the_index(loss, generate):
    assert f"<!-- generated: cost_of_{re.sub(r'[^a-z0-9]', '_', loss)} -->" in sections(PAGES[loss])["Cost"]
    assert f"| [`{loss}`]({loss}.md) |" in INDEX


def test_every_page_is_one_click_from_the_index():
    assert [name for name in PAGES if f"]({name}.md" not in INDEX] == []


def test_every_other_registered_method_is_told_somewhere(generate):
    told = {kind: generate.on_page_markdown(PAGES[kind]) for kind in ("poolings", "re-ranking", "ned")}
    assert [name for name in list_poolings() if f"| `{name}` |" not in told["poolings"]] == []
    assert [name for name in rerankers if f"| `{name}` |" not in told["re-ranking"]] == []
    assert [name for name in (*estimators, *unknown_scores) if f"`{name}`" not in told["ned"]] == []
    assert [name for name in (*miners, *regularisers) if f"| `{name}` |" not in INDEX] == []


def test_every_schedule_has_a_page():
    schedules = set(get_args(TrainingSection.model_fields["schedule"].annotation)) - {"plain"}
    assert schedules >= {"episodic", "adversarial"}
    assert [
        name for name in schedules if not any(f"training.schedule: {name}" in page for page in PAGES.values())
    ] == []


def test_pictures_are_those_of_the_script_and_pages_show_their_own():
    script = importlib.import_module("studies.method_pictures.run")
    assert {path.name for path in script.FOLDER.iterdir()} == {f"{name}.png" for name in script.PICTURES}
    for name in script.PICTURES:
        assert f"](../images/methods/{name}.png)" in PAGES[name]
        assert f"`python studies/method_pictures/run.py {name}`" in PAGES[name]
        assert (script.FOLDER / f"{name}.png").stat().st_size < 40_000
    assert set(losses) == set(script.ELSEWHERE) | (set(script.PICTURES) & set(losses))


def cost(travel, place: float) -> float:
    """The loss where the sample is nearest to a place, on the way to the other class."""
    return float(travel.costs["other class"][np.abs(travel.places - place).argmin()])


def test_what_captions_say_of_the_toy():
    toy = importlib.import_module("studies.method_pictures.loss_toy")
    moved = np.linalg.norm(toy.pull("n-pairs").arrows, axis=1) > 0
    assert moved.reshape(5, -1).sum(axis=1).tolist() == [2] * 5
    ratios, plain = toy.travel("proxy-dr"), toy.travel("normface")
    assert cost(ratios, 0) < cost(ratios, -45) - 1e-6, "surest at the own proxy"
    assert cost(plain, -45) < cost(plain, 0) - 1e-6, "surest beyond it"
    assert ratios.places[ratios.costs["other class"].argmax()] == pytest.approx(90, abs=3)
    own = toy.travel("protonet-dr")
    assert cost(own, np.mean(own.own)) < min(cost(own, -1), cost(own, 2.4)) - 1e-6
    tree = toy.travel("corr").costs
    np.testing.assert_allclose(tree["its sibling"], tree["a stranger"], atol=1e-5)


def test_points_follow_the_loss():
    """Classes end nearer to themselves than they began; what is drawn as the start is not the end."""
    found = importlib.import_module("studies.method_pictures.loss_toy").pull("contrastive")

    def spread(points: np.ndarray) -> float:
        groups = points.reshape(5, -1, 2)
        return float(np.linalg.norm(groups - groups.mean(axis=1, keepdims=True), axis=2).mean())

    assert spread(found.end) < 0.8 * spread(found.start)


def test_the_table_of_a_result_is_that_of_the_ledger(generate):
    cells = [json.loads(line) for line in (ROOT / "studies" / "cub_frozen" / "ledger.jsonl").read_text().splitlines()]
    mine = [cell for cell in cells if cell["loss"] == "proxy-nca++"]
    assert len(mine) == 3
    (row,) = [
        line
        for line in generate.on_page_markdown(PAGES["proxy-nca++"]).splitlines()
        if line.startswith("| `proxy-nca++`")
    ]
    values = [cell.strip() for cell in row.split("|")]
    assert values[2] == f"{100 * np.mean([cell['MAP@R'] for cell in mine]):.1f}"
    gain = np.mean([cell["MAP@R"] - cell["raw MAP@R"] for cell in mine])
    mean, low, high = map(float, re.findall(r"[+-][\d.]+", values[3]))
    assert mean == pytest.approx(100 * gain, abs=0.15), "classes have nearly the same number of items"
    assert low < mean < high


def test_the_grid_has_every_loss_that_it_can_have():
    script = importlib.import_module("studies.cub_frozen.run")
    done = {(cell["loss"], cell["seed"]) for cell in script.read_ledger()}
    assert done == {(loss, seed) for loss in script.LOSSES for seed in script.SEEDS}
