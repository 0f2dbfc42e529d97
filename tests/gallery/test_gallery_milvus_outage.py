"""A Milvus that goes away in the middle of an import: a real server, killed and started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearkin.errors import StorageError
from nearkin.gallery import Gallery, bulk_import, parquet
from nearkin.gallery.milvus import MilvusStore, connection
from nearkin.gallery.store import Load, Record

pytest.importorskip("pymilvus", exc_type=ImportError)
pytest.importorskip("milvus_lite", exc_type=ImportError)

DIMENSION = 8
ROWS = 600
_SERVE = (
    "import sys; from milvus_lite.adapter.grpc.server import run_server; run_server(sys.argv[1], *eval(sys.argv[2]))"
)


class Server:
    """A Milvus in a process of its own, always on the same directory and port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(self._directory), repr(("127.0.0.1", self.port))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("the server did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    made = Server(tmp_path / "server.db")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def shards(tmp_path) -> tuple[Path, np.ndarray]:
    vectors = np.random.default_rng(0).normal(size=(ROWS, DIMENSION)).astype(np.float32)
    folder = tmp_path / "vectors"
    folder.mkdir()
    for shard, rows in enumerate(np.split(np.arange(ROWS), 3)):
        flat = pa.array(vectors[rows].ravel())
        table = {
            "id": [f"i{row:04d}" for row in rows],
            "label": [f"class {row % 5}" for row in rows],
            "shop": [f"shop {row % 3}" for row in rows],
            "embedding": pa.FixedSizeListArray.from_arrays(flat, DIMENSION),
        }
        pq.write_table(pa.table(table), folder / f"part-{shard:05d}-of-00003.parquet", row_group_size=64)
    return folder, vectors


class Batches:
    """The batches that an import writes; the server is killed after the last of some."""

    def __init__(self, monkeypatch, server: Server) -> None:
        self.sizes: list[int] = []
        self.kill_after = 0
        loading = MilvusStore.loading

        @contextmanager
        def counted(store: MilvusStore) -> Iterator[Load]:
            with loading(store) as load:

                def write(records: Sequence[Record], vectors: np.ndarray) -> None:
                    load(records, vectors)
                    self.sizes.append(len(records))
                    if len(self.sizes) == self.kill_after:
                        server.kill()

                yield write

        monkeypatch.setattr(MilvusStore, "loading", counted)


@pytest.mark.parametrize("partition", [None, "shop"])
def test_an_import_survives_the_death_of_its_server(server, shards, monkeypatch, partition):
    folder, vectors = shards
    monkeypatch.setattr(bulk_import, "_ROWS", 100)
    monkeypatch.setattr(parquet, "_ROWS", 50)
    monkeypatch.setattr(connection, "_FIRST_PAUSE", 0.01)
    address = f"milvus://127.0.0.1:{server.port}/shop"
    batches = Batches(monkeypatch, server)
    batches.kill_after = 3
    kind = {"dimension": DIMENSION, "name": "mine", "space": "euclidean", "index": "exact"}
    with (
        Gallery.create(address, **kind, partition=partition) as gallery,
        pytest.raises(StorageError, match="300 of 600"),
    ):
        gallery.import_files(folder)
    server.start()

    with Gallery.open(address) as again:
        done = again.import_files(folder)
        # The third batch was written and not noted any more, so it is written once more.
        assert batches.sizes == [100] * (3 + 4)
        assert (done.rows, done.resumed, done.replaced, done.items) == (ROWS, 200, 100, ROWS)

    with Gallery.open(address) as later:
        ids = [item.id for item in later.items(limit=2 * ROWS)]
        assert ids == [f"i{row:04d}" for row in range(ROWS)]
        np.testing.assert_array_equal(later.store.vectors(ids), vectors)
        assert later.stats().classes == {f"class {number}": ROWS // 5 for number in range(5)}
        near = later.search(vectors[0], k=ROWS, where="shop = 'shop 1'")
        assert [one.item.metadata["shop"] for one in near] == ["shop 1"] * (ROWS // 3)
        assert later.import_files(folder).resumed == 0
