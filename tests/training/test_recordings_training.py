"""Training on recordings: a step depends on (seed, step) alone, and the model keeps what it was fed."""

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.data.audio import measured_bands
from nearkin.data.audio_augment import SpeedCopies
from nearkin.data.augment import BatchAugment, transform_for
from nearkin.data.inputs import InputSpec
from nearkin.data.manifest import Manifest
from nearkin.data.samplers import BalancedBatchSampler
from nearkin.data.section import DataSection
from nearkin.data.stores import FolderStore
from nearkin.errors import RecipeError
from nearkin.training.batches import DecodedBatches, part, whole

AUDIO = {
    "bands": "standardised",
    "speeds": [0.9],
    "noise": 0.7,
    "reverberation": 0.5,
    "gain": 3,
    "band_mask": 3,
    "time_mask": 4,
}
QUICK = [
    "training.max_steps=2",
    "training.evaluate_every=2",
    "data.classes_per_batch=4",
    "data.per_class=2",
    "data.audio_seconds=0.15",
    "data.workers=0",
    "data.val_classes=0.25",
    "model.dimension=8",
]


@pytest.fixture
def voices(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    rng, paths = np.random.default_rng(0), [f"{who}-{take}.wav" for who in range(8) for take in range(3)]
    for place, path in enumerate(paths):
        size = 4000 + 200 * place
        wave = 0.3 * np.sin(np.arange(size) * (0.03 + 0.02 * (place // 3))) + 0.05 * rng.normal(size=size)
        soundfile.write(tmp_path / path, wave, 16_000)
    return nk.Dataset(Manifest.from_rows(paths, [path[0] for path in paths]), FolderStore(tmp_path), "audio", "made up")


def batches(voices, seed=0):
    section = DataSection(audio_seconds=0.2, audio=AUDIO, flip=False)
    items = SpeedCopies(voices, section.audio.speeds)
    spec = measured_bands(InputSpec.audio(12, 20, "standardised"), items)
    ids = items.class_ids()
    return DecodedBatches(
        items,
        ids,
        transform_for(spec, section, True, items),
        BatchAugment.for_section(spec, section, seed),
        transform_for(spec, section, False),
        BalancedBatchSampler(ids, 6, 2, seed),
        seed,
        workers=0,
    )


def test_a_step_is_a_function_of_seed_and_step(voices):
    first = [(whole(inputs), labels) for inputs, labels in batches(voices).stream(1, 3)]
    ((again, labels),) = [(whole(inputs), labels) for inputs, labels in batches(voices).stream(3, 3)]
    assert torch.equal(again, first[2][0])
    assert torch.equal(labels, first[2][1])
    ((other, _),) = batches(voices, seed=1).stream(3, 3)
    assert not torch.equal(whole(other), again)


def test_a_batch_in_parts_is_the_whole(voices):
    ((inputs, _),) = batches(voices).stream(2, 2)
    pieces = torch.cat([part(inputs, first, first + 4) for first in range(0, 12, 4)])
    assert torch.equal(pieces, whole(inputs))


def test_plain_items_are_crops_of_one_length_by_their_statistics(voices):
    plain = batches(voices).plain(np.arange(24))
    assert plain.shape == (24, 1, 12, 20)
    assert plain.isfinite().all()
    assert plain.mean().abs() < 0.5
    assert 0.5 < plain.std() < 2.0


def test_the_model_keeps_the_statistics_and_a_resumed_run_has_the_same(voices, tmp_path):
    nk.fit(voices, "audio", out=tmp_path / "run", overrides=QUICK, progress=False)
    model = nk.load(tmp_path / "run")
    assert model.spec.is_measured
    assert model.normalise.mean.shape == (1, 1, 40, 1)
    # The classes of the card are people, not copies.
    assert set(model.card.classes.train) <= set(voices.classes)
    nk.fit(voices, "audio", out=tmp_path / "run", overrides=QUICK, progress=False, resume=True)
    assert nk.load(tmp_path / "run").fingerprint() == model.fingerprint()


def test_a_model_that_goes_on_keeps_its_features(voices, tmp_path):
    old = [*QUICK, "data.audio={bands: centred, noise: 0, speeds: []}"]
    nk.fit(voices, "audio", out=tmp_path / "old", overrides=old, progress=False)
    again = [*QUICK, f"model.start={tmp_path / 'old'}"]
    nk.fit(voices, "audio", out=tmp_path / "new", overrides=again, progress=False)
    assert nk.load(tmp_path / "new").spec == nk.load(tmp_path / "old").spec


def test_copies_at_other_speeds_go_with_no_cache(voices, tmp_path):
    cached = [*QUICK, "model.freeze=all", "model.cache=true"]
    with pytest.raises(RecipeError, match="speeds"):
        nk.fit(voices, "audio", out=tmp_path / "run", overrides=cached, progress=False)
