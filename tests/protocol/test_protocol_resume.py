"""Killed, interrupted, extended, refused: a book goes on where it was and takes in nothing that does not belong."""

from __future__ import annotations

import json
import os
import shutil
import signal

import numpy as np
import pytest

from nearkin.data.sources import open_data
from nearkin.errors import DataError, RecipeError, RunError, StorageError, UnknownNameError
from nearkin.protocol import Candidate, Cell, worker
from nearkin.recipe import load_recipe
from nearkin.storage import WriterLock
from nearkin.training import loop


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures are looked at elsewhere."""
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")


def lines_of(path):
    """The ledger without what differs from one time to the next."""
    rows = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.fixture
def whole(sound):
    """A benchmark that nothing has disturbed."""
    return sound


def stop_at(number, how=signal.SIGINT):
    """A step that is interrupted the number-th time it is taken."""
    plain, taken = loop.Loop._step, [0]

    def step(self, *arguments):
        taken[0] += 1
        if taken[0] == number:
            os.kill(os.getpid(), how)
        return plain(self, *arguments)

    return step


def count_steps(monkeypatch):
    """A list that grows by one with every step."""
    plain, taken = loop.Loop._step, []

    def step(self, *arguments):
        taken.append(self.state.step)
        return plain(self, *arguments)

    monkeypatch.setattr(loop.Loop, "_step", step)
    return taken


def same_queries(left, right):
    names = sorted(file.name for file in (left / "queries").iterdir())
    assert names == sorted(file.name for file in (right / "queries").iterdir())
    for name in names:
        assert (left / "queries" / name).read_bytes() == (right / "queries" / name).read_bytes()


@pytest.mark.parametrize("number", [3, 6, 9])
def test_interrupted_in_a_cell_or_at_its_end_it_goes_on_to_the_same_ledger(
    number, whole, bench, candidate, tmp_path, monkeypatch
):
    path = tmp_path / "book"
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop_at(number))
        stopped = bench([candidate("triplet")], path)
    assert stopped.interrupted
    assert stopped.summary.missing == (3 if number <= 6 else 2)
    assert "partial" in stopped.tables.title
    assert f"{stopped.summary.missing} of 3 cells" in (path / "table.md").read_text()
    assert list(stopped.book.runs.iterdir())
    gone_on = bench([candidate("triplet")], path)
    assert not gone_on.interrupted
    assert lines_of(path) == lines_of(whole)
    same_queries(path, whole)
    assert not (path / "runs").exists()
    assert not (path / "embeddings").exists()
    assert "partial" not in (path / "table.md").read_text()


def test_interrupted_between_cells_nothing_is_repeated(whole, halfway, bench, candidate, tmp_path, monkeypatch):
    path = shutil.copytree(halfway, tmp_path / "book")
    assert len(list((path / "embeddings").iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(worker, "train", lambda *_, **__: pytest.fail("trained again"))
        bench([candidate("triplet")], path)
    assert lines_of(path) == lines_of(whole)


def test_embeddings_that_were_lost_are_made_again_without_a_second_line(whole, halfway, bench, candidate, tmp_path):
    path = shutil.copytree(halfway, tmp_path / "book")
    (path / "embeddings" / "triplet-fold1-seed0.npy").unlink()
    bench([candidate("triplet")], path)
    assert lines_of(path) == lines_of(whole)


KILLED = """
import os, signal, sys
from pathlib import Path
from nearkin.data.sources import open_data
from nearkin.protocol import Candidate, run_benchmark
from nearkin.recipe import load_recipe
from nearkin.training import loop

photos, book, kill_at, overrides = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
plain, taken = loop.Loop._step, [0]
def step(self, *arguments):
    taken[0] += 1
    if taken[0] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *arguments)
loop.Loop._step = step
run_benchmark(
    open_data(photos), [Candidate("triplet", load_recipe("triplet", overrides))], book,
    folds=2, seeds=1, cache_directory=book.parent, progress=False,
)
"""


def test_kill_9_in_the_middle_of_a_cell_then_the_same_benchmark_gives_the_same_ledger(
    photos, tiny, bench, programs, tmp_path
):
    short = [*tiny, "training.max_steps=6", "training.evaluate_every=3"]
    candidates = [Candidate("triplet", load_recipe("triplet", short))]
    bench(candidates, tmp_path / "whole", open_data(photos))
    # The sixth step of the second fold, two steps after its last checkpoint.
    code, _, errors = programs.run(KILLED, photos, tmp_path / "killed", 12, *short)
    assert code == -signal.SIGKILL, errors
    assert len(lines_of(tmp_path / "killed")) == 2
    bench(candidates, tmp_path / "killed", open_data(photos))
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")
    same_queries(tmp_path / "killed", tmp_path / "whole")


def test_a_book_grows_by_a_seed_and_by_a_recipe(whole, bench, candidate, tmp_path):
    path = shutil.copytree(whole, tmp_path / "book")
    more = bench([candidate("triplet")], path, seeds=2)
    assert [Cell.of(row) for row in lines_of(path)] == [
        Cell("untrained", "untrained"),
        *(Cell("triplet", "separate", 0, fold) for fold in (1, 2)),
        Cell("triplet", "concatenated", 0),
        *(Cell("triplet", "separate", 1, fold) for fold in (1, 2)),
        Cell("triplet", "concatenated", 1),
    ]
    assert lines_of(path)[:4] == lines_of(whole)
    assert more.summary.rows[0].planned == 4
    other = bench([candidate("contrastive, again", "contrastive")], path, against="triplet")
    assert [(row.name, row.finished, row.planned) for row in other.summary.rows] == [
        ("triplet", 4, 4),
        ("contrastive, again", 2, 2),
    ]
    # Only the seed that both have is compared.
    assert "separate" in other.summary.rows[1].differences
    shared = [row for row in lines_of(path) if row["seed"] == 0 and row["kind"] == "separate"]
    means = {
        name: np.mean([row["per_class"]["MAP@R"] for row in shared if row["recipe"] == name])
        for name in ("triplet", "contrastive, again")
    }
    assert other.summary.rows[1].differences["separate"].mean == pytest.approx(
        means["contrastive, again"] - means["triplet"]
    )


def test_books_say_how_many_queries_have_no_partner_and_those_of_old_learn_it(
    whole, bench, candidate, patterns, tmp_path
):
    path = tmp_path / "book"
    alone = json.loads((whole / "book.json").read_text())["test_classes"][0]
    keep = np.flatnonzero(patterns.labels != alone)
    fewer = patterns.select(np.sort([*keep, np.flatnonzero(patterns.labels == alone)[0]]))
    for _ in range(2):
        result = bench([candidate("triplet")], path, fewer)
        stored = json.loads((path / "book.json").read_text())
        assert stored.pop("dropped_queries") == 1
        assert (len(stored["classes"]), len(stored["test_classes"])) == (2, 3)
        assert any("1 query" in note for note in result.tables.notes())
        assert any("2 of the 3" in note for note in result.tables.notes())
        (path / "book.json").write_text(json.dumps(stored))  # as an earlier version would have written it


def test_hashes_of_recipes_stay_as_they_were_first_written(whole, bench, candidate, tmp_path):
    path = shutil.copytree(whole, tmp_path / "book")
    for file in (path / "book.json", path / "ledger.jsonl"):  # another version made them with other keys
        text = file.read_text()
        file.write_text(text.replace(candidate("triplet").digest(), "f" * 16))
    bench([candidate("triplet")], path, seeds=2)
    assert {row["hash"] for row in lines_of(path)} == {None, "f" * 16}


def test_a_last_line_cut_short_is_dropped_and_its_cell_done_again(whole, bench, candidate, tmp_path):
    path = shutil.copytree(whole, tmp_path / "book")
    text = (path / "ledger.jsonl").read_text()
    (path / "ledger.jsonl").write_text(text[: -len(text.splitlines()[-1]) // 2])
    bench([candidate("triplet")], path)
    assert lines_of(path) == lines_of(whole)
    damaged = text.splitlines()
    damaged[1] = damaged[1][:50]
    (path / "ledger.jsonl").write_text("\n".join(damaged))
    with pytest.raises(RunError, match=r"(?i)line 2\b"):
        bench([candidate("triplet")], path)


def test_killed_before_anything_was_written_it_begins_anew(bench, candidate, tmp_path):
    path = tmp_path / "book"
    path.mkdir()
    (path / "writer.lock").write_text("1")
    (path / ".book.json.0123abcd.tmp").write_text("{")
    cell = path / "runs" / "triplet-fold1-seed0"
    result = bench([candidate("triplet")], path)
    assert result.summary.missing == 0
    (path / "ledger.jsonl").write_text("")
    cell.mkdir(parents=True)
    (cell / ".recipe.yaml.1234.tmp").write_text("")
    assert bench([candidate("triplet")], path).summary.missing == 0


def test_a_second_process_is_refused(whole, bench, candidate):
    with WriterLock(whole).held(), pytest.raises(StorageError, match=str(os.getpid())):
        bench([candidate("triplet")], whole)


IDLE = (
    "training.seed=5",
    "training.log_every=2",
    "training.validation_metrics=[NMI, Recall@1]",
    "data.workers=1",
    "data.val_classes=0.5",
    "audit.knn=3",
    "name=renamed",
)
"""Settings that decide nothing about the models of a benchmark."""


REFUSED = {
    "other data": ({"dataset": "half"}, (), r"\b40\b"),
    "other folds": ({"folds": 3}, (), "folds"),
    "another protocol": ({"protocol": "conventional"}, (), "conventional"),
    "another recipe of the name": (
        {},
        ("training.lr=0.5",),
        r"training\.lr",
    ),
    "other test classes": ({}, ("data.test_classes=0.4",), r"data\.test_classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_into_a_book_is_refused(name, whole, bench, candidate, patterns):
    options, overrides, word = REFUSED[name]
    if options.get("dataset"):
        options = {"dataset": patterns.select(np.arange(len(patterns)) % 2 == 0)}
    before = {file: file.read_bytes() for file in whole.iterdir() if file.is_file()}
    with pytest.raises(RunError, match=word) as refused:
        bench([candidate("triplet", None, *overrides)], whole, **options)
    assert "\n" not in str(refused.value)
    assert {file: file.read_bytes() for file in whole.iterdir() if file.is_file()} == before


def test_a_recipe_may_change_in_what_decides_nothing(whole, bench, candidate, tmp_path):
    moved = candidate("triplet", None, *IDLE)
    assert bench([moved], shutil.copytree(whole, tmp_path / "book")).summary.missing == 0


def test_an_unfinished_model_goes_on_whatever_changes_that_decides_nothing(
    whole, bench, candidate, tmp_path, monkeypatch
):
    path = tmp_path / "book"
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop_at(3))
        assert bench([candidate("triplet")], path).interrupted
    taken = count_steps(monkeypatch)
    assert bench([candidate("triplet", None, *IDLE)], path).summary.missing == 0
    assert len(taken) == 12 - 3
    assert lines_of(path) == lines_of(whole)


def test_content_of_books_that_name_idle_keys_is_still_the_same(candidate):
    one = candidate("triplet")
    stored = json.loads(json.dumps(one.content()))
    assert "workers" not in stored["data"]
    assert "log_every" not in stored["training"]
    stored["data"]["workers"], stored["training"]["log_every"] = 7, 77
    assert one.difference(stored) == ""
    stored["training"]["accelerator"] = "cpu"
    told = one.difference(stored)
    assert all(word in told for word in ("training.accelerator", "cpu", "auto"))
    stored["training"]["gone"] = 1  # a key that this version does not know
    assert "training" in one.difference(stored)


BAD = {
    "no recipe": (lambda c: [], {}, RecipeError, "recipe"),
    "the same twice": (lambda c: [c("triplet"), c("triplet")], {}, RecipeError, "triplet"),
    "a reserved name": (lambda c: [c("untrained", "triplet")], {}, RecipeError, "untrained"),
    "the name of a line": (
        lambda c: [c("untrained features", "triplet")],
        {},
        RecipeError,
        "untrained features",
    ),
    "no such device": (
        lambda c: [c("triplet"), c("fast", "triplet", "training.accelerator=mps")],
        {},
        RecipeError,
        r"training\.accelerator",
    ),
    "too many folds": (lambda c: [c("triplet")], {"folds": 4}, DataError, "folds"),
    "one fold": (lambda c: [c("triplet")], {"folds": 1}, DataError, "folds"),
    "no seed": (lambda c: [c("triplet")], {"seeds": 0}, DataError, "seed"),
    "unknown protocol": (lambda c: [c("triplet")], {"protocol": "fiar"}, UnknownNameError, "fair"),
    "nothing to train": (
        lambda c: [c("plain", "triplet", "model.freeze=all", "model.dimension=null")],
        {},
        RecipeError,
        "plain",
    ),
    "another kind of data": (
        lambda c: [
            c(
                "sound",
                "triplet",
                "model.backbone=tdnn",
                "model.pooling=stats",
                "model.size=null",
                "model.channels=null",
            )
        ],
        {},
        DataError,
        "audio",
    ),
    "unknown baseline": (
        lambda c: [c("triplet")],
        {"against": "tripled"},
        UnknownNameError,
        r"\btriplet\b",
    ),
    "unknown recipe in a pair": (
        lambda c: [c("triplet")],
        {"against": {"x": "triplet"}},
        UnknownNameError,
        r"\bx\b",
    ),
    "against itself": (
        lambda c: [c("triplet")],
        {"against": {"triplet": "triplet"}},
        RecipeError,
        "triplet",
    ),
    "no test classes": (
        lambda c: [c("triplet", None, "data.test_classes=0.0")],
        {},
        DataError,
        r"data\.test_classes",
    ),
    "different divisions": (
        lambda c: [c("triplet"), c("contrastive", None, "data.split=halves")],
        {},
        RecipeError,
        "contrastive",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_a_sentence_before_anything_is_made(name, bench, candidate, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    make, options, error, word = BAD[name]
    with pytest.raises(error, match=word):
        bench(make(candidate), tmp_path / "book", **options)
    assert not (tmp_path / "book").exists()


def test_a_place_that_is_no_book_is_refused(bench, candidate, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        bench([candidate("triplet")], tmp_path / "file")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    with pytest.raises(RunError, match=r"cat\.png"):
        bench([candidate("triplet")], tmp_path / "photos")
    for text in ("{", "[]", '{"format": "other"}', '{"format": "nearkin.benchmark", "version": 9}'):
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "book.json").write_text(text)
        with pytest.raises(RunError, match=r"book\.json"):
            bench([candidate("triplet")], tmp_path / "damaged")


def test_a_training_that_fails_is_told_and_blocks_nothing(whole, bench, candidate, tmp_path):
    path = tmp_path / "book"
    wild = candidate("wild", "contrastive", "training.lr=1e30", "model.space=euclidean")
    for _ in range(2):  # nothing is written down, so it is tried again
        result = bench([wild, candidate("triplet")], path)
        first, second = result.failures
        assert first.startswith("wild, fold 1, seed 0")
        assert second.startswith("wild, fold 2, seed 0")
        assert lines_of(path) == lines_of(whole)
        assert result.summary.missing == 3
        (said,) = (note for note in result.tables.notes() if "wild, fold 1, seed 0" in note)
        assert "wild, fold 2, seed 0" in said
        assert said in (path / "table.md").read_text()
    assert bench([candidate("triplet")], path).failures == ()


def test_kept_runs_stay_until_somebody_removes_them(bench, candidate, tmp_path):
    path = tmp_path / "book"
    kept = bench([candidate("triplet")], path, keep_runs=True).book
    models = sorted(kept.runs.glob("*/model.safetensors"))
    assert len(models) == 2
    bench([candidate("triplet")], path)
    bench([candidate("triplet")], path, seeds=2)
    assert sorted(kept.runs.glob("*/model.safetensors")) == models
    # Neither when their embeddings are needed once more.
    lines = (path / "ledger.jsonl").read_text().splitlines()
    (path / "ledger.jsonl").write_text("".join(line + "\n" for line in lines if '"concatenated"' not in line))
    bench([candidate("triplet")], path)
    assert sorted(kept.runs.glob("*/model.safetensors")) == models


def test_a_model_that_is_made_again_goes_on_where_it_was_stopped(whole, bench, candidate, tmp_path, monkeypatch):
    path = tmp_path / "book"
    shutil.copytree(whole, path)
    lines = (path / "ledger.jsonl").read_text().splitlines()
    (path / "ledger.jsonl").write_text("".join(line + "\n" for line in lines[:-1]))
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop_at(5))
        assert bench([candidate("triplet")], path).interrupted
    taken = count_steps(monkeypatch)
    bench([candidate("triplet")], path)
    assert len(taken) == 12 - 5
    assert lines_of(path) == lines_of(whole)
    assert not (path / "runs").exists()


@pytest.mark.parametrize("file", ["last.safetensors", "recipe.yaml"])
def test_a_damaged_run_is_trained_anew(file, whole, bench, candidate, tmp_path, monkeypatch):
    path = tmp_path / "book"
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop_at(3))
        bench([candidate("triplet")], path)
    (path / "runs" / "triplet-fold1-seed0" / file).write_bytes(b"\x08\x00\x00: [")
    taken = count_steps(monkeypatch)
    bench([candidate("triplet")], path)
    assert len(taken) == 12
    assert lines_of(path) == lines_of(whole)


def test_the_order_of_folds_is_the_books(sound, bench, candidate, tmp_path):
    path = shutil.copytree(sound, tmp_path / "book")
    stored = json.loads((path / "book.json").read_text())
    assert stored["fold_order"] == "contiguous"
    assert stored["folds"][0] < stored["folds"][1]
    assert "in order" in (path / "table.md").read_text()
    with pytest.raises(RunError, match="contiguous"):
        bench([candidate("triplet")], path, fold_order="random")
    assert bench([candidate("triplet")], path, fold_order="contiguous").contents.fold_order == "contiguous"


def test_a_book_that_does_not_say_its_order_goes_on_with_drawn_folds(bench, candidate, tmp_path, monkeypatch):
    path = tmp_path / "book"
    drawn = bench([candidate("triplet")], path, fold_order="random")
    stored = json.loads((path / "book.json").read_text())
    assert stored.pop("fold_order") == "random"
    (path / "book.json").write_text(json.dumps(stored))
    monkeypatch.setattr(worker, "train", lambda *_, **__: pytest.fail("trained again"))
    gone_on = bench([candidate("triplet")], path)
    assert gone_on.contents.folds == drawn.contents.folds
    assert "in order" not in gone_on.tables.markdown()
