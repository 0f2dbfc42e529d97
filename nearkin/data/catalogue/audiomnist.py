"""AudioMNIST: 60 people say the ten digits; here the speaker is the class and 20 speakers are unseen."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import AUDIO_SUFFIXES, Layout, files_in
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout("AudioMNIST", "AudioMNIST/data/<speaker>/<digit>_<speaker>_<repeat>.wav with audioMNIST_meta.txt")
_NAME = re.compile(r"(?P<folder>\d\d)/(?P<digit>\d)_(?P<speaker>\d\d)_\d+\.\w+")
_TRAINING_SPEAKERS = 40


def open_audiomnist(folder: Path) -> Dataset:
    """AudioMNIST in its published folder: label = speaker, `digit`, and with the meta file `gender` and `accent`."""
    base = folder / "data" if (folder / "data").is_dir() else folder
    found = files_in(base, AUDIO_SUFFIXES)
    matches = [_NAME.fullmatch(path) for path in found]
    names = [match for match in matches if match and match["folder"] == match["speaker"]]
    if not found or len(names) < len(found):
        odd = next((path for path, match in zip(found, matches, strict=True) if match not in names), None)
        raise _LAYOUT.refusal(folder, f"'{odd}' has another name" if odd else "it has no recordings")
    speakers = [match["speaker"] for match in names]
    manifest = Manifest.from_rows(
        [(base / path).relative_to(folder).as_posix() for path in found],
        [f"speaker{speaker}" for speaker in speakers],
        split=["train" if int(speaker) <= _TRAINING_SPEAKERS else "test" for speaker in speakers],
        digit=[match["digit"] for match in names],
        **_about_speakers(base / "audioMNIST_meta.txt", speakers),
    )
    return Dataset(manifest, FolderStore(folder), kind="audio", name="audiomnist")


def _about_speakers(meta: Path, speakers: list[str]) -> dict[str, list[str]]:
    if not meta.is_file():
        return {}
    try:
        about = json.loads(meta.read_text(encoding="utf-8"))
        return {name: [str(about[speaker][name]) for speaker in speakers] for name in ("gender", "accent")}
    except (ValueError, KeyError, TypeError) as error:
        raise _LAYOUT.refusal(meta.parent, f"{meta.name} could not be read ({error!r})") from error


enter(
    Entry(
        name="audiomnist",
        title=_LAYOUT.title,
        classes=60,
        items=30_000,
        homepage="https://github.com/soerenab/AudioMNIST",
        licence="MIT",
        layout=_LAYOUT.shape,
        split="speakers 1-40 train, 41-60 test (unseen); digit",
        tested="real data",
        open=open_audiomnist,
        folders=("AudioMNIST",),
        kind="audio",
    )
)
