"""What a test of drift does before and around its numbers: sides, copies, classes, and too few items."""

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits import drift_classes
from nearkin.audits.drift import measure_drift
from nearkin.audits.drift_data import count_copies
from nearkin.audits.drift_result import Side
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore, FolderStore
from nearkin.errors import DataError
from nearkin.models.build import build_embedder
from nearkin.models.section import ModelSection


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
    monkeypatch.setattr(drift_classes, "MOST_PERMUTATIONS", 50)
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
