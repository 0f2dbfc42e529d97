"""Items behind URLs: memory, the web (a server on this machine), archives; what a manifest may name; what is told."""

import importlib
import io
import pickle
import tarfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from PIL import Image

from nearkin.api import source_name
from nearkin.data import drop_bad, find_bad, open_data, url_store
from nearkin.data.export import export_dataset
from nearkin.data.stores import UnreadableError
from nearkin.data.url_store import UnreachableError, UrlStore
from nearkin.errors import DataError, MissingExtraError


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def quick(manifest=None, **more) -> UrlStore:
    return UrlStore(manifest, pause=0.01, **more)


def shades(dataset) -> list[int]:
    return [int(np.asarray(dataset.load(row))[0, 0, 0]) for row in range(len(dataset))]


def test_a_manifest_of_this_machine_may_name_any_url(tmp_path, server, memory):
    server.files["/a.png"] = picture(1)
    memory.pipe("/b.png", picture(2))
    (tmp_path / "c.png").write_bytes(picture(3))
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("in/d.png", picture(4))
    server.files["/d.zip"] = (tmp_path / "d.zip").read_bytes()
    urls = [
        f"{server.url}/a.png",
        "memory://b.png",
        f"file://{tmp_path}/c.png",
        f"zip://in/d.png::file://{tmp_path}/d.zip",
        f"zip://in/d.png::{server.url}/d.zip",
    ]
    (tmp_path / "manifest.csv").write_text("path,label\n" + "".join(f"{url},x\n" for url in urls))
    dataset = open_data(tmp_path / "manifest.csv")
    assert shades(dataset) == [1, 2, 3, 4, 4]
    assert shades(pickle.loads(pickle.dumps(dataset))) == [1, 2, 3, 4, 4]
    assert find_bad(dataset, progress=False) == []


def test_a_manifest_behind_a_url_names_what_is_beside_it(server):
    server.files |= {"/data/x/1.png": picture(1), "/data/x/2.png": picture(2)}
    server.files["/data/manifest.csv"] = b"path,label\nx/1.png,one\nx/2.png,two\n"
    dataset = open_data(f"{server.url}/data/manifest.csv?token=t")
    assert (dataset.name, dataset.classes, shades(dataset)) == ("manifest", ["one", "two"], [1, 2])


def test_a_manifest_inside_a_zip_behind_a_url(server):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("in/manifest.csv", "path,label\nx/1.png,one\n")
        archive.writestr("in/x/1.png", picture(9))
    server.files["/photos.zip"] = buffer.getvalue()
    assert shades(open_data(f"zip://in/manifest.csv::{server.url}/photos.zip")) == [9]


def archived(kind: str) -> bytes:
    buffer = io.BytesIO()
    names = {f"{shade}.png": picture(shade) + bytes(5000) for shade in range(100)}
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, raw in names.items():
                archive.writestr(name, raw)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, raw in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_many_threads_read_one_archive(tmp_path, server, kind):
    server.files["/photos"] = archived(kind)
    (tmp_path / "photos").write_bytes(archived(kind))
    for place in (f"{server.url}/photos", f"file://{tmp_path}/photos"):
        store = quick()
        urls = [f"{kind}://{shade}.png::{place}" for shade in range(100)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(store.read, urls)) == [picture(shade) + bytes(5000) for shade in range(100)]


LOCAL = ["file:///etc/hostname", "local:///etc/hostname", "zip://a::/etc/b.zip", "zip://a::file:///etc/b.zip"]
ROUNDABOUT = [
    "simplecache::file:///etc/hostname",
    "{url}/a::file:///etc/hostname",
    "memory://a",
    "reference://a::{url}/b",
]


@pytest.mark.parametrize("item", [*LOCAL, *ROUNDABOUT, "s3://private/a.png", "data:image/png;base64,::{url}/a.png"])
def test_a_manifest_from_elsewhere_reaches_nothing_else(server, item):
    text = item.format(url=server.url)
    server.files["/manifest.csv"] = f'path,label\n"{text}",x\n{server.url}/b.png,x\n'.encode()
    with pytest.raises(DataError, match="URL" if item.startswith("data:") else "protocol"):
        open_data(f"{server.url}/manifest.csv")


@pytest.mark.parametrize(
    "item", ["../a.png", "x/../../a.png", "/a.png", "%2e%2e/a.png", "x/%2E%2E/%2e%2e/a.png", "..\\a"]
)
def test_no_path_climbs_out_of_the_manifests_folder(server, item):
    server.files["/data/manifest.csv"] = f"path,label\n{item},x\n".encode()
    with pytest.raises(DataError, match="outside"):
        open_data(f"{server.url}/data/manifest.csv")


@pytest.mark.parametrize("item", ["x.png::file:///{zip}", "x.png::{zip}", "x.png%3A%3Afile:///{zip}", "x.y::z.png"])
def test_no_path_smuggles_in_another_link(server, tmp_path, item):
    (tmp_path / "own.zip").write_bytes(archived("zip"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.csv", f"path,label\n{item.format(zip=tmp_path / 'own.zip')},x\n")
    server.files["/photos.zip"] = buffer.getvalue()
    with pytest.raises(DataError, match=r"::|outside"):
        open_data(f"zip://manifest.csv::{server.url}/photos.zip")


def test_a_manifest_does_not_mix_urls_and_paths(tmp_path, memory):
    rows = b"path,label\nmemory://a.png,x\nb.png,x\n"
    (tmp_path / "manifest.csv").write_bytes(rows)
    memory.pipe("/manifest.csv", rows)
    for place in (tmp_path / "manifest.csv", "memory://manifest.csv"):
        with pytest.raises(DataError, match=r"b\.png"):
            open_data(place)


@pytest.mark.parametrize("failures", [[503], [0], [500, 429, 0]])
def test_what_passes_by_itself_is_tried_again(server, failures):
    server.files["/a.png"] = picture(1)
    server.failures["/a.png"] = list(failures)
    assert quick().read(f"{server.url}/a.png") == picture(1)
    assert server.failures["/a.png"] == []


def test_a_server_that_stays_busy_is_told_of_and_no_item_is_called_bad(server):
    server.failures["/a.png"] = [503] * 99
    store = quick(tries=3)
    with pytest.raises(UnreachableError, match="503") as caught:
        store.read(f"{server.url}/a.png")
    assert not isinstance(caught.value, UnreadableError)
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_no_bad_item_either(server, status):
    server.failures["/a.png"] = [status]
    with pytest.raises(UnreachableError, match=str(status)):
        quick().read(f"{server.url}/a.png")


def test_missing_items_are_bad_at_once(server, tmp_path, memory):
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("d.png", b"")
    (tmp_path / "broken.zip").write_bytes(b"PK no zip")
    missing = [f"{server.url}/none.png", "memory://none.png", f"file://{tmp_path}/none.png"]
    for url in [*missing, f"zip://none.png::file://{tmp_path}/d.zip", f"zip://d.png::file://{tmp_path}/broken.zip"]:
        with pytest.raises(UnreadableError):
            UrlStore(pause=60).read(url)


def test_a_server_that_does_not_answer_is_given_up(server):
    server.files["/hang"] = picture(1)
    with pytest.raises(UnreachableError, match="hang"):
        quick(timeout=0.3, tries=1).read(f"{server.url}/hang")


def test_no_item_is_larger_than_the_limit(server, memory, monkeypatch):
    monkeypatch.setattr(url_store, "MAX_ITEM_BYTES", 100_000)
    for size, fits in ((100_000, True), (100_001, False), (900_000, False)):
        server.files["/a"] = bytes(size)
        memory.pipe("/a", bytes(size))
        for url in (f"{server.url}/a", "memory://a"):
            if fits:
                assert len(quick().read(url)) == size
            else:
                with pytest.raises(UnreadableError, match="large"):
                    quick().read(url)


def test_a_server_that_sends_without_end_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(url_store, "MAX_ITEM_BYTES", 100_000)
    with pytest.raises(UnreadableError, match="large"):
        quick().read(f"{server.url}/endless")
    assert server.sent < 100_000_000


def test_errors_show_no_credentials(server, tmp_path):
    url = f"http://ann:secret@{server.host}"
    server.files["/text.png"] = b"no picture"
    server.failures = {"/busy.png": [503] * 9, "/mine.png": [403] * 9, "/odd.png": [400] * 9}
    told = []
    for name in ("none.png", "busy.png", "mine.png", "odd.png", "text.png"):
        (tmp_path / "manifest.csv").write_text(f"path,label\n{url}/{name}?key=secret,x\n")
        dataset = open_data(tmp_path / "manifest.csv")
        dataset.store.pause = 0.01
        with pytest.raises(DataError) as caught:
            dataset.load(0)
        told.append(str(caught.value))
        assert name in told[-1]
    told.append(repr(UrlStore(url)))
    server.files["/manifest.csv"] = b"path,label\nfile://ann:secret@host/x,x\n"
    for source in (f"{url}/nothing.csv?secret", f"{url}/manifest.csv?secret", f"{url}/folder?secret"):
        with pytest.raises(DataError) as caught:
            open_data(source)
        told.append(str(caught.value))
    server.files["/manifest.csv"] = b"path,name\na.png,x\n"
    with pytest.raises(DataError, match="'label'") as caught:
        open_data(f"{url}/manifest.csv?secret")
    told.append(str(caught.value))
    told.append(source_name(f"{url}/manifest.csv?secret"))  # what a card keeps
    assert not [text for text in told if "secret" in text or "ann" in text]


def test_signatures_change_with_the_content_and_read_nothing(server, memory, tmp_path):
    urls = [f"{server.url}/a.png", f"file://{tmp_path}/a.png"]
    found = []
    for shade in (1, 2):
        server.files["/a.png"] = picture(shade) + bytes(shade)
        (tmp_path / "a.png").write_bytes(picture(shade) + bytes(shade))
        found.append([quick().signature(url) for url in urls])
        assert found[-1] == quick().signatures(urls)
    assert all(first != second for first, second in zip(*found, strict=True))
    assert server.count("GET") == 0


def test_missing_items_are_left_out_as_bad_ones_are(server, tmp_path):
    server.files |= {"/1.png": picture(1), "/2.png": picture(2)}
    server.files["/manifest.csv"] = b"path,label\n1.png,x\nnone.png,x\n2.png,x\n"
    dataset = open_data(f"{server.url}/manifest.csv")
    with pytest.raises(DataError, match=r"none\.png"):
        drop_bad(dataset, skip_bad=False, progress=False, memory=tmp_path)
    kept, bad = drop_bad(dataset, skip_bad=True, progress=False, memory=tmp_path)
    assert (shades(kept), [item.path for item in bad]) == ([1, 2], ["none.png"])
    drop_bad(kept, skip_bad=False, progress=False, memory=tmp_path)
    server.asked.clear()
    drop_bad(kept, skip_bad=False, progress=False, memory=tmp_path)  # remembered
    assert server.count("GET") == 0


def test_servers_that_know_only_get_tell_versions_too(server):
    server.files["/a.png"] = picture(1)
    usual = quick().signature(f"{server.url}/a.png")
    server.failures["/a.png"] = [403]  # to HEAD, as of a signed URL
    assert quick().signature(f"{server.url}/a.png") == usual
    server.failures["/a.png"] = [503] * 99
    with pytest.raises(UnreachableError):
        quick().signature(f"{server.url}/a.png")


def test_a_fingerprint_asks_once_for_each_item(server):
    server.files |= {f"/{shade}.png": picture(shade) for shade in range(5)}
    server.files["/manifest.csv"] = b"path,label\n" + b"".join(b"%d.png,x\n" % shade for shade in range(5))
    dataset = open_data(f"{server.url}/manifest.csv")
    assert dataset.fingerprint() == dataset.fingerprint() == dataset.select(np.arange(5)).fingerprint()
    assert (server.count("HEAD"), server.count("GET")) == (5, 1)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("s4://bucket/manifest.csv", DataError, "s4://"),
        ("https://host/photos", DataError, "manifest"),
        ("https://host/photos.zip", DataError, "zip://"),
        ("memory://nothing.csv", DataError, r"memory://nothing\.csv"),
    ],
)
def test_wrong_urls_are_told_of(url, error, message, memory):
    with pytest.raises(error, match=message):
        open_data(url)


def test_a_missing_package_is_named(monkeypatch):
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry.known_implementations, "s3", {"class": "no_such_s3fs.S3", "err": "s3fs"})
    monkeypatch.setattr(registry, "_registry", {})
    with pytest.raises(MissingExtraError, match="s3fs"):
        open_data("s3://bucket/manifest.csv")


def test_a_file_url_is_the_file(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(7))
    (tmp_path / "manifest.csv").write_text("path,label\na.png,x\n")
    assert shades(open_data(f"file://{tmp_path}/manifest.csv")) == [7]


def test_a_manifest_of_urls_can_be_written_out(server, tmp_path):
    server.files |= {"/data/x/1.png": picture(1), "/data/x/2.png": picture(2)}
    server.files["/data/manifest.csv"] = b"path,label\nx/1.png,one\nx/2.png,two\n"
    for name in ("out.csv", "out.parquet", "out.zip"):
        export_dataset(open_data(f"{server.url}/data/manifest.csv"), tmp_path / name, progress=False)
        again = open_data(tmp_path / name)
        assert (shades(again), again.labels.tolist()) == ([1, 2], ["one", "two"])
    export_dataset(open_data(tmp_path / "out.csv"), tmp_path / "whole.zip", progress=False)  # entries called by URL
    server.files.clear()
    assert shades(open_data(tmp_path / "whole.zip")) == [1, 2]


def test_items_that_are_out_of_reach_stop_the_check(server):
    server.files |= {f"/{shade}.png": picture(shade) for shade in range(40)}
    server.files["/3.png"] = b"no picture"
    server.files["/manifest.csv"] = b"path,label\n" + b"".join(b"%d.png,x\n" % shade for shade in range(40))
    dataset = open_data(f"{server.url}/manifest.csv")
    assert [bad.path for bad in find_bad(dataset, progress=False)] == ["3.png"]
    kept, bad = drop_bad(dataset, skip_bad=True, progress=False)
    assert (len(kept), len(bad)) == (39, 1)
    server.failures["/5.png"] = [401]
    with pytest.raises(UnreachableError, match=r"5\.png"):
        drop_bad(dataset, skip_bad=True, progress=False)


class Narrow(fsspec.AbstractFileSystem):
    """A filesystem of one connection, which two readers at once would break."""

    protocol = "narrow"
    busy = threading.Lock()

    def cat_file(self, path, start=None, end=None, **_):
        if not self.busy.acquire(blocking=False):
            raise ValueError("two at once")
        time.sleep(0.01)
        self.busy.release()
        return path.encode()


def test_filesystems_of_one_connection_are_read_by_one_thread_at_a_time():
    fsspec.register_implementation("narrow", Narrow, clobber=True)
    store = quick()
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(store.read, [f"narrow://{item}" for item in range(20)]))) == 20
