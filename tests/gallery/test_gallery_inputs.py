"""What can be enrolled, and what is said of what cannot."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.gallery.columns import typed
from nearkin.gallery.inputs import (
    check_ids,
    check_label,
    check_metadata,
    given,
    labels_of,
    listed,
    metadata_of,
    vector_rows,
)

RED = (255, 0, 0)


def encoded(format: str = "PNG", size: tuple[int, int] = (40, 30), colour=RED) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, format)
    return buffer.getvalue()


def picture(one) -> Image.Image:
    return Image.open(io.BytesIO(one.picture())).convert("RGB")


def is_red(image: Image.Image) -> bool:
    return bool(np.abs(np.asarray(image, int) - RED).max() < 12)


# One item.


def test_a_path_is_read_again_and_never_kept(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded())
    monkeypatch.chdir(tmp_path)
    for path in ("a.png", Path("a.png"), str(tmp_path / "a.png")):
        one = given(path, "image", "x")
        assert one.source == one.item == str(tmp_path / "a.png")
        assert one.original is None
        assert is_red(picture(one))


def test_bytes_are_kept_as_they_came():
    for format in ("PNG", "JPEG", "WEBP", "BMP"):
        raw = encoded(format)
        one = given(memoryview(raw) if format == "BMP" else raw, "image", "x.txt")
        assert (one.item, one.source, one.original) == (raw, None, raw)
        assert is_red(picture(one))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "I;16"])
def test_a_pil_image_is_kept_as_a_png_of_the_same_pixels(mode):
    image = (
        Image.new("RGB", (40, 30), RED).convert("L").convert(mode)
        if mode == "I;16"
        else (Image.new("RGB", (40, 30), RED).convert(mode))
    )
    one = given(image, "image", "x")
    kept = Image.open(io.BytesIO(one.original))
    assert kept.format == "PNG"
    expected = image.convert("RGB") if mode == "CMYK" else image
    assert np.array_equal(np.asarray(kept.convert(expected.mode)), np.asarray(expected))
    assert picture(one).size == (40, 30)


def test_a_turned_pil_image_is_kept_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), RED).save(buffer, "JPEG", exif=exif)
    one = given(Image.open(buffer), "image", "x")
    assert Image.open(io.BytesIO(one.original)).size == (30, 40)
    assert one.item.size == (30, 40)


def test_pixels_are_kept_as_a_png():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for item in (pixels, torch.from_numpy(pixels).permute(2, 0, 1)):
        kept = np.asarray(Image.open(io.BytesIO(given(item, "image", "x").original)))
        assert np.array_equal(kept, pixels)


def test_floats_are_not_kept_but_have_a_picture():
    red = torch.zeros(3, 20, 30, requires_grad=True)
    red = red + torch.tensor([1.0, 0, 0])[:, None, None]
    for item in (red, red.detach().permute(1, 2, 0).numpy()):
        one = given(item, "image", "x")
        assert (one.source, one.original) == (None, None)
        assert is_red(picture(one))
    assert given(torch.zeros(5, 4, 4), "image", "x").picture() is None
    assert given(torch.zeros(3, 4, 4, dtype=torch.bfloat16), "image", "x").picture() is None


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"", "empty"),
        (b"hello", "photo"),
        (encoded()[:60], "truncated"),
        (encoded("JPEG", (200, 200))[:-300], "truncated"),
        (np.zeros((4, 4, 7), np.uint8), "uint8"),
        (3, r"\bint\b"),
        (Image.new("F", (4, 4)), "decoded"),
        ("nowhere.png", r"nowhere\.png"),
        ("a\0b", "a.*b"),
    ],
)
def test_items_that_cannot_be_used(item, message):
    with pytest.raises(DataError, match=message):
        given(item, "image", "photo")


def test_a_folder_is_no_item(tmp_path):
    with pytest.raises(DataError, match=tmp_path.name):
        given(tmp_path, "image", "x")


def test_bombs_are_refused():
    with pytest.raises(DataError, match="large"):
        given(Image.new("1", (9000, 9000)), "image", "photo")
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    with pytest.raises(DataError, match="large"):
        given(buffer.getvalue(), "image", "photo")


def test_audio():
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(8000) / 10).astype(np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, 16000, format="WAV", subtype="FLOAT")
    raw = buffer.getvalue()
    one = given(raw, "audio", "clip")
    assert np.array_equal(one.item, wave)
    assert (one.source, one.original, one.picture()) == (None, raw, None)
    for item in (wave, torch.from_numpy(wave), wave.astype(np.float64)):
        assert np.array_equal(given(item, "audio", "clip").item, wave)
    for bad, message in [
        (b"x", "clip"),
        (wave[:0], "empty"),
        (3, "clip"),
    ]:
        with pytest.raises(DataError, match=message):
            given(bad, "audio", "clip")
    with pytest.raises(DataError, match="finite"):
        given(np.array([np.nan]), "audio", "clip")


# Many items.


@pytest.fixture
def folder(tmp_path) -> Path:
    for label, name in [("cat", "1.png"), ("cat", "2.png"), ("dog", "1.png")]:
        (tmp_path / "pets" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / label / name).write_bytes(encoded())
    return tmp_path / "pets"


def test_a_folder_of_classes(folder):
    found = listed(folder)
    assert (len(found), found.labels, found.kind) == (3, ["cat", "cat", "dog"], "image")
    assert found.name(2) == "dog/1.png"
    assert given(found.items[2], "image", "x").source == str(folder / "dog" / "1.png")
    assert listed(str(folder), "pet").labels == ["pet"] * 3
    assert listed(folder, [None, "x", float("nan")]).labels == [None, "x", None]


def test_a_flat_folder_has_no_labels(tmp_path):
    for name in ("b.png", "a.jpg", ".hidden.png"):
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "README.txt").write_text("notes")
    found = listed(tmp_path)
    assert [Path(item).name for item in found.items] == ["a.jpg", "b.png"]
    assert found.labels == [None, None]
    assert found.name(0) == str(tmp_path / "a.jpg")
    assert listed(tmp_path, "x", {"n": 1}).metadata == [{"n": 1}, {"n": 1}]


def test_loose_files_beside_class_folders_are_refused(folder):
    (folder / "stray.png").write_bytes(encoded())
    with pytest.raises(DataError, match=r"stray\.png"):
        listed(folder)


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="empty"):
        listed(tmp_path)


def test_a_manifest_brings_metadata(folder):
    (folder / "manifest.csv").write_text(
        "path,label,split,price,code,sold\ncat/1.png,cat,train,10,12,true\ndog/1.png,dog,,2.5,007,false\n"
    )
    found = listed(folder / "manifest.csv", metadata=[{"price": 3, "x": None}, {}])
    assert found.labels == ["cat", "dog"]
    assert found.metadata == [
        {"split": "train", "price": 3, "code": "12", "sold": True, "x": None},
        {"price": 2.5, "code": "007", "sold": False},
    ]


def test_a_zip_gives_bytes(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder))
    found = listed(tmp_path / "pets.zip")
    one = given(found.items[0], "image", found.name(0))
    assert found.labels == ["cat", "cat", "dog"]
    assert (one.source, one.original) == (None, encoded())


def test_a_dataset_of_arrays():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    dataset = Dataset(Manifest.from_rows(["a", "b"], ["x", "y"], domain=["p", "q"]), ArrayStore(pixels, ["a", "b"]))
    found = listed(dataset)
    assert found.metadata == [{"domain": "p"}, {"domain": "q"}]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(given(found.items[1], "image", "x").original))), pixels[1])


def test_a_name_of_the_catalogue():
    assert len(listed("digits")) > 1000
    with pytest.raises(DataError, match="digtis"):
        listed("digtis")


def test_single_items_and_lists(folder):
    file, image = folder / "cat" / "1.png", Image.new("RGB", (4, 4))
    pixels = np.zeros((4, 4, 3), np.uint8)
    for item in (
        str(file),
        file,
        encoded(),
        image,
        pixels,
        pixels[..., 0],
        torch.zeros(3, 4, 4),
        np.zeros(9, np.float32),
    ):
        assert len(listed(item)) == len(listed([item])) == 1
    assert len(listed(np.zeros((5, 4, 4, 3), np.uint8))) == len(listed(torch.zeros(5, 3, 4, 4))) == 5
    assert len(listed(np.zeros((5, 4, 4), np.uint8))) == 5
    mixed = listed((file, image, encoded()), ["a", None, 3])
    assert (len(mixed), mixed.labels, mixed.name(0), mixed.name(1)) == (3, ["a", None, "3"], str(file), "Item 1")
    assert len(listed(np.array([str(file), str(file)]))) == 2
    assert len(listed(str(file) for _ in range(3))) == 3
    assert len(listed([])) == 0


@pytest.mark.parametrize("items", [None, 3, {"a": 1}, {"a"}])
def test_what_is_no_list_of_items(items):
    with pytest.raises(DataError, match="folder"):
        listed(items)


def test_a_missing_path():
    with pytest.raises(DataError, match=r"nowhere/a\.png"):
        listed("nowhere/a.png")


def test_a_million_paths_are_listed_without_reading_one():
    found = listed([f"/nowhere/{n}.png" for n in range(1_000_000)], "x", {"a": 1})
    assert len(found) == 1_000_000
    assert sys.getsizeof(found.metadata) < 10_000_000
    assert all(facts is found.metadata[0] for facts in found.metadata[:1000])


# Labels, metadata, ids, vectors.


def test_labels_become_texts():
    assert labels_of(None, 2) == [None, None]
    assert labels_of("x", 2) == ["x", "x"]
    assert labels_of([1, True, 2.5, np.int64(3), np.str_("y"), None, np.nan], 7) == [
        "1",
        "True",
        "2.5",
        "3",
        "y",
        None,
        None,
    ]
    assert labels_of(np.array([1, 2]), 2) == labels_of(torch.tensor([1, 2]), 2) == ["1", "2"]
    assert labels_of(np.array(["a", None], dtype=object), 2) == ["a", None]
    assert check_label("any <b>/\u2028'\"😀") == "any <b>/\u2028'\"😀"
    assert check_label("x" * 1000) == "x" * 1000


def test_missing_values_of_pandas_mean_no_label():
    pandas = pytest.importorskip("pandas")
    assert labels_of(pandas.Series(["a", None, pandas.NA, pandas.NaT]), 4) == ["a", None, None, None]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("", "empty"),
        (["a", ""], "empty"),
        (["a"], r"\b1\b.*label"),
        (["a", ["b"]], "list"),
        (["a", b"b"], "bytes"),
        (["a", "b\n"], "control"),
        (["a", "\0"], "control"),
        (["a", "\ud800"], "control"),
        (["a", "x" * 1001], "1,001"),
        (["a", float("inf")], "inf"),
        ({"a": 1}, "list"),
        (3, "list"),
    ],
)
def test_labels_that_cannot_be_used(labels, message):
    with pytest.raises(DataError, match=message):
        labels_of(labels, 2)


def test_metadata():
    plain = check_metadata(
        {"a": np.float32(0.5), "b": np.bool_(True), "c": np.int8(3), "d": None, "é x": "y", "n": np.array(4)}
    )
    assert plain == {"a": 0.5, "b": True, "c": 3, "d": None, "é x": "y", "n": 4}
    assert [type(value) for value in plain.values()] == [float, bool, int, type(None), str, int]
    assert metadata_of(None, 2) == [{}, {}]
    assert metadata_of([{"a": 1}, None], 2) == [{"a": 1}, {}]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": float("nan")}, "nan"),
        ({"a": np.float64("inf")}, "inf"),
        ({"a": 2**63}, "64"),
        ({"a": [1]}, "list"),
        ({"a": {}}, "dict"),
        ({"a": b"x"}, "bytes"),
        ({"a": "\0"}, "NUL"),
        ({"": 1}, "200"),
        ({"k" * 201: 1}, "200"),
        ({3: 1}, r"\b3\b"),
        ({"a\0": 1}, "NUL"),
        ({"a": "é" * 32_768}, "65,545"),
        ("text", "mapping"),
    ],
)
def test_metadata_that_cannot_be_used(metadata, message):
    with pytest.raises(DataError, match=message):
        check_metadata(metadata)


def test_metadata_for_each():
    with pytest.raises(DataError, match=r"\b2\b.*metadata"):
        metadata_of([{}, {}], 3)
    with pytest.raises(DataError, match="mapping"):
        metadata_of([{}, 3], 2)


def test_ids():
    assert check_ids(["a b", "é:*?", "x" * 200], 3) == ["a b", "é:*?", "x" * 200]
    assert check_ids("one", 1) == ["one"]
    assert check_ids(np.array(["a", "b"]), 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], r"\b1\b.*ids"),
        (["a", "a"], "twice"),
        (["a", ""], r"\b0\b"),
        (["a", "x" * 201], "201"),
        (["a", "b/c"], "b/c"),
        (["a", ".."], r"\.\."),
        (["a", "."], r"'\.'"),
        (["a", "b\n"], r"b\\n"),
        (["a", 3], r"\b3\b"),
        (["a", None], "None"),
    ],
)
def test_ids_that_cannot_be_used(ids, message):
    with pytest.raises(DataError, match=message):
        check_ids(ids, 2)


@pytest.mark.parametrize(
    "vectors",
    [
        [[1, 2], [3, 4]],
        [(1.0, 2), np.array([3, 4])],
        np.array([[1, 2], [3, 4]], np.float64),
        np.asfortranarray(np.array([[1, 2], [3, 4]], np.float16)),
        torch.tensor([[1.0, 2], [3, 4]], requires_grad=True),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16),
        [torch.tensor([1.0, 2], requires_grad=True), torch.tensor([3.0, 4])],
    ],
)
def test_vectors_of_any_kind(vectors):
    rows = vector_rows(vectors, 2)
    assert rows.dtype == np.float32
    assert rows.flags["C_CONTIGUOUS"]
    assert rows.tolist() == [[1, 2], [3, 4]]


def test_one_vector_and_none():
    assert vector_rows([1, 2, 3], 3).shape == (1, 3)
    assert vector_rows([1, 2, 3], None).shape == (1, 3)
    assert vector_rows([], 3).shape == (0, 3)
    assert vector_rows(np.empty((0, 3)), 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1, 2], [3]], "length"),
        ([1, 2], r"\(1, 2\)"),
        (np.zeros((2, 2, 3)), r"\(2, 2, 3\)"),
        (np.zeros((2, 0)), r"\(2, 0\)"),
        (3.0, r"\(\)"),
        ("abc", "text"),
        ([["a", "b", "c"]], "numbers"),
        ([None, 1, 2], "numbers"),
        (np.zeros((1, 3), complex), "complex128"),
        (torch.zeros(1, 3, dtype=torch.complex64), "complex"),
        (np.ones((1, 3), bool), "bool"),
        ([[0, 0, 0], [0, np.nan, 0]], "row 1"),
        ([[0, 1e39, 0]], "row 0"),
        (object(), "numbers"),
    ],
)
def test_vectors_that_cannot_be_used(vectors, message):
    with pytest.raises(DataError, match=message):
        vector_rows(vectors, 3)


# Columns.


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (["1", "", "2.5", "-3e2"], [1, None, 2.5, -300.0]),
        (["12", "007"], ["12", "007"]),
        (["true", "False", ""], [True, False, None]),
        (["true", "1"], ["true", "1"]),
        (["1", "NaN"], ["1", "NaN"]),
        (["1", "1e999"], ["1", "1e999"]),
        (["9" * 19], ["9" * 19]),
        (["+1"], ["+1"]),
        (["", ""], [None, None]),
        ([], []),
    ],
)
def test_columns_of_texts(column, values):
    found = typed(column)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@hypothesis_given(
    st.lists(st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False), min_size=1)
)
def test_a_column_of_numbers_is_read_back(numbers):
    assert typed([repr(number) for number in numbers]) == numbers
