"""Cars196 (Stanford Cars): 196 makes and models; the first 98 train and the other 98 are unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import Layout
from nearkin.data.catalogue.matlab import read_matlab
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "Cars196",
    "cars196/ with cars_annos.mat and car_ims/*.jpg, or with cars_train/, cars_test/, devkit/cars_meta.mat, "
    "devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat",
)
_TRAINING_CLASSES = 98


def open_cars196(folder: Path) -> Dataset:
    """Cars196 in one of its two published folders; `published_split` is the publisher's split of each class."""
    if (folder / "cars_annos.mat").is_file():
        names, rows = _one_list(folder)
    else:
        names, rows = _two_lists(folder)
    for path, number, _ in rows:
        if not 1 <= number <= len(names):
            raise _LAYOUT.refusal(folder, f"'{path}' has the class {number} of {len(names)}")
    paths = [path for path, _, _ in rows]
    _LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [names[number - 1] for _, number, _ in rows],
        split=["train" if number <= _TRAINING_CLASSES else "test" for _, number, _ in rows],
        published_split=[part for _, _, part in rows],
    )
    return Dataset(manifest, FolderStore(folder), name="cars196")


Row = tuple[str, int, str]


def _one_list(folder: Path) -> tuple[list[str], list[Row]]:
    content = read_matlab(folder / "cars_annos.mat", "annotations", "class_names")
    rows = [
        (str(item["relative_im_path"]), int(item["class"]), "test" if int(item["test"]) else "train")
        for item in _items(content, folder, "relative_im_path", "class", "test")
    ]
    return _names(content["class_names"]), rows


def _two_lists(folder: Path) -> tuple[list[str], list[Row]]:
    meta = _LAYOUT.file(folder, "devkit/cars_meta.mat", "cars_meta.mat")
    training = _LAYOUT.file(folder, "devkit/cars_train_annos.mat", "cars_train_annos.mat")
    labelled = "cars_test_annos_withlabels.mat"
    testing = _LAYOUT.file(folder, labelled, f"devkit/{labelled}")
    rows: list[Row] = []
    for part, source in (("train", training), ("test", testing)):
        for item in _items(read_matlab(source, "annotations"), folder, "fname", "class"):
            rows.append((f"cars_{part}/{item['fname']}", int(item["class"]), part))
    return _names(read_matlab(meta, "class_names")["class_names"]), rows


def _items(content: dict[str, Any], folder: Path, *fields: str) -> Any:
    annotations = content["annotations"]
    lacking = [field for field in fields if field not in (annotations.dtype.names or ())]
    if lacking:  # the test annotations without labels look the same otherwise
        raise _LAYOUT.refusal(folder, f"its annotations have no field '{lacking[0]}'")
    return annotations.reshape(-1)


def _names(class_names: Any) -> list[str]:
    return [str(name) for name in class_names.reshape(-1)]


enter(
    Entry(
        name="cars196",
        title=_LAYOUT.title,
        classes=196,
        items=16_185,
        homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (offline; mirrored on Kaggle)",
        licence="non-commercial research",
        layout=_LAYOUT.shape,
        split="classes 1-98 train, 99-196 test (unseen); published_split: the images of each class",
        tested="layout-tested",
        open=open_cars196,
        folders=("stanford_cars", "CARS196", "cars"),
    )
)
