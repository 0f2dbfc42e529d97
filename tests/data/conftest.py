"""A web server on this machine."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server:
    """A web server that counts what it is asked for, and fails as told."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.failures: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.hang = threading.Event()
        self.sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.command, self.path))
                name = self.path.partition("?")[0]
                if name == "/hang":
                    outer.hang.wait(20)
                if name == "/endless":
                    self.send_endlessly()
                    return
                failures = outer.failures.get(name)
                status = failures.pop(0) if failures else 200 if name in outer.files else 404
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                raw = outer.files.get(name, b"") if status == 200 else b""
                tag, whole = f'"{hash(raw):x}"', len(raw)
                wanted = self.headers.get("Range")
                if wanted and raw:
                    first, last = wanted.removeprefix("bytes=").split("-")
                    raw, status = raw[int(first) : int(last) + 1], 206
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{int(first) + len(raw) - 1}/{whole}")
                self.send_header("Content-Length", str(len(raw)))
                self.send_header("ETag", tag)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(raw)

            def send_endlessly(self):
                self.send_response(200)
                self.end_headers()
                while outer.sent < 200_000_000:
                    self.wfile.write(bytes(100_000))
                    outer.sent += 100_000

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # clients that give up are part of the tests
        self.host = f"127.0.0.1:{self.http.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def count(self, command: str) -> int:
        return sum(one == command for one, _ in self.asked)


@pytest.fixture
def server():
    pytest.importorskip("aiohttp")
    made = Server()
    yield made
    made.hang.set()
    made.http.shutdown()
    made.http.server_close()
