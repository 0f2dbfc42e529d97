"""`nearkin benchmark`: the table, going on, extending, and every refusal in one sentence."""

from __future__ import annotations

import csv
import io
import os
import re
import signal

import pytest
from rich.console import Console

from nearkin.cli.benchmark import _against, _show
from nearkin.report.values import TextTable
from nearkin.training import loop


@pytest.fixture(scope="session")
def short(tiny):
    """Options that make a benchmark of a few seconds."""
    chosen = [*tiny, "training.max_steps=4", "training.evaluate_every=2"]
    return [word for override in chosen for word in ("--set", override)]


@pytest.fixture
def book(tmp_path):
    return tmp_path / "book"


def test_a_benchmark_from_the_command_line(nearkin, photos, short, book):
    options = ["--recipes", "triplet,contrastive", "--folds", "2", "--seeds", "1", "--out", book, *short]
    code, out, err = nearkin("benchmark", photos, *options)
    assert code == 0, err
    assert "0 of 4" in err
    assert "1 of 4: triplet, fold 1, seed 0" in err
    assert "4 of 4: contrastive, fold 2, seed 0" in err
    assert "fair" in out
    assert "difference to triplet" in " ".join(out.split())
    assert "untrained" in out
    assert str(book / "table.html") in out
    lines = list(csv.DictReader(io.StringIO((book / "table.csv").read_text())))
    assert f"{100 * float(lines[0]['separate_MAP@R']):.1f} %" in out
    before, _, shown = out.partition("NMI, Recall@k and kNN-Acc")
    assert before.rstrip(" ").endswith("\n\n")
    for metric in ("NMI", "Recall@1", "Recall@2", "Recall@4", "Recall@8", "kNN-Acc"):
        for kind in ("separate", "concatenated"):
            assert f"{100 * float(lines[0][f'{kind}_{metric}']):.1f} %" in shown
    # Nothing is done twice; another baseline only changes the table.
    before = (book / "ledger.jsonl").read_bytes()
    code, out, err = nearkin("benchmark", photos, *options, "--against", "triplet:contrastive")
    assert code == 0, err
    assert "4 of 4" in err
    assert "difference to contrastive" in " ".join(out.split())
    assert (book / "ledger.jsonl").read_bytes() == before


def test_ctrl_c_saves_says_how_to_go_on_and_ends_with_130(nearkin, photos, short, book, monkeypatch):
    plain = loop.Loop._step

    def interrupted(self, *arguments):
        if self.state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *arguments)

    command = [
        "benchmark",
        photos,
        "--recipes",
        "triplet",
        "--folds",
        2,
        "--seeds",
        1,
        "--quiet",
        "--out",
        book,
        *short,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", interrupted)
        code, out, err = nearkin(*command)
    assert (code, err) == (130, "")
    assert re.search(r"\b3\b", out)
    code, out, err = nearkin(*command)
    assert (code, err) == (0, "")
    assert "2 of 2" in out


def test_recipes_may_be_files(nearkin, photos, short, book, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: triplet\ntraining: {lr: 0.01}\n")
    code, out, err = nearkin(
        "benchmark", photos, "--recipes", f"{mine}", "--protocol", "conventional", "--seeds", 1, "--out", book, *short
    )
    assert code == 0, err
    assert "mine" in out
    assert "test-selected" in out


REFUSED = {
    "unknown recipe": (["--recipes", "tripled"], "triplet"),
    "twice": (["--recipes", "triplet,triplet"], "triplet"),
    "none": (["--recipes", ","], "recipe"),
    "one fold": (["--recipes", "triplet", "--folds", "1"], "folds"),
    "too many folds": (["--recipes", "triplet", "--folds", "9"], "9"),
    "no seeds": (["--recipes", "triplet", "--seeds", "0"], "seed"),
    "protocol": (["--recipes", "triplet", "--protocol", "fare"], "fair"),
    "folds without folds": (
        ["--recipes", "triplet", "--protocol", "conventional", "--folds", "3"],
        "conventional",
    ),
    "unknown fold order": (["--recipes", "triplet", "--fold-order", "sorted"], "sorted"),
    "fold order without folds": (
        ["--recipes", "triplet", "--protocol", "conventional", "--fold-order", "random"],
        "--fold-order",
    ),
    "baseline": (["--recipes", "triplet", "--folds", "2", "--against", "other"], "other"),
    "half a pair": (["--recipes", "triplet", "--against", "a:,b:c"], "--against"),
    "pair twice": (["--recipes", "triplet", "--against", "a:b,a:c"], "'a'"),
    "no such device": (
        ["--recipes", "triplet", "--folds", "2", "--set", "training.accelerator=mps"],
        "training.accelerator",
    ),
    "override": (["--recipes", "triplet", "--set", "training.stpes=3"], "training.stpes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence(name, nearkin, photos, short, book, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    options, words = REFUSED[name]
    code, out, err = nearkin("benchmark", photos, *short, *options, "--quiet", "--out", book)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("nearkin: ")
    assert err.count("\n") == 1
    assert not book.exists()


def test_train_refuses_a_device_that_is_not_there(nearkin, photos, short, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    options = ["--recipe", "triplet", *short, "--set", "training.accelerator=mps", "--quiet", "--out", tmp_path / "run"]
    code, _, err = nearkin("train", photos, *options)
    assert code == 2
    assert err.startswith("nearkin: ")
    assert "training.accelerator" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_model_that_fails_ends_with_1_and_a_sentence_after_the_table(nearkin, photos, short, book, tmp_path):
    wild = tmp_path / "wild.yaml"
    wild.write_text("extends: contrastive\nmodel: {space: euclidean}\ntraining: {lr: 1e30}\n")
    options = ["--recipes", f"{wild},triplet", "--folds", 2, "--seeds", 1, "--quiet", "--out", book, *short]
    code, out, err = nearkin("benchmark", photos, *options)
    assert code == 1
    lines = err.splitlines()
    assert [line.split(":")[:2] for line in lines] == [
        ["nearkin", " wild, fold 1, seed 0"],
        ["nearkin", " wild, fold 2, seed 0"],
    ]
    assert "2 of 2" in out
    assert "wild, fold 2, seed 0" in out


def test_several_processes_are_refused(nearkin, photos, short, book, monkeypatch):
    names = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    code, _, err = nearkin("benchmark", photos, "--recipes", "triplet", "--out", book, *short)
    assert (code, err.count("\n")) == (2, 1)
    assert "torchrun" in err


def test_a_baseline_with_a_colon_in_its_name_can_stand_alone():
    assert _against("a:b", ["a:b", "c"]) == "a:b"
    assert _against("a:b", ["a", "b"]) == {"a": "b"}


def test_a_narrow_terminal_is_told_what_it_does_not_show(monkeypatch, capsys):
    class Wide:
        title, headings = "birds", staticmethod(lambda: ["recipe", "MAP@R", "difference to plain", "P@1"])
        lines = staticmethod(lambda: [[["triplet"], ["50.0 %"], ["+2.0 points"], ["70.0 %"]]])
        notes = staticmethod(list)
        further = TextTable(
            "more", ["recipe", "NMI", "Recall@1", "Recall@2"], [[["triplet"], ["61.0 %"], *[["2 %"]] * 2]]
        )

    monkeypatch.setattr(
        "rich.console.Console", lambda **options: Console(force_terminal=True, width=24, color_system=None, **options)
    )
    _show(Wide())
    out = capsys.readouterr().out
    assert "+2.0" not in out
    assert "P@1" in out
    assert "61.0 %" in out
    assert "Recall@2" in out


def test_a_place_that_is_something_else_is_refused_before_the_data_is_opened(nearkin, short, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for place, words in ((tmp_path / "notes.txt", "notes.txt"), (tmp_path, "benchmark")):
        code, _, err = nearkin("benchmark", tmp_path / "nothing", "--recipes", "triplet", "--out", place, *short)
        assert code == 2
        assert words in err
