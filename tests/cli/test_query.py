"""`nearkin classify`: labels and probabilities of files, and whom it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as nk
from nearkin.models import ModelSection, build_embedder
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_model import SimilarityModel

CLASSES = ("ant", "bee", "cat")


def encoder():
    torch.manual_seed(0)
    return build_embedder(ModelSection(backbone="conv4", channels=3, size=16, dimension=6, space="euclidean")).eval()


def saved(folder, dense=True):
    model = SimilarityModel(encoder(), PairSimilarity(6, hidden=8), CLASSES, dense=dense).eval()
    model.save(folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.png" for name in ("one", "two")]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return paths


@pytest.mark.parametrize("by", ["sim", "dol"])
def test_it_tells_label_and_probability_of_each_file(nearkin, tmp_path, files, by):
    model = nk.load(saved(tmp_path))
    expected = model.classify(list(files), by=by)
    code, out, _ = nearkin("classify", tmp_path / "model.safetensors", *files, "--by", by, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["by"], found["classes"]) == (by, list(CLASSES))
    for place, row in enumerate(found["files"]):
        assert row["file"] == str(files[place])
        assert row["label"] == expected.labels[place]
        assert row["probabilities"] == pytest.approx(expected.probabilities[place].tolist(), abs=1e-6)
        assert row["probability"] == max(row["probabilities"])
    code, out, _ = nearkin("classify", tmp_path / "model.safetensors", *files, "--by", by)
    lines = out.splitlines()
    assert lines[0].split() == ["file", "label", "probability"]
    assert f"{100 * expected.probabilities[1].max():.1f} %" in lines[2]
    assert expected.labels[1] in lines[2]


def test_the_two_ways_are_two(nearkin, tmp_path, files):
    model = saved(tmp_path)
    answers = [json.loads(nearkin("classify", model, files[0], "--by", by, "--json")[1]) for by in ("sim", "dol")]
    assert answers[0]["files"][0]["probabilities"] != answers[1]["files"][0]["probabilities"]


def test_a_model_that_only_embeds_is_refused(nearkin, tmp_path, files):
    encoder().save(tmp_path / "plain.safetensors")
    code, out, told = nearkin("classify", tmp_path / "plain.safetensors", files[0])
    assert (code, out) == (1, "")
    assert "learned-similarity" in told
    assert len(told.strip().splitlines()) == 1


def test_without_a_dense_layer_there_is_no_dol(nearkin, tmp_path, files):
    code, _, told = nearkin("classify", saved(tmp_path, dense=False), files[0], "--by", "dol")
    assert code == 1
    assert "dense" in told


def test_wrong_words_and_missing_files_are_told(nearkin, tmp_path, files):
    model = saved(tmp_path)
    code, _, told = nearkin("classify", model, files[0], "--by", "cosine")
    assert code == 2
    assert "cosine" in told
    code, _, told = nearkin("classify", model, tmp_path / "nothing.png")
    assert code == 1
    assert "nothing.png" in told


def test_a_support_takes_the_place_of_the_training_classes(nearkin, tmp_path, files):
    rng = np.random.default_rng(1)
    for name in ("dog", "elk"):
        (tmp_path / "support" / name).mkdir(parents=True)
        for number in range(2):
            image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
            image.save(tmp_path / "support" / name / f"{number}.png")
    model = saved(tmp_path)
    code, out, _ = nearkin("classify", model, *files, "--support", tmp_path / "support", "--json")
    assert code == 0
    found, expected = json.loads(out), nk.load(model).few_shot(tmp_path / "support").classify(list(files))
    assert found["classes"] == ["dog", "elk"]
    assert [row["label"] for row in found["files"]] == expected.labels.tolist()
    code, _, told = nearkin("classify", model, files[0], "--support", tmp_path / "support", "--by", "dol")
    assert code == 1
    assert "dense" in told
    code, _, told = nearkin("classify", model, files[0], "--support", tmp_path / "suport")
    assert code == 1
    assert "no file or folder" in told
