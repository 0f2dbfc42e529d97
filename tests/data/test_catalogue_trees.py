"""Data sets described by their folders, on miniature trees in the published layout, whole and then damaged."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data import open_data
from nearkin.data.catalogue import catalogue
from nearkin.errors import DataError


def picture(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 50, 0)).save(path, "JPEG" if path.suffix.lower() == ".jpg" else "PNG")


def sound(path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.sin(np.arange(4000) / 9).astype(np.float32), 16_000)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def omniglot(root: Path) -> dict[str, list[str]]:
    names = [
        "images_background/Greek/character01/0394_01.png",
        "images_background/Greek/character02/0395_01.png",
        "images_evaluation/ULOG/character26/1623_20.png",
    ]
    for name in names:
        picture(root / name)
    return {
        "path": names,
        "label": ["Greek/character01", "Greek/character02", "ULOG/character26"],
        "split": ["train", "train", "test"],
        "alphabet": ["Greek", "Greek", "ULOG"],
    }


def pacs(root: Path) -> dict[str, list[str]]:
    names = ["art_painting/dog/pic_001.jpg", "cartoon/dog/1.jpg", "photo/horse/2.jpg", "sketch/person/3.png"]
    for name in names:
        picture(root / name)
    return {
        "path": names,
        "label": ["dog", "dog", "horse", "person"],
        "domain": ["art_painting", "cartoon", "photo", "sketch"],
    }


def pacs_kfold(root: Path) -> dict[str, list[str]]:
    expected = pacs(root / "kfold")
    return {**expected, "path": [f"kfold/{path}" for path in expected["path"]]}


def packed_table(path: Path, rows: list[dict[str, str]]) -> None:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(out.getvalue().encode()))


def zooscan(root: Path) -> dict[str, list[str]]:
    picture(root / "imgs/Calanoida/31.png")
    picture(root / "imgs/egg__other/7.png")
    common = {"plankton": "TRUE"}
    rows = [
        {
            "objid": "7",
            "taxon_level1": "egg<other",
            "lineage_level1": "/#/living, not/egg",
            "taxon_level2": "egg",
            **common,
            "set": "val",
            "img_path": "imgs/egg__other/7.png",
        },
        {
            "objid": "31",
            "taxon_level1": "Calanoida",
            "lineage_level1": "/#/living/Calanoida",
            "taxon_level2": "Copepoda",
            **common,
            "set": "train",
            "img_path": "imgs/Calanoida/31.png",
        },
    ]
    packed_table(root / "taxa.csv.gz", rows)
    return {
        "path": ["imgs/egg__other/7.png", "imgs/Calanoida/31.png"],
        "label": ["egg<other", "Calanoida"],
        "lineage": ["/#/living, not/egg", "/#/living/Calanoida"],
        "superclass": ["egg", "Copepoda"],
        "split": ["val", "train"],
    }


def zooscan_first_version(root: Path) -> dict[str, list[str]]:
    picture(root / "imgs/Calanoida/31.jpg")
    packed_table(root / "taxa.csv.gz", [{"objid": "31", "taxon": "Calanoida", "lineage": "living/Calanoida"}])
    return {"path": ["imgs/Calanoida/31.jpg"], "label": ["Calanoida"], "lineage": ["living/Calanoida"]}


def zooscan_folders(root: Path) -> dict[str, list[str]]:
    picture(root / "imgs/Calanoida/31.jpg")
    picture(root / "imgs/egg__other/7.jpg")
    return {"path": ["imgs/Calanoida/31.jpg", "imgs/egg__other/7.jpg"], "label": ["Calanoida", "egg__other"]}


def audiomnist(root: Path) -> dict[str, list[str]]:
    names = ["data/40/0_40_12.wav", "data/41/9_41_0.wav"]
    for name in names:
        sound(root / name)
    meta = {
        speaker: {"accent": accent, "age": "30", "gender": "male", "native speaker": "no", "origin": "Europe, Berlin"}
        for speaker, accent in (("40", "German"), ("41", "Spanish"))
    }
    text(root / "data/audioMNIST_meta.txt", json.dumps(meta))
    return {
        "path": names,
        "label": ["speaker40", "speaker41"],
        "split": ["train", "test"],
        "digit": ["0", "9"],
        "gender": ["male", "male"],
        "accent": ["German", "Spanish"],
    }


def audiomnist_without_meta(root: Path) -> dict[str, list[str]]:
    sound(root / "01/3_01_0.wav")
    return {"path": ["01/3_01_0.wav"], "label": ["speaker01"], "split": ["train"], "digit": ["3"]}


VOX1_HEADER = "VoxCeleb1 ID\tVGGFace1 ID\tGender\tNationality\tSet"


def voxceleb(root: Path) -> dict[str, list[str]]:
    sound(root / "wav/id10001/1zcIwhmdeo4/00001.wav")
    sound(root / "wav/id10270/5r0dWxy17C8/00001.wav")
    text(
        root / "vox1_meta.csv",
        VOX1_HEADER,
        "id10001\tA.J._Buckley\tm\tIreland\tdev",
        "id10270\tEartha_Kitt\tf\tUSA\ttest",
    )
    return {
        "path": ["wav/id10001/1zcIwhmdeo4/00001.wav", "wav/id10270/5r0dWxy17C8/00001.wav"],
        "label": ["id10001", "id10270"],
        "split": ["train", "test"],
        "video": ["1zcIwhmdeo4", "5r0dWxy17C8"],
        "gender": ["m", "f"],
    }


def voxceleb_by_name(root: Path) -> dict[str, list[str]]:
    expected = voxceleb(root)
    text(root / "vox1_meta.csv", "VoxCeleb1 ID\tVGGFace1 ID", "id10001\tEmma_Else", "id10270\tA.J._Buckley")
    return {**{name: expected[name] for name in ("path", "label", "video")}, "split": ["test", "train"]}


def voxceleb_apart(root: Path) -> dict[str, list[str]]:
    sound(root / "vox1_dev_wav/wav/id10269/abc/00001.wav")
    sound(root / "vox1_dev_wav/wav/id10310/abc/00001.wav")
    sound(root / "vox1_test_wav/wav/id10309/def/00002.wav")
    return {
        "path": [
            "vox1_dev_wav/wav/id10269/abc/00001.wav",
            "vox1_dev_wav/wav/id10310/abc/00001.wav",
            "vox1_test_wav/wav/id10309/def/00002.wav",
        ],
        "label": ["id10269", "id10310", "id10309"],
        "split": ["train", "train", "test"],
        "video": ["abc", "abc", "def"],
    }


def voxceleb_by_trials(root: Path) -> dict[str, list[str]]:
    expected = voxceleb_apart(root)
    text(root / "veri_test.txt", "1 id10269/abc/00001.wav id10269/abc/00002.wav", "0 id10269/a/1.wav id10310/a/1.wav")
    return {**expected, "split": ["test", "test", "train"]}


def voxceleb2(root: Path) -> dict[str, list[str]]:
    sound(root / "wav/id00012/21Uxsk56VDQ/00001.wav")
    text(root / "vox2_meta.csv", "VoxCeleb2 ID ,VGGFace2 ID ,Gender ,Set ", "id00012 ,n000012 ,m ,dev ")
    return {
        "path": ["wav/id00012/21Uxsk56VDQ/00001.wav"],
        "label": ["id00012"],
        "split": ["train"],
        "video": ["21Uxsk56VDQ"],
        "gender": ["m"],
    }


TREES = [
    ("omniglot", omniglot),
    ("pacs", pacs),
    ("pacs", pacs_kfold),
    ("zooscan", zooscan),
    ("zooscan", zooscan_first_version),
    ("zooscan", zooscan_folders),
    ("audiomnist", audiomnist),
    ("audiomnist", audiomnist_without_meta),
    ("voxceleb", voxceleb),
    ("voxceleb", voxceleb_by_name),
    ("voxceleb", voxceleb_apart),
    ("voxceleb", voxceleb_by_trials),
    ("voxceleb", voxceleb2),
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
        assert item.size == (12, 10) if entry.kind == "image" else item.shape == (4000,)


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
    (omniglot, "omniglot", ["images_background", "images_evaluation"]),
    (pacs, "pacs", ["art_painting", "cartoon", "photo", "sketch"]),
    (zooscan, "zooscan", ["imgs"]),
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


@pytest.mark.parametrize("name", ["omniglot", "pacs", "zooscan", "audiomnist", "voxceleb"])
def test_a_tree_without_files_is_refused(tmp_path, name):
    for folder in ("images_background", "images_evaluation", "art_painting", "imgs", "data", "wav"):
        (tmp_path / folder).mkdir()
    with pytest.raises(DataError, match="published"):
        catalogue.get(name).open(tmp_path)


def spoil(path: str, content: str | bytes):
    def write(root: Path) -> None:
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


@pytest.mark.parametrize(
    ("name", "make", "spoiler", "message"),
    [
        ("zooscan", zooscan, spoil("taxa.csv.gz", b"\x1f\x8b\x08cut"), r"taxa\.csv\.gz"),
        ("zooscan", zooscan, spoil("taxa.csv.gz", gzip.compress(b"objid,name\n7,a\n")), "'taxon'"),
        ("zooscan", zooscan, spoil("taxa.csv.gz", gzip.compress(b"objid,taxon\n9,a\n")), r"\b9\b"),
        ("zooscan", zooscan, spoil("taxa.csv.gz", gzip.compress(b"objid,taxon\n")), "objects"),
        ("zooscan", zooscan, spoil("taxa.csv.gz", gzip.compress(b"objid,taxon\n7, \n")), "'7'"),
        (
            "zooscan",
            zooscan,
            spoil("taxa.csv.gz", gzip.compress(b"objid,taxon\n7,egg\n31,a\n7,krill\n")),
            "'krill'",
        ),
        ("zooscan", zooscan, spoil("imgs/Calanoida/7.png", b""), "imgs/egg"),
        ("zooscan", zooscan_folders, spoil("imgs/8.png", b""), r"imgs/8\.png"),
        ("audiomnist", audiomnist, spoil("data/audioMNIST_meta.txt", "{}"), r"audioMNIST_meta\.txt"),
        ("audiomnist", audiomnist, spoil("data/41/noise.wav", b""), r"41/noise\.wav"),
        ("omniglot", omniglot, spoil("images_background/stray.png", b""), r"stray\.png"),
        ("pacs", pacs, spoil("photo/stray.jpg", b""), r"stray\.jpg"),
        (
            "voxceleb",
            voxceleb2,
            spoil("vox2_meta.csv", "VoxCeleb2 ID,Set\nid1,dev\n"),
            "id00012",
        ),
    ],
)
def test_a_damaged_list_is_named(tmp_path, name, make, spoiler, message):
    make(tmp_path)
    spoiler(tmp_path)
    with pytest.raises(DataError, match=message):
        catalogue.get(name).open(tmp_path)


def test_a_row_that_zooscan_has_twice_is_one_item(tmp_path):
    zooscan(tmp_path)
    (tmp_path / "taxa.csv.gz").write_bytes(gzip.compress(b"objid,taxon\n7,egg\n31,a\n7,egg\n"))
    assert list(catalogue.get("zooscan").open(tmp_path).labels) == ["egg", "a"]


def test_linked_folders_are_not_passed_over_in_silence(tmp_path):
    pacs(tmp_path / "real")
    pacs(tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree/photo/horse")
    (tmp_path / "tree/photo/horse").symlink_to(tmp_path / "real/photo/horse")
    with pytest.raises(DataError, match="link"):
        catalogue.get("pacs").open(tmp_path / "tree")


def test_hidden_files_are_left_out(tmp_path):
    expected = pacs(tmp_path)
    picture(tmp_path / "photo/horse/._2.jpg")
    picture(tmp_path / "photo/.cache/2.jpg")
    assert list(catalogue.get("pacs").open(tmp_path).manifest.paths) == expected["path"]
