"""Clients that mean harm: slow ones, very many, and bodies made to cost more than they should."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.allocator import trim_memory
from nearkin.serve.settings import ServeSettings

RED = (200, 30, 30)


def _until_closed(connection: socket.socket, send: bytes, every: float, seconds: float = 20.0) -> tuple[bytes, float]:
    """What comes back while bytes drip in, and after how long the other side has had enough."""
    began = time.monotonic()
    connection.settimeout(every)
    received = b""
    while time.monotonic() - began < seconds:
        try:
            connection.sendall(send)
        except ConnectionError:
            break
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if not piece:
            break
        received += piece
    return received, time.monotonic() - began


def _answered(connection: socket.socket) -> bool:
    """Whether a question on an open connection is answered before it is closed."""
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    received = b""
    while b"alive" not in received:
        piece = connection.recv(65536)
        if not piece:
            return False
        received += piece
    return True


def _post(port: int, length: int) -> bytes:
    head = f"POST /v1/identify HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


def test_a_body_that_drips_is_given_up_in_all(images, start):
    with start(images, ServeSettings(rate=0, timeout=1.0)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(_post(server.port, 100_000))
            received, seconds = _until_closed(connection, b"x", 0.1)
        assert b" 408 " in received.splitlines()[0]
        assert 0.9 < seconds < 5


def test_a_body_must_come_at_some_rate(images, start, monkeypatch):
    monkeypatch.setattr("nearkin.serve.security._FIRST_SECONDS", 0.5)
    with start(images, ServeSettings(rate=0)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(_post(server.port, 100_000))
            received, seconds = _until_closed(connection, b"x", 0.1)
        assert b" 408 " in received.splitlines()[0]
        assert seconds < 5


def test_slow_but_steady_bodies_are_taken(images, start, paint, monkeypatch):
    monkeypatch.setattr("nearkin.serve.security._FIRST_SECONDS", 0.3)
    monkeypatch.setattr("nearkin.serve.security._LEAST_RATE", 2000)

    def pieces():
        yield b'--edge\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + paint(RED)
        yield b'\r\n--edge\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
        for _ in range(4):
            time.sleep(0.2)
            yield b"x" * 1000
        yield b"\r\n--edge--"

    with start(images, ServeSettings(rate=0)) as server, server.client() as client:
        kind = {"content-type": "multipart/form-data; boundary=edge"}
        assert client.post("/v1/identify", content=pieces(), headers=kind).status_code == 422  # there is no field x


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_header_that_drips_is_given_up(images, start, monkeypatch, before):
    monkeypatch.setattr("nearkin.serve.app._HEADER_SECONDS", 0.5)
    with start(images) as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(before)
        received, seconds = _until_closed(connection, b"G" if not before else b"X", 0.1)
        assert (b"alive" in received) == bool(before)
        assert seconds < 5


def test_a_connection_in_use_stays_open(images, start, monkeypatch):
    monkeypatch.setattr("nearkin.serve.app._HEADER_SECONDS", 0.6)
    with start(images) as server, socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        for _ in range(5):
            assert _answered(connection)
            time.sleep(0.2)


def test_a_request_that_takes_longer_than_a_header_is_finished(images, start, paint, monkeypatch):
    monkeypatch.setattr("nearkin.serve.app._HEADER_SECONDS", 0.1)
    run = images.encoder.run
    monkeypatch.setattr(images.encoder, "run", lambda samples: (time.sleep(0.5), run(samples))[1])
    with start(images) as server, server.client() as client:
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200


def _alive(port: int) -> bool:
    """Whether a new connection is answered."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            return _answered(connection)
    except ConnectionError:
        return False


def test_connections_are_bounded(images, start):
    with start(images, ServeSettings(rate=0, connections=5)) as server:
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(5)]
        assert not _alive(server.port)
        for connection in held:
            connection.close()
        until = time.monotonic() + 10
        while not _alive(server.port):
            assert time.monotonic() < until


def test_the_service_stays_awake_while_it_refuses_hostile_json(server, client):
    hostile = [
        ("/v1/search", {"parameters": {str(key): [[]] * 990 for key in range(150)}}),
        ("/v1/enrol", {"label": "x", "vectors": [["a"] * 60_000] * 60}),
        ("/v1/enrol", {"label": "x", "metadata": {str(key): [] for key in range(20_000)}}),
        ("/v1/search", {str(key): 1 for key in range(1_000_000)}),
    ]
    bodies = [(path, json.dumps(body).encode()) for path, body in hostile]
    slowest, done = [0.0], threading.Event()

    def watch() -> None:
        with server.client() as watcher:
            while not done.is_set():
                began = time.monotonic()
                assert watcher.get("/healthz").status_code == 200
                slowest[0] = max(slowest[0], time.monotonic() - began)

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        kind = {"content-type": "application/json"}
        found = list(pool.map(lambda one: client.post(one[0], content=one[1], headers=kind), bodies))
        done.set()
        watching.result()
    assert [response.status_code for response in found] == [413, 413, 422, 413]
    assert all(len(response.content) < 2000 for response in found)
    assert slowest[0] < 2.0


def _empty(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_pixels_of_a_call_are_bounded_together(images, start, problem):
    limits = ServeSettings(rate=0, max_pixels=10_000, max_call_pixels=25_000)
    with start(images, limits) as server, server.client() as client:
        three = [("image", ("x", _empty(100)))] * 3
        problem(client.post("/v1/enrol", files=three, data={"label": "x"}), 413, "item-too-large")
        assert client.post("/v1/enrol", files=three[:2], data={"label": "x"}).status_code == 201
    assert len(images) == 38


def test_scans_without_end_are_refused(client, paint, problem):
    raw = io.BytesIO()
    Image.open(io.BytesIO(paint(RED, size=64))).save(raw, "JPEG", progressive=True)
    last = raw.getvalue().rindex(b"\xff\xda")
    bomb = raw.getvalue()[:-2] + raw.getvalue()[last:-2] * 200 + b"\xff\xd9"
    problem(client.post("/v1/identify", files={"image": bomb}), 413, "item-too-large")
    problem(client.post("/v1/enrol", files={"image": bomb}, data={"label": "x"}), 413, "item-too-large")


def _claiming(side: int, pixels: bytes) -> bytes:
    """A grey PNG whose header promises a large square of pixels, and which holds what is given."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(pixels))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _memory(name: str) -> int:
    """Bytes of this process: resident now (VmRSS), or at most since the peak was forgotten (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc to see the memory in use")
def test_hostile_images_leave_nothing_in_memory(server, client, paint):
    for seed in range(100):
        assert client.post("/v1/identify", files={"image": paint(RED, seed)}).status_code == 200
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    ordinary = _memory("VmRSS")
    noise = np.random.default_rng(0).bytes(3_000_000)
    hostile = [
        _claiming(6324, b"\0"),
        _claiming(6324, bytes(10_000_000)),  # as many bytes as make the header believable, and pixels that end early
        _claiming(1000, noise[:900_000]) + noise,  # a long body around it
        _text_bomb(),
    ]
    for number in range(100):
        path, name = ("/v1/identify", {}) if number % 8 < 4 else ("/v1/enrol", {"data": {"label": "x"}})
        answer = client.post(path, files={"image": hostile[number % 4]}, **name)
        assert answer.status_code == 422, answer.text
    assert _memory("VmRSS") <= 1.2 * ordinary
    assert _memory("VmHWM") <= ordinary + 512_000_000


def _text_bomb() -> bytes:
    """A PNG with 15 MB of text in 15 kB, and no pixels."""
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1_000_000)))
    whole = _claiming(100, b"\0")
    return whole[:33] + text * 15 + whole[33:]


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc to see the memory in use")
def test_large_images_at_once_leave_nothing_in_memory(server, client, paint):
    buffer = io.BytesIO()
    Image.new("LA", (5000, 5000), (9, 100)).save(buffer, "PNG", compress_level=1)
    assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200
    trim_memory()  # what making the image took
    Path("/proc/self/clear_refs").write_text("5")
    ordinary = _memory("VmRSS")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, "/v1/identify", files={"image": buffer.getvalue()}) for _ in range(3)]
    assert [one.result().status_code for one in asked] == [200] * 3
    assert _memory("VmRSS") <= 1.2 * ordinary
    assert _memory("VmHWM") <= ordinary + 512_000_000
