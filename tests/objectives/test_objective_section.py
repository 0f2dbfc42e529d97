"""What a recipe may say about its objective, and how it is told off."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from nearkin.errors import RecipeError, UnknownNameError
from nearkin.objectives import LossShape, ObjectiveSection, losses, miners, regularisers
from nearkin.registry import check_parameters, parameters_of


def factory(shape: LossShape, *, margin: float = 0.1, steps: int = 3, smooth: bool = False, kind: str = "a"): ...


def check(**given):
    names = parameters_of(factory)
    owner, key = "loss 'x'", "objective.parameters"
    return check_parameters(factory, given, names=names, owner=owner, key=key, error=RecipeError)


def test_defaults():
    section = ObjectiveSection()
    assert section.loss in losses
    assert (section.parameters, section.miner, section.regularisers) == ({}, None, [])
    assert ObjectiveSection().parameters is not section.parameters


def test_a_section_survives_a_round_trip():
    section = ObjectiveSection(
        loss="triplet",
        parameters={"margin": "1e-2"},
        miner="semi-hard",
        miner_parameters={"margin": 1},
        regularisers=[{"name": "koleo", "weight": 0.1}],
    )
    assert section.parameters == {"margin": 0.01}
    assert section.miner_parameters == {"margin": 1.0}
    assert ObjectiveSection.model_validate(section.model_dump(mode="json")) == section


def test_the_givers_mapping_is_not_changed():
    given = {"margin": 1}
    ObjectiveSection(loss="triplet", parameters=given)
    assert given == {"margin": 1}
    assert isinstance(given["margin"], int)


def test_values_are_converted_to_the_declared_types():
    checked = check(margin=2, steps="4", smooth=True, kind="b")
    assert checked == {"margin": 2.0, "steps": 4, "smooth": True, "kind": "b"}
    assert isinstance(checked["margin"], float)


@pytest.mark.parametrize(
    "given",
    [
        {"margn": 1},
        {"margin": "wide"},
        {"margin": True},
        {"margin": [1]},
        {"margin": None},
        {"steps": 1.5},
        {"smooth": "maybe"},
        {"kind": 3},
        {"shape": 1},
    ],
)
def test_wrong_parameters(given):
    with pytest.raises(RecipeError, match=rf"objective\.parameters\.{next(iter(given))}\b"):
        check(**given)


def test_a_misspelt_parameter_gets_the_right_one():
    with pytest.raises(RecipeError, match=r"\bmargin\b"):
        check(margn=1)


@pytest.mark.parametrize(
    ("section", "error", "word"),
    [
        ({"loss": "tripplet"}, UnknownNameError, r"\btriplet\b"),
        ({"loss": "triplet", "parameters": {"margin": 0}}, RecipeError, "margin"),
        ({"loss": "triplet", "parameters": {"margin": float("nan")}}, RecipeError, "margin"),
        ({"loss": "angular", "parameters": {"angle": 90}}, RecipeError, "angle"),
        ({"loss": "soft-triple", "parameters": {"centres": 0}}, RecipeError, "centres"),
        ({"loss": "soft-triple", "parameters": {"centers": 2}}, RecipeError, "centres"),
        ({"loss": "triplet", "miner": "hardest"}, UnknownNameError, r"\bhard\b"),
        ({"loss": "triplet", "miner_parameters": {"epsilon": 1}}, RecipeError, "epsilon"),
        ({"loss": "triplet", "miner": "hard", "miner_parameters": {"margin": 1}}, RecipeError, "margin"),
        ({"loss": "arcface", "miner": "hard"}, RecipeError, r"objective\.miner\b"),
        ({"loss": "arcface", "miner_parameters": {"margin": 1}}, RecipeError, "miner_parameters"),
        ({"regularisers": [{"name": "kolero"}]}, UnknownNameError, "koleo"),
        ({"regularisers": [{"name": "koleo", "parameters": {"k": 1}}]}, RecipeError, "koleo"),
        ({"regularisers": [{"name": "koleo"}, {"name": "koleo"}]}, RecipeError, "koleo"),
        ({"regularisers": [{"name": "koleo", "weight": -1}]}, ValidationError, "weight"),
        ({"losses": "triplet"}, ValidationError, "losses"),
    ],
)
def test_wrong_sections(section, error, word):
    with pytest.raises(error, match=word):
        ObjectiveSection(**section)


@pytest.mark.parametrize("registry", [losses, miners, regularisers])
def test_every_default_is_itself_valid(registry):
    for name in registry:
        made = registry.get(name).factory
        defaults = {key: parameter.default for key, parameter in parameters_of(made).items()}
        assert check_parameters(made, defaults, names=defaults, owner=name, key="", error=RecipeError) == defaults
