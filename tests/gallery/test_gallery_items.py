"""What can be enrolled, and what is said of what cannot."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError
from nearkin.gallery.checks import check_ids, check_label, check_metadata, labels_of, metadata_of, vector_rows
from nearkin.gallery.items import MAX_SIDE, new_items, open_item, thumbnail, typed_column

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
        one = open_item(path, "image", "x")
        assert one.source == one.item == str(tmp_path / "a.png")
        assert one.original is None
        assert is_red(picture(one))


def test_bytes_are_kept_as_they_came():
    for format in ("PNG", "JPEG", "WEBP", "BMP"):
        raw = encoded(format)
        one = open_item(memoryview(raw) if format == "BMP" else raw, "image", "x.txt")
        assert (one.item, one.source, one.original) == (raw, None, raw)
        assert is_red(picture(one))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "I;16"])
def test_a_pil_image_is_kept_as_a_png_of_the_same_pixels(mode):
    image = (
        Image.new("RGB", (40, 30), RED).convert("L").convert(mode)
        if mode == "I;16"
        else (Image.new("RGB", (40, 30), RED).convert(mode))
    )
    one = open_item(image, "image", "x")
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
    one = open_item(Image.open(buffer), "image", "x")
    assert Image.open(io.BytesIO(one.original)).size == (30, 40)
    assert one.item.size == (30, 40)


def test_pixels_are_kept_as_a_png():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for item in (pixels, torch.from_numpy(pixels).permute(2, 0, 1)):
        kept = np.asarray(Image.open(io.BytesIO(open_item(item, "image", "x").original)))
        assert np.array_equal(kept, pixels)


def test_floats_are_not_kept_but_have_a_picture():
    red = torch.zeros(3, 20, 30, requires_grad=True)
    red = red + torch.tensor([1.0, 0, 0])[:, None, None]
    for item in (red, red.detach().permute(1, 2, 0).numpy()):
        one = open_item(item, "image", "x")
        assert (one.source, one.original) == (None, None)
        assert is_red(picture(one))
    assert open_item(torch.zeros(5, 4, 4), "image", "x").picture() is None
    assert open_item(torch.zeros(3, 4, 4, dtype=torch.bfloat16), "image", "x").picture() is None


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
        open_item(item, "image", "photo")


def test_a_folder_is_no_item(tmp_path):
    with pytest.raises(DataError, match=tmp_path.name):
        open_item(tmp_path, "image", "x")


def test_bombs_are_refused():
    with pytest.raises(DataError, match="large"):
        open_item(Image.new("1", (9000, 9000)), "image", "photo")
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    with pytest.raises(DataError, match="large"):
        open_item(buffer.getvalue(), "image", "photo")


def test_audio():
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(8000) / 10).astype(np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, 16000, format="WAV", subtype="FLOAT")
    raw = buffer.getvalue()
    one = open_item(raw, "audio", "clip")
    assert np.array_equal(one.item, wave)
    assert (one.source, one.original, one.picture()) == (None, raw, None)
    for item in (wave, torch.from_numpy(wave), wave.astype(np.float64)):
        assert np.array_equal(open_item(item, "audio", "clip").item, wave)
    for bad, message in [
        (b"x", "clip"),
        (wave[:0], "empty"),
        (3, "clip"),
    ]:
        with pytest.raises(DataError, match=message):
            open_item(bad, "audio", "clip")
    with pytest.raises(DataError, match="finite"):
        open_item(np.array([np.nan]), "audio", "clip")


# Many items.


@pytest.fixture
def folder(tmp_path) -> Path:
    for label, name in [("cat", "1.png"), ("cat", "2.png"), ("dog", "1.png")]:
        (tmp_path / "pets" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / label / name).write_bytes(encoded())
    return tmp_path / "pets"


def test_a_folder_of_classes(folder):
    found = new_items(folder)
    assert (len(found), found.labels, found.kind) == (3, ["cat", "cat", "dog"], "image")
    assert found.name(2) == "dog/1.png"
    assert open_item(found.items[2], "image", "x").source == str(folder / "dog" / "1.png")
    assert new_items(str(folder), "pet").labels == ["pet"] * 3
    assert new_items(folder, [None, "x", float("nan")]).labels == [None, "x", None]


def test_a_flat_folder_has_no_labels(tmp_path):
    for name in ("b.png", "a.jpg", ".hidden.png"):
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "README.txt").write_text("notes")
    found = new_items(tmp_path)
    assert [Path(item).name for item in found.items] == ["a.jpg", "b.png"]
    assert found.labels == [None, None]
    assert found.name(0) == str(tmp_path / "a.jpg")
    assert new_items(tmp_path, "x", {"n": 1}).metadata == [{"n": 1}, {"n": 1}]


def test_loose_files_beside_class_folders_are_refused(folder):
    (folder / "stray.png").write_bytes(encoded())
    with pytest.raises(DataError, match=r"stray\.png"):
        new_items(folder)


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="empty"):
        new_items(tmp_path)


def test_a_manifest_brings_metadata(folder):
    (folder / "manifest.csv").write_text(
        "path,label,split,price,code,sold\ncat/1.png,cat,train,10,12,true\ndog/1.png,dog,,2.5,007,false\n"
    )
    found = new_items(folder / "manifest.csv", metadata=[{"price": 3, "x": None}, {}])
    assert found.labels == ["cat", "dog"]
    assert found.metadata == [
        {"split": "train", "price": 3, "code": "12", "sold": True, "x": None},
        {"price": 2.5, "code": "007", "sold": False},
    ]


def test_a_zip_gives_bytes(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder))
    found = new_items(tmp_path / "pets.zip")
    one = open_item(found.items[0], "image", found.name(0))
    assert found.labels == ["cat", "cat", "dog"]
    assert (one.source, one.original) == (None, encoded())


def test_a_dataset_of_arrays():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    dataset = Dataset(Manifest.from_rows(["a", "b"], ["x", "y"], domain=["p", "q"]), ArrayStore(pixels, ["a", "b"]))
    found = new_items(dataset)
    assert found.metadata == [{"domain": "p"}, {"domain": "q"}]
    assert np.array_equal(
        np.asarray(Image.open(io.BytesIO(open_item(found.items[1], "image", "x").original))), pixels[1]
    )


def test_a_name_of_the_catalogue():
    assert len(new_items("digits")) > 1000
    with pytest.raises(DataError, match="digtis"):
        new_items("digtis")


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
        assert len(new_items(item)) == len(new_items([item])) == 1
    assert len(new_items(np.zeros((5, 4, 4, 3), np.uint8))) == len(new_items(torch.zeros(5, 3, 4, 4))) == 5
    assert len(new_items(np.zeros((5, 4, 4), np.uint8))) == 5
    mixed = new_items((file, image, encoded()), ["a", None, 3])
    assert (len(mixed), mixed.labels, mixed.name(0), mixed.name(1)) == (3, ["a", None, "3"], str(file), "Item 1")
    assert len(new_items(np.array([str(file), str(file)]))) == 2
    assert len(new_items(str(file) for _ in range(3))) == 3
    assert len(new_items([])) == 0


@pytest.mark.parametrize("items", [None, 3, {"a": 1}, {"a"}])
def test_what_is_no_list_of_items(items):
    with pytest.raises(DataError, match="folder"):
        new_items(items)


def test_a_missing_path():
    with pytest.raises(DataError, match=r"nowhere/a\.png"):
        new_items("nowhere/a.png")


def test_a_million_paths_are_listed_without_reading_one():
    found = new_items([f"/nowhere/{n}.png" for n in range(1_000_000)], "x", {"a": 1})
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
    found = typed_column(column)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@hypothesis_given(
    st.lists(st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False), min_size=1)
)
def test_a_column_of_numbers_is_read_back(numbers):
    assert typed_column([repr(number) for number in numbers]) == numbers


RED_PICTURE, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def opened(image: Image.Image) -> Image.Image:
    small = Image.open(io.BytesIO(thumbnail(image)))
    small.load()
    return small


def near(colour, expected) -> bool:
    return bool(np.abs(np.asarray(colour, int) - np.asarray(expected, int)).max() < 12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from(["L", "RGB", "RGBA", "P", "1", "CMYK", "LA", "I;16"]))
def test_size_format_and_mode(width, height, mode):
    small = opened(Image.new(mode, (width, height)))
    assert (small.format, small.mode) == ("JPEG", "RGB")
    scale = min(1.0, MAX_SIDE / max(width, height))
    assert max(small.size) <= MAX_SIDE
    assert abs(small.width - max(1, width * scale)) <= 1
    assert abs(small.height - max(1, height * scale)) <= 1


def test_transparency_is_white():
    image = Image.new("RGBA", (100, 50), (0, 0, 0, 0))
    image.paste((*RED_PICTURE, 255), (0, 0, 50, 50))
    small = opened(image)
    assert near(small.getpixel((10, 25)), RED_PICTURE)
    assert near(small.getpixel((90, 25)), WHITE)


def test_a_transparent_colour_of_a_palette_is_white():
    image = Image.new("P", (20, 20), 0)
    image.putpalette([0, 0, 0, *RED_PICTURE])
    image.info["transparency"] = 0
    assert near(opened(image).getpixel((10, 10)), WHITE)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_whatever_the_camera_says(orientation):
    """The picture equals the one that a viewer would show: red above blue."""
    upright = Image.new("RGB", (120, 80), BLUE)
    upright.paste(RED_PICTURE, (0, 0, 120, 40))
    turns = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    stored = upright
    for turn in turns.get(orientation, []):
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    stored.save(buffer, "JPEG", exif=exif, quality=95)
    small = opened(Image.open(buffer))
    assert small.size == (120, 80)
    assert near(small.getpixel((60, 10)), RED_PICTURE)
    assert near(small.getpixel((60, 70)), BLUE)


def test_nothing_is_told_but_the_picture():
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[1] = "N"
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), RED_PICTURE).save(
        buffer, "JPEG", exif=exif, icc_profile=b"SecretProfile" * 20, comment=b"SecretComment", dpi=(300, 300)
    )
    raw = thumbnail(Image.open(buffer))
    assert b"Secret" in buffer.getvalue()
    assert b"Secret" not in raw
    small = Image.open(io.BytesIO(raw))
    assert not small.getexif()
    assert not {"icc_profile", "comment", "exif", "dpi", "xmp"} & set(small.info)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    small = opened(Image.fromarray(np.full((10, 10), 0x8000, np.uint16)))
    assert near(small.getpixel((5, 5)), (127, 127, 127))


def test_the_image_is_left_as_it_is():
    image = Image.new("RGB", (500, 400), RED_PICTURE)
    image.info["comment"] = b"mine"
    thumbnail(image)
    assert (image.size, image.info) == ((500, 400), {"comment": b"mine"})


def test_small_bytes():
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8)
    assert len(thumbnail(Image.fromarray(noise))) < 30_000


def test_no_pixels():
    with pytest.raises(DataError, match="0 x 4"):
        thumbnail(Image.new("RGB", (0, 4)))


def test_an_image_cut_short():
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), RED_PICTURE).save(buffer, "PNG")
    with pytest.raises(DataError, match="small"):
        thumbnail(Image.open(io.BytesIO(buffer.getvalue()[:100])))
