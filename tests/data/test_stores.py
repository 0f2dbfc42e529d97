"""Stores: bytes come back whole, from any thread or process, and nothing outside the root is ever read."""

from __future__ import annotations

import os
import pickle
import stat
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data import ArrayStore, FolderStore, UnreadableError, ZipStore, stores
from nearkin.data.stores import check_inside
from nearkin.errors import DataError

OUTSIDE = [
    "/etc/passwd",
    "../secret.png",
    "a/../../secret.png",
    "..",
    "a/..",
    "..\\secret.png",
    "a\\..\\..\\secret.png",
    "\\\\server\\share\\x.png",
    "\\x.png",
    "C:\\x.png",
    "c:/x.png",
    "a\0.png",
]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "x.bin").write_bytes(b"inside")
    (tmp_path / "secret.png").write_bytes(b"secret")
    return root


def zipped(path, entries, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_leave_their_root_are_refused(folder, tmp_path, path):
    with pytest.raises(DataError, match="outside"):
        FolderStore(folder).read(path)
    with pytest.raises(DataError, match="outside"):
        FolderStore(folder).signature(path)
    with pytest.raises(DataError, match="outside"):
        ZipStore(zipped(tmp_path / "z.zip", {"a.png": b"x"})).read(path)


@pytest.mark.parametrize("path", ["a/x.png", "a..b/c..png", "...", "..a/x", "a:b.png", "a b/ü.png", "a\\b.png"])
def test_odd_but_inner_paths_are_fine(path):
    check_inside(path, "root")


@given(
    st.lists(st.sampled_from(["a", "b.c", "..", ".", "", "C:", "..x"]), min_size=1, max_size=5), st.sampled_from("/\\")
)
def test_accepted_paths_resolve_inside(parts, separator):
    path = separator.join(parts)
    try:
        check_inside(path, "/srv/data")
    except DataError:
        return
    resolved = os.path.normpath(os.path.join("/srv/data", path.replace("\\", "/")))
    assert os.path.commonpath([resolved, "/srv/data"]) == "/srv/data"


def test_a_folder_gives_bytes_and_signatures_that_follow_changes(folder):
    store = FolderStore(folder)
    assert store.read("a/x.bin") == b"inside"
    before = store.signature("a/x.bin")
    assert before == FolderStore(folder).signature("a/x.bin")
    (folder / "a" / "x.bin").write_bytes(b"changed!")
    assert store.signature("a/x.bin") != before


def test_links_may_stay_inside_but_not_leave(folder, tmp_path):
    (folder / "near.bin").symlink_to(folder / "a" / "x.bin")
    (folder / "far.bin").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    store = FolderStore(folder)
    assert store.read("near.bin") == b"inside"
    for path in ("far.bin", "up/secret.png"):
        with pytest.raises(DataError, match="link"):
            store.read(path)


def test_a_root_that_is_itself_a_link_is_followed(folder, tmp_path):
    (tmp_path / "alias").symlink_to(folder)
    assert FolderStore(tmp_path / "alias").read("a/x.bin") == b"inside"


def test_missing_files_folders_pipes_and_giants_are_named(folder, monkeypatch):
    os.mkfifo(folder / "pipe.png")  # reading it would wait for ever
    store = FolderStore(folder)
    with pytest.raises(UnreadableError, match=r"gone/x\.png"):
        store.read("gone/x.png")
    with pytest.raises(UnreadableError, match="slash"):
        store.check(["a\\y.bin"])
    for path in ("a", "pipe.png"):
        with pytest.raises(UnreadableError, match="regular"):
            store.read(path)
    monkeypatch.setattr(stores, "MAX_ITEM_BYTES", 3)
    with pytest.raises(UnreadableError, match="large"):
        store.read("a/x.bin")


def test_a_file_without_permission_is_named(folder, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # the superuser, who may run the tests, is never refused
    with pytest.raises(UnreadableError, match=r"a/x\.bin"):
        FolderStore(folder).read("a/x.bin")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_gives_bytes_names_and_signatures(tmp_path, compression):
    entries = {"top/a.bin": b"one" * 50, "top/b/c.bin": b"two", "d.bin": b""}
    store = ZipStore(zipped(tmp_path / "z.zip", entries, compression))
    assert store.names() == list(entries)
    assert {name: store.read(name) for name in entries} == entries
    below = store.below("top/")
    assert below.names() == ["a.bin", "b/c.bin"]
    assert below.read("b/c.bin") == b"two"
    assert store.signature("d.bin") != store.signature("top/a.bin")


def test_zip_signatures_do_not_depend_on_place_or_compression(tmp_path):
    entries = {"a.bin": b"one" * 50}
    stored = ZipStore(zipped(tmp_path / "s.zip", entries, zipfile.ZIP_STORED))
    deflated = ZipStore(zipped(tmp_path / "d.zip", entries, zipfile.ZIP_DEFLATED))
    assert stored.signature("a.bin") == deflated.signature("a.bin")


@pytest.fixture
def many(tmp_path):
    rng = np.random.default_rng(0)
    entries = {f"{index}.bin": rng.bytes(5000 + index) for index in range(60)}
    return ZipStore(zipped(tmp_path / "many.zip", entries)), entries


def test_a_zip_serves_threads(many):
    store, entries = many
    names = list(entries) * 5
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.read, names)) == [entries[name] for name in names]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_zip_serves_forked_children_beside_their_parent(many):
    store, entries = many
    store.read("0.bin")  # opened before the fork, so the children inherit the handle
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            right = all(store.read(name) == content for name, content in entries.items() for _ in range(3))
            os._exit(0 if right else 1)
        children.append(child)
    assert all(store.read(name) == content for name, content in entries.items() for _ in range(3))
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


def test_stores_travel_to_other_processes(many, folder):
    store, entries = many
    store.read("0.bin")
    assert pickle.loads(pickle.dumps(store)).read("1.bin") == entries["1.bin"]
    assert pickle.loads(pickle.dumps(FolderStore(folder))).read("a/x.bin") == b"inside"


@pytest.mark.parametrize("name", ["../evil.png", "/evil.png", "a/../../evil.png", "..\\evil.png", "C:\\evil.png"])
def test_zip_entries_that_leave_the_zip_are_refused(tmp_path, name):
    store = ZipStore(zipped(tmp_path / "z.zip", {"a.png": b"x", name: b"y"}))
    with pytest.raises(DataError, match="outside"):
        store.read("a.png")


def test_zip_links_are_refused(tmp_path):
    link = zipfile.ZipInfo("link.png")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match=r"link\.png"):
        ZipStore(tmp_path / "z.zip").names()


def test_zip_bombs_are_refused(tmp_path, monkeypatch):
    bomb = zipped(tmp_path / "bomb.zip", {"a.png": bytes(60_000_000)})
    with pytest.raises(DataError, match=r"a\.png"):
        ZipStore(bomb).names()
    monkeypatch.setattr(stores, "_MAX_ZIP_BYTES", 10)
    with pytest.raises(DataError, match="12"):
        ZipStore(zipped(tmp_path / "wide.zip", {"a": b"123456", "b": b"123456"})).names()
    monkeypatch.setattr(stores, "MAX_ITEM_BYTES", 5)
    with pytest.raises(DataError, match="bomb"):
        ZipStore(tmp_path / "wide.zip").names()


def test_a_zip_entry_that_lies_about_its_size_is_named(tmp_path):
    path = zipped(tmp_path / "z.zip", {"a.png": bytes(1_000_000)})
    raw = bytearray(path.read_bytes())
    directory = raw.rfind(b"PK\x01\x02")
    raw[directory + 24 : directory + 28] = (10).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=r"a\.png"):
        ZipStore(path).read("a.png")


def test_an_encrypted_zip_is_refused(tmp_path):
    path = zipped(tmp_path / "z.zip", {"a.png": b"x"})
    raw = bytearray(path.read_bytes())
    for mark, offset in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)]:
        raw[raw.find(mark) + offset] |= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="encrypted"):
        ZipStore(path).names()


@pytest.mark.parametrize("content", [b"", b"this is no zip", b"PK\x03\x04 cut short"])
def test_a_corrupt_zip_is_named(tmp_path, content):
    (tmp_path / "z.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"z\.zip"):
        ZipStore(tmp_path / "z.zip").names()


def test_a_truncated_zip_and_a_damaged_entry_are_named(tmp_path):
    path = zipped(tmp_path / "z.zip", {"a.png": os.urandom(1000), "b.png": b"y"}, zipfile.ZIP_STORED)
    raw = path.read_bytes()
    (tmp_path / "short.zip").write_bytes(raw[:500])
    with pytest.raises(DataError, match=r"short\.zip"):
        ZipStore(tmp_path / "short.zip").names()
    damaged = bytearray(raw)
    damaged[500] ^= 0xFF
    path.write_bytes(damaged)
    assert ZipStore(path).read("b.png") == b"y"
    with pytest.raises(UnreadableError, match="CRC"):
        ZipStore(path).read("a.png")


def test_names_missing_from_a_zip_are_named(tmp_path):
    store = ZipStore(zipped(tmp_path / "z.zip", {"a/b.png": b"x"}))
    with pytest.raises(UnreadableError, match=r"c\.png"):
        store.check(["a/b.png", "c.png"])
    with pytest.raises(UnreadableError, match="slash"):
        store.check(["a\\b.png"])


def test_arrays_by_position_or_name():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    by_position, by_name = ArrayStore(pixels, ["a", "b"]), ArrayStore({"b": pixels[1], "a": pixels[0]})
    for name, image in zip("ab", pixels, strict=True):
        assert np.array_equal(by_position.read(name), image)
        assert by_position.signature(name) == by_name.signature(name)
    assert by_position.signature("a") != by_position.signature("b")
    assert ArrayStore({"a": pixels[0].reshape(4, 3)}).signature("a") != by_position.signature("a")
    with pytest.raises(UnreadableError, match="c"):
        by_position.read("c")
    with pytest.raises(DataError, match="names"):
        ArrayStore(pixels, ["a"])
