"""Corruptions: what they do, that a seed decides all of it, and data sets that are seen through them."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.random import mtrand
from PIL import Image

from nearkin.data import ArrayStore, Dataset, FolderStore, Manifest
from nearkin.data.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES, CorruptedDataset, corrupt
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError, MissingExtraError, UnknownNameError

PLAIN = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("imagecorruptions", reason="the extra `audit` is not installed", exc_type=ImportError)


def picture(width=52, height=40, seed=0):
    """A smooth colour image with some texture and hard edges."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(30, 220, (6, 8, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels = pixels + rng.integers(-20, 20, pixels.shape)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (200, 30, 60)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def pixels_of(image):
    return np.asarray(image).astype(float)


def all_digests():
    """One digest a corruption; run again in another process, it must print the same."""
    return {name: hashlib.sha256(corrupt(picture(), name, 2, 7).tobytes()).hexdigest() for name in CORRUPTIONS}


def test_names_are_those_of_the_literature_in_its_order(package):
    assert list(CORRUPTIONS) == package.get_corruption_names("common")
    for family, names in FAMILIES.items():
        assert list(names) == package.get_corruption_names(family)
    assert SEVERITIES == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_seed_decides_everything(package, name):
    image = picture()
    np.random.seed(1)  # noqa: NPY002
    first = corrupt(image, name, 2, 7)
    np.random.seed(2)  # noqa: NPY002
    again = corrupt(image, name, 2, 7)
    other = corrupt(image, name, 2, 8)
    assert first.tobytes() == again.tobytes()
    assert (first.tobytes() == other.tobytes()) == (name in PLAIN)
    assert (first.size, first.mode) == (image.size, image.mode)
    assert first.tobytes() != image.tobytes()
    assert image.tobytes() == picture().tobytes()


def test_threads_do_not_disturb_each_other(package):
    jobs = [(name, seed) for seed in range(4) for name in CORRUPTIONS]

    def run(job):
        return corrupt(picture(), job[0], 2, job[1]).tobytes()

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, reversed(jobs))) == alone[::-1]


def test_another_process_draws_the_same(package):
    code = (
        "import importlib.util, json, sys, numpy; numpy.random.seed(99);"
        "spec = importlib.util.spec_from_file_location('twin', sys.argv[1]);"
        "twin = importlib.util.module_from_spec(spec); spec.loader.exec_module(twin);"
        "print(json.dumps(twin.all_digests()))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(done.stdout) == all_digests()


@pytest.mark.parametrize("generator", [np.random.MT19937(5), np.random.PCG64(5)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_global_generator_is_neither_heeded_nor_moved(package, name, generator):
    expected = corrupt(picture(), name, 2, 7).tobytes()
    found = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    try:
        mtrand.normal()  # leaves the second of a pair to be handed out next
        before = mtrand.get_state(legacy=False)
        assert before["has_gauss"]
        assert corrupt(picture(), name, 2, 7).tobytes() == expected
        assert mtrand.get_bit_generator() is generator
        np.testing.assert_equal(mtrand.get_state(legacy=False), before)
    finally:
        mtrand.set_bit_generator(found)


def test_the_global_generator_is_given_back_after_an_error(monkeypatch):
    def fail(*arguments):
        raise RuntimeError(f"after drawing {mtrand.normal()}")

    monkeypatch.setattr(importlib, "import_module", lambda name: types.SimpleNamespace(corrupt=fail))
    before = mtrand.get_state(legacy=False)
    for _ in range(2):  # the second would wait for ever if the lock were kept
        with pytest.raises(RuntimeError, match="drawing"):
            corrupt(picture(), "fog", 1, 0)
    np.testing.assert_equal(mtrand.get_state(legacy=False), before)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_formulas(package, severity):
    image, place = picture(), severity - 1
    unit = pixels_of(image) / 255

    noise = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(11)))
    noisy = np.clip(unit + noise.normal(scale=[0.08, 0.12, 0.18, 0.26, 0.38][place], size=unit.shape), 0, 1)
    assert np.array_equal(corrupt(image, "gaussian_noise", severity, 11), np.uint8(noisy * 255))

    mean = unit.mean(axis=(0, 1))
    flat = (unit - mean) * [0.4, 0.3, 0.2, 0.1, 0.05][place] + mean
    assert np.abs(pixels_of(corrupt(image, "contrast", severity, 0)) - flat * 255).max() <= 1

    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=[25, 18, 15, 10, 7][place])
    assert corrupt(image, "jpeg_compression", severity, 0).tobytes() == Image.open(buffer).tobytes()

    ice = pixels_of(corrupt(Image.new("RGB", image.size), "frost", severity, 4))  # of the same seed, so the same crop
    frosted = np.clip([1, 0.8, 0.7, 0.65, 0.6][place] * pixels_of(image) + ice, 0, 255)
    assert np.abs(pixels_of(corrupt(image, "frost", severity, 4)) - frosted).max() <= 1

    changed = (pixels_of(corrupt(image, "impulse_noise", severity, 3)) != pixels_of(image)).mean()
    assert changed == pytest.approx([0.03, 0.06, 0.09, 0.17, 0.27][place], rel=0.15)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "frost"])  # frost darkens and brightens
def test_the_worst_severity_is_worse_than_the_least(package, name):
    image = picture(90, 70)
    mild, harsh = (
        np.abs(pixels_of(corrupt(image, name, severity, 0)) - pixels_of(image)).mean() for severity in (1, 5)
    )
    assert harsh > 1.2 * mild > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_grey_images_are_corrupted_as_colour_and_stay_grey(package, name):
    grey = picture().convert("L")
    result = corrupt(grey, name, 2, 7)
    assert (result.mode, result.size) == ("L", grey.size)
    assert result.tobytes() == corrupt(grey.convert("RGB"), name, 2, 7).convert("L").tobytes()


SMALL = [((20, 30), (32, 48)), ((40, 8), (160, 32)), ((1, 1), (32, 32))]


@pytest.mark.parametrize(
    ("name", "size", "larger"), [(name, *SMALL[place % len(SMALL)]) for place, name in enumerate(CORRUPTIONS)]
)
def test_small_images_are_enlarged_and_brought_back(package, name, size, larger):
    image = picture().resize(size)
    expected = corrupt(image.resize(larger, Image.Resampling.BILINEAR), name, 2, 7)
    result = corrupt(image, name, 2, 7)
    assert result.size == size
    assert result.tobytes() == expected.resize(size, Image.Resampling.BILINEAR).tobytes()


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_flat_images_of_any_shape_give_no_warning_and_print_nothing(package, name, value, capsys, recwarn):
    for size, severities in [((32, 32), SEVERITIES), ((33, 257), (1, 5)), ((301, 47), (1, 5))]:
        for severity in severities:
            assert corrupt(Image.new("RGB", size, (value,) * 3), name, severity, 1).size == size
    assert not [str(warning.message) for warning in recwarn]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "severity", "seed", "error", "match"),
    [
        ("gausian_noise", 1, 0, UnknownNameError, "gaussian_noise"),
        ("speckle_noise", 1, 0, UnknownNameError, "speckle_noise"),
        ("rain", 1, 0, UnknownNameError, "brightness"),
        (3, 1, 0, UnknownNameError, "'3'"),
        ("fog", 0, 0, DataError, r"\b0\b"),
        ("fog", 6, 0, DataError, r"\b6\b"),
        ("fog", True, 0, DataError, "True"),
        ("fog", 2.0, 0, DataError, r"2\.0"),
        ("fog", "2", 0, DataError, "'2'"),
        ("fog", 2, -1, DataError, "-1"),
        ("fog", 2, None, DataError, "None"),
    ],
)
def test_names_severities_and_seeds_that_do_not_exist(patterns, name, severity, seed, error, match):
    with pytest.raises(error, match=match):
        corrupt(picture(), name, severity, seed)
    with pytest.raises(error, match=match):
        CorruptedDataset(patterns, name, severity, seed=seed)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (np.zeros((40, 40, 3), np.uint8), "ndarray"),
        (Image.new("RGBA", (40, 40)), "RGBA"),
        (Image.new("I;16", (40, 40)), "I;16"),
        (Image.new("RGB", (0, 40)), "0 x 40"),
        (Image.new("L", (9000, 40)), "9000 x 40"),
        (Image.new("L", (1, 300)), "1 x 300"),
    ],
)
def test_images_that_cannot_be_corrupted(image, match):
    with pytest.raises(DataError, match=match):
        corrupt(image, "fog", 1, 0)


def test_numbers_of_numpy_are_numbers(package):
    expected = corrupt(picture(), "glass_blur", 2, 2**40).tobytes()
    assert corrupt(picture(), "glass_blur", np.int64(2), np.uint64(2**40)).tobytes() == expected
    assert corrupt(picture(), "glass_blur", 2, 0).tobytes() != expected  # the high bits of a seed count


def test_a_missing_package_names_its_extra(monkeypatch, patterns):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    for act in (lambda: corrupt(picture(), "fog", 1, 0), lambda: CorruptedDataset(patterns, "fog", 1)):
        with pytest.raises(MissingExtraError, match=r"nearkin\[audit\]"):
            act()


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_a_package_that_does_not_load_is_not_called_missing(monkeypatch, error):
    def fail(name):
        raise error("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingExtraError, match="opencv-python-headless") as caught:
        corrupt(picture(), "fog", 1, 0)
    assert "nearkin[" not in str(caught.value)


def test_importing_is_light():
    heavy = "{'imagecorruptions', 'cv2', 'numba', 'skimage', 'scipy', 'torch'}"
    code = f"import sys, nearkin, nearkin.data.corruptions; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def clean(package):
    names = [f"a/{index}" for index in range(6)]
    images = np.stack([np.asarray(picture(48, 40, seed=0))] * 6)  # equal images: only their noise may differ
    manifest = Manifest.from_rows(names, list("xyzxyz"), split=["train"] * 4 + ["test"] * 2)
    return Dataset(manifest, ArrayStore(images, names), name="six")


def test_an_item_keeps_its_noise_in_every_selection(clean):
    noisy = CorruptedDataset(clean, "shot_noise", 3, seed=5)
    item = noisy.load(4).tobytes()
    for view in (noisy.select([4]), noisy.select(np.arange(6) == 4), noisy.where(split="test")):
        assert isinstance(view, CorruptedDataset)
        assert view.load(0).tobytes() == item
    assert noisy.select([5, 4]).load(1).tobytes() == item
    assert CorruptedDataset(clean.select([5, 4]), "shot_noise", 3, seed=5).load(1).tobytes() == item
    assert noisy.load(3).tobytes() != item
    assert noisy.load(4, hint=16).tobytes() == noisy.image(4).tobytes() == item
    assert pickle.loads(pickle.dumps(noisy)).load(4).tobytes() == item
    assert noisy.labels.tolist() == list("xyzxyz")
    assert "shot_noise" in repr(noisy)


def test_noise_depends_on_the_seed_and_the_severity_but_not_on_labels(clean):
    noisy = CorruptedDataset(clean, "gaussian_noise", 3, seed=5)
    assert CorruptedDataset(clean, "gaussian_noise", 3, seed=6).load(0).tobytes() != noisy.load(0).tobytes()
    relabelled = Dataset(clean.manifest.with_column("label", list("aaabbb")), clean.store)
    assert CorruptedDataset(relabelled, "gaussian_noise", 3, seed=5).load(0).tobytes() == noisy.load(0).tobytes()
    # Were the noise that of the other severity, scaled, the two would rise and fall together.
    rises = [
        (pixels_of(CorruptedDataset(clean, "gaussian_noise", severity).load(0)) - pixels_of(clean.load(0))).ravel()
        for severity in (1, 2)
    ]
    assert abs(np.corrcoef(rises)[0, 1]) < 0.1


def test_fingerprints_tell_corruptions_apart(clean):
    def fingerprint(dataset=clean, name="fog", severity=2, **options):
        return CorruptedDataset(dataset, name, severity, **options).fingerprint()

    variants = [
        clean.fingerprint(),
        fingerprint(),
        fingerprint(name="snow"),
        fingerprint(severity=3),
        fingerprint(seed=1),
        fingerprint(side=32),
        fingerprint(side=33),
        fingerprint(clean.select([1, 0])),
        fingerprint(CorruptedDataset(clean, "fog", 2)),
    ]
    assert len(set(variants)) == len(variants)
    assert all(len(value) == 64 for value in variants)
    assert fingerprint() == fingerprint(seed=0, side=None)


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_large_images_are_reduced_before_they_are_corrupted(package, tmp_path, ending):
    picture(600, 500).save(tmp_path / f"large.{ending}")
    picture(60, 50).save(tmp_path / f"small.{ending}")
    data = Dataset(Manifest.from_rows([f"large.{ending}", f"small.{ending}"], ["x", "x"]), FolderStore(tmp_path))
    reduced = CorruptedDataset(data, "pixelate", 5, side=64)
    large, small = reduced.load(0), reduced.load(1)
    assert (large.size, small.size) == ((77, 64), (60, 50))
    # One block of pixels is a quarter of 4 x 4: of the reduced image, not of the large one.
    assert len(np.unique(np.asarray(large).reshape(-1, 3), axis=0)) <= 19 * 16
    assert small.tobytes() == corrupt(data.load(1), "pixelate", 5, 0).tobytes()
    assert CorruptedDataset(data, "pixelate", 5).load(0, hint=64).size == (600, 500)
    assert reduced.load(0, hint=500).tobytes() == large.tobytes()


def test_what_cannot_be_wrapped(clean):
    audio = Dataset(clean.manifest, clean.store, kind="audio", name="voices")
    with pytest.raises(DataError, match="voices"):
        CorruptedDataset(audio, "fog", 1)
    for side in (31, 0, 64.0, True, "64"):
        with pytest.raises(DataError, match="32"):
            CorruptedDataset(clean, "fog", 1, side=side)


def test_an_item_that_cannot_be_corrupted_is_named(package):
    strip = Dataset(Manifest.from_rows(["a/strip"], ["x"]), ArrayStore({"a/strip": np.zeros((2, 900), np.uint8)}))
    with pytest.raises(DataError, match="a/strip"):
        CorruptedDataset(strip, "fog", 1).load(0)


def test_a_corrupted_data_set_can_be_corrupted_again(clean):
    twice = CorruptedDataset(CorruptedDataset(clean, "contrast", 3), "pixelate", 3)
    expected = corrupt(corrupt(clean.image(2), "contrast", 3, 0), "pixelate", 3, 0)
    assert twice.select([2]).load(0).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["gaussian_noise", "impulse_noise", "glass_blur", "frost"])
def test_models_see_the_corruption(clean, name):
    from nearkin.models.items import open_items

    spec = InputSpec(3, 40, (0.0,) * 3, (1.0,) * 3)
    noisy = CorruptedDataset(clean, name, 2)
    batch = np.concatenate([part.numpy() for part in open_items(noisy, spec).batches(4, workers=3)])
    images = [corrupted.crop((4, 0, 44, 40)) for corrupted in map(noisy.image, range(6))]
    assert np.array_equal(batch, np.stack([np.asarray(image).transpose(2, 0, 1) for image in images]))
    assert len({sample.tobytes() for sample in batch}) == 6
