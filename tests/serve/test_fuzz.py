"""Two thousand requests that nobody should send: 4xx, never a crash or a leak."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from collections import Counter
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from nearkin.serve.settings import ServeSettings

SEED = 0
REQUESTS = 2000
RAW = 300
"""How many of them are bytes on a bare socket."""
ENDPOINTS = ("identify", "search", "verify", "enrol", "items")
LEAKS = re.compile(
    r"Traceback|/home/|/tmp/|/usr/|/work/|/root/|site-packages|nearkin[./](serve|gallery)|sqlite3?\.|\.py\b|0x[0-9a-f]{8}"
)


@pytest.fixture(scope="module")
def server(fill, start, tmp_path_factory):
    limits = ServeSettings(rate=0, max_body=2_000_000, timeout=10)
    with fill(tmp_path_factory.mktemp("fuzz") / "colours.gallery") as gallery, start(gallery, limits) as running:
        yield running


def _png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header claims any size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def _good(rng: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    kind = rng.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
    Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(buffer, str(kind))
    return buffer.getvalue()


def _file(rng: np.random.Generator) -> bytes:
    """A file that is truncated, damaged, a bomb, or no image at all; now and then a good one."""
    choice = int(rng.integers(10))
    raw = bytearray(_good(rng))
    if choice < 3:
        return bytes(raw[: int(rng.integers(len(raw)))])
    if choice < 6:
        for place in rng.integers(0, len(raw), int(rng.integers(1, 40))):
            raw[int(place)] = int(rng.integers(256))
        return bytes(raw)
    if choice == 6:
        sizes = [0, 1, 7, 30_000, 65_535, 2**31 - 1, 2**32 - 1]
        return _png_of(int(rng.choice(sizes)), int(rng.choice(sizes)), bytes(1000))
    if choice == 7:
        return bytes(rng.integers(0, 256, int(rng.integers(0, 3000)), dtype=np.uint8))
    if choice == 8:
        openings = [b"", b"%PDF-1.7", b"<svg onload=alert(1)>", b"PK\x03\x04"]
        openings += [b"GIF89a", b"%!PS", b"II*\0", b"BM", b"RIFF"]
        return openings[int(rng.integers(len(openings)))] + bytes(int(rng.integers(200)))
    return bytes(raw)


NASTY = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**400,
    1e308,
    0.5,
    "",
    "x" * 5000,
    "../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "'; drop table items; --",
    "\x00",
    "\u202e\ufeff",
    "😀",
    "{{7*7}}",
    "<script>alert(1)</script>",
    [],
    {},
    [[[]]],
    {"$ne": 1},
    [None],
    ["a"] * 300,
)


def _nasty(rng: np.random.Generator):
    return NASTY[int(rng.integers(len(NASTY)))]


def _json_body(rng: np.random.Generator) -> bytes:
    """JSON with fields of the wrong type, size or number, or no JSON."""
    choice = int(rng.integers(12))
    if choice == 0:
        return b"[" * int(rng.integers(1, 300_000))
    if choice == 1:
        return b'{"image":' * int(rng.integers(1, 50_000)) + b"1"
    if choice == 2:
        return b'{"vector": [' + b"1," * int(rng.integers(200_000)) + b"1]}"
    if choice == 3:
        return rng.choice(
            [b'{"image": NaN}', b'{"a": 1e99999}', b"\xff\xfe{}", b'{"a":"\\ud800"}', b"null", b"1", b"\x00"]
        )
    names = ["image", "images", "vector", "vectors", "a", "b"]
    names += ["label", "id", "metadata", "where", "parameters", "k", "x"]
    names += ["neighbours", "place", "false_accept_rate", "vector_a", "vector_b"]
    body = {}
    if choice > 8:
        return json.dumps({"image": base64.b64encode(_file(rng)).decode(), "label": "x"}).encode()
    if rng.random() < 0.7:
        body |= {"image": base64.b64encode(_file(rng)).decode(), "label": "x"}
    for name in rng.choice(names, int(rng.integers(0, 5))):
        body[str(name)] = _nasty(rng)
    raw = json.dumps(body).encode()
    if choice == 4:
        return raw[: int(rng.integers(len(raw)))]
    if choice == 5:
        return raw[:-1] + b"," + raw[1:]
    return raw


def _form(rng: np.random.Generator) -> tuple[bytes, str]:
    """A form with odd parts, boundaries and ends, and its content type."""
    boundary = b"edge"
    parts = []
    for _ in range(int(rng.integers(0, 5))):
        name = str(rng.choice(["image", "a", "b", "label", "metadata", "where", "neighbours", "\xff", "x" * 500, ""]))
        content = _file(rng) if rng.random() < 0.6 else str(_nasty(rng)).encode()
        filename = rng.choice(
            ['; filename="../../x.png"', '; filename="a\\"b"', "", "; filename*=UTF-8''%ff", "; filename="]
        )
        header = f'Content-Disposition: form-data; name="{name}"{filename}\r\n'.encode("latin-1")
        if rng.random() < 0.15:
            header = bytes(
                rng.choice([b"", b"Content-Disposition: attachment\r\n", b"X" * 5000 + b": 1\r\n", b":\r\n"])
            )
        parts.append(b"--" + boundary + b"\r\n" + header + b"\r\n" + content + b"\r\n")
    body = b"".join(parts) + b"--" + boundary + b"--\r\n"
    if rng.random() < 0.3:
        body = body[: int(rng.integers(len(body)))]
    kinds = ["multipart/form-data; boundary=edge"] * 5 + ["multipart/form-data", "multipart/form-data; boundary="]
    kinds += ["multipart/form-data; boundary=" + "e" * 300, 'multipart/form-data; boundary="edge"; charset=utf-99']
    return body, str(rng.choice(kinds))


def _path(rng: np.random.Generator) -> str:
    """A path with tricks in it."""
    id = quote(str(_nasty(rng)), safe="")[:3000]
    choices = [
        f"/v1/items/{id}",
        f"/v1/items/{id}/thumbnail",
        f"/static/{id}",
        "/static/../../../etc/passwd",
        "/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/%00",
        "/v1/items/%ff%fe",
        "//etc/passwd",
        "/v1//items",
        "/v1/items/",
        "/v1/items/a/b/c",
        "/metrics/../v1/items",
        f"/v1/items?where={id}",
        f"/v1/items?limit={id}",
        f"/v1/items?after={id}",
        f"/v1/items?where=number%3D%3Aa&parameters={id}",
        f"/v1/items?where=number%3D%3Aa&parameters=%7B%22a%22%3A{id}%7D",
        f"/v1/map?limit={id}",
        f"/v1/duplicates?distance={id}",
        f"/v1/suspects?limit={id}&limit=2",
    ]
    return choices[int(rng.integers(len(choices)))]


def _wild(rng: np.random.Generator) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body and headers of a request."""
    headers: dict[str, str] = {}
    if rng.random() < 0.1:
        headers["x-api-key"] = "x" * int(rng.integers(2000))
    if rng.random() < 0.05:
        headers["content-encoding"] = "gzip"
    if rng.random() < 0.05:
        headers["range"] = "bytes=0-99999999999"
    kind = rng.random()
    path = f"/v1/{rng.choice(ENDPOINTS)}"
    if kind < 0.1:
        start = b'--edge\r\nContent-Disposition: form-data; name="image"\r\n\r\n'
        path = str(rng.choice(["/v1/identify", "/v1/search", "/v1/items"]))
        return (
            "POST",
            path,
            start + _file(rng) + b"\r\n--edge--",
            {"content-type": "multipart/form-data; boundary=edge"},
        )
    if kind < 0.35:
        return "POST", path, _json_body(rng), headers | {"content-type": "application/json"}
    if kind < 0.65:
        body, content_type = _form(rng)
        return "POST", path, body, headers | {"content-type": content_type}
    if kind < 0.75:
        types = ["text/plain", "application/xml", "", "application/json; charset=utf-16", "a/b" * 500, "image/png"]
        return "POST", path, _file(rng), headers | {"content-type": str(rng.choice(types))}
    if kind < 0.85:
        method = str(rng.choice(["PATCH", "PATCH", "DELETE", "PUT", "TRACE", "BREW", "OPTIONS", "HEAD"]))
        return method, _path(rng), _json_body(rng), headers | {"content-type": "application/json"}
    return "GET", _path(rng), b"", headers


def _check(status: int, headers, body: bytes, what: object) -> None:
    text = body.decode("utf-8", "replace")
    assert status < 500 or (status == 503 and "retry-after" in headers), (status, what, text)
    assert not LEAKS.search(text), (what, text)
    if status >= 400 and text:
        assert headers["content-type"] == "application/problem+json", (what, text)
        assert len(text) < 3000
        assert json.loads(text)["type"].startswith("urn:nearkin:problem:")


def test_malformed_requests_are_refused_and_the_service_goes_on(server):
    rng = np.random.default_rng(SEED)
    seen: Counter[int] = Counter()
    with server.client() as client:
        for _ in range(REQUESTS - RAW):
            method, path, body, headers = _wild(rng)
            response = client.request(method, path, content=body, headers=headers)
            seen[response.status_code] += 1
            _check(response.status_code, response.headers, response.content, (method, path[:200], body[:200], headers))
        assert client.get("/readyz").status_code == 200
    assert sum(count for status, count in seen.items() if status >= 400) > 0.6 * (REQUESTS - RAW)
    assert {200, 201, 400, 404, 405, 413, 415, 422} <= set(seen), seen


def _raw_request(rng: np.random.Generator, port: int) -> bytes:
    """Bytes that are almost HTTP."""
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    body = _json_body(rng)[:5000]
    length = int(rng.choice([0, 1, len(body), len(body) + 10]))
    post = b"POST /v1/identify HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n"
    choices = [
        post + f"Content-Length: {length}\r\n\r\n".encode() + body,
        post + b"Content-Length: -1\r\n\r\n" + body,
        post + b"Content-Length: 99999999999999999999\r\n\r\n" + body,
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body,
        post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        post + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n" + body,
        post + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + body,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + host + b"\r\n",
        b"GET http://evil.example/v1/items HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n" + host + b"\r\n",
        b"GET /\x00\xff HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /v1/items HTTP/1.1\r\n" + host + b"X-API-Key: \xff\xfe\r\nOrigin: \xff\r\n\r\n",
        b"GET /v1/items HTTP/1.1\r\n" + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(rng.integers(0, 256, int(rng.integers(1, 300)), dtype=np.uint8)),
        b"",
    ]
    return choices[int(rng.integers(len(choices)))]


def test_bytes_that_are_almost_http_do_no_harm(server):
    rng = np.random.default_rng(SEED + 1)
    for _ in range(RAW):
        sent = _raw_request(rng, server.port)
        try:
            received = server.raw(sent)
        except ConnectionError:
            continue
        if received:
            status = int(received.split(b" ", 2)[1])
            assert status < 500 or status == 503, (sent[:300], received[:300])
            assert not LEAKS.search(received.decode("latin-1")), (sent[:300], received)
    with server.client() as client:
        assert client.get("/readyz").status_code == 200
