"""Fashion-MNIST from the first source that answers, each source played by a local stand-in."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from nearkin.data.catalogue import cache_directory, mnist, open_fashion_mnist, open_named
from nearkin.errors import DataError

COUNTS = {"train": 4, "t10k": 2}


@pytest.fixture
def files() -> dict[str, bytes]:
    """Four miniature idx files by published name, not packed."""
    rng = np.random.default_rng(0)
    made = {}
    for part, count in COUNTS.items():
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        made[f"{part}-images-idx3-ubyte"] = struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28) + pixels.tobytes()
        made[f"{part}-labels-idx1-ubyte"] = struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes((9, 0, 5, 3)[:count])
    return made


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch, files) -> Path:
    """A machine on which no source answers and whose published checksums are those of the miniature files."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(mnist, "_ADDRESS", (tmp_path / "publisher").as_uri() + "/")
    monkeypatch.setattr(mnist, "_INSTALLED", Path("usr/share/datasets/fashion-mnist-nowhere"))
    monkeypatch.setattr(
        mnist, "_CONTENT_SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    )
    packed = {name: gzip.compress(content, mtime=0) for name, content in files.items()}
    monkeypatch.setattr(
        mnist, "_PUBLISHED_MD5", {name: hashlib.md5(content).hexdigest() for name, content in packed.items()}
    )
    return tmp_path


def put(folder: Path, files: dict[str, bytes], *, packed: bool = True, level: int = 9) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        target = folder / (f"{name}.gz" if packed else name)
        target.write_bytes(gzip.compress(content, level, mtime=0) if packed else content)
    return folder


def program(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport os, shutil, sys\n{body}\n")
    path.chmod(0o755)


def install_apt(world: Path, payload: Path, code: int = 0) -> None:
    """Stand-ins for apt-get and dpkg-deb: the package is a folder's content, told by a file."""
    program(
        world / "bin/apt-get",
        f"assert sys.argv[-2:] == ['download', 'dataset-fashion-mnist'], sys.argv\n"
        f"print('E: Unable to locate package', file=sys.stderr) if {code} else open('it_1_all.deb', 'w').close()\n"
        f"sys.exit({code})",
    )
    program(
        world / "bin/dpkg-deb",
        f"assert sys.argv[1] == '-x' and sys.argv[2].endswith('.deb'), sys.argv\n"
        f"shutil.copytree({str(payload)!r}, sys.argv[3])",
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_the_data_directory_comes_first(world, files, folder, packed):
    place = put(world / "data" / folder, files, packed=packed)
    put(world / "publisher", files)
    opened = open_fashion_mnist(world / "data", progress=False)
    assert opened.where == f"the data directory ({place})"
    assert list(opened.dataset.labels) == ["Ankle boot", "T-shirt/top", "Sandal", "Dress", "Ankle boot", "T-shirt/top"]
    assert list(opened.dataset.manifest.column("split")) == ["train"] * 4 + ["test"] * 2
    assert opened.dataset.load(0).size == (28, 28)
    assert not (world / "home").exists()


def test_the_publisher_is_next_and_what_it_gave_is_kept(world, files):
    put(world / "publisher", files)
    opened = open_fashion_mnist(world / "data", progress=False)
    kept = world / "data/fashion-mnist"
    assert opened.where == f"the publisher's address (kept in {kept})"
    assert len(opened.dataset) == 6
    shutil.rmtree(world / "publisher")
    assert open_fashion_mnist(world / "data", progress=False).where == f"the data directory ({kept})"


def test_a_read_only_data_directory_is_left_alone(world, files, monkeypatch):
    put(world / "publisher", files)
    (world / "data").mkdir(mode=0o555)
    monkeypatch.setenv("NEARKIN_DATA", str(world / "data"))
    assert f"kept in {cache_directory()}" in open_fashion_mnist(progress=False).where
    assert list((world / "data").iterdir()) == []
    assert open_fashion_mnist(progress=False).where == f"the data directory ({cache_directory() / 'fashion-mnist'})"


def test_debians_package_is_last(world, files):
    # Debian's files are packed anew: other bytes, the same content.
    payload = put(world / "payload" / mnist._INSTALLED, files, level=1).parents[len(mnist._INSTALLED.parts) - 1]
    install_apt(world, payload)
    opened = open_fashion_mnist(world / "data", progress=False)
    kept = world / "data/fashion-mnist"
    assert opened.where == f"Debian's package dataset-fashion-mnist (kept in {kept})"
    assert len(list(kept.iterdir())) == 4
    assert open_fashion_mnist(world / "data", progress=False).where == f"the data directory ({kept})"


def test_an_installed_debian_package_is_used_in_place(world, files, monkeypatch):
    installed = put(world / "installed", files)
    monkeypatch.setattr(mnist, "_INSTALLED", installed)
    assert open_fashion_mnist(world / "data", progress=False).where == f"the data directory ({installed})"


def test_when_no_source_answers_each_is_named(world):
    with pytest.raises(DataError) as caught:
        open_fashion_mnist(world / "data", progress=False)
    message = str(caught.value)
    assert "publisher" in message
    assert "apt-get" in message
    assert str(world / "data/fashion-mnist") in message
    assert not list((world / "data").glob("*"))


@pytest.mark.parametrize("trouble", ["unknown package", "no file", "other content"])
def test_troubles_with_debian_are_told(world, files, trouble):
    if trouble == "other content":
        files = {name: content[:-1] + bytes([content[-1] ^ 1]) for name, content in files.items()}
    payload = world / "payload"
    put(payload / (mnist._INSTALLED if trouble != "no file" else "elsewhere"), files)
    install_apt(world, payload, code=100 if trouble == "unknown package" else 0)
    expected = {
        "unknown package": "Unable to locate",
        "no file": r"train-images-idx3-ubyte\.gz",
        "other content": "published",
    }
    with pytest.raises(DataError, match=expected[trouble]):
        open_fashion_mnist(world / "data", progress=False)


def test_a_tool_that_hangs_is_ended(world, files, monkeypatch):
    monkeypatch.setattr("nearkin.data.catalogue.download._PACKAGE_SECONDS", 0.3)
    install_apt(world, world)
    program(world / "bin/apt-get", "import time; time.sleep(20)")
    with pytest.raises(DataError, match=r"0\.3"):
        open_fashion_mnist(world / "data", progress=False)


def test_a_publisher_with_other_files_is_passed_over(world, files):
    put(world / "publisher", {name: content + b"!" for name, content in files.items()})
    with pytest.raises(DataError, match="published"):
        open_fashion_mnist(world / "data", progress=False)


def test_a_damaged_local_copy_is_named_and_not_replaced(world, files):
    place = put(world / "data/fashion-mnist", files)
    damaged = place / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(gzip.compress(files["train-images-idx3-ubyte"][:-1] + b"\0"))
    put(world / "publisher", files)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz"):
        open_fashion_mnist(world / "data", progress=False)
    assert damaged.exists()


def test_the_files_of_mnist_in_the_data_directory_are_not_mistaken(world, files):
    put(world / "data", {name: content[:-1] + b"\7" for name, content in files.items()})
    put(world / "publisher", files)
    assert "the publisher's address" in open_fashion_mnist(world / "data", progress=False).where


def test_no_writable_place_is_a_data_error(world, files, monkeypatch):
    put(world / "publisher", files)
    (world / "data").mkdir(mode=0o555)
    (world / "home").mkdir(mode=0o555)
    with pytest.raises(DataError, match="writ"):
        open_fashion_mnist(world / "data", progress=False)


def test_by_name_it_says_on_stderr_which_source_answered(world, files, capsys):
    put(world / "publisher", files)
    dataset = open_named("fashion-mnist", world / "data")
    assert dataset.name == "fashion-mnist"
    assert "publisher" in capsys.readouterr().err
    assert os.listdir(world / "data") == ["fashion-mnist"]
