"""Things that people buy: Cars196, Stanford Online Products and In-shop Clothes Retrieval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import published
from nearkin.data.catalogue.layout import ClassFolders, PublishedFolder, read_fields, read_lines, read_matlab
from nearkin.data.dataset import Dataset

_CARS_TRAINING_CLASSES = 98


@published(
    "cars196",
    title="Cars196",
    classes=196,
    items=16_185,
    homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (offline; mirrored on Kaggle)",
    licence="non-commercial research",
    layout="cars196/ with cars_annos.mat and car_ims/*.jpg, or with cars_train/, cars_test/, devkit/cars_meta.mat, "
    "devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat",
    split="classes 1-98 train, 99-196 test (unseen); published_split: the images of each class",
    tested="layout-tested",
    folders=("stanford_cars", "CARS196", "cars"),
    class_folders=ClassFolders(training=_CARS_TRAINING_CLASSES, alphabetical=True),
)
def open_cars196(at: PublishedFolder) -> Dataset:
    """Cars196 in one of its two published folders; `published_split` is the publisher's split of each class."""
    one_list = (at.path / "cars_annos.mat").is_file()
    names, rows = _cars_of_one_list(at) if one_list else _cars_of_two_lists(at)
    for path, number, _ in rows:
        if not 1 <= number <= len(names):
            raise at.refusal(f"'{path}' has the class {number} of {len(names)}")
    paths = [path for path, _, _ in rows]
    at.all_present(paths)
    return at.dataset(
        paths,
        [names[number - 1] for _, number, _ in rows],
        split=["train" if number <= _CARS_TRAINING_CLASSES else "test" for _, number, _ in rows],
        published_split=[part for _, _, part in rows],
    )


CarRow = tuple[str, int, str]


def _cars_of_one_list(at: PublishedFolder) -> tuple[list[str], list[CarRow]]:
    content = read_matlab(at.path / "cars_annos.mat", "annotations", "class_names")
    rows = [
        (str(item["relative_im_path"]), int(item["class"]), "test" if int(item["test"]) else "train")
        for item in _car_rows(at, content, "relative_im_path", "class", "test")
    ]
    return _car_names(content["class_names"]), rows


def _cars_of_two_lists(at: PublishedFolder) -> tuple[list[str], list[CarRow]]:
    meta = at.file("devkit/cars_meta.mat", "cars_meta.mat")
    training = at.file("devkit/cars_train_annos.mat", "cars_train_annos.mat")
    labelled = "cars_test_annos_withlabels.mat"
    testing = at.file(labelled, f"devkit/{labelled}")
    rows: list[CarRow] = []
    for part, source in (("train", training), ("test", testing)):
        for item in _car_rows(at, read_matlab(source, "annotations"), "fname", "class"):
            rows.append((f"cars_{part}/{item['fname']}", int(item["class"]), part))
    return _car_names(read_matlab(meta, "class_names")["class_names"]), rows


def _car_rows(at: PublishedFolder, content: dict[str, Any], *fields: str) -> Any:
    annotations = content["annotations"]
    lacking = [field for field in fields if field not in (annotations.dtype.names or ())]
    if lacking:  # the test annotations without labels look the same otherwise
        raise at.refusal(f"its annotations have no field '{lacking[0]}'")
    return annotations.reshape(-1)


def _car_names(class_names: Any) -> list[str]:
    return [str(name) for name in class_names.reshape(-1)]


@published(
    "sop",
    title="Stanford Online Products",
    classes=22_634,
    items=120_053,
    homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
    licence="MIT for the lists; images from the web, for research",
    layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and <product kind>_final/*.JPG",
    split="published lists: 11,318 classes train, 11,316 test (unseen); superclass: kind of product",
    tested="layout-tested",
    folders=("Stanford_Online_Products",),
    fetch=download_all(
        ("ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e")
    ),
)
def open_sop(at: PublishedFolder) -> Dataset:
    """Stanford Online Products in its published folder; `superclass` is the kind of product."""
    rows: list[tuple[str, str, str]] = []
    for split in ("train", "test"):
        source = at.file(f"Ebay_{split}.txt")
        lines = read_lines(source)
        if not lines or lines[0].split() != ["image_id", "class_id", "super_class_id", "path"]:
            raise at.refusal(f"{source.name} does not begin with its header")
        for _, number, _, path in read_fields(lines[1:], 4, source):
            if not number.isdigit():
                raise at.refusal(f"{source.name} has the class '{number}'")
            rows.append((path, f"{int(number):05d}", split))
    paths = [path for path, _, _ in rows]
    at.all_present(paths)
    kinds = [path.partition("/")[0].removesuffix("_final") for path in paths]
    return at.dataset(paths, [label for _, label, _ in rows], split=[split for _, _, split in rows], superclass=kinds)


_INSHOP_ROLES = ("train", "query", "gallery")


@published(
    "inshop",
    title="In-shop Clothes Retrieval",
    classes=7_982,
    items=52_712,
    homepage="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    licence="non-commercial research; an agreement to sign",
    layout="'In-shop Clothes Retrieval Benchmark'/ with Eval/list_eval_partition.txt and "
    "img/{MEN,WOMEN}/<kind>/<item>/*.jpg",
    split="published: 3,997 classes train, 3,985 test (unseen); role: query or gallery within the test classes",
    tested="layout-tested",
    folders=("In-shop Clothes Retrieval Benchmark", "In-shop", "InShop"),
)
def open_inshop(at: PublishedFolder) -> Dataset:
    """In-shop in its published folder: `role` says train, query or gallery, `superclass` the kind of clothes."""
    name = "list_eval_partition.txt"
    source = at.file(f"Eval/{name}", name, f"Anno/{name}")
    # The first line counts the images and the second names the columns.
    rows = list(read_fields(read_lines(source)[2:], 3, source))
    other = next((role for _, _, role in rows if role not in _INSHOP_ROLES), None)
    if other is not None:
        raise at.refusal(f"{source.name} has the status '{other}'")
    prefix = "" if (at.path / "img").is_dir() else "Img/"
    at.directory("img", "Img/img")
    paths = [f"{prefix}{path}" for path, _, _ in rows]
    at.all_present(paths)
    return at.dataset(
        paths,
        [item for _, item, _ in rows],
        split=["train" if role == "train" else "test" for _, _, role in rows],
        role=[role for _, _, role in rows],
        superclass=["/".join(Path(path).parts[1:3]) for path, _, _ in rows],
    )
