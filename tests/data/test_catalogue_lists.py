"""Data sets described by published lists, on miniature trees in the published layout, whole and then damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from nearkin.data import open_data
from nearkin.data.catalogue import catalogue
from nearkin.errors import DataError


def picture(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 50, 0)).save(path, "JPEG" if path.suffix.lower() == ".jpg" else "PNG")


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def cub200(root: Path) -> dict[str, list[str]]:
    files = [
        ("001.Black_footed_Albatross", "A_0001_1.jpg", 1, 1),
        ("100.Brown_Pelican", "B_0001_2.jpg", 100, 0),
        ("101.White_Pelican", "C_0001_3.jpg", 101, 1),
        ("200.Common_Yellowthroat", "D_0001_4.jpg", 200, 0),
    ]
    for folder, name, _, _ in files:
        picture(root / "images" / folder / name)
    text(root / "images.txt", *(f"{i} {folder}/{name}" for i, (folder, name, _, _) in enumerate(files, 1)))
    text(root / "image_class_labels.txt", *(f"{i} {number}" for i, (_, _, number, _) in enumerate(files, 1)))
    text(root / "classes.txt", *(f"{number} {folder}" for folder, _, number, _ in files))
    text(root / "train_test_split.txt", *(f"{i} {flag}" for i, (_, _, _, flag) in enumerate(files, 1)))
    return {
        "path": [f"images/{folder}/{name}" for folder, name, _, _ in files],
        "label": [folder for folder, _, _, _ in files],
        "split": ["train", "train", "test", "test"],
        "published_split": ["train", "test", "train", "test"],
    }


def nabirds(root: Path) -> dict[str, list[str]]:
    ids = ["0000139e-21dc-4d0c-bfe1-4cae3c85c829", "0000d9fc-4e02-4c06-a0af-a55cfb16b12b"]
    picture(root / "images/0817/0000139e21dc4d0cbfe14cae3c85c829.jpg")
    picture(root / "images/0860/0000d9fc4e024c06a0afa55cfb16b12b.jpg")
    text(
        root / "images.txt",
        f"{ids[0]} 0817/0000139e21dc4d0cbfe14cae3c85c829.jpg",
        f"{ids[1]} 0860/0000d9fc4e024c06a0afa55cfb16b12b.jpg",
    )
    text(root / "image_class_labels.txt", f"{ids[0]} 817", f"{ids[1]} 860")
    text(
        root / "classes.txt",
        "0 Birds",
        "22 Perching Birds",
        "817 Oak Titmouse",
        "860 Sooty Fox Sparrow (Adult, male)",
    )
    text(root / "train_test_split.txt", f"{ids[0]} 0", f"{ids[1]} 1")
    text(root / "hierarchy.txt", "22 0", "817 22", "860 22")
    return {
        "path": [
            "images/0817/0000139e21dc4d0cbfe14cae3c85c829.jpg",
            "images/0860/0000d9fc4e024c06a0afa55cfb16b12b.jpg",
        ],
        "label": ["0817.Oak Titmouse", "0860.Sooty Fox Sparrow (Adult, male)"],
        "split": ["test", "train"],
        "superclass": ["0022.Perching Birds"] * 2,
    }


def cells(values: list) -> np.ndarray:
    array = np.empty((1, len(values)), dtype=object)
    array[0, :] = values
    return array


def structs(rows: list[dict]) -> np.ndarray:
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in rows[0]])
    for column, row in enumerate(rows):
        array[0, column] = tuple(row.values())
    return array


CARS = [f"Make {number:03d} C/V Sedan 2012" for number in range(1, 197)]


def cars196(root: Path) -> dict[str, list[str]]:
    rows = [("car_ims/000001.jpg", 1, 0), ("car_ims/000002.jpg", 98, 1), ("car_ims/000003.jpg", 99, 0)]
    for path, _, _ in rows:
        picture(root / path)
    annotations = [
        {
            "relative_im_path": path,
            "bbox_x1": 1,
            "bbox_y1": 1,
            "bbox_x2": 9,
            "bbox_y2": 9,
            "class": number,
            "test": test,
        }
        for path, number, test in rows
    ]
    savemat(root / "cars_annos.mat", {"annotations": structs(annotations), "class_names": cells(CARS)})
    return {
        "path": [path for path, _, _ in rows],
        "label": [CARS[0], CARS[97], CARS[98]],
        "split": ["train", "train", "test"],
        "published_split": ["train", "test", "train"],
    }


def cars196_devkit(root: Path) -> dict[str, list[str]]:
    (root / "devkit").mkdir(parents=True)
    box = {"bbox_x1": 1, "bbox_y1": 1, "bbox_x2": 9, "bbox_y2": 9}
    training = [{**box, "class": 14, "fname": "00001.jpg"}, {**box, "class": 196, "fname": "00002.jpg"}]
    testing = [{**box, "class": 2, "fname": "00001.jpg"}]
    for part, rows in (("train", training), ("test", testing)):
        for row in rows:
            picture(root / f"cars_{part}" / row["fname"])
    savemat(root / "devkit/cars_train_annos.mat", {"annotations": structs(training)})
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": structs(testing)})
    savemat(root / "devkit/cars_meta.mat", {"class_names": cells(CARS)})
    return {
        "path": ["cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg"],
        "label": [CARS[13], CARS[195], CARS[1]],
        "split": ["train", "test", "train"],
        "published_split": ["train", "train", "test"],
    }


def flowers102(root: Path) -> dict[str, list[str]]:
    labels = [77, 51, 52, 1]
    for image in range(1, 5):
        picture(root / f"jpg/image_{image:05d}.jpg")
    savemat(root / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    parts = {"trnid": [[2, 4]], "valid": [[1]], "tstid": [[3]]}
    savemat(root / "setid.mat", {name: np.array(ids, dtype=np.uint16) for name, ids in parts.items()})
    return {
        "path": [f"jpg/image_{image:05d}.jpg" for image in range(1, 5)],
        "label": ["077", "051", "052", "001"],
        "split": ["test", "train", "test", "train"],
        "published_split": ["val", "train", "test", "train"],
    }


def sop(root: Path) -> dict[str, list[str]]:
    header = "image_id class_id super_class_id path"
    names = ["bicycle_final/111085122871_0.JPG", "coffee_maker_final/1_0.JPG", "toaster_final/2_0.JPG"]
    for name in names:
        picture(root / name)
    text(root / "Ebay_train.txt", header, f"1 1 1 {names[0]}", f"2 2 4 {names[1]}")
    text(root / "Ebay_test.txt", header, f"59552 11319 12 {names[2]}")
    return {
        "path": names,
        "label": ["00001", "00002", "11319"],
        "split": ["train", "train", "test"],
        "superclass": ["bicycle", "coffee_maker", "toaster"],
    }


def inshop(root: Path) -> dict[str, list[str]]:
    rows = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "query"),
        ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "gallery"),
    ]
    for path, _, _ in rows:
        picture(root / path)
    lines = [f"{path:<70} {item} {role}" for path, item, role in rows]
    text(root / "Eval/list_eval_partition.txt", str(len(rows)), "image_name item_id evaluation_status", *lines)
    return {
        "path": [path for path, _, _ in rows],
        "label": ["id_00000002", "id_00000080", "id_00000080"],
        "split": ["train", "test", "test"],
        "role": ["train", "query", "gallery"],
        "superclass": ["WOMEN/Dresses", "MEN/Denim", "MEN/Denim"],
    }


def inshop_as_unzipped(root: Path) -> dict[str, list[str]]:
    expected = inshop(root)
    (root / "Img").mkdir()
    shutil.move(root / "img", root / "Img" / "img")
    return {**expected, "path": [f"Img/{path}" for path in expected["path"]]}


def mini_imagenet(root: Path) -> dict[str, list[str]]:
    rows = {"train": "n01532829", "val": "n01855672", "test": "n01930112"}
    for split, label in rows.items():
        picture(root / f"images/{label}00000005.jpg")
        text(root / f"{split}.csv", "filename,label", f"{label}00000005.jpg,{label}")
    return {
        "path": [f"images/{label}00000005.jpg" for label in rows.values()],
        "label": list(rows.values()),
        "split": list(rows),
    }


TREES = [
    ("cub200", cub200),
    ("nabirds", nabirds),
    ("cars196", cars196),
    ("cars196", cars196_devkit),
    ("flowers102", flowers102),
    ("sop", sop),
    ("inshop", inshop),
    ("inshop", inshop_as_unzipped),
    ("mini-imagenet", mini_imagenet),
]


@pytest.mark.parametrize(("name", "make"), TREES, ids=[make.__name__ for _, make in TREES])
def test_a_miniature_tree_becomes_its_manifest(tmp_path, name, make):
    root = tmp_path / "published"
    root.mkdir()
    expected = make(root)
    entry = catalogue.get(name)
    dataset = entry.open(root)
    assert {column: list(values) for column, values in dataset.manifest.columns.items()} == expected
    assert (dataset.name, dataset.kind) == (name, entry.kind)
    for index in range(len(dataset)):
        item = dataset.load(index)
        assert item.size == (12, 10) if entry.kind == "image" else item.shape == (800,)


@pytest.mark.parametrize(("name", "make"), TREES, ids=[make.__name__ for _, make in TREES])
def test_the_published_folder_is_found_by_name(tmp_path, monkeypatch, name, make):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    entry = catalogue.get(name)
    for folder in entry.folders or (name,):
        root = tmp_path / f"data-{folder.replace('/', '-')}"
        (root / folder).mkdir(parents=True)
        expected = make(root / folder)
        assert list(open_data(name, data_root=root).labels) == expected["label"]


NEEDED = [
    (cub200, "cub200", ["images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt"]),
    (
        nabirds,
        "nabirds",
        ["images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt", "hierarchy.txt"],
    ),
    (
        cars196_devkit,
        "cars196",
        ["devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"],
    ),
    (flowers102, "flowers102", ["imagelabels.mat", "setid.mat"]),
    (sop, "sop", ["Ebay_train.txt", "Ebay_test.txt"]),
    (inshop, "inshop", ["Eval/list_eval_partition.txt", "img"]),
    (mini_imagenet, "mini-imagenet", ["train.csv", "val.csv", "test.csv"]),
]


@pytest.mark.parametrize(
    ("make", "name", "part"), [(make, name, part) for make, name, parts in NEEDED for part in parts]
)
def test_a_missing_part_is_named_with_the_layout(tmp_path, make, name, part):
    make(tmp_path)
    victim = tmp_path / part
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    with pytest.raises(DataError) as caught:
        catalogue.get(name).open(tmp_path)
    assert part in str(caught.value)
    assert catalogue.get(name).layout in str(caught.value)


@pytest.mark.parametrize("make", [cub200, nabirds, cars196, flowers102, sop, inshop, mini_imagenet])
def test_a_listed_file_that_is_not_there_is_named(tmp_path, make):
    expected = make(tmp_path)
    (tmp_path / expected["path"][1]).unlink()
    with pytest.raises(DataError, match=expected["path"][1]):
        catalogue.get(make.__name__.replace("_", "-")).open(tmp_path)


def spoil(path: str, content: str | bytes):
    def write(root: Path) -> None:
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def without_labels(root: Path) -> None:
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": structs([{"bbox_x1": 1, "fname": "00001.jpg"}])})


@pytest.mark.parametrize(
    ("name", "make", "spoiler", "message"),
    [
        ("cub200", cub200, spoil("image_class_labels.txt", "1 1\n2 100\n3 101\n"), "image 4"),
        ("cub200", cub200, spoil("images.txt", "1\n"), "line 1"),
        ("cub200", cub200, spoil("images.txt", "1 a.jpg\n1 b.jpg\n"), "line 2"),
        ("nabirds", nabirds, spoil("hierarchy.txt", "22 0\n"), "0000139e"),
        ("cars196", cars196, spoil("cars_annos.mat", b"no matlab"), "MATLAB"),
        ("cars196", cars196_devkit, without_labels, "'class'"),
        ("cub200", cub200, spoil("images.txt", "\n"), "empty"),
        ("sop", sop, spoil("Ebay_test.txt", "image_id class_id super_class_id path\n1 x 1 a\n"), "'x'"),
        ("flowers102", flowers102, spoil("setid.mat", b""), "MATLAB"),
        ("sop", sop, spoil("Ebay_train.txt", "1 1 1 a.jpg\n"), "header"),
        ("sop", sop, spoil("Ebay_test.txt", "image_id class_id super_class_id path\n1 1\n"), "4"),
        ("inshop", inshop, spoil("Eval/list_eval_partition.txt", "1\nh\nimg/a.jpg id_1 val\n"), "'val'"),
        ("mini-imagenet", mini_imagenet, spoil("val.csv", "file,label\na.jpg,n1\n"), "'filename'"),
        ("mini-imagenet", mini_imagenet, spoil("val.csv", "filename,label\na.jpg\n"), "line 2"),
    ],
)
def test_a_damaged_list_is_named(tmp_path, name, make, spoiler, message):
    make(tmp_path)
    spoiler(tmp_path)
    with pytest.raises(DataError, match=message):
        catalogue.get(name).open(tmp_path)
