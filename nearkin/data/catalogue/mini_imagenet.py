"""mini-ImageNet: 100 classes of 600 images; 64 train, 16 validate and 20 test."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import Layout, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout("mini-ImageNet", "mini-imagenet/ with train.csv, val.csv, test.csv (filename,label) and images/*.jpg")


def open_mini_imagenet(folder: Path) -> Dataset:
    """mini-ImageNet by the split files of Ravi and Larochelle."""
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for split in ("train", "val", "test"):
        rows = read_rows(_LAYOUT.file(folder, f"{split}.csv"), ("filename", "label"))
        paths.extend(f"images/{row['filename']}" for row in rows)
        labels.extend(row["label"] for row in rows)
        splits.extend([split] * len(rows))
    _LAYOUT.all_present(folder, paths)
    return Dataset(Manifest.from_rows(paths, labels, split=splits), FolderStore(folder), name="mini-imagenet")


enter(
    Entry(
        name="mini-imagenet",
        title=_LAYOUT.title,
        classes=100,
        items=60_000,
        homepage="https://github.com/twitter-research/meta-learning-lstm (split files; the images are ImageNet's)",
        licence="ImageNet terms: non-commercial research",
        layout=_LAYOUT.shape,
        split="64 classes train, 16 val, 20 test (all disjoint)",
        tested="layout-tested",
        open=open_mini_imagenet,
        folders=("miniImageNet", "mini_imagenet", "miniimagenet"),
    )
)
