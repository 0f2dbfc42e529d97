from __future__ import annotations

import json
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from nearkin.data import EvalTransform, TrainTransform
from nearkin.errors import DataError, ModelError, StorageError, UnknownNameError
from nearkin.models import CacheViews, Encoder, FeatureCache, ModelSection, build_embedder, cache, cache_point
from nearkin.models import cache as cache_module


@pytest.fixture
def frozen(make_embedder):
    return make_embedder(freeze="all")


def build(embedder, dataset, directory, **changes):
    settings = {"at": cache_point(embedder), "progress": False} | changes
    return FeatureCache.build(embedder, dataset, directory=directory, **settings)


def test_pooled_vectors_are_those_of_the_model(frozen, make_images, tmp_path):
    dataset = make_images(40)
    cache = build(frozen, dataset, tmp_path)
    assert (cache.at, cache.views, len(cache), cache.reused) == ("pooling", 1, 40, False)
    expected = frozen.encode_pooled(dataset, progress=False)
    rows = np.array([3, 39, 0, 3])
    found = cache.gather(rows)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected[rows], atol=1e-5)
    np.testing.assert_allclose(
        cache.encode(frozen, rows, batch_size=3), frozen.encode(dataset, progress=False)[rows], atol=1e-6
    )


def test_maps_of_a_stage_enter_there(make_embedder, make_images, tmp_path):
    embedder = make_embedder(freeze="block2", pooling="gem").eval()
    dataset = make_images()
    cache = build(embedder, dataset, tmp_path)
    assert cache.at == "block2"
    maps = cache.gather(np.arange(10))
    assert maps.shape == (10, 64, 4, 4)
    assert maps.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(maps, Encoder(embedder, at="block2").encode(dataset, progress=False), atol=1e-5)
    expected = embedder.encode(dataset, progress=False)
    np.testing.assert_allclose(embedder.embed(maps, start="block2").detach(), expected, atol=1e-5)
    np.testing.assert_allclose(cache.encode(embedder, np.arange(10)), expected, atol=1e-5)


def test_views_are_plain_mirrored_and_random_crops(frozen, make_images, tmp_path):
    dataset = make_images(5)
    views = CacheViews(flip=True, crops=2, crop_scale=(0.3, 0.9))
    cache = build(frozen, dataset, tmp_path, views=views, seed=7)
    assert cache.views == 4
    encoder = Encoder(frozen, at="pooling")
    crop = TrainTransform(frozen.spec, (0.3, 0.9))
    for index in range(5):
        image = dataset.load(index)
        shown = [EvalTransform(frozen.spec)(image)]
        shown.append(shown[0].flip(-1))
        for view in (2, 3):
            rng = np.random.default_rng([7, index, view])
            tensor = crop(image, rng)
            shown.append(tensor.flip(-1) if rng.random() < 0.5 else tensor)
        expected = encoder(torch.stack(shown)).numpy()
        found = cache.gather(np.full(4, index), np.arange(4)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.allclose(cache.gather(np.arange(5), 2), cache.gather(np.arange(5), 3), atol=1e-3)


def test_half_precision(frozen, make_images, tmp_path):
    dataset = make_images()
    full, half = build(frozen, dataset, tmp_path), build(frozen, dataset, tmp_path, dtype="float16")
    rows = np.arange(10)
    assert half.gather(rows).dtype == torch.float32
    torch.testing.assert_close(half.gather(rows), full.gather(rows), rtol=1e-3, atol=1e-3)
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("*.npy"))
    assert sizes[1] - sizes[0] == 10 * 64 * 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_broken_weights_are_not_blamed_on_the_precision(dtype, frozen, make_images, tmp_path):
    with torch.no_grad():
        frozen.backbone.stages["block4"][1].bias.fill_(float("nan"))
    with pytest.raises(ModelError, match="weights") as told:
        build(frozen, make_images(), tmp_path, dtype=dtype)
    assert "cache_dtype" not in str(told.value)


def test_half_precision_overflow_is_an_error(frozen, make_images, tmp_path):
    with torch.no_grad():
        frozen.backbone.stages["block4"][1].bias.fill_(1e6)
    with pytest.raises(ModelError, match="cache_dtype"):
        build(frozen, make_images(), tmp_path, dtype="float16")
    assert not list(tmp_path.iterdir())


def test_a_finished_cache_is_used_again(frozen, make_images, tmp_path, monkeypatch):
    first = build(frozen, make_images(), tmp_path)
    monkeypatch.setattr(cache_module, "write_rows", lambda *_: pytest.fail("computed again"))
    again = build(frozen, make_images(), tmp_path, seed=5)  # without crops the seed decides nothing
    assert again.reused
    assert again.key == first.key
    assert torch.equal(again.gather(np.arange(10)), first.gather(np.arange(10)))


def test_a_large_cache_stays_on_disk(frozen, make_images, tmp_path, monkeypatch):
    first = build(frozen, make_images(), tmp_path)
    monkeypatch.setattr(cache_module, "_IN_MEMORY", 0)
    mapped = build(frozen, make_images(), tmp_path)
    assert mapped.reused
    assert not mapped._rows.flags.writeable
    assert torch.equal(mapped.gather(np.arange(10)), first.gather(np.arange(10)))


def test_the_key_follows_everything_that_decides_the_content(frozen, make_embedder, make_images, tmp_path):
    images = make_images()
    base = build(frozen, images, tmp_path).key
    two = CacheViews(crops=2)
    keys = {
        "data": build(frozen, make_images(seed=1), tmp_path).key,
        "rows": build(frozen, images.select(range(9)), tmp_path).key,
        "weights": build(make_embedder(seed=1, freeze="all"), images, tmp_path).key,
        "size": build(make_embedder(size=17, freeze="all"), images, tmp_path).key,
        "pooling": build(make_embedder(pooling="gmp", freeze="all"), images, tmp_path).key,
        "place": build(frozen, images, tmp_path, at="block4").key,
        "dtype": build(frozen, images, tmp_path, dtype="float16").key,
        "flip": build(frozen, images, tmp_path, views=CacheViews(flip=True)).key,
        "crops": build(frozen, images, tmp_path, views=two).key,
        "seed": build(frozen, images, tmp_path, views=two, seed=1).key,
        "scale": build(frozen, images, tmp_path, views=CacheViews(crops=2, crop_scale=(0.5, 1.0))).key,
    }
    assert len({base, *keys.values()}) == len(keys) + 1
    # The head learns; what it learns must not make the cache stale.
    torch.nn.init.normal_(frozen.head.weight)
    assert build(frozen, images, tmp_path).reused
    later = make_embedder(freeze="block2")
    build(later, images, tmp_path)
    torch.nn.init.normal_(later.backbone.stages["block3"][0].weight)
    assert build(later, images, tmp_path).reused


@pytest.mark.parametrize("damage", ["no card", "bad card", "short array", "no array", "other card"])
def test_a_damaged_cache_is_made_again(frozen, make_images, tmp_path, damage):
    expected = build(frozen, make_images(), tmp_path).gather(np.arange(10))
    array, card = next(tmp_path.glob("*.npy")), next(tmp_path.glob("*.json"))
    if damage == "no card":
        card.unlink()
    elif damage == "bad card":
        card.write_text("{")
    elif damage == "other card":
        card.write_text('{"key": "other"}')
    elif damage == "no array":
        array.unlink()
    else:
        array.write_bytes(array.read_bytes()[:-8])
    again = build(frozen, make_images(), tmp_path)
    assert not again.reused
    assert torch.equal(again.gather(np.arange(10)), expected)


def test_an_interrupted_build_leaves_nothing(frozen, make_images, tmp_path, monkeypatch):
    images = make_images(200)
    load = images.load

    def interrupted(index, hint=None):
        if index == 150:
            raise KeyboardInterrupt
        return load(index, hint)

    monkeypatch.setattr(images, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(frozen, images, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_bad_item_is_named(frozen, make_images, tmp_path, monkeypatch):
    images = make_images()

    def broken(index, hint=None):
        raise OSError("Input/output error")

    monkeypatch.setattr(images, "load", broken)
    with pytest.raises(DataError, match=r"0\.png"):
        build(frozen, images, tmp_path)


def test_too_little_space_is_said_before_writing(frozen, make_images, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
    with pytest.raises(StorageError, match="GiB"):
        build(frozen, make_images(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_while_writing(frozen, make_images, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match=str(tmp_path)):
            build(frozen, make_images(100), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_directory_that_cannot_be(frozen, make_images, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        build(frozen, make_images(), tmp_path / "file" / "cache")


def test_only_what_is_frozen_can_be_cached(make_embedder, make_images, tmp_path):
    images = make_images()
    with pytest.raises(ModelError, match=r"model\.freeze"):
        cache_point(make_embedder())
    assert cache_point(make_embedder(freeze="all", pooling="gem")) == "block4"
    assert cache_point(make_embedder(freeze="block4", pooling="gmp")) == "pooling"
    embedder = make_embedder(freeze="block2")
    for place in ("block3", "pooling"):
        with pytest.raises(ModelError, match=place):
            build(embedder, images, tmp_path, at=place)
    with pytest.raises(UnknownNameError, match="block8"):
        build(embedder, images, tmp_path, at="block8")
    with pytest.raises(DataError, match="items"):
        build(embedder, images.select([]), tmp_path)


def test_audio_has_random_crops_but_no_mirror(tmp_path, make_images):
    section = ModelSection(backbone="tdnn", size=8, pooling="stats", dimension=4, freeze="all")
    embedder = build_embedder(section, audio_seconds=0.1)
    clips = make_images(3)
    clips.kind = "audio"
    clips.load = lambda index, hint=None: np.random.default_rng(index).normal(size=4000).astype(np.float32)
    cache = build(embedder, clips, tmp_path, views=CacheViews(crops=1))
    assert cache.gather(np.arange(3), 1).shape == (3, 3000)
    assert not torch.equal(cache.gather(np.arange(3), 0), cache.gather(np.arange(3), 1))
    with pytest.raises(ModelError, match="flip"):
        build(embedder, clips, tmp_path, views=CacheViews(flip=True))
    with pytest.raises(DataError, match="audio"):
        build(embedder, make_images(2), tmp_path)


def test_an_interrupted_build_goes_on_where_it_was(frozen, make_images, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_PART_ITEMS", 2)
    monkeypatch.setattr(cache, "_BATCH", 2)
    dataset = make_images(9)
    whole = build(frozen, dataset, tmp_path / "whole")
    plain, computed = cache.RowMaker.__call__, []

    def stopped(rows, batch):
        computed.append(len(batch))
        if len(computed) == 4:
            raise KeyboardInterrupt
        return plain(rows, batch)

    monkeypatch.setattr(cache.RowMaker, "__call__", stopped)
    with pytest.raises(KeyboardInterrupt):
        build(frozen, dataset, tmp_path / "part")
    resumed = build(frozen, dataset, tmp_path / "part")
    # A first item to learn the shape, two parts, the interrupted one; then the first item again and the other parts.
    assert computed == [1, 2, 2, 2, 1, 2, 2, 1]
    assert torch.equal(resumed.gather(np.arange(9)), whole.gather(np.arange(9)))
    assert not list((tmp_path / "part").glob("*.parts"))


@pytest.mark.parametrize(("freeze", "places"), [("all", ["stem", "stage2", "pooling"]), ("stage2", ["stem", "stage2"])])
def test_a_model_with_attention_caches_the_attended_stages_too(freeze, places, make_images, tmp_path):
    embedder = attentive(freeze)
    dataset = make_images(7)
    cache = build(embedder, dataset, tmp_path, views=CacheViews(flip=True))
    assert (list(cache.layout), cache.at) == (places, places[-1])
    features = cache.gather(np.array([4, 0, 4]), np.array([0, 1, 1]))
    assert list(features) == places
    assert features["stem"].shape == (3, 16, 32, 32)
    assert all(map_.is_contiguous(memory_format=torch.channels_last) for map_ in features.values() if map_.ndim == 4)
    expected = embedder.encode(dataset, progress=False)
    np.testing.assert_allclose(embedder.embed(features, start=cache.at)[0].detach(), expected[4], atol=1e-5)
    np.testing.assert_allclose(cache.encode(embedder, np.arange(7), batch_size=3), expected, atol=1e-5)
    again = build(embedder, dataset, tmp_path, views=CacheViews(flip=True))
    assert again.reused
    assert again.layout == cache.layout
    half = build(embedder, dataset, tmp_path, dtype="float16").gather(np.arange(7))
    assert all(map_.dtype == torch.float32 for map_ in half.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"stem": [32, 16, 32], "stage2": [16, 16, 32]},
        {"stem": [16, 16, 32], "stage2": [32, 32, 16]},
        {"stem": [32.0, 32.0, 16.0]},
        {"stem": [-32, -32, 16]},
        {"stem": [True, 1024, 16]},
        {"stem": [1024, 16]},
        {"stem": [], "stage2": [24575]},
        {"stem": "aaa"},
        {"pooling": [8, 8]},
        {"stem": None},
    ],
)
def test_shapes_that_cannot_be_are_a_damaged_cache(wrong, make_images, tmp_path):
    embedder, rows = attentive("all"), np.arange(4)
    made = build(embedder, make_images(4), tmp_path)
    card = next(tmp_path.glob("*.json"))
    told = json.loads(card.read_text())
    assert told["layout"] == {"stem": [32, 32, 16], "stage2": [16, 16, 32], "pooling": [64]}
    card.write_text(json.dumps(told | {"layout": told["layout"] | wrong}))
    again = build(embedder, make_images(4), tmp_path)
    assert not again.reused
    assert again.layout == made.layout
    for place, features in made.gather(rows).items():
        assert torch.equal(again.gather(rows)[place], features)


def test_other_attended_stages_need_another_cache(make_images, tmp_path):
    dataset = make_images(4)
    keys = {build(attentive("all", stages), dataset, tmp_path).key for stages in (["stem"], ["stage2"], ["stage1"])}
    assert len(keys) == 3
    # The learned part does not count: another score can use the same rows.
    multiplicative = attentive("all", ["stem"], score="multiplicative")
    assert build(multiplicative, dataset, tmp_path).reused


def attentive(freeze, stages=("stem", "stage2"), **options):
    section = ModelSection(
        backbone="resnet20", dimension=6, freeze=freeze, attention={"stages": list(stages), **options}
    )
    embedder = build_embedder(section).eval()
    for parameter in embedder.attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return embedder
