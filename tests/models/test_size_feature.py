"""The size of an image as a feature: from the file through loaders, cache, training and galleries to the vector."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.attacks.classifier import PixelEmbedder
from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.corruptions import CorruptedDataset
from nearkin.data.decode import decode_image
from nearkin.data.inputs import InputSpec
from nearkin.data.section import DataSection
from nearkin.data.sources import open_data
from nearkin.errors import DataError, ModelError, RecipeError
from nearkin.gallery import Gallery
from nearkin.models import Embedder, FeatureCache, build_embedder
from nearkin.models.embedder import POOLING, SIZE, PixelReader
from nearkin.models.onnx.graph import build_graph
from nearkin.models.section import CacheViews, ModelSection
from nearkin.recipe import load_recipe
from nearkin.training import Run, train
from nearkin.training.start import raw_features

TINY = ["model.backbone=conv4", "model.pretrained=false", "model.channels=3", "model.size=16", "model.fit=pad"]
TINY += ["model.dimension=8", "model.freeze=null", "model.cache=false", "data.workers=0", "data.split=fraction"]
TINY += ["data.test_classes=0.3", "data.val_classes=0.3", "data.classes_per_batch=4", "data.per_class=2"]
TINY += ["training.max_steps=2", "training.evaluate_every=2", "training.lr=0.01", "training.lr_schedule=constant"]
SIZED = [*TINY, "model.size_feature=pixels"]


def section(**changes):
    given = {"backbone": "conv4", "channels": 3, "size": 16, "fit": "pad", "dimension": 8, "freeze": None}
    return ModelSection(**given | {"size_feature": "pixels"} | changes)


def model(seed=0, **changes):
    """A model whose sizes count."""
    embedder = build_embedder(section(**changes), seed=seed)
    if embedder.size_feature is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            embedder.size_feature.weight.copy_(torch.randn(embedder.size_feature.weight.shape, generator=generator))
            embedder.size_feature.bias.fill_(0.3)
    return embedder.eval()


@pytest.fixture(scope="module")
def blots(tmp_path_factory):
    """Six classes of grey rectangles that differ in size alone, with their sizes in micrometres in the manifest."""
    folder = tmp_path_factory.mktemp("blots")
    rng = np.random.default_rng(0)
    lines = ["path,label,width_um,height_um"]
    for label in range(6):
        (folder / f"c{label}").mkdir()
        for item in range(4):
            size = 8 + 6 * label + int(rng.integers(3)), 10 + 5 * label
            Image.new("RGB", size, (90, 120, 150)).save(folder / f"c{label}" / f"{item}.png")
            lines.append(f"c{label}/{item}.png,c{label},{0.5 * size[0]},{2.5 * size[1]}")
    (folder / "sizes.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def by_hand(embedder, pixels, size):
    """The formula of the guide, for one image whose pixels (C, S, S) are in [0, 1]."""
    with torch.no_grad():
        x = embedder.normalise(pixels[None])
        u = embedder.pooling(embedder.backbone(x))[0]
        logs = torch.tensor([math.log(size[0]), math.log(size[1])])
        u = u + embedder.size_feature.weight @ logs + embedder.size_feature.bias
        return torch.nn.functional.normalize(embedder.head(u), dim=0).numpy()


def plain_pixels(image):
    return transform_for(InputSpec(3, 16, (0,) * 3, (1,) * 3, fit="pad"), None, train=False)(image) / 255.0


@pytest.mark.parametrize("size", [(9, 14), (40, 23), (300, 16)])
def test_a_vector_by_hand(size):
    embedder = model()
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
    expected = by_hand(embedder, plain_pixels(image), size)
    np.testing.assert_allclose(embedder.encode(image, progress=False)[0], expected, atol=1e-5)
    raw = np.asarray(image)
    np.testing.assert_allclose(embedder.encode(raw, progress=False)[0], expected, atol=1e-5)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def test_the_size_is_that_of_the_file_however_small_it_was_decoded():
    image = Image.effect_noise((640, 480), 60).convert("RGB")
    small = decode_image(encoded(image, "jpeg"), "it", hint=32)
    assert min(small.size) < 480
    assert small.info["original_size"] == (640, 480)
    turned = image.getexif()
    turned[0x0112] = 6
    upright = decode_image(encoded(image, "jpeg", exif=turned), "it", hint=32)
    assert upright.info["original_size"] == (480, 640)
    clear = Image.new("RGBA", (21, 8), (1, 2, 3, 100))
    assert decode_image(encoded(clear, "png"), "it").info["original_size"] == (21, 8)
    embedder = model()
    content = encoded(image, "jpeg", quality=95)
    expected = by_hand(embedder, plain_pixels(decode_image(content, "it", hint=16)), (640, 480))
    np.testing.assert_allclose(embedder.encode(content, progress=False)[0], expected, atol=1e-5)


def test_whatever_an_item_comes_as_its_vector_is_one(blots):
    embedder, data = model(), open_data(blots, progress=False)
    vectors = embedder.encode(data, progress=False)
    paths = [blots / path for path in data.manifest.paths]
    for items in (paths, [path.read_bytes() for path in paths], [Image.open(path) for path in paths]):
        np.testing.assert_allclose(embedder.encode(items, progress=False), vectors, atol=1e-5)


def test_what_is_cached_is_what_is_computed(blots, tmp_path):
    data = open_data(blots, progress=False)
    stage = model().backbone.stage_names[-2]
    for freeze, at in (("all", POOLING), (stage, stage)):
        embedder = model(freeze=freeze)
        views = CacheViews(flip=True, crops=1)
        cache = FeatureCache.build(embedder, data, at=at, directory=tmp_path, views=views, progress=False)
        assert list(cache.layout) == [SIZE, at]
        sizes = np.log([Image.open(blots / path).size for path in data.manifest.paths])
        for view in range(3):
            np.testing.assert_allclose(cache.gather(np.arange(len(data)), view)[SIZE], sizes, rtol=1e-6)
        found = cache.encode(embedder, np.arange(len(data)))
        np.testing.assert_allclose(found, embedder.encode(data, progress=False), atol=1e-5)
        again = FeatureCache.build(embedder, data, at=at, directory=tmp_path, views=views, progress=False)
        assert again.reused


def test_augmentation_leaves_the_size_alone():
    spec = InputSpec(3, 16, (0.5,) * 3, (0.2,) * 3, fit="pad", size_feature="pixels")
    image = Image.effect_noise((40, 25), 60).convert("RGB")
    samples = torch.stack(
        [transform_for(spec, DataSection(crop="random"), train=True)(image, np.random.default_rng(0))]
    )
    assert samples.shape == (1, 5, 16, 16)
    augment = BatchAugment.for_section(spec, DataSection(jitter=0.5, rotation=30.0, erase=1.0))
    found = augment(samples, step=3)
    for place, side in ((3, 40), (4, 25)):
        assert torch.equal(found[0, place], torch.full((16, 16), math.log(side)))
    plain = InputSpec(3, 16, (0.5,) * 3, (0.2,) * 3, fit="pad")
    torch.testing.assert_close(
        found[:, :3],
        BatchAugment.for_section(plain, DataSection(jitter=0.5, rotation=30.0, erase=1.0))(samples[:, :3], 3),
    )


def run(data, recipe, path, cache):
    return train(data, recipe, Run(path), source="blots", cache_directory=cache, progress=False)


@pytest.mark.parametrize("frozen", [False, True])
def test_training_saving_and_galleries(frozen, blots, tmp_path):
    data = open_data(blots, progress=False)
    changes = ["model.freeze=all", "model.cache=true", "model.cache_views={flip: true}"] if frozen else []
    recipe = load_recipe("normface", [*SIZED, *changes])
    begun = build_embedder(recipe.model, recipe.training.seed)
    assert not begun.size_feature.weight.any()
    result = run(data, recipe, tmp_path / "run", tmp_path)
    # Of two steps the start may have validated best: what the last weights are is in the checkpoint's model.
    embedder = Run(tmp_path / "run").model()
    np.testing.assert_array_equal(embedder.encode(data, progress=False), result.embedder.encode(data, progress=False))
    assert embedder.spec.size_feature == "pixels"
    with torch.no_grad():
        embedder.size_feature.weight.fill_(0.7)
    embedder.save(tmp_path / "model.safetensors")
    loaded = Embedder.load(tmp_path / "model.safetensors")
    assert loaded.fingerprint() == embedder.fingerprint()
    vectors = loaded.encode(data, progress=False)
    gallery = Gallery.create(tmp_path / "gallery", tmp_path / "model.safetensors")
    gallery.add(data)
    content = (blots / data.manifest.paths[5]).read_bytes()
    assert gallery.search(content, k=1)[0].distance == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(gallery.embed([content])[0], vectors[5], atol=1e-5)


def test_a_step_of_training_moves_the_weights_of_the_sizes(blots, tmp_path):
    recipe = load_recipe("normface", SIZED)
    embedder = build_embedder(recipe.model, 0).train()
    spec = embedder.spec
    view = transform_for(spec, None, train=False)
    data = open_data(blots, progress=False)
    x = embedder.normalise(torch.stack([view(data.load(row)) for row in range(len(data))]))
    labels = torch.from_numpy(data.class_ids())
    loss = torch.nn.functional.cross_entropy(embedder(x), labels)
    loss.backward()
    slope = embedder.size_feature.weight.grad
    assert slope.isfinite().all()
    assert slope.abs().sum() > 0
    features = torch.autograd.grad(torch.nn.functional.cross_entropy(embedder.head(u := embedder.pooled(x)), labels), u)
    logs = torch.log(torch.tensor([Image.open(blots / path).size for path in data.manifest.paths]).float())
    torch.testing.assert_close(slope, features[0].T @ logs, rtol=1e-3, atol=1e-6)


def test_columns_of_a_manifest(blots):
    embedder = model(size_feature=("width_um", "height_um"))
    data = open_data(blots / "sizes.csv", progress=False)
    vectors = embedder.encode(data, progress=False)
    widths, heights = (data.manifest.column(name) for name in ("width_um", "height_um"))
    for row in (0, 7):
        expected = by_hand(embedder, plain_pixels(data.image(row)), (float(widths[row]), float(heights[row])))
        np.testing.assert_allclose(vectors[row], expected, atol=1e-5)
    np.testing.assert_allclose(embedder.encode(data.select([7, 0]), progress=False), vectors[[7, 0]], atol=1e-6)
    with pytest.raises(DataError, match="width_um"):
        embedder.encode(blots / data.manifest.paths[0], progress=False)
    with pytest.raises(DataError, match="width_um"):
        embedder.encode(open_data(blots, progress=False), progress=False)
    with pytest.raises(DataError, match="manifest"):
        embedder.encode(torch.rand(3, 16, 16), progress=False)


def test_a_size_that_is_none_is_told(blots, tmp_path):
    text = (blots / "sizes.csv").read_text(encoding="utf-8").replace("\nc0/0.png,c0,", "\nc0/0.png,c0,-")
    (blots / "wrong.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="above 0"):
        model(size_feature=("width_um", "height_um")).encode(
            open_data(blots / "wrong.csv", progress=False), progress=False
        )


def test_corrupted_images_keep_their_size(blots):
    data = open_data(blots, progress=False)
    corrupted = CorruptedDataset(data, "contrast", 3, side=32)
    for row in (0, 20):
        assert corrupted.load(row).info["original_size"] == data.load(row).info["original_size"]


def test_models_without_are_as_they_were(blots):
    plain = model(size_feature=None)
    architecture = plain.architecture()
    assert "size_feature" not in architecture
    assert "size_feature" not in architecture["input"]
    assert plain.size_feature is None
    sized = build_embedder(section(), seed=0).eval()
    shared = {name: value for name, value in sized.state_dict().items() if not name.startswith("size_feature")}
    assert shared.keys() == plain.state_dict().keys()
    assert all(torch.equal(value, shared[name]) for name, value in plain.state_dict().items())
    data = open_data(blots, progress=False)
    np.testing.assert_allclose(sized.encode(data, progress=False), plain.encode(data, progress=False), atol=1e-6)
    assert sized.fingerprint() != plain.fingerprint()
    pixels = PixelReader(sized, data)([0, 1])
    torch.testing.assert_close(pixels, PixelReader(plain, data)([0, 1]))
    raw, plainly = raw_features(model()), raw_features(model(size_feature=None))
    assert raw.size_feature is None
    np.testing.assert_allclose(raw.encode(data, progress=False), plainly.encode(data, progress=False), atol=1e-6)


def test_a_shorter_model_keeps_its_sizes(blots):
    embedder = model()
    short, data = embedder.shortened(3), open_data(blots, progress=False)
    with torch.no_grad():
        view = transform_for(embedder.spec, None, train=False)
        x = embedder.normalise(torch.stack([view(data.load(row)) for row in range(4)]))
        torch.testing.assert_close(short(x), embedder(x)[:, :3])


def test_what_cannot_take_sizes_says_so(blots, tmp_path):
    embedder = model()
    with pytest.raises(ModelError, match="size_feature"):
        build_graph(embedder)
    with pytest.raises(DataError, match="size_feature"):
        PixelEmbedder(embedder)
    with pytest.raises(ModelError, match="size_feature"):
        embedder(torch.rand(2, 3, 16, 16))
    with pytest.raises(ModelError, match="size_feature"):
        embedder(torch.rand(2, embedder.feature_size), start=POOLING)
    recipe = load_recipe("normface-at", [*SIZED, "training.adversarial.steps=1"])
    with pytest.raises(RecipeError, match="size_feature"):
        run(open_data(blots, progress=False), recipe, tmp_path / "run", tmp_path)
    with pytest.raises(DataError, match="size_feature"):
        InputSpec(1, 40, (0.0,), (1.0,), kind="audio", size_feature="pixels")


@pytest.mark.parametrize("given", ["pixel", ["w"], ["w", 3], 2])
def test_a_size_from_nowhere_is_refused_in_one_sentence(given):
    with pytest.raises(RecipeError, match="size_feature"):
        section(size_feature=given)
