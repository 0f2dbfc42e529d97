"""A search for settings: what may be searched, what is proposed, and that a killed one goes on where it was."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from nearkin.cli import main
from nearkin.errors import MissingExtraError, RecipeError, RunError, TrainingError, UnknownNameError
from nearkin.protocol import TrialBook, TuningTrial, parse_space, run_tuning
from nearkin.protocol.search_space import NumberRange, ValueList, all_values, assignments
from nearkin.protocol.tune import Proposer, sampler_named
from nearkin.recipe import load_recipe
from nearkin.report.trials import draw_trials, fitted_surface
from nearkin.training import Run, loop

SHORT = ["training.max_steps=4", "training.evaluate_every=2"]
MARGINS = parse_space("objective.parameters.margin=0.05|0.4")
with_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="needs the extra tune")


@pytest.fixture
def search(patterns, tiny, tmp_path):
    """Search on the patterns, in a grid unless told otherwise."""

    def run(space=MARGINS, out=tmp_path / "search", recipe="triplet", **options):
        changes = [*tiny, *SHORT, *options.pop("more", [])]
        options = {"sampler": "grid", "trials": 2, "progress": False, "cache_directory": tmp_path / "cache", **options}
        return run_tuning(patterns, recipe, space, out, overrides=changes, **options)

    return run


def test_a_space_is_read_as_it_is_written():
    space = parse_space("training.lr=1e-5..1e-3 log, data.per_class=2..8, model.drop_path=0.0..0.5, objective.loss=a|b")
    assert space == (
        NumberRange("training.lr", 1e-5, 1e-3, log=True),
        NumberRange("data.per_class", 2, 8, whole=True),
        NumberRange("model.drop_path", 0.0, 0.5),
        ValueList("objective.loss", ("a", "b")),
    )
    assert parse_space("a.b=true|null|3|1e-2|x")[0].values == (True, None, 3, 0.01, "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.lr", 1e-05),
        ("training.lr", 0.1 + 0.2),
        ("training.max_steps", 12),
        ("data.flip", False),
        ("training.patience", None),
        ("objective.miner", "hard"),
        ("name", "1"),
        ("name", "no"),
    ],
)
def test_values_land_in_the_recipe_as_they_are(key, value):
    found = load_recipe("triplet", assignments({key: value})).model_dump()
    for part in key.split("."):
        found = found[part]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("training.lr", "training.lr"),
        ("training.lr=1e-5", "write"),
        ("training.lr=1e-3..1e-5 log", "smaller"),
        ("training.lr=1e-3..1e-3", "different"),
        ("training.lr=1e-3..1e999", "different"),
        ("training.lr=0.0..1e-3 log", "logarithm"),
        ("training.lr=1e-5..1e-3 lin", "write"),
        ("training.lr=1e-5..x", "write"),
        ("objective.loss=triplet|triplet", "once"),
        ("training.lr=1e-5..1e-3,training.lr=1..2", "twice"),
        ("model.size=[1]|2", "names"),
    ],
)
def test_a_space_that_is_none_says_what_to_write(text, word):
    with pytest.raises(RecipeError, match=word):
        parse_space(text)


@pytest.mark.parametrize(
    ("text", "more", "word"),
    [
        ("training.lrr=1e-5..1e-3", [], "lr"),
        ("training.lr=-1.0..1e-3", [], "greater"),
        ("objective.loss=triplet|tripled", [], "triplet"),
        ("data.test_items=0.2|0.4", ["data.split=items", "data.val_items=0.4"], "compared"),
        ("training.select=MAP@R|P@1", [], "compared"),
        ("training.seed=1|2", [], "out of the space"),
        ("audit.knn=3|5", [], "out of the space"),
        ("training.lr=1e-4|1e-3", ["training.lr=1e-3"], "both"),
        ("data.per_class=1|3", ["data.val_classes=0"], "val_classes"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(text, more, word, search, tmp_path):
    with pytest.raises(RecipeError, match=word):
        search(parse_space(text), more=more)
    assert not (tmp_path / "search").exists()


def test_a_grid_has_every_combination_and_needs_lists():
    space = parse_space("a=1|2|3, b=x|y")
    assert list(all_values(space)) == [{"a": a, "b": b} for a in (1, 2, 3) for b in "xy"]
    with pytest.raises(RecipeError, match="list"):
        Proposer(parse_space("a=1..3"), "grid")
    with pytest.raises(UnknownNameError, match="grid"):
        sampler_named("gird")


def test_a_score_is_what_the_best_weights_validate_at(search, patterns, tiny, tmp_path):
    result = search(keep_runs=True, seeds=2)
    book = TrialBook(tmp_path / "search")
    assert [trial.values for trial in result.trials] == list(all_values(MARGINS))
    for trial in result.trials:
        runs = [book.run(trial.number, seed) for seed in (0, 1)]
        found = [max(row["val_MAP@R"] for row in run.history() if "val_MAP@R" in row) for run in runs]
        np.testing.assert_allclose(trial.scores, found, atol=1e-12)
        assert trial.score == pytest.approx(np.mean(found))
        assert runs[0].recipe().objective.parameters["margin"] == trial.values["objective.parameters.margin"]
        assert runs[0].model().card.classes == runs[1].model().card.classes, "the same classes validate"
    best = max(result.trials, key=lambda trial: trial.score)
    assert load_recipe(book.recipe_file).objective == result.recipe.objective
    assert result.best == best
    assert book.picture_file.read_bytes().startswith(b"\x89PNG")
    assert len(book.table_file.read_text().splitlines()) == 3


def test_a_killed_search_goes_on_and_ends_as_if_nothing_had_happened(search, tmp_path, monkeypatch):
    whole = search(out=tmp_path / "whole", more=["training.evaluate_every=1"])
    plain, taken = loop.Loop._step, []

    def step(self, *arguments):
        taken.append(1)
        if len(taken) == 7:  # the third step of the second trial
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", step)
        child = multiprocessing.get_context("fork").Process(
            target=search, kwargs={"more": ["training.evaluate_every=1"]}
        )
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL
    rows = [json.loads(line) for line in (tmp_path / "search" / "trials.jsonl").read_text().splitlines()]
    assert [row["score"] is None for row in rows] == [False, True]
    begun = Run(next((tmp_path / "search" / "runs").iterdir()))
    assert begun.state_file.exists()
    result = search(more=["training.evaluate_every=1"])
    assert [replace(one, seconds=0.0) for one in result.trials] == [replace(one, seconds=0.0) for one in whole.trials]
    assert list((tmp_path / "search" / "runs").iterdir()) == []


def test_an_interrupted_search_says_so_and_goes_on(search, tmp_path, monkeypatch):
    plain, taken = loop.Loop._step, []

    def step(self, *arguments):
        taken.append(1)
        if len(taken) == 6:  # the second step of the second trial
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", step)
        stopped = search()
    assert (stopped.interrupted, len(stopped.trials), stopped.best) == (True, 1, stopped.trials[0])
    assert TrialBook(tmp_path / "search").table_file.exists()
    done = search()
    assert (done.interrupted, len(done.trials)) == (False, 2)


def test_more_trials_may_be_asked_for_and_nothing_else_may_change(search, tmp_path):
    space = parse_space("objective.parameters.margin=0.05|0.2|0.4")
    search(space, trials=1)
    assert len(search(space, trials=9).trials) == 3
    with pytest.raises(RunError, match="space"):
        search(MARGINS)
    with pytest.raises(RunError, match="recipe"):
        search(space, more=["training.lr=0.5"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RunError, match="--out"):
        search(out=tmp_path / "other")


def test_a_trial_that_fails_is_noted_and_the_others_count(search, tmp_path):
    space = parse_space("training.lr=1e-3|1e30")
    result = search(space, recipe="contrastive", more=["training.optimizer=sgd"])
    assert [one.score is None for one in result.trials] == [False, True]
    assert "step" in result.trials[1].failure
    assert result.best == result.trials[0]
    with pytest.raises(TrainingError, match="No trial"):
        search(parse_space("training.lr=1e30|1e31"), tmp_path / "b", "contrastive", more=["training.optimizer=sgd"])


def test_a_line_cut_short_is_dropped_and_a_damaged_one_is_named(tmp_path):
    book = TrialBook(tmp_path)
    book.note(TuningTrial(0, {"a": 1}, 0.5))
    whole = book.trials_file.read_text()
    book.trials_file.write_text(whole + '{"number": 1, "val')
    assert book.trials() == [TuningTrial(0, {"a": 1}, 0.5)]
    book.trials_file.write_text("{}\n" + whole)
    with pytest.raises(RunError, match="line 1"):
        book.trials()


@with_optuna
@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_proposals_are_functions_of_the_seed_and_the_trials_before(sampler):
    space = parse_space("a=1e-5..1e-1 log, b=1..16, c=true|1|x")
    before = [
        TuningTrial(n, {"a": 10.0**-n, "b": n, "c": value}, score=score)
        for n, value, score in ((1, True, 0.1), (2, 1, None), (3, "x", 0.3))
    ]
    before = [*before[:1], replace(before[1], failure="no"), *before[2:]]
    first = Proposer(space, sampler, seed=3)(before)
    assert Proposer(space, sampler, seed=3)(before) == first
    assert Proposer(space, sampler, seed=4)(before) != first
    assert 1e-5 <= first["a"] <= 1e-1
    assert first["b"] in range(1, 17)
    assert repr(first["c"]) in ("True", "1", "'x'")


@with_optuna
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_search_that_learns_finds_a_better_place_than_chance(sampler):
    """A hill in two dimensions, whose top is in a corner that few random points hit."""
    space = parse_space("a=0.0..1.0, b=1e-4..1e0 log")

    def height(values):
        return -((values["a"] - 0.9) ** 2) - ((np.log10(values["b"]) + 3.5) / 4) ** 2

    def last(sampler, count=20):
        """The mean of the last trials: the first ten of tpe are random."""
        trials = []
        for number in range(count):
            values = Proposer(space, sampler, seed=5)(trials)
            trials.append(TuningTrial(number, values, score=float(height(values))))
        return np.mean([one.score for one in trials[-6:]])

    assert last(sampler) > last("random") / 2


@with_optuna
def test_the_command_searches_and_resumes(photos, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "search"
    command = ["nearkin", "tune", str(photos), "--recipe", "triplet", "--out", str(out), "-q", "--trials", "2"]
    command += ["--space", "training.lr=1e-5..1e-2 log,objective.parameters.margin=0.05|0.4"]
    command += [word for change in [*tiny, *SHORT] for word in ("--set", change)]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        printed = capsys.readouterr().out
        assert "trials.csv" in printed
        assert len((out / "trials.jsonl").read_text().splitlines()) == 2
    assert load_recipe(out / "best.yaml").objective.loss == "triplet"


def test_the_command_shows_values_as_the_space_has_them(photos, tiny, tmp_path, monkeypatch, capsys):
    command = ["nearkin", "tune", str(photos), "--recipe", "triplet", "--out", str(tmp_path / "search"), "-q"]
    command += ["--sampler", "grid", "--trials", "1", "--space", "model.size_feature=null|pixels"]
    monkeypatch.setattr("sys.argv", command + [word for change in [*tiny, *SHORT] for word in ("--set", change)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert " null " in capsys.readouterr().out


def test_the_command_says_when_no_training_beat_its_start(photos, tiny, tmp_path, monkeypatch, capsys):
    command = ["nearkin", "tune", str(photos), "--recipe", "triplet", "--out", str(tmp_path / "search"), "-q"]
    command += ["--sampler", "grid", "--trials", "2", "--space", "training.lr=1e-20|2e-20"]
    monkeypatch.setattr("sys.argv", command + [word for change in [*tiny, *SHORT] for word in ("--set", change)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "2 trials tie" in capsys.readouterr().out


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="tune"):
        Proposer(parse_space("a=1..3"), "tpe")
    Proposer(parse_space("a=1|3"), "grid")


def test_the_map_follows_the_trials_and_pictures_are_drawn():
    rng = np.random.default_rng(0)
    points = rng.random((30, 2))
    values = np.sin(3 * points[:, 0]) - points[:, 1]
    asked = rng.random((20, 2)) * 0.8 + 0.1
    np.testing.assert_allclose(fitted_surface(points, values, asked), np.sin(3 * asked[:, 0]) - asked[:, 1], atol=0.05)
    assert fitted_surface(points, np.ones(30), asked).tolist() == [1.0] * 20
    numbers = {"a": list(10.0 ** -points[:, 0]), "b": [int(9 * y) for y in points[:, 1]]}
    assert draw_trials(
        values[:12], {**{key: given[:12] for key, given in numbers.items()}, "c": [None, "x", True] * 4}, {"a"}
    )
    assert draw_trials([], {"a": []}) == b""
