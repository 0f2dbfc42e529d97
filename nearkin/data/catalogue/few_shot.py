"""The data sets of few-shot learning: Omniglot and mini-ImageNet."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import Entry, add_entry
from nearkin.data.catalogue.layout import PublishedLayout, files_in, read_rows
from nearkin.data.catalogue.mirror import ClassFolders
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_OMNIGLOT_LAYOUT = PublishedLayout(
    "Omniglot", "omniglot/ with images_background/ and images_evaluation/<alphabet>/<character>/*.png"
)
_OMNIGLOT_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


def open_omniglot(folder: Path) -> Dataset:
    """Omniglot in its published folder; `alphabet` is the alphabet of a character."""
    paths: list[str] = []
    splits: list[str] = []
    for part, split in (("images_background", "train"), ("images_evaluation", "test")):
        found = files_in(_OMNIGLOT_LAYOUT.directory(folder, part), IMAGE_SUFFIXES)
        odd = next((path for path in found if path.count("/") != 2), None)
        if odd is not None or not found:
            raise _OMNIGLOT_LAYOUT.refusal(
                folder, f"'{odd}' in {part} is not in a character's folder" if odd else f"{part} is empty"
            )
        paths.extend(f"{part}/{path}" for path in found)
        splits.extend([split] * len(found))
    parts = [path.split("/") for path in paths]
    manifest = Manifest.from_rows(
        paths,
        [f"{alphabet}/{character}" for _, alphabet, character, _ in parts],
        split=splits,
        alphabet=[alphabet for _, alphabet, _, _ in parts],
    )
    return Dataset(manifest, FolderStore(folder), name="omniglot")


add_entry(
    Entry(
        name="omniglot",
        title=_OMNIGLOT_LAYOUT.title,
        classes=1_623,
        items=32_460,
        homepage="https://github.com/brendenlake/omniglot",
        licence="MIT",
        layout=_OMNIGLOT_LAYOUT.shape,
        split="background set train (964 classes), evaluation set test (659, unseen); alphabet",
        tested="real data",
        open=open_omniglot,
        folders=("omniglot-py", "omniglot/python"),
        fetch=download_all(
            (f"{_OMNIGLOT_ADDRESS}images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
            (f"{_OMNIGLOT_ADDRESS}images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
        ),
        class_folders=ClassFolders(outer="alphabet", joined=True),
    )
)


_MINI_IMAGENET_LAYOUT = PublishedLayout(
    "mini-ImageNet", "mini-imagenet/ with train.csv, val.csv, test.csv (filename,label) and images/*.jpg"
)


def open_mini_imagenet(folder: Path) -> Dataset:
    """mini-ImageNet by the split files of Ravi and Larochelle."""
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for split in ("train", "val", "test"):
        rows = read_rows(_MINI_IMAGENET_LAYOUT.file(folder, f"{split}.csv"), ("filename", "label"))
        paths.extend(f"images/{row['filename']}" for row in rows)
        labels.extend(row["label"] for row in rows)
        splits.extend([split] * len(rows))
    _MINI_IMAGENET_LAYOUT.all_present(folder, paths)
    return Dataset(Manifest.from_rows(paths, labels, split=splits), FolderStore(folder), name="mini-imagenet")


add_entry(
    Entry(
        name="mini-imagenet",
        title=_MINI_IMAGENET_LAYOUT.title,
        classes=100,
        items=60_000,
        homepage="https://github.com/twitter-research/meta-learning-lstm (split files; the images are ImageNet's)",
        licence="ImageNet terms: non-commercial research",
        layout=_MINI_IMAGENET_LAYOUT.shape,
        split="64 classes train, 16 val, 20 test (all disjoint)",
        tested="layout-tested",
        open=open_mini_imagenet,
        folders=("miniImageNet", "mini_imagenet", "miniimagenet"),
    )
)
