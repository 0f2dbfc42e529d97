"""What training was worth: paired differences, the verdict in words, and what to try next."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from nearkin.metrics import class_bootstrap
from nearkin.models import Card
from nearkin.models.start import MEASURES
from nearkin.recipe import load_recipe
from nearkin.training.start import Gain, GainDifference, RunStart, gain_facts, measure_gain, rate_note, suggestion


def gain_of(precision, map_at_r, best_step=100, classes=30):
    """A gain with these differences of the best weights from the start: (points, low, high) each."""
    added = {"P@1": GainDifference(*precision), "MAP@R": GainDifference(*map_at_r)}
    values = {"start": {"P@1": 50.0, "MAP@R": 20.0}, "best": {"P@1": 51.2, "MAP@R": 20.9}}
    return Gain(values, {"best - start": added}, best_step, classes)


CLEAR, UNSURE = (1.2, 0.4, 2.0), (0.3, -0.5, 1.1)


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(("precision", "map_at_r"), [(CLEAR, CLEAR), (CLEAR, UNSURE), (UNSURE, CLEAR)])
def test_an_interval_above_zero_is_a_gain(precision, map_at_r):
    verdict = gain_of(precision, map_at_r).verdict()
    assert "added" in verdict
    assert "chance" not in verdict
    assert str(GainDifference(*precision)) in verdict


def test_a_difference_is_told_with_its_interval():
    assert str(GainDifference(*CLEAR)) == "+1.2 (0.4 to 2.0)"
    assert str(GainDifference(-0.3, -1.0, 0.2)) == "-0.3 (-1.0 to 0.2)"
    assert str(GainDifference(-0.04, -0.04, 0.04)) == "+0.0 (0.0 to 0.0)"


def test_an_interval_around_zero_may_be_chance():
    verdict = gain_of(UNSURE, UNSURE).verdict()
    assert "chance" in verdict
    assert "30" in verdict


def test_a_loss_in_one_measure_is_not_called_a_gain():
    verdict = gain_of((-1.2, -2.0, -0.4), (0.9, 0.2, 1.5), classes=1).verdict()
    assert "added" not in verdict
    assert "chance" not in verdict


def test_the_start_is_given_back_where_nothing_beat_it():
    assert "start" in gain_of((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), best_step=0).verdict()


def test_each_part_has_a_line_and_the_verdict_is_last():
    start, best, verdict = gain_of(CLEAR, CLEAR).lines()
    assert start.startswith("start")
    assert start.index("P@1") < start.index("50.0") < start.index("MAP@R") < start.index("20.0")
    assert best.startswith("best")
    assert "100" in best
    assert start.index("P@1") == best.index("P@1")
    assert "raw" not in start + best
    assert verdict == gain_of(CLEAR, CLEAR).verdict()


# ---------------------------------------------------------------- measuring


@pytest.fixture
def measured():
    """Per-query values of raw features, start and best weights; 40 queries of 8 classes."""
    rng = np.random.default_rng(0)
    labels = [f"c{number}" for number in np.repeat(np.arange(8), 5)]

    def values(better):
        return {name: [float(v) for v in np.clip(rng.random(40) + better, 0, 1)] for name in MEASURES}

    return RunStart({}, values(0.0), values(0.1), labels), values(0.3)


def test_a_report_tells_each_part_and_its_interval(measured):
    gain = measure_gain(*measured, best_step=100)
    facts = gain_facts(Card(gain=json.loads(json.dumps(gain.to_dict()))))
    assert facts["what training added"] == gain.verdict()
    assert "against" not in facts["raw features, validation"]
    for part in ("start", "best"):
        name = "best weights" if part == "best" else part
        assert str(gain.differences[f"{part} - raw"]["MAP@R"]) in facts[f"{name}, validation"]
    assert gain_facts(Card()) == {}


def test_differences_are_paired_by_query_and_drawn_by_class(measured):
    start, best = measured
    gain = measure_gain(start, best, best_step=7)
    parts = {"raw": start.raw, "start": start.first, "best": best}
    assert (gain.best_step, gain.classes) == (7, 8)
    assert gain.values.keys() == parts.keys()
    assert gain.differences.keys() == {"start - raw", "best - raw", "best - start"}
    for name in MEASURES:
        for part, values in parts.items():
            assert gain.values[part][name] == pytest.approx(100 * sum(values[name]) / 40, abs=0.006)
        for pair, found in gain.differences.items():
            left, right = (parts[part][name] for part in pair.split(" - "))
            each = [100 * (a - b) for a, b in zip(left, right, strict=True)]
            low, high = class_bootstrap(each, start.labels)
            told = found[name]
            assert told.points == pytest.approx(sum(each) / 40, abs=0.006)
            assert (told.low, told.high) == pytest.approx((low, high), abs=0.006)
            assert told.low <= told.points <= told.high


def test_lines_compare_with_raw_features_where_there_are_some(measured):
    gain = measure_gain(*measured, best_step=7)
    raw, start, best, _ = gain.lines()
    assert raw.startswith("raw features ")
    assert "against raw" not in raw
    assert f"against raw: {gain.differences['start - raw']['P@1']}" in start
    assert f"against raw: {gain.differences['best - raw']['P@1']}" in best


def test_without_raw_features_two_parts_are_left(measured):
    start, best = measured
    gain = measure_gain(RunStart({}, None, start.first, start.labels), best, 7)
    assert gain.values.keys() == {"start", "best"}
    assert gain.differences.keys() == {"best - start"}


def test_without_validation_there_is_nothing_to_tell(measured):
    assert measure_gain(RunStart(), measured[1], 7) is None


def test_the_card_holds_plain_numbers(measured):
    gain = measure_gain(*measured, best_step=7)
    told = json.loads(json.dumps(gain.to_dict()))
    one = gain.differences["best - raw"]["MAP@R"]
    assert told["differences"]["best - raw"]["MAP@R"] == [one.points, one.low, one.high]
    assert told["verdict"] == gain.verdict()
    assert (told["best_step"], told["classes"]) == (7, 8)


# ---------------------------------------------------------------- what to try next


def advice(gain, recipe="multi-similarity", changes=(), start=None, last_step=600, classes=100):
    """What a run by this recipe would say; it ends at step 600 and has a rate of 3e-4."""
    whole = load_recipe(recipe, ["training.max_steps=600", "training.lr=3e-4", *changes])
    return suggestion(gain, whole, start, last_step=last_step, classes=classes)


@pytest.mark.parametrize(
    ("best_step", "facts", "word"),
    [
        (600, {}, "training.max_steps"),
        (0, {"classes": 12}, "classes"),
        (0, {}, "training.lr=1e-04"),
        (0, {"start": {"lr": 1e-4}}, "more items of each"),
        (600, {"start": {"lr": 1e-4}}, "training.max_steps"),
        # More steps of hardly any size change nothing.
        (600, {"start": {"lr": 1e-7}}, "more items of each"),
        (100, {}, "benchmark"),
        # Stopped early, at its best: it was not cut off.
        (300, {"last_step": 300}, "benchmark"),
        # Few classes, and yet it learned.
        (100, {"classes": 12}, "benchmark"),
    ],
)
def test_the_next_thing_to_try(best_step, facts, word):
    assert word in advice(gain_of(CLEAR, CLEAR, best_step), **facts)


@pytest.mark.parametrize("lr", [1e-4, 1e-7])
def test_what_the_note_on_the_rate_says_is_not_said_twice(lr):
    start = {"lr": lr, "lr_lowered_for": "84 items"}
    assert "full_rate_items" in rate_note(start, 3e-4)
    assert "full_rate" not in advice(gain_of(CLEAR, CLEAR, 0), start=start)


def behind_raw(high, classes=30):
    gain = gain_of(CLEAR, CLEAR, classes=classes)
    gain.differences["best - raw"] = {"P@1": GainDifference(-8.3, -29.2, high), "MAP@R": GainDifference(1, -1, 3)}
    return gain


FULL = {"dimension": 1280, "features": 1280}


@pytest.mark.parametrize(
    ("recipe", "changes", "start", "expected"),
    [
        ("multi-similarity", [], FULL, {}),
        ("multi-similarity", ["model.dimension=2000"], {"dimension": 2000, "features": 1280}, {}),
        ("multi-similarity", ["model.dimension=64"], {"dimension": 64, "features": 1280}, {"dimension": "auto"}),
        ("multi-similarity", ["model.head_start=random"], None, {"head_start": "whitened", "dimension": "auto"}),
        ("best-frozen", [], None, {"head_start": "whitened", "dimension": "auto"}),
        ("learned-similarity", [], None, {"head_start": "whitened", "dimension": 256}),
        ("proxy-anchor-prefixes", [], {"dimension": 128, "features": 1280}, {"dimension": 256}),
        ("triplet", ["model.space=poincare-ball"], None, {"space": "sphere"}),
        ("multi-similarity-gsp", [], {"dimension": 128, "features": 1280}, {"local_dimension": 256}),
        ("multi-similarity-gsp", ["model.local_dimension=1280"], FULL, {}),
        (
            "multi-similarity-gsp",
            ["model.head_start=random"],
            None,
            {"head_start": "whitened", "local_dimension": 256},
        ),
        ("multi-similarity", ["model.dimension=null", "model.attention={}"], None, {}),
    ],
)
def test_what_to_do_where_raw_features_are_better_can_be_done(recipe, changes, start, expected):
    told = advice(behind_raw(-0.1), recipe, changes, start)
    found = dict(re.findall(r"model\.(\w+) to (\w+)", told))
    assert found == {name: str(value) for name, value in expected.items()}
    assert ("pretrained" in told) == (not found or "local_dimension" in found)
    changed = load_recipe(recipe, [*changes, *(f"model.{name}={value}" for name, value in found.items())]).model
    assert {name: getattr(changed, name) for name in expected} == expected
    if found:
        assert changed.head_start == "whitened"


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("multi-similarity-gsp", []),
        ("proxy-anchor-prefixes", []),
        ("multi-similarity-gsp", ["model.local_dimension=64"]),
    ],
)
def test_more_dimensions_are_not_advised_where_items_are_the_limit(recipe, changes):
    model = load_recipe(recipe, changes).model
    start = {"dimension": model.dimension or model.local_dimension, "features": 1280, "rank": 47}
    told = advice(behind_raw(-0.1), recipe, changes, start)
    assert "bring more items or classes, or use them (--recipe pretrained)" in told
    assert " to " not in told
    assert "auto" in advice(behind_raw(-0.1), changes=["model.dimension=64"], start={**start, "dimension": 64})


def test_a_model_that_went_on_from_another_may_get_a_new_head():
    start = {"kind": "kept", "file": "runs/a", "dimension": 128, "lr": 3e-4}
    assert "model.weights" in advice(behind_raw(-0.1), changes=["model.start=runs/a"], start=start)
    new = load_recipe("multi-similarity", ["model.start=null", "model.weights=runs/a", "model.pretrained=false"])
    assert new.model.head_start == "whitened"


@pytest.mark.parametrize("high", [0.0, 2.5])
def test_few_classes_cannot_tell_whether_raw_features_are_better(high):
    assert "1 validation class cannot tell" in advice(behind_raw(high, classes=1))
    assert "2 validation classes cannot tell" in advice(behind_raw(high, classes=2))
    assert "raw" not in advice(behind_raw(high, classes=100)).lower()


@pytest.mark.parametrize(
    ("changes", "key", "least"),
    [
        ([], "val_classes", 0.15),
        (["data.val_classes=0.5"], "val_classes", 0.5),
        (["data.val_classes=0.9"], "val_classes", 0.9),
        (["data.val_classes=0"], "val_classes", 0.0),
        (["data.split=items"], "val_items", 0.1),
    ],
)
def test_a_larger_share_to_validate_on_is_one_that_can_be_set(changes, key, least):
    gain = gain_of(CLEAR, CLEAR)
    gain.values["start"] = {"P@1": 100.0, "MAP@R": 100.0}
    for of in (gain, behind_raw(2.5, classes=2)):
        assignment = re.search(r"data\.\w+=[\d.]*\d", advice(of, changes=changes))[0]
        assert assignment.startswith(f"data.{key}=")
        assert least < getattr(load_recipe("multi-similarity", [*changes, assignment]).data, key) < 1


def test_named_validation_classes_have_no_share():
    told = advice(behind_raw(2.5, classes=2), changes=["data.val_classes=[a, b]"])
    assert "name more" in told
    assert "=" not in told
