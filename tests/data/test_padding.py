"""Padding instead of cropping: pixels by hand, and everyone who looks at an image as a model does."""

from __future__ import annotations

import io
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch import nn

from nearkin.audits.explanation import explain_images
from nearkin.data import ArrayStore, Dataset, InputSpec, Manifest
from nearkin.data.augment import (
    EvalTransform,
    PadTransform,
    TrainTransform,
    border_colour,
    fitting,
    margins,
    padded,
    plain_view,
    random_box,
    transform_for,
)
from nearkin.data.decode import decode_image
from nearkin.data.section import DataSection
from nearkin.errors import NearkinError
from nearkin.gallery.model import QueryEncoder
from nearkin.models import CacheViews, Embedder, FeatureCache, ModelSection, build_embedder, make_pooling
from nearkin.models.backbones import Backbone
from nearkin.models.build import pretrained_baseline
from nearkin.recipe import load_recipe
from nearkin.spaces import Sphere
from nearkin.training import Run, train

GREY = InputSpec(channels=1, size=8, mean=(0.5,), std=(0.5,), fit="pad")
COLOUR = InputSpec(channels=3, size=8, mean=(0.5,) * 3, std=(0.5,) * 3, fit="pad")


def noise(height, width, channels=3, seed=0):
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def median_of_border(pixels):
    """The lower median of each channel over the outermost pixels, each counted once."""
    height, width = pixels.shape[:2]
    edge = [
        pixels[row, column]
        for row in range(height)
        for column in range(width)
        if row in (0, height - 1) or column in (0, width - 1)
    ]
    return np.array([statistics.median_low(map(int, values)) for values in zip(*map(np.atleast_1d, edge), strict=True)])


def by_hand(pixels, size):
    """Pixels (h, w) or (h, w, C), none larger than `size`, in the middle of a square."""
    height, width = pixels.shape[:2]
    square = np.empty((size, size, *pixels.shape[2:]), np.uint8)
    colour = median_of_border(pixels)
    for row in range(size):
        for column in range(size):
            inside = (row - (size - height) // 2, column - (size - width) // 2)
            fits = 0 <= inside[0] < height and 0 <= inside[1] < width
            square[row, column] = pixels[inside] if fits else colour if pixels.ndim == 3 else colour[0]
    return square


SMALL = [(8, 8), (3, 5), (5, 3), (8, 3), (2, 7), (1, 1), (1, 8), (6, 1), (7, 2)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), SMALL)
def test_a_small_image_keeps_its_pixels(height, width, channels):
    pixels = noise(height, width, channels)
    assert np.array_equal(np.asarray(padded(Image.fromarray(pixels), 8)), by_hand(pixels, 8))


def test_the_pixels_of_a_tiny_image():
    image = Image.fromarray(np.array([[10, 20, 30]], np.uint8))
    expected = [[20] * 4, [10, 20, 30, 20], [20] * 4, [20] * 4]
    assert np.asarray(padded(image, 4)).tolist() == expected


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "scaled"),
    [(16, 16, (8, 8)), (20, 10, (8, 4)), (10, 30, (3, 8)), (40, 9, (8, 2)), (9, 1, (8, 1))],
)
def test_a_large_image_is_scaled_until_its_longer_side_fits(height, width, scaled, channels):
    image = Image.fromarray(noise(height, width, channels))
    small = image.resize(scaled[::-1], Image.Resampling.BILINEAR, reducing_gap=2.0)
    assert fitting(width, height, 8) == scaled[::-1]
    assert np.array_equal(np.asarray(padded(image, 8)), by_hand(np.asarray(small), 8))


@settings(max_examples=60, deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3]))))
def test_the_fill_is_the_median_of_the_border(pixels):
    found = border_colour(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]))
    assert list(np.atleast_1d(found)) == list(median_of_border(pixels))


def test_something_cut_at_an_edge_does_not_tint_the_fill():
    pixels = np.full((6, 4, 3), 250, np.uint8)
    pixels[2:4] = 0
    assert border_colour(Image.fromarray(pixels)) == (250, 250, 250)


def test_a_very_long_image_needs_no_square_of_its_length():
    long = Image.fromarray(np.full((1, 60_000), 7, np.uint8))
    assert padded(long, 8).size == (8, 8)
    assert TrainTransform(GREY)(long, np.random.default_rng(0)).shape == (1, 8, 8)
    assert max(PadTransform(GREY).frame(long)[0].size) == 2048


@pytest.mark.parametrize(("height", "width"), [*SMALL, (20, 10), (10, 31)])
def test_transforms_give_the_channels_of_the_input(height, width):
    colour, grey = Image.fromarray(noise(height, width)), Image.fromarray(noise(height, width, 1))
    assert np.array_equal(PadTransform(GREY)(colour)[0], padded(colour.convert("L"), 8))
    assert np.array_equal(PadTransform(GREY)(grey)[0], padded(grey, 8))
    assert np.array_equal(PadTransform(COLOUR)(colour).permute(1, 2, 0), padded(colour, 8))
    shown = PadTransform(COLOUR)(grey)
    assert shown.dtype == torch.uint8
    assert all(np.array_equal(channel, padded(grey, 8)) for channel in shown)


def test_other_modes_become_colour():
    image = Image.fromarray(noise(5, 4)).convert("CMYK")
    assert np.array_equal(PadTransform(COLOUR)(image).permute(1, 2, 0), padded(image.convert("RGB"), 8))


@settings(max_examples=80, deadline=None)
@given(width=st.integers(1, 300), height=st.integers(1, 300))
def test_the_box_says_where_the_image_lies_in_the_square(width, height):
    left, top, right, bottom = PadTransform(COLOUR).box(width, height)
    across, down = 8 / (right - left), 8 / (bottom - top)
    w, h = fitting(width, height, 8)
    place = (-left * across, -top * down, (width - left) * across, (height - top) * down)
    x, y = margins(w, h, 8)
    assert place == pytest.approx((x, y, x + w, y + h))
    assert max(w, h) == min(8, max(width, height))


@pytest.mark.parametrize(("width", "height"), [(640, 400), (400, 640), (900, 70), (100, 80), (64, 64), (65, 64)])
def test_a_jpeg_that_is_decoded_smaller_is_seen_alike(width, height):
    rows, columns = np.mgrid[0:height, 0:width]
    smooth = np.stack([rows * 255 / height, columns * 255 / width, 0 * rows + 90], axis=2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(smooth).save(buffer, "JPEG", quality=95)
    spec = InputSpec(channels=3, size=64, mean=(0.0,) * 3, std=(1.0,) * 3, fit="pad")
    view = PadTransform(spec)
    whole, hinted = (view(decode_image(buffer.getvalue(), "x", hint)).int() for hint in (None, view.hint))
    assert (whole - hinted).abs().max() <= 6


def test_random_crops_are_of_the_padded_image():
    image = Image.fromarray(noise(5, 12))
    transform = TrainTransform(COLOUR, (0.3, 0.8))
    assert fitting(12, 5, transform.hint) == (12, 5)
    square = Image.fromarray(by_hand(np.asarray(image), 12))
    for seed in range(5):
        box = random_box(12, 12, (0.3, 0.8), (3 / 4, 4 / 3), np.random.default_rng(seed))
        expected = square.resize((8, 8), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        assert np.array_equal(transform(image, np.random.default_rng(seed)).permute(1, 2, 0), expected)
    whole = square.resize((8, 8), Image.Resampling.BILINEAR, reducing_gap=2.0)
    assert np.array_equal(transform(image).permute(1, 2, 0), whole)


def test_the_recipe_chooses_the_transform():
    crop = InputSpec(channels=3, size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert isinstance(plain_view(crop), EvalTransform)
    assert isinstance(transform_for(COLOUR, None, train=False), PadTransform)
    assert isinstance(transform_for(COLOUR, DataSection(crop="centre"), train=True), PadTransform)
    assert isinstance(transform_for(COLOUR, DataSection(), train=True), TrainTransform)
    assert isinstance(transform_for(crop, DataSection(crop="centre"), train=True), EvalTransform)


def test_the_input_is_saved_and_an_old_one_was_cropped():
    assert InputSpec.from_dict(COLOUR.to_dict()) == COLOUR
    fields = COLOUR.to_dict()
    assert fields.pop("fit") == "pad"
    old = InputSpec.from_dict(fields)
    assert old.fit == "crop"
    assert old.to_dict() == fields  # nothing new in what fingerprints are made of


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InputSpec(1, 8, (0.5,), (0.5,), fit="squeeze"), "squeeze"),
        (lambda: InputSpec(1, 8, (0.0,), (1.0,), kind="audio", fit="pad"), "image"),
        (lambda: build_embedder(ModelSection(backbone="tdnn", fit="pad")), "audio"),
        (lambda: load_recipe("contrastive", overrides=["model.fit=squeeze"]), r"model\.fit"),
    ],
)
def test_what_cannot_be_padded_is_refused(make, message):
    with pytest.raises(NearkinError, match=message):
        make()


# Whoever looks through a model.

SIZES = [(16, 16), (10, 7), (6, 30), (40, 22), (16, 9), (3, 3)]


@pytest.fixture
def embedder() -> Embedder:
    return build_embedder(ModelSection(backbone="conv4", size=16, dimension=6, freeze="all", fit="pad"), seed=1).eval()


@pytest.fixture
def images() -> Dataset:
    pixels = {f"{place}.png": noise(*size, seed=place) for place, size in enumerate(SIZES)}
    return Dataset(Manifest.from_rows(list(pixels), ["one", "other"] * 3), ArrayStore(pixels), name="odd sizes")


def vectors_by_hand(embedder, images):
    shown = [np.asarray(padded(images.image(row), 16)) for row in range(len(images))]
    with torch.no_grad():
        return embedder.embed(embedder.normalise(torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2))).numpy()


def test_encoding_pads(embedder, images, tmp_path):
    expected = vectors_by_hand(embedder, images)
    np.testing.assert_allclose(embedder.encode(images, progress=False), expected, atol=1e-5)
    pictures = [images.image(row) for row in range(len(images))]
    np.testing.assert_allclose(embedder.encode(pictures, progress=False), expected, atol=1e-5)
    pictures[2].save(tmp_path / "one.png")
    np.testing.assert_allclose(embedder.encode(tmp_path / "one.png", progress=False), expected[2:3], atol=1e-5)
    np.testing.assert_allclose(QueryEncoder(embedder).encode(pictures), expected, atol=1e-5)
    cropping = build_embedder(ModelSection(backbone="conv4", size=16, dimension=6), seed=1).eval()
    assert not np.allclose(cropping.encode(images, progress=False)[1:], expected[1:], atol=1e-3)
    np.testing.assert_allclose(cropping.encode(images, progress=False)[:1], expected[:1], atol=1e-5)  # fits as it is


@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_tensors_and_float_arrays_are_padded_too(embedder, size, as_float):
    pixels = noise(*size, seed=5)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    given = tensor / 255.0 if as_float else tensor
    tolerance = 1e-5 if max(size) <= 16 else 0.1  # torch and Pillow scale a little differently
    expected = embedder.encode(Image.fromarray(pixels), progress=False)
    np.testing.assert_allclose(embedder.encode(given, progress=False), expected, atol=tolerance)
    floats = (pixels / 255.0).astype(np.float32)
    np.testing.assert_allclose(embedder.encode(floats, progress=False), expected, atol=tolerance)


def test_a_saved_model_still_pads(embedder, images, tmp_path):
    embedder.save(tmp_path / "model.safetensors")
    loaded = Embedder.load(tmp_path / "model.safetensors")
    assert loaded.spec.fit == "pad"
    assert loaded.fingerprint() == embedder.fingerprint()
    np.testing.assert_array_equal(loaded.encode(images, progress=False), embedder.encode(images, progress=False))
    cropping = build_embedder(ModelSection(backbone="conv4", size=16, dimension=6, freeze="all"), seed=1)
    assert cropping.fingerprint() != embedder.fingerprint()
    assert "fit" not in cropping.architecture()["input"]


def test_the_pretrained_baseline_sees_what_the_model_sees(embedder, monkeypatch):
    monkeypatch.setattr("nearkin.models.build.assemble", lambda architecture, **_: architecture["input"])
    assert pretrained_baseline(embedder)["fit"] == "pad"


def test_the_cache_does_not_confuse_padded_views_with_crops(embedder, images, tmp_path):
    cropping = build_embedder(ModelSection(backbone="conv4", size=16, dimension=6, freeze="all"), seed=1).eval()
    views = CacheViews(crops=1)
    made = [
        FeatureCache.build(model, images, at="pooling", directory=tmp_path, views=views, progress=False)
        for model in (embedder, cropping)
    ]
    assert made[0].key != made[1].key
    assert not made[1].reused
    rows = np.arange(len(images))
    np.testing.assert_allclose(made[0].encode(embedder, rows), vectors_by_hand(embedder, images), atol=1e-5)
    random = [
        TrainTransform(embedder.spec, (0.4, 1.0))(images.image(row), np.random.default_rng([0, row, 1])) for row in rows
    ]
    with torch.no_grad():
        expected = embedder.pooled(embedder.normalise(torch.stack(random)))
    np.testing.assert_allclose(made[0].gather(rows, 1), expected, atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(60, 20), (20, 60), (12, 5), (200, 90)])
def test_heat_lies_where_the_image_is(width, height):
    """A model whose map is its input looks at the one bright pixel."""
    spec = InputSpec(channels=3, size=32, mean=(0.0,) * 3, std=(1.0,) * 3, fit="pad")
    model = Embedder(
        Backbone(spec, {"only": nn.Identity()}, {"only": 3}), make_pooling("gap", 3), nn.Identity(), Sphere()
    )
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 4, 3 * width // 4] = 255
    if max(width, height) > 32:
        pixels[: height // 2, width // 2 :] = 255
    (found,) = explain_images(model.eval(), Image.fromarray(pixels), progress=False)
    rows, columns = np.mgrid[0:32, 0:32] + 0.5
    weight = np.clip(found.map, 0, None)
    left, top, right, bottom = found.box
    x = left + (columns * weight).sum() / weight.sum() * (right - left) / 32
    y = top + (rows * weight).sum() / weight.sum() * (bottom - top) / 32
    bright = np.argwhere(pixels[:, :, 0] > 0) + 0.5
    cell = (right - left) / 32
    assert (y, x) == pytest.approx(tuple(bright.mean(0)), abs=cell)
    side = max(width, height, 32)
    assert found.overlay().size == (side, side)
    assert found.seen().size == (side, side)


@pytest.mark.parametrize("more", [["data.crop=centre"], [], ["model.freeze=all", "model.cache=true"]])
def test_a_recipe_trains_on_padded_images(images, tiny, tmp_path, more):
    many = images.select(np.tile(np.arange(6), 8))
    pixels = {f"{place}.png": np.asarray(many.image(place)) for place in range(48)}
    labels = [f"class {place % 8}" for place in range(48)]
    dataset = Dataset(Manifest.from_rows(list(pixels), labels), ArrayStore(pixels))
    recipe = load_recipe("contrastive", [*tiny, "model.fit=pad", "training.max_steps=4", *more])
    run = Run(tmp_path / "run")
    trained = train(dataset, recipe, run, source="odd", cache_directory=tmp_path / "cache", progress=False).embedder
    loaded = Embedder.load(run.model_file)
    assert loaded.spec.fit == trained.spec.fit == "pad"
    np.testing.assert_allclose(loaded.encode(images, progress=False), vectors_by_hand(loaded, images), atol=1e-4)
