"""In-shop Clothes Retrieval (DeepFashion): 7,982 articles; half of them train, the others are queries and gallery."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import Layout, read_fields, read_lines
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "In-shop Clothes Retrieval",
    "'In-shop Clothes Retrieval Benchmark'/ with Eval/list_eval_partition.txt and img/{MEN,WOMEN}/<kind>/<item>/*.jpg",
)
_ROLES = ("train", "query", "gallery")


def open_inshop(folder: Path) -> Dataset:
    """In-shop in its published folder: `role` says train, query or gallery, `superclass` the kind of clothes."""
    name = "list_eval_partition.txt"
    source = _LAYOUT.file(folder, f"Eval/{name}", name, f"Anno/{name}")
    # The first line counts the images and the second names the columns.
    rows = list(read_fields(read_lines(source)[2:], 3, source))
    other = next((role for _, _, role in rows if role not in _ROLES), None)
    if other is not None:
        raise _LAYOUT.refusal(folder, f"{source.name} has the status '{other}'")
    prefix = "" if (folder / "img").is_dir() else "Img/"
    _LAYOUT.directory(folder, "img", "Img/img")
    paths = [f"{prefix}{path}" for path, _, _ in rows]
    _LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [item for _, item, _ in rows],
        split=["train" if role == "train" else "test" for _, _, role in rows],
        role=[role for _, _, role in rows],
        superclass=["/".join(Path(path).parts[1:3]) for path, _, _ in rows],
    )
    return Dataset(manifest, FolderStore(folder), name="inshop")


enter(
    Entry(
        name="inshop",
        title=_LAYOUT.title,
        classes=7_982,
        items=52_712,
        homepage="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        licence="non-commercial research; an agreement to sign",
        layout=_LAYOUT.shape,
        split="published: 3,997 classes train, 3,985 test (unseen); role: query or gallery within the test classes",
        tested="layout-tested",
        open=open_inshop,
        folders=("In-shop Clothes Retrieval Benchmark", "In-shop", "InShop"),
    )
)
