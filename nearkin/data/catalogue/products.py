"""Stanford Online Products: 22,634 products on sale, few pictures of each."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.layout import Layout, read_fields, read_lines
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "Stanford Online Products",
    "Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and <product kind>_final/*.JPG",
)


def open_sop(folder: Path) -> Dataset:
    """Stanford Online Products in its published folder; `superclass` is the kind of product."""
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for split in ("train", "test"):
        source = _LAYOUT.file(folder, f"Ebay_{split}.txt")
        lines = read_lines(source)
        if not lines or lines[0].split() != ["image_id", "class_id", "super_class_id", "path"]:
            raise _LAYOUT.refusal(folder, f"{source.name} does not begin with its header")
        for _, number, _, path in read_fields(lines[1:], 4, source):
            if not number.isdigit():
                raise _LAYOUT.refusal(folder, f"{source.name} has the class '{number}'")
            paths.append(path)
            labels.append(f"{int(number):05d}")
            splits.append(split)
    _LAYOUT.all_present(folder, paths)
    kinds = [path.partition("/")[0].removesuffix("_final") for path in paths]
    manifest = Manifest.from_rows(paths, labels, split=splits, superclass=kinds)
    return Dataset(manifest, FolderStore(folder), name="sop")


enter(
    Entry(
        name="sop",
        title=_LAYOUT.title,
        classes=22_634,
        items=120_053,
        homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
        licence="MIT for the lists; images from the web, for research",
        layout=_LAYOUT.shape,
        split="published lists: 11,318 classes train, 11,316 test (unseen); superclass: kind of product",
        tested="layout-tested",
        open=open_sop,
        folders=("Stanford_Online_Products",),
        fetch=published(
            ("ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e")
        ),
    )
)
