"""A real server on a free port of this machine, and galleries for it."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx
import numpy as np
import pytest
from PIL import Image

from nearkin.serve.app import Server, create_app
from nearkin.serve.service import Service
from nearkin.serve.settings import ServeSettings, parse_keys

RED, GREEN, BLUE = (200, 30, 30), (30, 180, 40), (40, 50, 210)


@dataclass
class Running:
    """A server that runs in a thread."""

    port: int
    service: Service
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)

    def learned(self, *, seconds: float = 20.0) -> None:
        """Wait until the gallery has been learned from."""
        until = time.monotonic() + seconds
        while self.service.gallery.calibration_due:
            assert time.monotonic() < until, "the gallery was not calibrated"
            time.sleep(0.005)

    def raw(self, request: bytes, *, seconds: float = 10.0) -> bytes:
        """All that comes back for bytes sent as they are."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while piece := connection.recv(65536):
                received += piece
            return received


@contextmanager
def running(gallery, settings: ServeSettings | None = None) -> Iterator[Running]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    settings = replace(settings or ServeSettings(rate=0), port=port)
    app = create_app(gallery, settings)
    server = Server(app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until, "the server did not start"
        time.sleep(0.002)
    try:
        yield Running(port, app.state.service, server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


def picture(colour, seed: int = 0, size: int = 24, kind: str = "PNG") -> bytes:
    """The bytes of an image that is about of one colour."""
    noise = np.random.default_rng(seed).normal(0, 12, (size, size, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def start():
    """Starts a server for a gallery: `with start(gallery, settings) as server`."""
    return running


@pytest.fixture(scope="session")
def problem():
    """Checks that a response is a problem of a kind, and gives its document."""

    def check(response, status: int, slug: str) -> dict:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        document = response.json()
        assert document["type"] == f"urn:nearkin:problem:{slug}"
        assert document["status"] == status
        return document

    return check


@pytest.fixture
def server(images, start):
    """A server for a gallery of pictures that was learned from."""
    with start(images) as running:
        running.learned()
        yield running


@pytest.fixture
def client(server):
    with server.client() as opened:
        yield opened


@pytest.fixture
def guarded(images, start, tmp_path):
    """A server that knows the keys "reader" and "writer", and logs writes to audit.jsonl."""
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in ("reader", "writer")]
    keys = parse_keys(f"read:{digests[0]},write:{digests[1]}")
    with start(images, ServeSettings(keys=keys, rate=0, audit_log=tmp_path / "audit.jsonl")) as running:
        yield running


@pytest.fixture(scope="session")
def paint():
    """Makes the bytes of a picture."""
    return picture


@pytest.fixture(scope="session")
def tiny_model():
    """A real network of a few thousand weights."""
    from nearkin.models import ModelSection, build_embedder

    return build_embedder(ModelSection(backbone="conv4", channels=3, size=16, dimension=16)).eval()


@pytest.fixture(scope="session")
def fill(tiny_model):
    """Makes a gallery of 36 pictures in three classes, two of them without a label."""
    from nearkin.gallery.gallery import Gallery

    def make(path):
        colours = {"red": RED, "green": GREEN, "blue": BLUE}
        items = [picture(colour, seed) for colour in colours.values() for seed in range(12)]
        labels = [name for name in colours for _ in range(12)]
        labels[11] = labels[23] = None
        facts = [{"number": number, "even": number % 2 == 0} for number in range(len(items))]
        ids = [f"item-{number:02d}" for number in range(len(items))]
        return Gallery.create(path, tiny_model, items, labels, facts, ids=ids, progress=False)

    return make


@pytest.fixture
def images(fill, tmp_path):
    """A gallery of pictures that a test may change."""
    with fill(tmp_path / "colours.gallery") as gallery:
        yield gallery


@pytest.fixture
def vectors(tmp_path):
    """A gallery of vectors that somebody brought: eight numbers, four classes."""
    from nearkin.gallery.gallery import Gallery

    rng = np.random.default_rng(0)
    labels = [f"class {number % 4}" for number in range(60)]
    rows = np.eye(8)[[number % 4 for number in range(60)]] + 0.1 * rng.normal(size=(60, 8))
    with Gallery.create(tmp_path / "brought.gallery", dimension=8, name="mine") as gallery:
        gallery.add(rows, labels, ids=[f"v{number}" for number in range(60)], progress=False)
        yield gallery
