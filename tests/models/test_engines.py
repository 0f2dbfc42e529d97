from __future__ import annotations

import threading
import wave

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data import EvalTransform
from nearkin.errors import DataError, ModelError
from nearkin.models import Encoder, ModelSection, build_embedder
from nearkin.models.items import batches


@pytest.fixture
def embedder(make_embedder):
    return make_embedder(pooling="gap+gmp")


@pytest.fixture
def pixels():
    """Images of one size, uint8 (n, H, W, 3)."""
    return np.random.default_rng(1).integers(0, 256, (7, 25, 31, 3), dtype=np.uint8)


def plain(embedder, images) -> np.ndarray:
    """The embeddings of PIL images by the unoptimised model."""
    transform = EvalTransform(embedder.spec)
    batch = embedder.normalise(torch.stack([transform(image) for image in images]))
    was = embedder.training
    embedder.eval()
    with torch.no_grad():
        rows = embedder.embed(batch).numpy()
    embedder.train(was)
    return rows


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    return np.allclose(found, expected, atol=2e-6)


def test_images_give_the_same_however_they_come(embedder, pixels, tmp_path):
    images = [Image.fromarray(array) for array in pixels]
    expected = plain(embedder, images)
    paths = []
    for number, image in enumerate(images):
        folder = tmp_path / "photos" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{number}.png")
        image.save(paths[-1])
    for items in (pixels, list(pixels), images, tuple(images), paths, [str(path) for path in paths]):
        for batch_size, workers in ((3, 2), (64, 0)):
            found = embedder.encode(items, batch_size=batch_size, workers=workers, progress=False)
            assert close(found, expected)
    mixed = [paths[0], images[1], pixels[2], str(paths[3])]
    assert close(embedder.encode(mixed, progress=False), expected[:4])
    found = embedder.encode(tmp_path / "photos", progress=False)
    assert close(found, expected[[0, 2, 4, 6, 1, 3, 5]])


def test_a_single_item_gives_one_row(embedder, pixels, tmp_path):
    image = Image.fromarray(pixels[0])
    image.save(tmp_path / "a.png")
    expected = plain(embedder, [image])
    for item in (image, tmp_path / "a.png", str(tmp_path / "a.png"), pixels[0]):
        assert close(embedder.encode(item, progress=False), expected)
    assert embedder.encode(pixels[0, :, :, 0], progress=False).shape == (1, 8)
    assert embedder.encode(torch.rand(3, 16, 16), progress=False).shape == (1, 8)


def test_data_sets(embedder, make_images):
    dataset = make_images()
    expected = plain(embedder, [dataset.load(index) for index in range(len(dataset))])
    assert close(embedder.encode(dataset, batch_size=4, progress=False), expected)


def test_tensors_count_as_cropped(embedder):
    tensor = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    unit = tensor / 255.0
    with torch.no_grad():
        expected = embedder.eval().embed(embedder.normalise(tensor)).numpy()
    array = unit.permute(0, 2, 3, 1).numpy()
    for items in (tensor, unit, unit.double(), list(unit), array, list(array), [unit[0], *tensor[1:]]):
        assert close(embedder.encode(items, progress=False), expected)


def test_tensors_of_another_size_are_resized_at_the_centre(embedder):
    tensor = torch.rand(2, 3, 32, 50)
    square = tensor[..., 9:41]
    small = torch.nn.functional.interpolate(square, (16, 16), mode="bilinear", antialias=True)
    expected = embedder.encode(small.clamp(0, 1), progress=False)
    assert close(embedder.encode(tensor, progress=False), expected)
    assert close(embedder.encode((tensor * 255).byte(), progress=False), expected) is False
    assert np.allclose(embedder.encode((tensor * 255).round().byte(), progress=False), expected, atol=1e-2)


def test_grey_and_colour_meet(make_embedder):
    grey = np.random.default_rng(0).integers(0, 256, (3, 20, 20), dtype=np.uint8)
    colour = np.repeat(grey[..., None], 3, axis=3)
    on_colour, on_grey = make_embedder(), make_embedder(channels=1)
    assert close(on_colour.encode(grey, progress=False), on_colour.encode(colour, progress=False))
    assert close(on_grey.encode(grey, progress=False), on_grey.encode(colour, progress=False))
    tensor = torch.from_numpy(grey)[:, None, :16, :16] / 255.0
    assert close(on_colour.encode(tensor, progress=False), on_colour.encode(tensor.repeat(1, 3, 1, 1), progress=False))
    found = on_grey.encode(tensor.repeat(1, 3, 1, 1), progress=False)
    assert np.allclose(found, on_grey.encode(tensor, progress=False), atol=1e-4)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "I;16", "CMYK"])
def test_images_of_any_mode_are_encoded_as_their_files(embedder, pixels, tmp_path, mode):
    colour = Image.fromarray(pixels[0])
    if mode == "I;16":
        image = Image.fromarray(pixels[0, :, :, 0].astype(np.uint16) * 257)
    elif mode in ("RGBA", "LA"):
        image = colour.convert(mode)
        image.putalpha(100)
    else:
        image = colour.convert(mode)
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(path)
    assert close(embedder.encode(image, progress=False), embedder.encode(path, progress=False))


def test_turned_photographs_are_turned_back(embedder, pixels, tmp_path):
    image = Image.fromarray(pixels[0])
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    upright = embedder.encode(image.transpose(Image.Transpose.ROTATE_270), progress=False)
    assert close(embedder.encode(tmp_path / "turned.png", progress=False), upright)
    with Image.open(tmp_path / "turned.png") as opened:
        assert close(embedder.encode(opened, progress=False), upright)


def test_training_goes_on_as_if_nothing_had_happened(embedder, pixels):
    embedder.train()
    before = embedder.fingerprint()
    embedder.encode(pixels, progress=False)
    assert embedder.training
    assert embedder.backbone.training
    assert embedder.fingerprint() == before
    assert embedder.head.weight.requires_grad


def test_pooled_features_and_maps(embedder, pixels):
    assert embedder.encode_pooled(pixels, progress=False).shape == (7, 64)
    assert Encoder(embedder, at="block2").encode(pixels, progress=False).shape == (7, 64, 4, 4)


def test_nothing_gives_nothing(embedder, make_images):
    assert embedder.encode([], progress=False).shape == (0, 8)
    assert embedder.encode(make_images().select([]), progress=False).shape == (0, 8)


def test_a_kept_encoder_is_a_snapshot(embedder, pixels):
    encoder = Encoder(embedder)
    before = encoder.encode(pixels, progress=False)
    torch.nn.init.normal_(embedder.head.weight)
    assert np.array_equal(encoder.encode(pixels, progress=False), before)


def test_a_compiled_encoder_sees_one_batch_size(embedder, pixels, monkeypatch):
    expected = embedder.encode(pixels, progress=False)
    seen = []

    def recording(function):
        def run(batch):
            seen.append(len(batch))
            return function(batch)

        return run

    monkeypatch.setattr("nearkin.models.engines.compiled", recording)
    assert close(embedder.encode(pixels, batch_size=4, compile=True, progress=False), expected)
    assert seen == [4, 4]


@pytest.mark.slow
def test_compiling_gives_the_same(embedder, pixels, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # more are processes that import PyTorch
    expected = embedder.encode(pixels, progress=False)
    assert close(embedder.encode(pixels, batch_size=4, compile=True, progress=False), expected)


def test_audio(tmp_path):
    rng = np.random.default_rng(0)
    waves = [(rng.normal(0, 0.1, n).clip(-1, 1) * 32767).astype(np.int16) for n in (9000, 3000)]
    paths = []
    for number, samples in enumerate(waves):
        paths.append(tmp_path / f"{number}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(samples.tobytes())
    section = ModelSection(backbone="tdnn", size=10, pooling="stats", dimension=6)
    embedder = build_embedder(section, audio_seconds=0.2)
    expected = embedder.encode([samples.astype(np.float32) / 32768 for samples in waves], progress=False)
    assert expected.shape == (2, 6)
    pytest.importorskip("soundfile")
    assert np.allclose(embedder.encode(paths, progress=False), expected, atol=1e-5)
    with pytest.raises(DataError, match="waveform"):
        embedder.encode(np.zeros((3, 4, 5)), progress=False)
    with pytest.raises(DataError, match="log-mel"):
        embedder.encode(torch.zeros(1, 3, 10, 10), progress=False)
    assert embedder.encode(torch.zeros(2, 1, 10, 20), progress=False).shape == (2, 6)


def test_bad_items_are_named(embedder, pixels, tmp_path, make_images):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("hello")
    cases = [
        (tmp_path / "missing.png", "missing.png"),
        (str(tmp_path / "empty.png"), "empty.png"),
        ([Image.fromarray(pixels[0]), tmp_path / "text.png"], "text.png"),
        ([pixels[0], 7], "1"),
        ([pixels[0].astype(np.int64)], "uint8"),
        (pixels.astype(np.float32), "255"),
        (torch.full((1, 3, 16, 16), float("nan")), "nan"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.int64), "int64"),
        (torch.zeros(1, 4, 16, 16), "channels"),
        (torch.zeros(2, 2), "shape"),
        (np.zeros(5), "shape"),
        ([torch.zeros(16)], "shape"),
        (None, "NoneType"),
    ]
    for items, word in cases:
        with pytest.raises(DataError, match=word):
            embedder.encode(items, progress=False)
    images = make_images()
    images.kind = "audio"
    with pytest.raises(DataError, match="audio"):
        embedder.encode(images, progress=False)
    with pytest.raises(ModelError, match="batch"):
        embedder.encode(pixels, batch_size=0)


def test_batches_come_in_order_and_stop_when_told():
    seen = []

    def load(index):
        seen.append(index)
        threading.Event().wait(0.002 * (index % 3))
        return torch.tensor([index])

    found = [batch.flatten().tolist() for batch in batches(load, 20, 6, workers=3)]
    assert found == [list(range(first, min(first + 6, 20))) for first in range(0, 20, 6)]
    seen.clear()
    stream = batches(load, 1000, 6, workers=3)
    next(stream)
    stream.close()
    assert len(seen) < 100


def test_an_error_in_a_thread_reaches_the_caller():
    def load(index):
        if index == 4:
            raise DataError("item 4 is bad")
        return torch.tensor([index])

    with pytest.raises(DataError, match="4"):
        list(batches(load, 10, 2, workers=2))
