"""Drift between data sets: in small on patterns, in earnest on photos and sketches."""

import csv
import json

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits import drift_result
from nearkin.audits.drift import measure_drift
from nearkin.audits.drift_result import Side
from nearkin.confidence import Novelty
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError, ModelError
from nearkin.metrics import LearnedKernel, mmd_test
from nearkin.models.build import build_embedder
from nearkin.models.learned_space import LearnedSpace
from nearkin.models.section import ModelSection
from nearkin.models.similarity import PairSimilarity


@pytest.fixture(scope="module")
def model():
    section = ModelSection(
        backbone="conv4", pretrained=False, channels=3, size=16, dimension=8, pooling="gap", freeze=None
    )
    return build_embedder(section).eval()


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def images(count, seed, bright=0):
    rng = np.random.default_rng(seed)
    names = [f"{'ab'[i % 2]}/{i:03d}.png" for i in range(count)]
    pixels = np.clip(rng.integers(0, 180, (count, 16, 16, 3)) + bright, 0, 255).astype(np.uint8)
    days = ["monday" if i < count // 2 else "tuesday" for i in range(count)]
    manifest = Manifest.from_rows(names, [name[0] for name in names], day=days)
    return Dataset(manifest, ArrayStore(pixels, names), name="set")


def test_brighter_images_have_drifted_and_the_same_kind_has_not(model):
    drifted = nk.drift(model, images(40, 0), images(30, 1, bright=70), permutations=99, progress=False)
    assert drifted.drifted
    assert drifted.test.p_value == 0.01
    assert drifted.verdict().startswith("Drift: the new data differs from the reference (p = 0.010)")
    assert drifted.novel_share > 0.5
    same = nk.drift(model, images(40, 0), images(30, 2), permutations=99, progress=False)
    assert not same.drifted
    assert same.test.p_value > 0.1
    assert same.verdict().startswith("No drift found")
    assert same.novel_share < 0.25


def test_it_is_the_test_and_the_novelty_of_the_embeddings(model):
    first, second = images(20, 0), images(15, 1)
    found = nk.drift(model, first, second, permutations=50, seed=3, progress=False)
    x, y = model.encode(first, progress=False), model.encode(second, progress=False)
    wanted = mmd_test(x, y, space=model.space, permutations=50, seed=3)
    assert found.test.p_value == wanted.p_value
    np.testing.assert_allclose(found.test.null, wanted.null, atol=1e-6)
    novelty = Novelty(space=model.space).fit(x)
    np.testing.assert_allclose(found.novelty, novelty.score(y), atol=1e-5)
    assert found.most_novel(3).tolist() == np.argsort(-found.novelty)[:3].tolist()


def test_a_learned_similarity_is_its_own_kernel(model, monkeypatch):
    torch.manual_seed(0)
    base, points = model.space, [np.random.default_rng(i).normal(size=(12, 8)).astype(np.float32) for i in range(2)]
    sides = [Side(images(12, i), points[i]) for i in range(2)]
    model.space = LearnedSpace(base, PairSimilarity(8, hidden=8).eval())
    try:
        found = measure_drift(model, *sides, permutations=20)
        assert found.test.kernel.name == "learned"
        told = {}
        monkeypatch.setattr(
            drift_result, "draw_novel", lambda rows, scores, by: told.update(rows=rows, scores=scores, by=by) or b""
        )
        assert set(found.figures()) == {"null", "map", "novel"}
        assert told["by"] == "similarity"
        likes = [row.neighbours[0][1] for row in told["rows"]]
        assert likes == pytest.approx([score for score, _ in told["scores"]], abs=1e-4)
        assert likes == pytest.approx(-found.novelty[found.most_novel(6)], abs=1e-4)
        assert measure_drift(model, *sides, kernel="gaussian", permutations=20).test.kernel.name == "gaussian"
    finally:
        model.space = base


class _Backwards:
    """A similarity that grows with the distance: as a kernel it is negative definite."""

    similarity = True

    def distance(self, x, y):
        return -torch.cdist(x, y)


@pytest.mark.parametrize(("shift", "told"), [(3.0, True), (0.0, False)])
def test_a_difference_that_an_indefinite_kernel_turns_round_is_noted(model, shift, told):
    rng = np.random.default_rng(0)
    points = [(rng.normal(size=(20, 8)) + shift * i).astype(np.float32) for i in range(2)]
    sides = [Side(images(20, i), points[i]) for i in range(2)]
    found = measure_drift(model, *sides, kernel=LearnedKernel(_Backwards(), scale="logit"), permutations=50)
    assert found.drifted == told
    assert found.to_dict()["two_sided"] is True
    assert ("chance" in found.verdict()) == told
    assert "two-sided" in found.verdict()
    assert "on either side" in found.figures()["null"].caption
    assert any("chance" in note for note in found.notes) == told


def test_everything_is_written(model, tmp_path):
    found = nk.drift(model, images(20, 0), images(15, 1), permutations=20, by_class=True, progress=False)
    page = found.write(tmp_path / "out")
    assert sorted(file.name for file in page.parent.iterdir()) == [
        "drift.html",
        "drift.json",
        "items.csv",
        "map.png",
        "novel.png",
        "null.png",
    ]
    stored = json.loads((page.parent / "drift.json").read_text())
    assert stored["p_value"] == found.test.p_value
    assert stored["new"] == {"name": "set", "items": 15}
    assert [one["name"] for one in stored["classes"]] == ["a", "b"]
    with open(page.parent / "items.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    assert [float(row["novelty"]) for row in rows] == sorted((float(row["novelty"]) for row in rows), reverse=True)
    place = list(found.new.dataset.manifest.paths).index(rows[0]["path"])
    assert float(rows[0]["p_value"]) == pytest.approx(found.novelty_p[place], rel=1e-4)
    assert float(rows[0]["witness"]) == pytest.approx(found.test.witness_y[place], rel=1e-4)
    text = page.read_text()
    for words in ("The most novel items", "Chance, and these two sets", "Map of both sets", "p-value, a"):
        assert words in text


def test_classes_are_tested_one_by_one_after_holm(model):
    found = nk.drift(model, images(20, 0), images(14, 1, bright=70), permutations=99, by_class=True, progress=False)
    assert [(one.name, one.reference, one.new) for one in found.classes] == [("a", 10, 7), ("b", 10, 7)]
    assert [one.corrected_p for one in found.classes] == [pytest.approx(0.02)] * 2
    rows = found.reference.labels == "a", found.new.labels == "a"
    alone = mmd_test(
        found.reference.embeddings[rows[0]], found.new.embeddings[rows[1]], space=model.space, permutations=99
    )
    assert found.classes[0].statistic == pytest.approx(alone.statistic)


def test_items_are_drawn_and_chosen(model):
    data = images(40, 0)
    found = nk.drift(
        model,
        data,
        data,
        permutations=20,
        limit=10,
        only=({"day": "monday"}, {"day": "tuesday"}),
        progress=False,
    )
    assert (len(found.reference), len(found.new)) == (10, 10)
    assert set(found.reference.dataset.manifest.column("day")) == {"monday"}
    assert found.new.dataset.name == "set (day=tuesday)"
    assert any("10 of 20" in note for note in found.notes)
    whole = nk.drift(model, data, data, permutations=20, limit=None, progress=False)
    assert any("copies" in note for note in whole.notes)
    assert whole.test.p_value > 0.9


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"alpha": 0}, DataError, "alpha"),
        ({"permutations": 18}, DataError, "19"),
        ({"limit": 1}, DataError, "limit"),
        ({"kernel": "learned"}, DataError, "similarity"),
        ({"kernel": "rbf"}, DataError, "rbf"),
        ({"only": ({"day": "friday"}, {})}, DataError, "friday"),
        ({"only": ({}, {"date": "friday"})}, DataError, "'date'"),
    ],
)
def test_what_cannot_be_asked_is_refused(model, options, error, told):
    with pytest.raises(error, match=told):
        nk.drift(model, images(10, 0), images(10, 1), progress=False, **options)


def test_sets_without_a_shared_class_cannot_be_tested_by_class(model):
    with pytest.raises(DataError, match="two"):
        nk.drift(model, images(8, 0).where(label="a"), images(8, 1).where(label="b"), by_class=True, progress=False)


def test_there_must_be_a_model():
    with pytest.raises(ModelError, match="nothing"):
        nk.drift("nothing", images(4, 0), images(4, 1), progress=False)


@pytest.mark.data
@pytest.mark.slow
def test_sketches_are_not_photos(data_root):
    """A frozen pretrained network: photos against other photos, and against sketches of the same classes."""
    pacs = nk.open_data("pacs", data_root=data_root)
    photos = pacs.where(domain="photo")
    rows = np.random.default_rng(0).permutation(len(photos))
    reference = photos.select(rows[:100])
    same = nk.drift("efficientnet-lite0", reference, photos.select(rows[100:200]), progress=False)
    assert same.test.p_value > 0.05
    assert same.novel_share < 0.15
    sketches = nk.drift("efficientnet-lite0", reference, pacs.where(domain="sketch"), limit=100, progress=False)
    assert sketches.test.p_value == sketches.test.smallest_p
    assert sketches.novel_share > 0.5
    assert sketches.test.statistic > 10 * abs(same.test.statistic)
