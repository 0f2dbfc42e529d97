"""Explanations of images: the heat lies on what caused it, whatever the image's shape, and reports can show it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nearkin as nk
from nearkin.audits.explanation import by_image, common_scale, draw_looks, draw_overview
from nearkin.data import ArrayStore, Dataset, Manifest
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError, ModelError, UnknownNameError
from nearkin.models import Embedder, ModelSection, build_embedder, make_pooling
from nearkin.models.backbones import Backbone
from nearkin.spaces import Sphere


@pytest.fixture(scope="module")
def bright() -> Embedder:
    """A model that sees nothing but brightness, on a map of 16 x 16 fields of 8 pixels."""
    spec = InputSpec(channels=3, size=128, mean=(0.0,) * 3, std=(1.0,) * 3)
    backbone = Backbone(spec, {"shrink": nn.AvgPool2d(8)}, {"shrink": 3})
    return Embedder(backbone, make_pooling("gap", 3), nn.Identity(), Sphere()).eval()


@pytest.fixture(scope="module")
def birds() -> Dataset:
    rng = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(40)]
    images = {name: rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for name in names}
    return Dataset(Manifest.from_rows(names, [f"class {i % 15}" for i in range(40)]), ArrayStore(images), name="birds")


def make(pooling="gap", **parameters) -> Embedder:
    section = ModelSection(backbone="conv4", size=32, dimension=8, pooling=pooling, pooling_parameters=parameters)
    return build_embedder(section).eval()


def attentive(**options) -> Embedder:
    """A model with attention whose weights differ."""
    section = ModelSection(
        backbone="conv4", size=32, dimension=8, attention={"stages": ["block2", "block3"], **options}
    )
    embedder = build_embedder(section).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scores in embedder.attention.scores.values():
            scores.score.weight.normal_(generator=generator)
    return embedder


def with_square(width, height, left, top, side):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top : top + side, left : left + side] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    ("size", "corner"),
    [((300, 300), (60, 180)), ((640, 300), (250, 60)), ((300, 640), (90, 400)), ((97, 61), (40, 30))],
)
def test_the_heat_lands_on_the_bright_square(bright, size, corner):
    side = min(size) // 8
    image = with_square(*size, *corner, side)
    (found,) = nk.explain(bright, image, progress=False)
    assert found.what == "contribution"
    painted = np.asarray(found.overlay()).astype(int)
    assert painted.shape == (size[1], size[0], 3)
    left, top, right, bottom = (round(edge) for edge in found.box)
    inside = painted[top + 2 : bottom - 2, left + 2 : right - 2]
    heat = inside[..., 0] - inside[..., 2]  # orange, on an image without colours
    weight = np.clip(heat, 0, None).astype(float)
    rows, columns = np.indices(weight.shape)
    centre = (columns * weight).sum() / weight.sum() + left + 2, (rows * weight).sum() / weight.sum() + top + 2
    cell = (right - left) / 16
    assert abs(centre[0] - (corner[0] + side / 2)) < cell / 2
    assert abs(centre[1] - (corner[1] + side / 2)) < cell / 2


def test_what_the_model_did_not_see_has_no_heat(bright):
    image = with_square(600, 300, 10, 10, 60)  # outside of the centre square
    (found,) = nk.explain(bright, image, progress=False)
    assert np.allclose(found.map, 0)
    assert np.asarray(found.seen()).max() == 0
    left, top, right, bottom = found.box
    assert (left, right) == pytest.approx((300 - 131.5, 300 + 131.5), abs=0.1)
    assert right - left == pytest.approx(bottom - top)


def test_images_may_come_in_any_form(bright, tmp_path):
    image = with_square(50, 40, 20, 10, 9)
    for name in ("one.png", "two.PNG", ".hidden.png"):
        image.save(tmp_path / name)
    (tmp_path / "deeper").mkdir()
    image.save(tmp_path / "deeper" / "three.png")
    (tmp_path / "notes.txt").write_text("no image")
    expected = nk.explain(bright, image, progress=False)[0].map
    given = [tmp_path, str(tmp_path / "one.png"), image, np.asarray(image), (tmp_path / "one.png").read_bytes()]
    found = nk.explain(bright, given, batch_size=3, progress=False)
    assert [one.name for one in found] == [
        str(tmp_path / "deeper" / "three.png"),
        str(tmp_path / "one.png"),
        str(tmp_path / "two.PNG"),
        str(tmp_path / "one.png"),
        "Image 3",
        "Image 4",
        "Image 5",
    ]
    for one in found:
        assert np.allclose(one.map, expected)
        assert np.array_equal(np.asarray(one.image), np.asarray(image))


def test_pictures_that_were_saved_are_no_images_of_a_folder(bright, tmp_path):
    with_square(50, 40, 20, 10, 9).save(tmp_path / "one.png")
    (found,) = nk.explain(bright, tmp_path, progress=False)
    found.save(tmp_path / "looks.png")
    assert [one.name for one in nk.explain(bright, tmp_path, progress=False)] == [str(tmp_path / "one.png")]
    assert len(nk.explain(bright, tmp_path / "looks.png", progress=False)) == 1  # named by itself, it is meant
    assert Image.open(tmp_path / "looks.png").info["Software"] == "nearkin explain"
    (tmp_path / "one.png").unlink()
    with pytest.raises(DataError, match="explain"):
        nk.explain(bright, tmp_path, progress=False)


def test_the_contributions_are_those_of_the_embedding(birds):
    embedder = make()
    found = nk.explain(embedder, birds, what="contribution", progress=False)
    assert [one.name for one in found] == [f"{i}.png" for i in range(40)]
    raw = torch.from_numpy(embedder.encode_pooled(birds, progress=False)) @ embedder.head.weight.T
    biased = (raw + embedder.head.bias).detach()
    expected = (raw * biased).sum(1) / biased.norm(dim=1)
    assert np.allclose([one.map.sum() for one in found], expected.detach(), atol=1e-4)


@pytest.mark.pixels
def test_an_overlay_can_be_saved_and_is_whole_or_not_there(birds, tmp_path):
    (found,) = nk.explain(make("gsp"), birds.select([0]), progress=False)
    assert found.what == "weights"
    found.save(tmp_path / "deep" / "looks.png")
    assert Image.open(tmp_path / "deep" / "looks.png").width == 960
    (tmp_path / "file").write_text("")
    with pytest.raises(nk.NearkinError, match=r"looks\.png"):
        found.save(tmp_path / "file" / "looks.png")


@pytest.mark.pixels
@pytest.mark.parametrize("what", ["weights", "contribution", "grad-cam", "prototypes"])
def test_every_kind_has_an_overview_on_one_scale(birds, what):
    found = nk.explain(make("gsp", prototypes=5, budget=0.3), birds.select(range(4)), what=what, progress=False)
    assert found[0].map.shape == ((5, 2, 2) if what == "prototypes" else (2, 2))
    assert {one.stage for one in found} == {None}
    png = draw_overview(found)
    assert Image.open(io.BytesIO(png)).width == 1440
    assert common_scale(found) == common_scale(found[::-1])
    assert draw_overview([]) == b""


def test_a_report_shows_images_of_different_classes(birds):
    embedder = make("gsp")
    figure = draw_looks(embedder, birds)
    assert figure.png.startswith(b"\x89PNG")
    assert "12 audited images" in figure.caption
    assert "weights" in figure.caption
    assert figure == draw_looks(embedder, birds)
    assert figure.png != draw_looks(embedder, birds, seed=1).png
    some = draw_looks(embedder, birds, rows=[0, 15, 1, 2], count=3, what="contribution")
    assert "3 audited images" in some.caption
    assert "contribution" in some.caption


def test_classes_come_again_only_when_all_have_come(birds, monkeypatch):
    shown = []
    monkeypatch.setattr("nearkin.audits.explanation.draw_overview", lambda found, labels: shown.extend(labels) or b"")
    draw_looks(make(), birds, count=15)
    assert len(set(shown)) == 15
    shown.clear()
    draw_looks(make(), birds, rows=[0, 15, 30, 1], count=3)  # three of one class and one of another
    assert sorted(shown) == ["class 0", "class 0", "class 1"]


def test_a_report_on_nothing_or_on_audio_has_no_picture(birds):
    assert draw_looks(make(), birds, rows=[]).png == b""
    audio = Dataset(birds.manifest, birds.store, kind="audio")
    assert draw_looks(make(), audio).png == b""


def test_bad_input_is_one_sentence(bright, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match="empty"):
        nk.explain(bright, tmp_path / "empty")
    with pytest.raises(DataError, match="image"):
        nk.explain(bright, [])
    with pytest.raises(DataError, match=r"notes\.txt"):
        nk.explain(bright, tmp_path / "notes.txt", progress=False)
    with pytest.raises(DataError, match=r"absent\.png"):
        nk.explain(bright, tmp_path / "absent.png", progress=False)
    with pytest.raises(DataError, match="uint8"):
        nk.explain(bright, [np.zeros((8, 8), np.uint8), np.zeros((8, 8))])
    with pytest.raises(DataError, match="int"):
        nk.explain(bright, [3], progress=False)
    with pytest.raises(UnknownNameError, match="heat"):
        nk.explain(bright, [np.zeros((8, 8), np.uint8)], what="heat")
    with pytest.raises(ModelError, match="batch"):
        nk.explain(bright, [np.zeros((8, 8), np.uint8)], batch_size=0)


def test_a_model_of_sounds_says_that_images_are_needed():
    embedder = build_embedder(ModelSection(backbone="tdnn", pretrained=False, dimension=8, pooling="stats"))
    with pytest.raises(ModelError, match="audio"):
        nk.explain(embedder, np.zeros((8, 8), np.uint8))


def test_attention_gives_a_map_for_each_stage_of_each_image(birds):
    embedder, some = attentive(), birds.select(range(5))
    found = nk.explain(embedder, some, batch_size=2, progress=False)
    assert [(one.name, one.stage) for one in found] == [
        (f"{item}.png", stage) for item in range(5) for stage in ("block2", "block3")
    ]
    assert {one.what for one in found} == {"attention"}
    assert [one.map.shape for one in found[:2]] == [(8, 8), (4, 4)]
    for item in range(5):
        whole = nk.explain(embedder, some.select([item]), what="attention", progress=False)
        for alone, one in zip(whole, found[2 * item :], strict=False):
            assert np.allclose(alone.map, one.map, atol=1e-5)
            assert one.map.sum() == pytest.approx(1, abs=1e-5)


def test_the_explanations_of_an_image_are_found_together(birds):
    found = nk.explain(attentive(), birds.select(range(3)), progress=False)
    assert [[one.stage for one in maps] for maps in by_image(found)] == [["block2", "block3"]] * 3
    assert by_image([]) == []
    twice = nk.explain(attentive(), [np.asarray(birds.image(0)), np.asarray(birds.image(0))], progress=False)
    assert len(by_image(twice)) == 2
    same = [*found[:2], *found[:2]]  # the same image again
    assert [len(maps) for maps in by_image(same)] == [2, 2]
    last = [one for one in found if one.stage == "block3"]
    assert [len(maps) for maps in by_image(last)] == [1, 1, 1]
    plain = nk.explain(make(), birds.select([0, 0]), progress=False)
    assert [len(maps) for maps in by_image(plain)] == [1, 1]


@pytest.mark.pixels
def test_the_overview_of_attention_is_a_row_an_image(birds):
    found = nk.explain(attentive(), birds.select(range(4)), progress=False)
    sizes = [Image.open(io.BytesIO(draw_overview(found[:count]))).size for count in (2, 4, 8)]
    assert len({width for width, _ in sizes}) == 1
    heights = [height for _, height in sizes]
    assert heights[1] - heights[0] == (heights[2] - heights[1]) / 2 > 200
    with pytest.raises(ValueError, match="shorter"):
        draw_overview(found, ["a caption for each image"] * 3)
    assert common_scale(found) == common_scale(found[::-1])


def test_a_stage_of_an_image_can_be_saved(birds, tmp_path):
    found = nk.explain(attentive(), birds.select([0]), progress=False)
    for one in found:
        one.save(tmp_path / f"{one.stage}.png", common_scale(found))
    fine, coarse = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("block2", "block3"))
    assert fine.shape == coarse.shape
    assert (fine != coarse).any()


@pytest.mark.pixels
def test_a_report_on_attention_names_the_stages_and_is_short(birds, monkeypatch):
    figure = draw_looks(attentive(), birds)
    assert "6 audited images" in figure.caption
    assert "the attention of block2, block3 to their places" in figure.caption
    assert Image.open(io.BytesIO(figure.png)).height < 6 * 360 + 100
    shown = []
    monkeypatch.setattr("nearkin.audits.explanation.draw_overview", lambda found, labels: shown.extend(labels) or b"")
    draw_looks(attentive(), birds, count=3)
    assert len(shown) == 3


def test_grad_cam_lands_on_the_bright_square(bright):
    (found,) = nk.explain(bright, with_square(300, 300, 60, 180, 40), what="grad-cam", progress=False)
    rows, columns = np.indices(found.map.shape)
    left, top, right, _ = found.box
    cell = (right - left) / 16
    centre = [(places * found.map).sum() / found.map.sum() + 0.5 for places in (columns, rows)]
    assert centre[0] * cell + left == pytest.approx(80, abs=cell / 2)
    assert centre[1] * cell + top == pytest.approx(200, abs=cell / 2)


def test_attention_of_a_model_without_any_is_one_sentence(bright):
    with pytest.raises(ModelError, match="grad-cam"):
        nk.explain(bright, np.zeros((8, 8), np.uint8), what="attention", progress=False)
