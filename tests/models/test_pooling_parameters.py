"""Parameters of poolings: every wrong value is refused in one sentence that names its parameter."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from nearkin.errors import ModelError
from nearkin.models import ModelSection
from nearkin.models.pooling import Pooling, list_poolings, make_pooling, poolings
from nearkin.models.pooling.base import check_pooling

WRONG = ["abc", "", math.nan, math.inf, -math.inf, -1, [1], {"a": 1}]
FROM_ZERO = {"k_max", "k_min"}


def defaults(name):
    arguments = inspect.signature(poolings.get(name)).parameters
    return {key: argument.default for key, argument in arguments.items() if key != "channels"}


def wrong_values(parameter, default):
    if isinstance(default, bool):
        return [*WRONG, 2, 0.5, None]
    values = [*WRONG, True, False]
    if parameter not in FROM_ZERO:
        values.append(0)
    if isinstance(default, int):
        values.append(2.5)
    if default is not None:
        values.append(None)
    return values


CASES = [(name, parameter, default) for name in list_poolings() for parameter, default in defaults(name).items()]


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(poolings, "_entries", dict(poolings._entries))


@pytest.mark.parametrize(("name", "parameter", "default"), CASES)
def test_wrong_values_are_refused(name, parameter, default):
    for value in wrong_values(parameter, default):
        with pytest.raises(ModelError, match=rf"model\.pooling_parameters\.{parameter}\b"):
            check_pooling(name, {parameter: value})
        with pytest.raises(ModelError, match=parameter):
            make_pooling(name, 8, **{parameter: value})


@pytest.mark.parametrize("name", list_poolings())
def test_defaults_are_valid_and_stay_what_they_are(name):
    checked = check_pooling(name, defaults(name))
    assert checked == defaults(name)
    assert [type(value) for value in checked.values()] == [type(value) for value in defaults(name).values()]
    assert make_pooling(name, 8, **defaults(name)).config == {"name": name, "parameters": defaults(name)}


def test_every_parameter_is_annotated():
    for name in list_poolings():
        arguments = list(inspect.signature(poolings.get(name)).parameters.values())
        assert arguments[0].name == "channels"
        assert all(argument.annotation is not inspect.Parameter.empty for argument in arguments), name


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cbam", {"reduction": "abc"}),
        ("cbam", {"kernel": 4}),
        ("crow", {"norm": 0.5}),
        ("delf", {"hidden": 2.5}),
        ("gem", {"p": math.nan}),
        ("generalized-max", {"ridge": 1e-10}),
        ("netvlad", {"dimension": True}),
        ("smk", {"window": 2}),
        ("gem", {"power": 3}),
        ("gap", {"p": 3}),
        ("gem", {"channels": 3}),
    ],
)
def test_a_recipe_is_told_what_to_change(name, parameters):
    with pytest.raises(ModelError, match=rf"\b{next(iter(parameters))}\b"):
        ModelSection(pooling=name, pooling_parameters=parameters)


def test_values_are_converted_and_remembered_as_given():
    pooling = make_pooling("gem", 4, p="2", eps="1e-5", learn_p="false")
    assert (float(pooling.p), pooling.eps, pooling.has_parameters) == (2.0, 1e-5, False)
    assert pooling.config["parameters"] == {"p": "2", "eps": "1e-5", "learn_p": "false"}
    assert make_pooling("ot", 6, references=2.0, dimension="4").out_channels == 8
    section = ModelSection(pooling="gem", pooling_parameters={"p": 3})
    assert isinstance(section.pooling_parameters["p"], int)


def test_poolings_of_others(own_registry):
    """A function may be registered too, and what it does not annotate takes any value."""

    class Scaled(Pooling):
        def __init__(self, channels, factor):
            super().__init__(channels)
            self.factor = factor

        def forward(self, features):
            return self.factor * features.mean(dim=(2, 3))

    poolings.register("scaled")(Scaled)

    @poolings.register("doubled")
    def doubled(channels: int, times: int = 1) -> Pooling:
        return Scaled(channels, 2**times)

    features = torch.ones(1, 2, 3, 3)
    assert make_pooling("scaled", 2, factor=True)(features).tolist() == [[1, 1]]
    assert make_pooling("doubled", 2, times="2")(features).tolist() == [[4, 4]]
    with pytest.raises(ModelError, match="times"):
        make_pooling("doubled", 2, times="x")
