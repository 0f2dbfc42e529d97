"""What a recipe may say about its objective, and how it is told off."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from nearkin.errors import RecipeError, UnknownNameError
from nearkin.objectives import LossShape, ObjectiveSection, losses, miners, regularisers
from nearkin.objectives.parameters import check_parameters, parameters_of


def factory(shape: LossShape, *, margin: float = 0.1, steps: int = 3, smooth: bool = False, kind: str = "a"): ...


def check(**given):
    return check_parameters(factory, given, owner="loss 'x'", key="objective.parameters")


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
    ("given", "message"),
    [
        (
            {"margn": 1},
            r"The loss 'x' has no parameter 'margn' \(objective\.parameters\.margn\)\. Did you mean 'margin'",
        ),
        ({"margin": "wide"}, r"objective\.parameters\.margin='wide': it should be a valid number"),
        ({"margin": True}, r"needs a number as objective\.parameters\.margin, not true"),
        ({"margin": [1]}, "should be a valid number"),
        ({"margin": None}, "should be a valid number"),
        ({"steps": 1.5}, "should be a valid integer"),
        ({"smooth": "maybe"}, "should be a valid boolean"),
        ({"kind": 3}, "should be a valid string"),
        ({"shape": 1}, "no parameter 'shape'"),
    ],
)
def test_wrong_parameters(given, message):
    with pytest.raises(RecipeError, match=message):
        check(**given)


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"loss": "tripplet"}, UnknownNameError, "no loss 'tripplet'. Did you mean 'triplet'"),
        ({"loss": "triplet", "parameters": {"margin": 0}}, RecipeError, "greater than 0"),
        ({"loss": "triplet", "parameters": {"margin": float("nan")}}, RecipeError, "finite|greater"),
        ({"loss": "angular", "parameters": {"angle": 90}}, RecipeError, "less than 90"),
        ({"loss": "soft-triple", "parameters": {"centres": 0}}, RecipeError, "greater than or equal to 1"),
        ({"loss": "soft-triple", "parameters": {"centers": 2}}, RecipeError, "Did you mean 'centres'"),
        ({"loss": "triplet", "miner": "hardest"}, UnknownNameError, "no miner 'hardest'. Did you mean 'hard'"),
        ({"loss": "triplet", "miner_parameters": {"epsilon": 1}}, RecipeError, "miner 'semi-hard' has no parameter"),
        ({"loss": "triplet", "miner": "hard", "miner_parameters": {"margin": 1}}, RecipeError, "It has none"),
        ({"loss": "arcface", "miner": "hard"}, RecipeError, r"takes no miner: remove objective\.miner \('hard'\)"),
        ({"loss": "arcface", "miner_parameters": {"margin": 1}}, RecipeError, "remove objective.miner_parameters"),
        ({"regularisers": [{"name": "kolero"}]}, UnknownNameError, "Did you mean 'koleo'"),
        ({"regularisers": [{"name": "koleo", "parameters": {"k": 1}}]}, RecipeError, "regulariser 'koleo' has no"),
        ({"regularisers": [{"name": "koleo"}, {"name": "koleo"}]}, RecipeError, "'koleo' is named twice"),
        ({"regularisers": [{"name": "koleo", "weight": -1}]}, ValidationError, "greater than or equal to 0"),
        ({"losses": "triplet"}, ValidationError, "Extra inputs are not permitted"),
    ],
)
def test_wrong_sections(section, error, message):
    with pytest.raises(error, match=message):
        ObjectiveSection(**section)


@pytest.mark.parametrize("registry", [losses, miners, regularisers])
def test_every_default_is_itself_valid(registry):
    for name in registry:
        made = registry.get(name).factory
        defaults = {key: parameter.default for key, parameter in parameters_of(made).items()}
        assert check_parameters(made, defaults, owner=name, key="") == defaults
