"""Downloads: what arrives whole and right is kept, anything else leaves nothing behind."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import random
import tarfile
import threading
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

from nearkin.data.catalogue.download import download, download_all, new_folder, unpack
from nearkin.errors import DataError, StorageError

CONTENT = random.Random(0).randbytes(3_000_000)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/silent":
            time.sleep(1.5)
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("checksum", [sha256(CONTENT), sha256(CONTENT).upper(), hashlib.md5(CONTENT).hexdigest()])
@pytest.mark.parametrize("page", ["/file", "/unsized"])
def test_a_right_file_arrives(address, tmp_path, page, checksum):
    path = download(address + page, tmp_path / "new" / "file.bin", checksum, progress=False)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_file_addresses_work(tmp_path):
    source = tmp_path / "source.bin"
    source.write_bytes(CONTENT)
    copy = download(source.as_uri(), tmp_path / "copy.bin", sha256(CONTENT), progress=False)
    assert copy.read_bytes() == CONTENT


def test_progress_counts_the_declared_length(address, tmp_path, capsys):
    download(f"{address}/file", tmp_path / "file.bin", sha256(CONTENT))
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "message"),
    [("/missing", "404|Not Found"), ("/cut", "1,500,000")],
)
def test_a_failed_download_leaves_nothing(address, tmp_path, page, message):
    with pytest.raises(DataError, match=message):
        download(address + page, tmp_path / "file.bin", sha256(CONTENT), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_keeps_what_was_there(address, tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"before")
    with pytest.raises(DataError, match=sha256(CONTENT)):
        download(f"{address}/file", path, "0" * 64, progress=False)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_closed_port_is_told_at_once(tmp_path):
    with pytest.raises(DataError, match=r"127\.0\.0\.1"):
        download("http://127.0.0.1:9/file", tmp_path / "file", "0" * 64, progress=False)


def test_silence_is_waited_for_only_so_long(address, tmp_path):
    began = time.monotonic()
    with pytest.raises(DataError, match="silent"):
        download(f"{address}/silent", tmp_path / "file", "0" * 64, progress=False, timeout=0.3)
    assert time.monotonic() - began < 1.2


def test_a_name_lookup_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: time.sleep(2))
    began = time.monotonic()
    with pytest.raises(DataError, match=r"0\.2"):
        download("http://somewhere.invalid/file", tmp_path / "file", "0" * 64, progress=False, timeout=0.2)
    assert time.monotonic() - began < 1.0


def test_a_place_that_cannot_be_written_is_named(address, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder is needed")
    with pytest.raises(StorageError, match=r"file\.bin"):
        download(f"{address}/file", blocked / "file.bin", sha256(CONTENT), progress=False)


def make_tar(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def make_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(("make", "name"), [(make_tar, "a.tgz"), (make_tar, "a.tar.gz"), (make_zip, "a.zip")])
def test_archives_are_unpacked(tmp_path, make, name):
    archive = make(tmp_path / name, {"top/one.txt": b"1", "top/deep/two.txt": b"2", "loose": b""})
    unpack(archive, tmp_path / "out", progress=False)
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"top/one.txt", "top/deep/two.txt", "loose"}
    assert (tmp_path / "out/top/deep/two.txt").read_bytes() == b"2"


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil"])
def test_members_that_point_outside_are_refused(tmp_path, make, name):
    with pytest.raises(DataError, match="outside"):
        unpack(make(tmp_path / "archive", {name: b"x"}), tmp_path / "out", progress=False)
    assert not (tmp_path / "evil").exists()


def test_links_in_a_tar_are_left_out(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    unpack(tmp_path / "a.tar", tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "link").is_symlink()


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b\x08\x00cut"])
def test_a_broken_archive_is_named(tmp_path, content):
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tgz"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", progress=False)


def test_a_truncated_archive_is_named(tmp_path):
    whole = make_tar(tmp_path / "a.tgz", {"file": os.urandom(50_000)}).read_bytes()
    (tmp_path / "a.tgz").write_bytes(whole[:20_000])
    with pytest.raises(DataError, match=r"a\.tgz"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", progress=False)


def test_published_files_fill_a_folder(tmp_path):
    archive = make_tar(tmp_path / "images.tgz", {"jpg/1.jpg": b"one"})
    (tmp_path / "labels.mat").write_bytes(b"labels")
    sources = [(path.as_uri(), sha256(path.read_bytes())) for path in (archive, tmp_path / "labels.mat")]
    download_all(*sources)(tmp_path / "data" / "set", False)
    found = sorted(path.name for path in (tmp_path / "data" / "set").rglob("*"))
    assert found == ["1.jpg", "jpg", "labels.mat"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["set"]


def test_published_leaves_no_half_filled_folder(tmp_path):
    archive = make_tar(tmp_path / "images.tgz", {"jpg/1.jpg": b"one"})
    sources = [(archive.as_uri(), sha256(archive.read_bytes())), ((tmp_path / "absent").as_uri(), "0" * 64)]
    with pytest.raises(DataError, match="absent"):
        download_all(*sources)(tmp_path / "data" / "set", False)
    assert list((tmp_path / "data").iterdir()) == []


def test_building_says_when_the_disk_refuses(tmp_path):
    with pytest.raises(StorageError, match="No space left"), new_folder(tmp_path / "set"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []
