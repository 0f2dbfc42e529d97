"""The gallery as its users see it: images with a small model, and vectors of their own."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from nearkin.errors import DataError, ModelError, NearkinError, StorageError
from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 60, 210), "grey": (128, 128, 128)}


def picture(colour: str, seed: int, size: int = 48) -> Image.Image:
    """A blob of a colour on a pale ground, a little different for each seed."""
    rng = np.random.default_rng([seed, list(COLOURS).index(colour)])
    image = Image.new("RGB", (size, size), (235, 235, 230))
    x, y = (int(value) for value in rng.integers(2, 12, size=2))
    tint = tuple(int(np.clip(part + rng.integers(-25, 25), 0, 255)) for part in COLOURS[colour])
    ImageDraw.Draw(image).ellipse((x, y, x + 30, y + 30), fill=tint)
    return image


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model():
    return build_embedder(ModelSection(backbone="conv4", size=32, dimension=16), seed=1).eval()


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for colour in ("red", "green", "blue"):
        (folder / colour).mkdir(parents=True)
        for number in range(12):
            picture(colour, number).save(folder / colour / f"{number}.png")
    return folder


@pytest.fixture
def gallery(tmp_path, model, photos):
    with Gallery.create(tmp_path / "shop.gallery", model, photos, progress=False) as made:
        yield made


@pytest.fixture
def points():
    """Vectors of 12 well separated classes, and labels."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(12), 15)
    return rng.normal(size=(12, 24))[codes] + 0.3 * rng.normal(size=(180, 24)), [f"class {code}" for code in codes]


@pytest.fixture
def vectors(tmp_path, points):
    with Gallery.create(tmp_path / "v.gallery", dimension=24, name="mine") as made:
        made.add(*points)
        yield made


def test_a_folder_becomes_a_gallery_that_finds_its_own_pictures(gallery, photos):
    assert len(gallery) == 36
    assert gallery.stats().classes == {"blue": 12, "green": 12, "red": 12}
    path = photos / "green" / "3.png"
    nearest = gallery.search(path, k=3)
    assert nearest[0].distance == pytest.approx(0.0, abs=1e-3)
    assert nearest[0].item.label == "green"
    assert nearest[0].item.source == str(path)
    assert [near.distance for near in nearest] == sorted(near.distance for near in nearest)


@pytest.mark.parametrize("form", [lambda i: i, encoded, lambda i: encoded(i, "JPEG"), np.asarray])
def test_a_query_may_be_an_image_bytes_or_pixels(gallery, form):
    match = gallery.identify(form(picture("red", 77)))
    assert match.label == "red"
    assert 0 < match.probability <= 1
    assert match.known in (True, False)
    assert match.candidates[0].label == "red"
    assert match.candidates[0].probability == pytest.approx(match.probability)
    assert len(match.neighbours) == 10


def test_the_vectors_are_those_of_the_model(gallery, model, photos):
    path = photos / "blue" / "0.png"
    item = gallery.search(path, k=1)[0].item
    np.testing.assert_allclose(gallery.store.vectors([item.id]), model.encode([path], progress=False), atol=1e-5)


def test_thumbnails_are_small_jpegs(gallery, tmp_path):
    (id,) = gallery.enrol("wide", [Image.new("RGB", (900, 300), "orange")])
    image = Image.open(io.BytesIO(gallery.thumbnail(id)))
    assert image.format == "JPEG"
    assert max(image.size) == 160
    assert gallery.get(id).thumbnail


def test_a_class_is_enrolled_from_a_handful_and_known_at_once(gallery):
    assert gallery.identify(picture("grey", 50)).label != "grey"
    gallery.enrol("grey", [picture("grey", number) for number in range(5)], metadata={"who": "me"})
    assert gallery.identify(picture("grey", 50)).label == "grey"
    assert len(gallery.items(where={"who": "me"})) == 5


def test_reopening_needs_no_model_and_another_one_is_refused(tmp_path, gallery, model):
    query = picture("red", 5)
    before = gallery.search(query, k=5)
    with Gallery.open(gallery.path) as again:
        assert [(near.item.id, near.distance) for near in again.search(query, k=5)] == [
            (near.item.id, near.distance) for near in before
        ]
    Gallery.open(gallery.path, model).close()
    other = build_embedder(ModelSection(backbone="conv4", size=32, dimension=16), seed=2).eval()
    with pytest.raises(ModelError, match="rebuild"):
        Gallery.open(gallery.path, other)


def test_rebuild_takes_another_model_and_keeps_everything_else(gallery, photos):
    gallery.enrol("uploaded", [encoded(picture("grey", 1))], metadata={"n": 3})
    before = {item.id: item for item in gallery.items(limit=1000)}
    other = build_embedder(ModelSection(backbone="conv4", size=32, dimension=24), seed=2).eval()
    reader = Gallery.open(gallery.path)
    reader.identify(picture("red", 3))
    gallery.rebuild(other, progress=False)
    assert gallery.settings.dimension == 24
    assert {item.id: item for item in gallery.items(limit=1000)} == before
    expected = other.encode([photos / "red" / "1.png"], progress=False)
    found = gallery.search(photos / "red" / "1.png", k=1)[0].item
    np.testing.assert_allclose(gallery.store.vectors([found.id]), expected, atol=1e-5)
    assert gallery.calibration_due
    # Whoever had the gallery open follows to the new model.
    assert reader.search(photos / "red" / "1.png", k=1)[0].item.id == found.id
    assert reader.identify(picture("red", 3)).label is not None
    reader.close()
    assert [file.name for file in Path(gallery.path).glob("model-*")] == [gallery.settings.model]


def test_rebuild_stops_before_anything_is_done_if_files_are_gone(gallery, photos):
    (photos / "red" / "0.png").unlink()
    other = build_embedder(ModelSection(backbone="conv4", size=32, dimension=24), seed=2).eval()
    with pytest.raises(DataError, match=r"\b0\.png"):
        gallery.rebuild(other, progress=False)
    assert gallery.settings.dimension == 16
    assert gallery.identify(picture("red", 3)).label is not None
    gallery.rebuild(other, missing="drop", progress=False)
    assert len(gallery) == 35


def test_a_bad_file_stops_everything_or_is_skipped(tmp_path, model, photos):
    (photos / "red" / "bad.png").write_bytes(b"not a picture")
    with pytest.raises(NearkinError, match=r"bad\.png"):
        Gallery.create(tmp_path / "x.gallery", model, photos, progress=False)
    assert not (tmp_path / "x.gallery").exists()
    with Gallery.create(tmp_path / "x.gallery", model, photos, skip_bad=True, progress=False) as made:
        assert len(made) == 36
        with pytest.raises(NearkinError, match=r"bad\.png"):
            made.add([photos / "red" / "1.png", photos / "red" / "bad.png"], "red", progress=False)
        assert len(made) == 36


def test_vectors_of_ones_own_are_projected_and_compared_by_angle(vectors, points):
    rows, labels = points
    for row in (3, 50, 170):
        nearest = vectors.search(7.5 * rows[row], k=1)[0]
        assert nearest.item.label == labels[row]
        assert nearest.distance == pytest.approx(0.0, abs=1e-3)
    assert vectors.settings.kind == "vector"
    assert vectors.card == {}


def test_identify_says_known_or_not(vectors, points):
    rows, labels = points
    rng = np.random.default_rng(5)
    known = vectors.identify_many(rows[::15] + 0.3 * rng.normal(size=(12, 24)))
    assert [match.label for match in known] == labels[::15]
    assert sum(match.known for match in known) >= 10
    assert all(match.probability > 0.8 for match in known)
    strangers = vectors.identify_many(rng.normal(size=(40, 24)))
    assert sum(match.known for match in strangers) <= 4


def test_verify_at_a_chosen_rate(vectors, points):
    rows, _ = points
    same, other = vectors.verify(rows[0], rows[1], false_accept_rate=0.01), vectors.verify(rows[0], rows[20])
    assert (same.same, other.same) == (True, False)
    assert same.probability > 0.9 > 0.1 > other.probability
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert other.distance == pytest.approx(np.linalg.norm(unit[0] - unit[20]), abs=1e-5)
    strict = vectors.verify(rows[0], rows[1], false_accept_rate=1e-9)
    assert strict.same is None
    assert strict.reason


@pytest.mark.parametrize("rate", [0, 1, -1, 2, True, "a", float("nan")])
def test_a_false_accept_rate_is_between_0_and_1(vectors, rate):
    with pytest.raises(DataError, match="rate"):
        vectors.verify(np.ones(24), np.ones(24), false_accept_rate=rate)


def test_too_little_data_gives_no_probability_and_a_reason(tmp_path):
    with Gallery.create(tmp_path / "s.gallery", dimension=4, name="x") as small:
        empty = small.identify([1, 0, 0, 0])
        assert (empty.label, empty.probability, empty.known, empty.neighbours) == (None, None, None, ())
        assert empty.reason
        small.add(np.eye(4), ["a", "a", "b", "b"])
        match = small.identify([1, 0.1, 0, 0])
        assert (match.label, match.probability, match.known) == ("a", None, None)
        assert match.reason
        assert small.verify([1, 0, 0, 0], [0, 1, 0, 0]).same is None


def test_confidence_is_learned_anew_after_a_tenth_has_changed(vectors, points):
    rows, labels = points
    vectors.identify(rows[0])
    first = vectors.calibration
    vectors.add(rows[:9] + 0.01, labels[:9])
    vectors.identify(rows[0])
    assert vectors.calibration.key == first.key
    vectors.add(rows[:9] + 0.02, labels[:9])
    assert vectors.calibration_due
    vectors.identify(rows[0])
    assert vectors.calibration.key != first.key
    assert vectors.calibration.items == 198
    assert Gallery.open(vectors.path).calibration.key == vectors.calibration.key


def test_a_service_may_put_learning_off(vectors, points):
    rows, labels = points
    vectors.identify(rows[0])
    first = vectors.calibration
    vectors.auto_recalibrate = False
    vectors.add(rows, labels)
    vectors.identify(rows[0])
    assert vectors.calibration.key == first.key
    assert vectors.recalibrate(accept=0.9).accept == 0.9
    assert not vectors.calibration_due


def test_unlabelled_items_are_found_but_stand_for_no_class(vectors, points):
    rows, labels = points
    vectors.add(rows[:1], [None], {"kind": "loose"}, ids=["loose"])
    assert "loose" in {near.item.id for near in vectors.search(rows[0], k=2)}
    match = vectors.identify(rows[0])
    assert match.label == labels[0]
    assert "loose" not in {near.item.id for near in match.neighbours}
    assert vectors.stats().unlabelled == 1


def test_where_restricts_search_items_and_removal(tmp_path, points):
    rows, labels = points
    facts = [{"price": number, "shop": "a" if number % 2 else "b"} for number in range(len(rows))]
    with Gallery.create(tmp_path / "w.gallery", dimension=24, name="x") as made:
        made.add(rows, labels, facts)
        found = made.search(rows[0], k=200, where="price >= 20 and shop = 'a'")
        assert sorted(near.item.metadata["price"] for near in found) == [n for n in range(20, 180) if n % 2]
        found = made.search(rows[0], k=200, where="price < :top", parameters={"top": 3})
        assert sorted(near.item.metadata["price"] for near in found) == [0, 1, 2]
        assert made.remove(where="shop = 'b'") == 90
        assert len(made) == 90
        assert made.remove(label="class 0") == 7
        with pytest.raises(DataError, match="remove"):
            made.remove()
        with pytest.raises(DataError):
            made.search(rows[0], where="price; drop table items")


def test_ids_replace_and_relabel_and_describe(vectors, points):
    rows, _ = points
    (id,) = vectors.add(rows[:1], ["x"], ids=["mine"])
    count = len(vectors)
    vectors.add(rows[1:2], ["y"], ids=["mine"])
    assert (id, len(vectors), vectors.get("mine").label) == ("mine", count, "y")
    assert vectors.relabel("mine", "<b>z</b>") == 1
    vectors.describe("mine", {"a": 1.5})
    assert (vectors.get("mine").label, vectors.get("mine").metadata) == ("<b>z</b>", {"a": 1.5})
    assert vectors.relabel(["mine", "nobody"], None) == 1
    assert vectors.remove("mine") == 1
    assert "mine" not in vectors
    with pytest.raises(DataError, match="mine"):
        vectors.get("mine")


def test_export_and_import_give_the_same_gallery(tmp_path, gallery, model):
    gallery.describe(gallery.items(limit=1)[0].id, {"price": 3, "name": "ö'"})
    assert gallery.export(tmp_path / "out.parquet") == 36
    with Gallery.create(tmp_path / "copy.gallery", model) as copy:
        assert copy.import_(tmp_path / "out.parquet") == 36
        assert copy.items(limit=100) == gallery.items(limit=100)
        ids = [item.id for item in copy.items(limit=100)]
        np.testing.assert_array_equal(copy.store.vectors(ids), gallery.store.vectors(ids))
        assert copy.thumbnail(ids[0]) == gallery.thumbnail(ids[0])
        assert copy.import_(tmp_path / "out.parquet") == 36
        assert len(copy) == 36
    with (
        Gallery.create(tmp_path / "own.gallery", dimension=16, name="mine") as own,
        pytest.raises(ModelError, match="conv4"),
    ):
        own.import_(tmp_path / "out.parquet")


def test_suspects_and_duplicates(vectors, points):
    rows, labels = points
    wrong = vectors.items(where={"label": "class 3"}, limit=1)[0].id
    vectors.relabel(wrong, "class 7")
    suspects = vectors.suspicious_labels(limit=5)
    assert (suspects[0].item.id, suspects[0].suggested) == (wrong, "class 3")
    vectors.add(rows[40:41] * 2, labels[40:41], ids=["copy"])
    groups = vectors.find_duplicates()
    assert len(groups) == 1
    assert "copy" in {item.id for item in groups[0].items}


def test_the_map_places_like_with_like(vectors, points):
    rows, labels = points
    places = vectors.map()
    assert len(places) == 180
    assert all(0 <= point.x <= 1 and 0 <= point.y <= 1 for point in places)
    own = np.array([(point.x, point.y) for point in places if point.label == labels[0]])
    every = np.array([(point.x, point.y) for point in places])
    assert own.std(axis=0).sum() < 0.5 * every.std(axis=0).sum()
    x, y = vectors.place(vectors.embed(rows[0])[0])
    assert np.hypot(*(own.mean(axis=0) - (x, y))) < 0.25


def test_reliability_tells_of_the_gallery_itself(vectors):
    told = vectors.reliability()
    assert told["accuracy"] > 0.9
    assert sum(part["count"] for part in told["bins"]) == told["items"] <= 180


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "dimension"),
        ({"dimension": 4}, "dimension"),
        ({"dimension": 0, "name": "x"}, "dimension"),
        ({"dimension": True, "name": "x"}, "dimension"),
        ({"dimension": 4, "name": "x", "dtype": "int4"}, "float16"),
        ({"dimension": 4, "name": "x", "space": 3}, "space"),
        ({"dimension": 4, "name": "x", "space": "spere"}, "spere"),
        ({"dimension": 4, "name": "x", "index": "fast"}, "fast"),
        ({"model": "no/such/run"}, "no/such/run"),
        ({"model": 3}, "model"),
    ],
)
def test_bad_settings_are_told_and_leave_nothing_behind(tmp_path, arguments, message):
    with pytest.raises(NearkinError, match=message):
        Gallery.create(tmp_path / "b.gallery", **arguments)
    assert not (tmp_path / "b.gallery").exists()


def test_a_place_that_is_taken_or_empty_is_told(tmp_path, vectors):
    with pytest.raises(StorageError, match=Path(vectors.path).name):
        Gallery.create(vectors.path, dimension=4, name="x")
    with pytest.raises(StorageError, match=r"nothing\.gallery"):
        Gallery.open(tmp_path / "nothing.gallery")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones((2, 5)), "24"),
        (np.full((1, 24), np.nan), "NaN"),
        (np.zeros((1, 24)), "zero"),
        ([["a"] * 24], "number"),
        (np.ones((1, 2, 24)), "shape"),
    ],
)
def test_bad_vectors_are_told(vectors, rows, message):
    with pytest.raises(DataError, match=message):
        vectors.add(rows, ["a"] * len(rows))
    assert len(vectors) == 180


def test_a_query_must_be_one(vectors):
    with pytest.raises(DataError, match="one"):
        vectors.identify(np.ones((2, 24)))
    with pytest.raises(DataError, match="whole"):
        vectors.search(np.ones(24), k=0)
    with pytest.raises(ModelError, match="model"):
        Gallery.open(vectors.path, "efficientnet-lite0")


def test_half_precision_answers_alike(tmp_path, points):
    rows, labels = points
    with Gallery.create(tmp_path / "h.gallery", dimension=24, name="x", dtype="float16") as half:
        half.add(rows, labels)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        ids = [near.item.id for near in half.search(rows[0], k=180)]
        np.testing.assert_allclose(np.sort(half.store.vectors(ids), axis=0), np.sort(unit, axis=0), atol=1e-3)
        assert half.identify(torch.from_numpy(rows[0])).label == labels[0]


def test_euclidean_vectors_keep_their_length(tmp_path):
    with Gallery.create(tmp_path / "e.gallery", dimension=2, name="x", space="euclidean") as flat:
        flat.add([[0, 0], [3, 4]], ["a", "b"])
        assert [near.distance for near in flat.search([0, 0], k=2)] == pytest.approx([0, 5])


def test_a_change_is_whole_or_nothing(vectors):
    id = vectors.items(limit=1)[0].id
    before = vectors.get(id)
    with pytest.raises(DataError):
        vectors.change(id, metadata={"n": 1}, label="a\tb")
    assert vectors.get(id) == before
    generation = vectors.store.generation
    vectors.change(id, metadata={"n": 1}, label="new")
    assert (vectors.get(id).label, vectors.get(id).metadata) == ("new", {"n": 1})
    assert vectors.store.generation == generation + 1
    with pytest.raises(DataError, match="nobody"):
        vectors.change("nobody", label="x")


def test_a_large_gallery_answers_before_it_was_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.gallery.calibration.calibration._QUICK", 10)
    with Gallery.create(tmp_path / "l.gallery", dimension=4, name="x") as large:
        large.auto_recalibrate = False
        large.add(np.random.default_rng(0).normal(size=(60, 4)), ["a", "b"] * 30)
        match = large.identify([1, 0, 0, 0])
        assert (match.probability, match.known) == (None, None)
        assert match.label in ("a", "b")
        assert "Calibrating" in match.reason
        large.recalibrate()
        assert large.identify([1, 0, 0, 0]).probability is not None
