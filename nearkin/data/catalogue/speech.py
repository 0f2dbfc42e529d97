"""Speech by speaker: AudioMNIST and VoxCeleb."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nearkin.data.catalogue.entry import published
from nearkin.data.catalogue.layout import PublishedFolder, files_in, read_lines, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.decode import AUDIO_SUFFIXES

_AUDIOMNIST_NAME = re.compile(r"(?P<folder>\d\d)/(?P<digit>\d)_(?P<speaker>\d\d)_\d+\.\w+")
_AUDIOMNIST_TRAINING_SPEAKERS = 40


@published(
    "audiomnist",
    title="AudioMNIST",
    classes=60,
    items=30_000,
    homepage="https://github.com/soerenab/AudioMNIST",
    licence="MIT",
    layout="AudioMNIST/data/<speaker>/<digit>_<speaker>_<repeat>.wav with audioMNIST_meta.txt",
    split="speakers 1-40 train, 41-60 test (unseen); digit",
    tested="real data",
    folders=("AudioMNIST",),
    kind="audio",
)
def open_audiomnist(at: PublishedFolder) -> Dataset:
    """AudioMNIST in its published folder: label = speaker, `digit`, and with the meta file `gender` and `accent`."""
    base = at.path / "data" if (at.path / "data").is_dir() else at.path
    found = files_in(base, AUDIO_SUFFIXES)
    matches = [_AUDIOMNIST_NAME.fullmatch(path) for path in found]
    names = [match for match in matches if match and match["folder"] == match["speaker"]]
    if not found or len(names) < len(found):
        odd = next((path for path, match in zip(found, matches, strict=True) if match not in names), None)
        raise at.refusal(f"'{odd}' has another name" if odd else "it has no recordings")
    speakers = [match["speaker"] for match in names]
    return at.dataset(
        [(base / path).relative_to(at.path).as_posix() for path in found],
        [f"speaker{speaker}" for speaker in speakers],
        split=["train" if int(speaker) <= _AUDIOMNIST_TRAINING_SPEAKERS else "test" for speaker in speakers],
        digit=[match["digit"] for match in names],
        **_about_speakers(at, base / "audioMNIST_meta.txt", speakers),
    )


def _about_speakers(at: PublishedFolder, meta: Path, speakers: list[str]) -> dict[str, list[str]]:
    if not meta.is_file():
        return {}
    try:
        about = json.loads(meta.read_text(encoding="utf-8"))
        return {name: [str(about[speaker][name]) for speaker in speakers] for name in ("gender", "accent")}
    except (ValueError, KeyError, TypeError) as error:
        raise at.refusal(f"{meta.name} could not be read ({error!r})") from error


_VOXCELEB_NAME = re.compile(r"(?:.*/)?(id\d{5})/([^/]+)/\d+\.\w+")

# The forty speakers of VoxCeleb1 whose names start with 'E'.
_TEST_SPEAKERS = frozenset(f"id{number}" for number in range(10270, 10310))
_FIRST_OF_VOXCELEB1 = "id10001"


@published(
    "voxceleb",
    title="VoxCeleb1",
    classes=1_251,
    items=153_516,
    homepage="https://www.robots.ox.ac.uk/~vgg/data/voxceleb/vox1.html",
    licence="CC BY-SA 4.0 for the lists; a form to sign",
    layout="VoxCeleb1/ with wav/<id10001>/<video>/<00001>.wav (dev and test together, or apart in folders of their "
    "own) and, for the names of the speakers, vox1_meta.csv",
    split="1,211 dev speakers train, 40 test (unseen: names that start with 'E')",
    tested="layout-tested",
    folders=("VoxCeleb1", "voxceleb1", "vox1", "VoxCeleb"),
    kind="audio",
)
def open_voxceleb(at: PublishedFolder) -> Dataset:
    """VoxCeleb1 (or 2 as wav, with vox2_meta.csv) in its published folder: label = speaker, and `video`."""
    found = [(path, match) for path in files_in(at.path, AUDIO_SUFFIXES) if (match := _VOXCELEB_NAME.fullmatch(path))]
    if not found:
        raise at.refusal("it has no recordings")
    speakers = [match[1] for _, match in found]
    about: dict[str, dict[str, str]] = {}  # the published facts of each speaker
    for version, separator in ((1, "\t"), (2, ",")):
        meta = at.path / f"vox{version}_meta.csv"
        if meta.is_file():
            key = f"VoxCeleb{version} ID"
            about.update((row[key], row) for row in read_rows(meta, (key,), separator))
    trials = at.path / "veri_test.txt"  # lines of `same path path`
    lines = read_lines(trials) if trials.is_file() else []
    tested = {path.partition("/")[0] for line in lines for path in line.split()[1:]}
    split_of = {speaker: _voxceleb_split(speaker, about.get(speaker, {}), tested, at) for speaker in set(speakers)}
    more = {}
    if all("Gender" in about.get(speaker, {}) for speaker in split_of):
        more["gender"] = [about[speaker]["Gender"] for speaker in speakers]
    return at.dataset(
        [path for path, _ in found],
        speakers,
        split=[split_of[speaker] for speaker in speakers],
        video=[match[2] for _, match in found],
        **more,
    )


def _voxceleb_split(speaker: str, known: dict[str, str], tested: set[str], at: PublishedFolder) -> str:
    """By the published table; else by the verification trials; else by the published rule of VoxCeleb1."""
    if known.get("Set"):
        return "test" if known["Set"] == "test" else "train"
    if known.get("VGGFace1 ID"):
        return "test" if known["VGGFace1 ID"].startswith("E") else "train"
    if speaker < _FIRST_OF_VOXCELEB1:
        raise at.refusal(f"{speaker} is a speaker of VoxCeleb2 and vox2_meta.csv does not name it")
    return "test" if speaker in (tested or _TEST_SPEAKERS) else "train"
