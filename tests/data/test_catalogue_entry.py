"""Opening by name: which place is looked in first, what is downloaded, and what a user is told."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from nearkin.data import open_data
from nearkin.data.catalogue import cache_directory, catalogue, catalogue_table, data_directory, list_entries, open_named
from nearkin.data.catalogue.download import download_all
from nearkin.errors import DataError, StorageError, UnknownNameError

NAMES = {
    "cub200", "cars196", "sop", "inshop", "flowers102", "cifar10", "cifar100", "mnist", "fashion-mnist", "omniglot",
    "mini-imagenet", "pacs", "nabirds", "zooscan", "audiomnist", "voxceleb", "digits",
}  # fmt: skip
REAL = {"cub200", "cifar100", "omniglot", "pacs", "audiomnist", "fashion-mnist", "digits"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    return tmp_path / "home"


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (8, 8), shade).save(out, "PNG")
    return out.getvalue()


OMNIGLOT = {
    "images_background/Greek/character01/0394_01.png": png(1),
    "images_evaluation/ULOG/character26/1623_20.png": png(2),
}


def put_tree(folder: Path) -> None:
    for name, content in OMNIGLOT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def put_zip(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place / "omniglot.zip", "w") as archive:
        archive.writestr("manifest.csv", "path,label,split\nimages/a.png,from the zip,train\n")
        archive.writestr("images/a.png", png(3))


def replace_fetch(monkeypatch, name: str, fetch) -> None:
    entry = dataclasses.replace(catalogue.get(name), fetch=fetch)
    monkeypatch.setitem(catalogue._entries, name, entry)


def never(*_):
    raise AssertionError("nothing should be downloaded")


def test_the_data_directory_is_given_or_set_or_the_cache(tmp_path, monkeypatch, home):
    assert data_directory() == cache_directory() == home / ".cache/nearkin"
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "set"))
    assert data_directory() == tmp_path / "set"
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    assert data_directory("~/mine") == home / "mine"


def test_our_zip_comes_before_the_published_layout(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", never)
    put_zip(tmp_path / "data")
    put_tree(tmp_path / "data/omniglot")
    dataset = open_named("omniglot", tmp_path / "data", progress=False)
    assert list(dataset.labels) == ["from the zip"]
    assert dataset.name == "omniglot"
    assert dataset.load(0).getpixel((0, 0)) == 3


@pytest.mark.parametrize("folder", ["omniglot", "omniglot-py", "omniglot/python", "omniglot/omniglot-py"])
def test_the_published_layout_comes_before_a_download(tmp_path, monkeypatch, folder):
    replace_fetch(monkeypatch, "omniglot", never)
    put_tree(tmp_path / "data" / folder)
    dataset = open_named("omniglot", tmp_path / "data", progress=False)
    assert list(dataset.labels) == ["Greek/character01", "ULOG/character26"]


def test_the_data_directory_may_be_the_published_folder_itself(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", never)
    put_tree(tmp_path / "omniglot-py")
    assert len(open_named("omniglot", tmp_path / "omniglot-py")) == 2


def test_the_cache_is_looked_in_after_the_data_directory(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", never)
    put_tree(cache_directory() / "omniglot")
    assert len(open_named("omniglot", tmp_path / "elsewhere")) == 2
    put_zip(tmp_path / "data")
    assert len(open_named("omniglot", tmp_path / "data")) == 1


def omniglot_address(tmp_path: Path) -> tuple[str, str]:
    archive = tmp_path / "omniglot.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in OMNIGLOT.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.as_uri(), hashlib.sha256(archive.read_bytes()).hexdigest()


def test_a_download_is_kept_for_the_next_time(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", download_all(omniglot_address(tmp_path)))
    first = open_named("omniglot", tmp_path / "data", progress=False)
    replace_fetch(monkeypatch, "omniglot", never)
    second = open_named("omniglot", tmp_path / "data", progress=False)
    assert first.fingerprint() == second.fingerprint()
    assert len(first) == 2


def test_a_download_passes_over_a_read_only_data_directory(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", download_all(omniglot_address(tmp_path)))
    (tmp_path / "data").mkdir(mode=0o555)
    open_named("omniglot", tmp_path / "data", progress=False)
    assert (cache_directory() / "omniglot").is_dir()
    assert list((tmp_path / "data").iterdir()) == []


def test_nowhere_to_write_is_named(tmp_path, monkeypatch, home):
    replace_fetch(monkeypatch, "omniglot", download_all(omniglot_address(tmp_path)))
    (tmp_path / "data").mkdir(mode=0o555)
    home.mkdir(mode=0o555)
    with pytest.raises(StorageError, match="directory"):
        open_named("omniglot", tmp_path / "data", progress=False)


def test_a_failed_download_tells_where_to_get_it_and_where_to_put_it(tmp_path, monkeypatch):
    replace_fetch(monkeypatch, "omniglot", download_all(((tmp_path / "nothing").as_uri(), "0" * 64)))
    with pytest.raises(DataError) as caught:
        open_named("omniglot", tmp_path / "data", progress=False)
    entry = catalogue.get("omniglot")
    for part in ("download", entry.homepage, str(tmp_path / "data"), entry.layout):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", sorted(NAMES - {"fashion-mnist", "digits"}))
def test_data_that_is_nowhere_is_one_clear_sentence(tmp_path, monkeypatch, name):
    replace_fetch(monkeypatch, name, None)
    entry = catalogue.get(name)
    with pytest.raises(DataError) as caught:
        open_data(name, data_root=tmp_path)
    for part in (entry.title, entry.homepage, str(tmp_path), entry.layout):
        assert part in str(caught.value)
    assert (f"{name}/train/<class>/" in str(caught.value)) == (entry.kind == "image")


def test_an_unknown_name_gets_a_suggestion(tmp_path):
    with pytest.raises(UnknownNameError, match="cub200"):
        open_named("cub20", tmp_path)


def test_digits_need_no_directory(tmp_path):
    assert len(open_named("digits", tmp_path / "absent")) == 1797


def test_every_promised_name_is_there_and_says_how_it_was_tested():
    assert {entry.name for entry in list_entries()} == NAMES
    assert {entry.name for entry in list_entries() if entry.tested == "real data"} == REAL
    assert {entry.tested for entry in list_entries()} == {"real data", "layout-tested"}


def test_the_table_has_a_row_for_each_entry_and_no_empty_cell():
    rows = catalogue_table()
    assert [row["name"] for row in rows] == sorted(NAMES)
    assert all(list(row) == list(rows[0]) for row in rows)
    assert all(value.strip() for row in rows for value in row.values())
    by_name = {row["name"]: row for row in rows}
    assert by_name["sop"]["classes"] == "22,634"
    assert by_name["digits"]["how to get it"] == "bundled with scikit-learn"
    assert by_name["voxceleb"]["how to get it"].startswith("by hand from https://")
    assert by_name["cub200"]["how to get it"] == "downloaded by name"


def test_the_catalogue_imports_nothing_heavy():
    code = (
        "import sys, nearkin.data.catalogue; print(sorted({'torch', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
