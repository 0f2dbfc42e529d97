"""Every image set of the catalogue as mirrors have it: in one more folder, and as train/<class>/, test/<class>/."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from PIL import Image

from nearkin.data import open_data
from nearkin.data.catalogue import catalogue
from nearkin.data.catalogue.layout import ClassFolders, open_class_folders
from nearkin.data.section import DataSection
from nearkin.data.splits import resolve_split
from nearkin.errors import DataError

IMAGES = [name for name in catalogue if catalogue.get(name).kind == "image"]


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (90, 50, 0)).save(path, "JPEG" if path.suffix == ".jpg" else "PNG")


def tree(root: Path, **parts: list[str]) -> None:
    for part, folders in parts.items():
        for folder in folders:
            picture(root / part / folder / "1.jpg")
            picture(root / part / folder / "2.png")


def trees_of(module: str):
    """The miniature trees of another file of tests."""
    path = Path(__file__).with_name(f"{module}.py")
    spec = spec_from_file_location(f"mirrored_{module}", path)
    made = module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return [(name, make) for name, make in made.TREES if catalogue.get(name).kind == "image"]


PUBLISHED = [*trees_of("test_catalogue_trees"), *trees_of("test_catalogue_lists")]


@pytest.mark.parametrize(("name", "make"), PUBLISHED, ids=[make.__name__ for _, make in PUBLISHED])
@pytest.mark.parametrize("inside", ["", "data", "data/again"])
def test_the_published_folder_may_be_in_one_more_folder(tmp_path, monkeypatch, name, make, inside):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    entry = catalogue.get(name)
    around = tmp_path / "root" / (entry.folders or (name,))[0]
    place = around / inside
    place.mkdir(parents=True)
    (around / "__MACOSX").mkdir()
    (around / "readme.txt").write_text("a mirror")
    expected = make(place)
    dataset = open_data(name, data_root=tmp_path / "root")
    assert {column: list(values) for column, values in dataset.manifest.columns.items()} == expected
    assert dataset.load(0).size == (12, 10)


FOLDERS = {
    "cub200": ["001.Black_footed_Albatross", "100.Brown_Pelican", "101.White_Pelican", "200.Yellowthroat"],
    "flowers102": ["1", "51", "52", "102"],
    "omniglot": ["Greek/character01", "ULOG/character02"],
    "pacs": ["photo/dog", "sketch/horse"],
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_every_image_set_opens_as_class_folders(tmp_path, monkeypatch, name, wrapped):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    entry = catalogue.get(name)
    folders = FOLDERS.get(name, ["a", "b"])
    if name == "cars196":
        folders = [f"Make {number:03d}" for number in range(196)]
    root = tmp_path / "root" / name
    tree(root / "inner" if wrapped and entry.find is None else root, train=folders, test=folders[::-1])
    dataset = open_data(name, data_root=tmp_path / "root")
    labels = {folder.split("/")[-1] if name == "pacs" else folder for folder in folders}
    assert (set(dataset.labels), dataset.name, len(dataset)) == (labels, name, 4 * len(folders))
    assert dataset.load(0).size == (12, 10)
    if name in ("cub200", "flowers102", "cars196"):
        training = folders[:98] if name == "cars196" else folders[:2]
        split = resolve_split(dataset.manifest, DataSection(split="column", val_classes=0), 0)
        assert set(dataset.labels[split.train]) == set(training)
        assert set(dataset.manifest.column("published_split")) == {"train", "test"}
    else:
        assert sorted(set(dataset.manifest.column("split"))) == ["test", "train"]
    if name == "pacs":
        assert set(dataset.manifest.column("domain")) == {"photo", "sketch"}


def test_parts_without_common_classes_are_the_split(tmp_path):
    tree(tmp_path / "sop", train=["1", "2"], val=["3"], test=["4", "5"])
    found = open_data("sop", data_root=tmp_path)
    assert sorted(zip(found.labels, found.manifest.column("split"), strict=True))[::2] == [
        ("1", "train"), ("2", "train"), ("3", "val"), ("4", "test"), ("5", "test"),
    ]  # fmt: skip
    assert not found.manifest.has("published_split")


def test_query_and_gallery_folders_are_roles(tmp_path):
    tree(tmp_path / "inshop", train=["1", "2"], query=["3"], gallery=["3"])
    found = open_data("inshop", data_root=tmp_path)
    assert list(found.manifest.column("role")) == ["gallery"] * 2 + ["query"] * 2 + ["train"] * 4
    assert list(found.manifest.column("split")) == ["test"] * 4 + ["train"] * 4


@pytest.mark.parametrize(
    ("name", "folders", "word"),
    [
        ("cub200", ["Albatross", "Pelican"], "number"),
        ("cars196", ["Acura", "Audi"], "2 of the 196"),
        ("pacs", ["dog", "horse"], "domain"),
        ("sop", ["a/b", "c/d"], "<class>"),
    ],
)
def test_class_folders_that_do_not_tell_are_refused(tmp_path, name, folders, word):
    tree(tmp_path / name, train=folders, test=folders)
    with pytest.raises(DataError, match=word):
        open_data(name, data_root=tmp_path)


def test_the_error_is_that_of_the_folder_that_was_meant(tmp_path):
    (tmp_path / "CUB_200_2011" / "CUB_200_2011").mkdir(parents=True)
    with pytest.raises(DataError, match=r"CUB_200_2011/CUB_200_2011 is not .*images\.txt"):
        open_data("cub200", data_root=tmp_path)


def test_other_folders_are_no_class_folders(tmp_path):
    tree(tmp_path, images=["a", "b"])
    assert open_class_folders(tmp_path, "x", "X", 2, ClassFolders()) is None
    assert open_class_folders(tmp_path / "nowhere", "x", "X", 2, ClassFolders()) is None


def test_numbers_decide_where_names_begin_with_them(tmp_path):
    tree(tmp_path, train=["9", "10", "2"], test=["9", "10", "2"])
    found = open_class_folders(tmp_path, "x", "X", 3, ClassFolders(training=9))
    parts = dict(zip(found.labels, found.manifest.column("split"), strict=True))
    assert parts == {"2": "train", "9": "train", "10": "test"}
