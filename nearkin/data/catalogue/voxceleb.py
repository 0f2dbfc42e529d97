"""VoxCeleb: celebrities speaking in interviews; the test speakers are unseen."""

from __future__ import annotations

import re
from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import AUDIO_SUFFIXES, Layout, files_in, read_lines, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "VoxCeleb",
    "VoxCeleb1/ with wav/<id10001>/<video>/<00001>.wav (dev and test together, or apart in folders of their own) and, "
    "for the names of the speakers, vox1_meta.csv",
)
_NAME = re.compile(r"(?:.*/)?(id\d{5})/([^/]+)/\d+\.\w+")

# The forty speakers of VoxCeleb1 whose names start with 'E'.
_TEST_SPEAKERS = frozenset(f"id{number}" for number in range(10270, 10310))
_FIRST_OF_VOXCELEB1 = "id10001"


def open_voxceleb(folder: Path) -> Dataset:
    """VoxCeleb1 (or 2 as wav, with vox2_meta.csv) in its published folder: label = speaker, and `video`."""
    found = [(path, match) for path in files_in(folder, AUDIO_SUFFIXES) if (match := _NAME.fullmatch(path))]
    if not found:
        raise _LAYOUT.refusal(folder, "it has no recordings")
    speakers = [match[1] for _, match in found]
    about = _read_meta(folder)
    tested = _tested_in_trials(folder)
    split_of = {speaker: _split(speaker, about, tested, folder) for speaker in set(speakers)}
    more = {}
    if all("Gender" in about.get(speaker, {}) for speaker in split_of):
        more["gender"] = [about[speaker]["Gender"] for speaker in speakers]
    manifest = Manifest.from_rows(
        [path for path, _ in found],
        speakers,
        split=[split_of[speaker] for speaker in speakers],
        video=[match[2] for _, match in found],
        **more,
    )
    return Dataset(manifest, FolderStore(folder), kind="audio", name="voxceleb")


def _split(speaker: str, about: dict[str, dict[str, str]], tested: frozenset[str], folder: Path) -> str:
    """By the published table; else by the verification trials; else by the published rule of VoxCeleb1."""
    known = about.get(speaker)
    if known is not None and known.get("Set"):
        return "test" if known["Set"] == "test" else "train"
    if known is not None and known.get("VGGFace1 ID"):
        return "test" if known["VGGFace1 ID"].startswith("E") else "train"
    if speaker < _FIRST_OF_VOXCELEB1:
        raise _LAYOUT.refusal(folder, f"{speaker} is a speaker of VoxCeleb2 and vox2_meta.csv does not name it")
    return "test" if speaker in (tested or _TEST_SPEAKERS) else "train"


def _read_meta(folder: Path) -> dict[str, dict[str, str]]:
    """Speaker to the published facts; VoxCeleb1's table has tabs and VoxCeleb2's has commas."""
    about: dict[str, dict[str, str]] = {}
    for version, separator in ((1, "\t"), (2, ",")):
        meta = folder / f"vox{version}_meta.csv"
        if meta.is_file():
            key = f"VoxCeleb{version} ID"
            about.update((row[key], row) for row in read_rows(meta, (key,), separator))
    return about


def _tested_in_trials(folder: Path) -> frozenset[str]:
    """Speakers in the published verification trials, lines of `same path path`."""
    trials = folder / "veri_test.txt"
    lines = read_lines(trials) if trials.is_file() else []
    return frozenset(path.partition("/")[0] for line in lines for path in line.split()[1:])


enter(
    Entry(
        name="voxceleb",
        title="VoxCeleb1",
        classes=1_251,
        items=153_516,
        homepage="https://www.robots.ox.ac.uk/~vgg/data/voxceleb/vox1.html",
        licence="CC BY-SA 4.0 for the lists; a form to sign",
        layout=_LAYOUT.shape,
        split="1,211 dev speakers train, 40 test (unseen: names that start with 'E')",
        tested="layout-tested",
        open=open_voxceleb,
        folders=("VoxCeleb1", "voxceleb1", "vox1", "VoxCeleb"),
        kind="audio",
    )
)
