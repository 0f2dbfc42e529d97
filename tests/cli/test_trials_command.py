"""`nearkin trials`: what it prints and writes, and what it refuses."""

import json

import numpy as np
import pytest

import nearkin as nk
from nearkin.data.manifest import Manifest, write_manifest

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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model of eight made-up voices; four others test."""
    soundfile = pytest.importorskip("soundfile")
    folder, rng = tmp_path_factory.mktemp("voices"), np.random.default_rng(0)
    rows = [(who, take, f"{who:02d}-{take}.wav") for who in range(12) for take in range(4)]
    for who, _, path in rows:
        size = 4000 + 100 * who
        wave = 0.3 * np.sin(np.arange(size) * (0.03 + 0.015 * who)) + 0.05 * rng.normal(size=size)
        soundfile.write(folder / path, wave, 16_000)
    columns = {
        "split": ["train" if who < 8 else "test" for who, _, _ in rows],
        "digit": [take % 2 for _, take, _ in rows],
    }
    manifest = Manifest.from_rows([path for *_, path in rows], [f"v{who:02d}" for who, *_ in rows], **columns)
    write_manifest(manifest, folder / "voices.csv")
    nk.fit(folder / "voices.csv", "speaker-verification", out=folder / "run", overrides=QUICK, progress=False)
    return folder / "run"


def test_all_pairs_of_unseen_voices(nearkin, run, tmp_path):
    code, out, err = nearkin("trials", run, "--content", "digit", "--json", tmp_path / "n.json", "-q")
    assert (code, err) == (0, "")
    assert "same digit" in out
    rows = json.loads((tmp_path / "n.json").read_text())["results"]
    assert {(row["trials"], row["score"]) for row in rows} >= {("all", "SIM"), ("other digit", "cosine+SIM")}
    # Four voices of four recordings each: 4 x 6 genuine pairs, and 6 x 16 others.
    assert [(row["genuine"], row["impostors"]) for row in rows if row["trials"] == "all"] == [(24, 96)] * 3


def test_a_list_with_normalised_scores(nearkin, run, tmp_path):
    (tmp_path / "list.txt").write_text("1 08-0.wav 08-1.wav\n0 08-0.wav,08-2.wav 09-1.wav\n")
    code, out, err = nearkin("trials", run, tmp_path / "list.txt", "--norm", "as", "--top", 5, "-q")
    assert (code, err) == (0, "")
    assert "cosine+SIM" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--norm", "z"], "Choose"),
        (["LIST", "--enrol", "3"], "commas"),
        (["--enrol", "9"], "enrol"),
        (["--cohort", "audiomnist"], "normalised"),
        (["--content", "digits"], "digits"),
    ],
)
def test_what_cannot_be_is_refused(nearkin, run, tmp_path, words, said):
    (tmp_path / "list.txt").write_text("1 08-0.wav 08-1.wav\n")
    given = [tmp_path / "list.txt" if word == "LIST" else word for word in words]
    code, _, err = nearkin("trials", run, *given, "-q")
    assert code == 2
    assert said in err
