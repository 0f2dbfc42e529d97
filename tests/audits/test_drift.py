"""Drift between data sets: in small on patterns, in earnest on photos and sketches."""

import csv
import json

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits import drift, drift_result
from nearkin.audits.drift import count_copies, measure_drift
from nearkin.audits.drift_result import Side
from nearkin.confidence import Novelty
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore, FolderStore
from nearkin.errors import DataError, ModelError
from nearkin.metrics import LearnedKernel, mmd_test
from nearkin.models.build import build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.similarity import LearnedSpace, PairSimilarity


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


def placed(data, seed, d=8):
    return Side(data, np.random.default_rng(seed).normal(size=(len(data), d)).astype(np.float32))


def test_copies_are_found_by_content_whatever_their_embeddings(model):
    reference, new = images(20, 0), images(12, 1)
    both = Dataset(
        new.manifest, ArrayStore(np.stack([np.asarray(reference.image(i)) for i in range(12)]), new.manifest.paths)
    )
    assert count_copies(placed(reference, 0), placed(both, 1)) == 12
    assert count_copies(placed(reference, 0), placed(new, 0)) == 0


def test_copies_among_files_and_arrays_are_found_by_what_they_look_like(tmp_path):
    reference = images(20, 0)
    for place in range(20):
        reference.image(place).save(tmp_path / f"{place:02d}.png")
    files = Dataset(Manifest.from_rows([f"{i:02d}.png" for i in range(20)], ["x"] * 20), FolderStore(tmp_path))
    points = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    moved = points + np.where(np.arange(20) < 15, 1e-6, 0.1)[:, None].astype(np.float32)
    assert count_copies(Side(reference, points), Side(files, moved)) == 15


@pytest.mark.parametrize("count", [3, 4])
def test_too_few_items_are_said_to_be_too_few(model, count):
    found = measure_drift(model, placed(images(count, 0), 0), placed(images(count, 1), 1), permutations=200)
    assert found.verdict().startswith("No drift could be shown: with 3 and 3 items") == (count == 3)
    assert found.to_dict()["smallest_reachable_p"] == pytest.approx(0.1 if count == 3 else 2 / 70)


def many_classes(count, items, seed, shift):
    names = [f"c{i % count:02d}/{i}.png" for i in range(count * items)]
    data = Dataset(
        Manifest.from_rows(names, [name[:3] for name in names]),
        ArrayStore(np.random.default_rng(seed).integers(0, 255, (len(names), 2, 2, 3)).astype(np.uint8), names),
    )
    side = placed(data, seed)
    side.embeddings[data.labels == "c00"] += shift
    return side


def test_a_class_among_many_can_be_found(model):
    found = measure_drift(
        model, many_classes(30, 9, 0, 0), many_classes(30, 9, 1, 9), kernel="gaussian", permutations=99, by_class=True
    )
    assert [one.name for one in found.classes if one.corrected_p <= 0.05] == ["c00"]
    assert any("600" in note for note in found.notes)


def test_classes_that_are_too_small_are_named(model):
    sides = [many_classes(3, 6, seed, 0) for seed in range(2)]
    rows = np.flatnonzero((sides[0].labels != "c01") | (np.arange(18) < 9))
    sides = [Side(side.dataset.select(rows), side.embeddings[rows]) for side in sides]
    found = measure_drift(model, *sides, permutations=99, by_class=True)
    assert any("c01" in note for note in found.notes)
    assert found.to_dict()["classes"][1]["smallest_p"] == pytest.approx(0.1)


def test_more_divisions_than_are_drawn_unasked_are_noted(model, monkeypatch):
    monkeypatch.setattr(drift, "MOST_PERMUTATIONS", 50)
    found = measure_drift(model, many_classes(3, 6, 0, 0), many_classes(3, 6, 1, 0), permutations=40, by_class=True)
    assert any("60" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (lambda new: Dataset(new.manifest, new.store, "audio"), {}, "audio"),
        (lambda new: new.select([0]), {}, "items"),
        (lambda new: new.where(label="b"), {"by_class": True, "only": ({"label": "a"}, {})}, "two"),
        (lambda new: new, {"only": ({}, {"day": "friday"})}, "friday"),
    ],
)
def test_both_sides_are_checked_before_either_is_embedded(model, monkeypatch, change, options, told):
    def refuse(*_):
        raise AssertionError("embedded too early")

    monkeypatch.setattr("nearkin.audits.drift.embed_items", refuse)
    with pytest.raises(DataError, match=told):
        nk.drift(model, images(10, 0), change(images(10, 1)), progress=False, **options)


def test_loose_files_need_no_class_folders(model, tmp_path):
    for place in range(6):
        images(6, 1).image(place).save(tmp_path / f"{place}.png")
    (tmp_path / "notes.txt").write_text("")
    found = nk.drift(model, images(10, 0), tmp_path, permutations=20, progress=False)
    assert len(found.new) == 6
    assert set(found.new.labels) == {tmp_path.name}
    with pytest.raises(DataError, match="folder"):
        nk.drift(model, images(10, 0), tmp_path, by_class=True, progress=False)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder"):
        nk.drift(model, images(10, 0), tmp_path, progress=False)
