"""The command line, as a stranger would use it: the whole way on a folder, then everything that can go wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import nearkin as nk
from nearkin._version import __version__


@pytest.fixture(scope="module")
def sets(tiny):
    return [part for override in tiny for part in ("--set", override)]


@pytest.fixture(scope="module")
def trained(photos, tiny, tmp_path_factory):
    """A run on the photos, that no test may change."""
    out = tmp_path_factory.mktemp("trained") / "run"
    nk.fit(photos, "triplet", out=out, overrides=tiny, progress=False)
    return out


@pytest.fixture
def run(trained, tmp_path):
    """A copy of that run."""
    return shutil.copytree(trained, tmp_path / "run")


def test_the_whole_way_on_a_folder(nearkin, photos, sets, tmp_path):
    run = tmp_path / "run"
    code, out, err = nearkin("train", photos, "--recipe", "triplet", "--out", run, "-q", *sets)
    assert code == 0, err
    assert f"nearkin audit {run}" in out.replace("\n", "")
    code, out, err = nearkin("audit", run, "-q")
    assert code == 0, err
    assert "MAP@R" in out
    assert "pixels" in out
    audit = json.loads((run / "audit.json").read_text())
    assert 0 <= audit["values"]["MAP@R"] <= 1
    card = json.loads((run / "card.json").read_text())
    held_out = card["classes"]["test"]
    assert not set(held_out) & {*card["classes"]["train"], *card["classes"]["val"]}
    assert set(audit["per_class"]["MAP@R"]) == set(held_out)
    page = (run / "report.html").read_text()
    assert page.count("data:image/png") == 4
    code, out, err = nearkin("embed", run, photos, "--out", tmp_path / "vectors.parquet", "-q")
    assert code == 0, err
    table = parquet.read_table(tmp_path / "vectors.parquet")
    assert table.column_names == ["path", "label", "embedding"]
    vectors = np.stack(table["embedding"].to_numpy(zero_copy_only=False))
    assert vectors.shape == (48, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    shutil.copytree(run, tmp_path / "other")
    code, out, err = nearkin("compare", run, tmp_path / "other", "--out", tmp_path / "compare.html")
    assert code == 0, err
    assert "other" in out
    assert (tmp_path / "compare.html").exists()


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_embed_writes_numpy_files_without_pickles(nearkin, photos, trained, tmp_path, suffix):
    code, _, err = nearkin("embed", trained, photos, "--out", tmp_path / f"v{suffix}", "-q")
    assert code == 0, err
    loaded = np.load(tmp_path / f"v{suffix}", allow_pickle=False)
    vectors = loaded["embeddings"] if suffix == ".npz" else loaded
    assert vectors.shape == (48, 16)
    if suffix == ".npz":
        assert set(loaded["labels"]) == {f"class{i:02d}" for i in range(8)}


def test_an_audit_on_other_data_goes_beside_the_runs_own(nearkin, photos, run, tmp_path):
    nearkin("audit", run, "-q", "--suite", "retrieval")
    before = (run / "audit.json").read_text()
    strangers = tmp_path / "strangers"
    for label in ("class00", "class01", "new1", "new2"):
        shutil.copytree(photos / "class00", strangers / label)
    code, _, err = nearkin("audit", run, "--data", strangers, "--suite", "retrieval", "-q")
    assert code == 0, err
    assert (run / "audit-strangers.json").exists()
    assert (run / "audit.json").read_text() == before
    code, out, err = nearkin("audit", run, "--rerank", "k-reciprocal", "--suite", "retrieval", "-q")
    assert code == 0, err
    assert "re-ranked" in out
    assert (run / "audit-k-reciprocal.json").exists()
    assert (run / "audit.json").read_text() == before


def test_the_settings_of_an_audit_can_be_changed(nearkin, run):
    few = ["--set", "audit.recall_at=[3]", "--set", "audit.resamples=10"]
    code, out, err = nearkin("audit", run, "-q", "--suite", "retrieval", *few)
    assert code == 0, err
    assert "Recall@3" in out
    assert "Recall@4" not in out
    audit = json.loads((run / "audit.json").read_text())
    assert audit["facts"]["audit settings"] == "recall_at=[3], resamples=10"
    # What would hide the run's own audit goes beside it, however it was asked for.
    before = (run / "audit.json").read_text()
    code, _, err = nearkin("audit", run, "-q", "--set", "audit.suites=[clustering]")
    assert code == 0, err
    code, _, err = nearkin("audit", run, "-q", "--suite", "retrieval", "--set", "audit.rerank=k-reciprocal")
    assert code == 0, err
    assert {file.name for file in run.glob("audit-*.json")} == {"audit-clustering.json", "audit-k-reciprocal.json"}
    assert (run / "audit.json").read_text() == before


def test_data_commands_lead_to_data_that_trains(nearkin, photos, sets, tmp_path):
    copy = tmp_path / "photos"
    shutil.copytree(photos, copy)
    code, out, _ = nearkin("data", "info", copy, "-q")
    assert code == 0
    assert re.search(r"classes\W+8\b", out)
    assert re.search(r"unreadable\W+0\b", out)
    code, out, err = nearkin("data", "split", copy, copy / "manifest.csv", "--test", "0.25", "--folds", "3", "-q")
    assert code == 0, err
    assert re.search(r"test\W+12\b", out)
    code, out, err = nearkin("data", "import", copy, tmp_path / "photos.zip", "-q")
    assert code == 0, err
    code, out, _ = nearkin("data", "info", tmp_path / "photos.zip", "-q")
    assert re.search(r"test\W+12\b", out)
    code, _, err = nearkin("data", "import", copy, tmp_path / "photos.zip", "-q")
    assert code == 2
    assert "photos.zip" in err
    by_column = [*sets, "--set", "data.split=column"]
    code, out, err = nearkin("train", tmp_path / "photos.zip", "--out", tmp_path / "run", "-q", *by_column)
    assert code == 0, err
    assert re.search(r"\b2\b.*held", out)


def test_lists(nearkin):
    code, out, _ = nearkin("data", "list")
    assert code == 0
    assert "cub200" in out
    code, out, _ = nearkin("recipes")
    assert "proxy-anchor" in out
    code, out, _ = nearkin("recipes", "show", "cub-frozen")
    assert "efficientnet-lite0" in out
    code, out, _ = nearkin("recipes", "schema")
    assert json.loads(out)["properties"]["training"]
    code, out, _ = nearkin("--version")
    assert out.strip() == __version__


def one_sentence(err):
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1, err
    assert lines[0].startswith("nearkin: ")
    assert "Traceback" not in err
    return lines[0]


def make_empty(folder):
    (folder / "a").mkdir(parents=True)


def make_single(folder):
    for label, items in (("a", 2), ("b", 2), ("c", 2), ("d", 2), ("e", 2), ("f", 2), ("g", 1)):
        (folder / label).mkdir(parents=True)
        for item in range(items):
            Image.new("RGB", (20, 20), (item * 90, 0, 0)).save(folder / label / f"{item}.png")


def make_broken(folder):
    make_single(folder)
    (folder / "a" / "broken.png").write_bytes(b"")
    (folder / "b" / "notes.txt").write_text("not an image")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (make_empty, [], "empty"),
        (make_single, [], r"\bg\b"),
        (make_broken, [], "--skip-bad"),
        (None, [], "nothing-here"),
        (make_single, ["--recipe", "triplett"], r"\btriplet\b"),
        (make_single, ["--set", "objective.loss=contrastiv"], "contrastive"),
        (make_single, ["--set", "model.backbone=conv5"], "conv4"),
        (make_single, ["--set", "training.max_step=4"], "max_steps"),
    ],
)
def test_bad_input_is_one_sentence(nearkin, tmp_path, make, arguments, message):
    data = tmp_path / "data" if make else "nothing-here"
    if make:
        make(data)
    code, _, err = nearkin("train", data, "--out", tmp_path / "run", "-q", *arguments)
    assert code == 2
    assert re.search(message, one_sentence(err)), err
    assert not (tmp_path / "run").exists()


def test_skip_bad_leaves_out_files_and_single_item_classes_and_says_so(nearkin, tmp_path, sets):
    make_broken(tmp_path / "data")
    code, out, err = nearkin("train", tmp_path / "data", "--out", tmp_path / "run", "--skip-bad", "-q", *sets)
    assert code == 0, err
    assert re.search(r"\b2\b.*\bfile", out)
    assert re.search(r"\b1\b.*\bclass", out)


def test_a_model_without_anything_to_learn_says_so(nearkin, photos, tmp_path, sets):
    still = ["--set", "model.dimension=null", "--set", "model.freeze=all"]
    code, out, err = nearkin("train", photos, "--out", tmp_path / "run", "-q", *sets, *still)
    assert code == 0, err
    assert "0 steps" in out
    assert "nothing in this model can learn" in " ".join(out.split())


def test_an_existing_run_needs_resume_or_another_name(nearkin, photos, sets, run):
    code, _, err = nearkin("train", photos, "--recipe", "triplet", "--out", run, "-q", *sets)
    assert code == 2
    assert "--resume" in one_sentence(err)
    code, _, err = nearkin("train", photos, "--recipe", "triplet", "--out", run, "--resume", "-q", *sets)
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "{run}"], r"model"),
        (["embed", "{run}", "x", "--out", "a.txt"], r"\.txt"),
        (["compare", "{run}"], "audit"),
        (["audit", "{run}", "--suite", "retrievel"], "retrieval"),
        (["audit", "{run}", "--rerank", "k-reciprocl"], "k-reciprocal"),
        (["audit", "{run}", "--set", "training.max_steps=5"], "training.max_steps=5"),
        (["audit", "{run}", "--set", "severities=[5]"], r"severities=\[5\]"),
        (["audit", "{run}", "--set", "audit.severity=[5]"], "severities"),
        (["audit", "{run}", "--set", "audit.severities=[6]"], "audit.severities"),
        (["audit", "{run}", "--set", "audit.suites=[retrievel]"], "retrieval"),
        (
            ["audit", "{run}", "--suite", "retrieval", "--set", "audit.suites=[clustering]"],
            "audit.suites",
        ),
    ],
)
def test_wrong_runs_and_options_are_one_sentence(nearkin, tmp_path, arguments, message):
    code, _, err = nearkin(*[part.format(run=tmp_path) for part in arguments])
    assert code == 2
    assert re.search(message, one_sentence(err)), err


def test_audits_that_compare_does_not_read_are_named(nearkin, tmp_path):
    (tmp_path / "audit-calibration-corruption.json").write_text("{}")
    code, _, err = nearkin("compare", tmp_path)
    assert code == 2
    assert "audit-calibration-corruption.json" in one_sentence(err)
    assert "--suite" in err
    (tmp_path / "audit-birds.json").write_text("{}")
    _, _, err = nearkin("compare", tmp_path)
    assert "audit-birds.json, audit-calibration-corruption.json" in one_sentence(err)


@pytest.mark.parametrize("content", ["not json", "{}", "[]"])
def test_a_damaged_audit_is_one_sentence(nearkin, tmp_path, content):
    (tmp_path / "audit.json").write_text(content)
    code, _, err = nearkin("compare", tmp_path)
    assert code == 2
    assert "is damaged" in one_sentence(err)


def test_data_that_changed_or_moved_is_noticed(nearkin, photos, sets, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    nearkin("train", data, "--recipe", "triplet", "--out", tmp_path / "run", "-q", *sets)
    held_out = json.loads((tmp_path / "run" / "card.json").read_text())["classes"]["test"][0]
    (data / held_out / "00.png").unlink()
    code, out, err = nearkin("audit", tmp_path / "run", "-q", "--suite", "retrieval")
    assert code == 0, err
    assert "changed" in out
    data.rename(tmp_path / "elsewhere")
    code, _, err = nearkin("audit", tmp_path / "run", "-q")
    assert code == 2
    assert "--data" in one_sentence(err)


def test_the_audit_of_a_run_that_skipped_files_skips_them_too(nearkin, tmp_path, sets):
    make_broken(tmp_path / "data")
    nearkin("train", tmp_path / "data", "--out", tmp_path / "run", "--skip-bad", "-q", *sets)
    code, out, err = nearkin("audit", tmp_path / "run", "-q", "--suite", "retrieval")
    assert code == 0, err
    assert re.search(r"\b2\b.*\bfile", out)


def test_a_wrong_suite_is_found_before_training(nearkin, photos, tmp_path, sets):
    wrong = [*sets, "--set", "audit.suites=[retreival]"]
    code, _, err = nearkin("train", photos, "--out", tmp_path / "run", "-q", *wrong)
    assert code == 2
    assert "retrieval" in one_sentence(err)
    assert not (tmp_path / "run").exists()


def test_files_of_a_run_can_be_read_by_others(trained):
    modes = {path.stat().st_mode & 0o777 for path in trained.iterdir() if path.is_file()}
    assert len(modes) == 1


def test_import_nearkin_is_light():
    """Under 0.3 s until torch is needed: the clock is noisy, so what is imported is checked instead."""
    code = "import sys, nearkin; print([m for m in ('torch', 'pyarrow', 'matplotlib', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_itself_is_light():
    code = "import sys, nearkin.cli.app; print([m for m in ('torch', 'pyarrow', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
