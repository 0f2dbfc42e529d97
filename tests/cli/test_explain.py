"""`nearkin explain`, as a stranger would use it, and its guide."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.models import ModelSection, build_embedder

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "explain.md"


@pytest.fixture(scope="module")
def run(photos, tiny, tmp_path_factory):
    import nearkin as nk

    out = tmp_path_factory.mktemp("explained") / "run"
    overrides = [*tiny, "training.max_steps=2", "model.size=32", "model.pooling=gsp"]
    overrides += ["model.pooling_parameters={prototypes: 4, sharpness: 20}"]
    nk.fit(photos, "triplet", out=out, overrides=overrides, progress=False)
    return out


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    """The file of a model with attention to two stages."""
    attention = {"stages": ["block2", "block3"]}
    embedder = build_embedder(ModelSection(backbone="conv4", size=16, dimension=8, attention=attention))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scores in embedder.attention.scores.values():
            scores.score.weight.normal_(generator=generator)
    path = tmp_path_factory.mktemp("attentive") / "model.safetensors"
    embedder.save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two images of one name, in folders of their own, and one that is not square."""
    rng = np.random.default_rng(0)
    for name, size in (("a/bird.png", (24, 24)), ("b/bird.jpg", (24, 24)), ("b/Wide.png", (20, 50))):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


def test_one_picture_an_image_and_an_overview(nearkin, run, folder, tmp_path):
    out = tmp_path / "out"
    code, told, err = nearkin("explain", run, folder, folder / "a" / "bird.png", "--out", out, "-q")
    assert code == 0, err
    assert "--what weights" in told
    assert "3 overlays" in told
    assert str(out / "overview-weights.png") in told
    names = ["Wide-weights.png", "bird-weights-2.png", "bird-weights.png", "overview-weights.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    first, second = (np.asarray(Image.open(out / f"bird-weights{end}.png")) for end in ("", "-2"))
    assert (first != second).any()


@pytest.mark.parametrize("what", ["contribution", "grad-cam", "prototypes"])
def test_what_is_shown_can_be_chosen(nearkin, run, folder, tmp_path, what):
    code, told, err = nearkin("explain", run, folder / "a", "--what", what, "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert "--what" not in told
    assert (tmp_path / "out" / f"bird-{what}.png").exists()


def test_attention_is_one_picture_a_stage_and_an_overview(nearkin, attentive, folder, tmp_path):
    code, told, err = nearkin("explain", attentive, folder, "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert "--what attention" in told
    assert "6 overlays" in told
    names = [f"{name}-attention-{stage}" for name in ("Wide", "bird") for stage in ("block2", "block3")]
    names += ["bird-attention-block2-2", "bird-attention-block3-2", "overview-attention"]
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(names)
    code, told, err = nearkin(
        "explain", attentive, folder / "a", "--what", "attention", "--out", tmp_path / "out", "-q"
    )
    assert code == 0, err
    assert "--what" not in told
    assert "2 overlays" in told  # of one image


@pytest.mark.pixels
def test_the_overview_of_attention_counts_images(nearkin, attentive, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.cli.model._OVERVIEW", 2)
    code, told, err = nearkin("explain", attentive, folder, "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert "6 overlays" in told
    assert "first 2" in told
    monkeypatch.undo()
    code, told, err = nearkin("explain", attentive, folder, "--out", tmp_path / "all", "-q")
    assert "first" not in told
    two, three = (Image.open(tmp_path / name / "overview-attention.png").height for name in ("out", "all"))
    assert two < three


def test_even_attention_says_why_something_else_is_shown(nearkin, folder, tmp_path):
    for pooling, parameters, words in [
        ("gap", {}, "--what contribution"),
        ("gsp", {"sharpness": 20}, "--what weights"),
    ]:
        section = ModelSection(
            backbone="conv4", size=32, dimension=8, pooling=pooling, pooling_parameters=parameters, attention={}
        )
        build_embedder(section).save(tmp_path / "model.safetensors")
        code, told, err = nearkin("explain", tmp_path / "model.safetensors", folder, "--out", tmp_path / "out", "-q")
        assert code == 0, err
        assert words in told


def test_a_model_file_does_and_average_pooling_is_explained_by_contributions(nearkin, folder, tmp_path):
    build_embedder(ModelSection(backbone="conv4", size=16, dimension=8)).save(tmp_path / "model.safetensors")
    code, told, err = nearkin("explain", tmp_path / "model.safetensors", folder / "a", "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert "--what contribution" in told
    assert "1 overlay" in told


def test_the_images_themselves_are_never_overwritten(nearkin, run, folder):
    shutil.copy(folder / "a" / "bird.png", folder / "a" / "bird-weights.png")
    shutil.copy(folder / "a" / "bird.png", folder / "a" / "Overview-weights.png")
    before = {path: path.read_bytes() for path in (folder / "a").iterdir()}
    code, _, err = nearkin("explain", run, folder / "a", "--out", folder / "a", "-q")
    assert code == 0, err
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(list((folder / "a").iterdir())) == 2 * len(before) + 1


def test_a_second_run_does_not_explain_the_pictures_of_the_first(nearkin, run, folder):
    for out in (folder / "looks", folder):
        for _ in range(2):
            code, told, err = nearkin("explain", run, folder, "--out", out, "-q")
            assert code == 0, err
            assert "3 overlays" in told
    assert "8 pictures" in told
    Image.open(folder / "a" / "bird.png").save(folder / "looks" / "other.png")
    _, told, _ = nearkin("explain", run, folder, "--out", folder / "looks", "-q")
    assert "9 pictures" in told
    assert "3 overlays" in told


def test_each_run_has_a_folder_of_its_own(nearkin, run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_embedder(ModelSection(backbone="conv4", size=16, dimension=8)).save(tmp_path / "other.safetensors")
    for model in (run, "other.safetensors"):
        code, _, err = nearkin("explain", model, folder / "a", "-q")
        assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "explanations").iterdir()) == ["other", "run"]
    assert (tmp_path / "explanations" / "run" / "overview-weights.png").exists()


def test_files_that_cannot_be_read_may_be_left_out(nearkin, run, folder, tmp_path):
    (folder / "b" / "broken.jpg").write_bytes((folder / "b" / "bird.jpg").read_bytes()[:200])
    code, told, err = nearkin("explain", run, folder, "--skip-bad", "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert re.search(r"\b1\b.*\bfile", told)
    assert "3 overlays" in told
    code, _, err = nearkin("explain", run, folder / "b" / "broken.jpg", "--skip-bad", "--out", tmp_path / "no", "-q")
    assert code == 2
    assert "images" in err
    assert not (tmp_path / "no").exists()


def test_many_images_have_an_overview_of_the_first(nearkin, run, folder, tmp_path):
    for number in range(25):
        shutil.copy(folder / "a" / "bird.png", folder / "b" / f"{number:02d}.png")
    code, told, err = nearkin("explain", run, folder / "b", "--out", tmp_path / "out", "-q")
    assert code == 0, err
    assert "27 overlays" in told
    assert "first 24" in told


def test_bad_input_is_one_sentence(nearkin, run, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no image")
    (folder / "b" / "broken.jpg").write_bytes((folder / "b" / "bird.jpg").read_bytes()[:200])
    good, out = folder / "a", tmp_path / "out"
    for arguments, words in [
        ((tmp_path / "absent", good), "absent"),
        ((tmp_path / "empty", good), "empty"),
        ((tmp_path / "notes.txt", good), "notes.txt"),
        ((run, tmp_path / "absent.png"), "absent.png"),
        ((run, tmp_path / "notes.txt"), "notes.txt"),
        ((run, tmp_path / "empty"), "empty"),
        ((run, folder), "broken.jpg"),
        ((run, good, "--what", "weight"), "weights"),
        ((run, good, "--out", tmp_path / "notes.txt"), "notes.txt"),
        ((run, good, "--out", tmp_path / "notes.txt" / "deeper"), "notes.txt"),
    ]:
        code, told, err = nearkin("explain", *arguments, *(() if "--out" in arguments else ("--out", out)), "-q")
        assert (code, told) == (2, "")
        assert words in err
        assert err.startswith("nearkin: ")
        assert len(err.splitlines()) == 1
    assert not out.exists()
    code, _, err = nearkin("explain", run)
    assert code == 2
    assert "IMAGE" in err


def test_a_folder_that_may_not_be_written_to_is_told_before_any_work(nearkin, run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr("nearkin.api.load", lambda path: pytest.fail("the model was read"))
    code, _, err = nearkin("explain", run, folder, "--out", tmp_path / "deep" / "out", "-q")
    assert code == 2
    assert str(tmp_path) in err
    assert not (tmp_path / "deep").exists()


def test_a_kind_that_the_pooling_does_not_have_is_one_sentence(nearkin, folder, tmp_path):
    section = ModelSection(backbone="conv4", size=16, dimension=8, pooling="gmp")
    build_embedder(section).save(tmp_path / "model.safetensors")
    for what in ("weights", "prototypes"):
        code, _, err = nearkin("explain", tmp_path / "model.safetensors", folder, "--what", what, "-q")
        assert code == 2
        assert "contribution" in err
    code, _, err = nearkin("explain", tmp_path / "model.safetensors", folder, "--what", "attention", "-q")
    assert code == 2
    assert "model.attention" in err
    assert len(err.splitlines()) == 1


def test_the_examples_of_the_guide_run(run, folder, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "birds")
    shutil.copytree(folder, tmp_path / "photos")
    shutil.copy(folder / "a" / "bird.png", tmp_path / "bird.jpg")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)
    assert names["look"].what == "weights"
    assert len(list(tmp_path.glob("*.png"))) >= 2


def test_the_commands_of_the_guide_run(nearkin, run, folder, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "birds")
    shutil.copytree(folder, tmp_path / "photos")
    shutil.copy(folder / "a" / "bird.png", tmp_path / "bird.jpg")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^nearkin (explain .*?)(?:  #.*)?$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        code, _, err = nearkin(*command.split(), "-q")
        assert code == 0, (command, err)
