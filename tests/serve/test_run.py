"""A service in a process of its own: it says where it is, refuses what is not safe, and stops gracefully."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from nearkin.errors import DataError
from nearkin.serve.run import serve
from nearkin.serve.settings import ServeSettings

_PROGRAM = """
import sys, time
from nearkin.gallery.model import QueryEncoder
from nearkin.serve.run import serve
from nearkin.serve.settings import ServeSettings
run = QueryEncoder.run
QueryEncoder.run = lambda self, samples: (print("running", flush=True), time.sleep(0.5), run(self, samples))[2]
serve(sys.argv[1], ServeSettings(port=0, max_batch=2))
print("closed", flush=True)
"""


def _wait(happened, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def _address(programs) -> str:
    """The address that the service says it listens on."""
    _wait(lambda: "\n" in programs.output or programs.errors)
    return re.search(r"http://[\d.:]+/", programs.output)[0]


def _end(process: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.ConnectError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_last_answer(images, paint, programs, number):
    images.close()
    (process,) = programs.start(_PROGRAM, images.path)
    try:
        address = _address(programs)
        with httpx.Client(base_url=address, timeout=30, trust_env=False) as client, ThreadPoolExecutor(5) as pool:
            _wait(lambda: _ready(client))
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint((200, 30, 30))}) for _ in range(5)]
            _wait(lambda: "running\n" in programs.output)
            _wait(lambda: "nearkin_queue_length 5.0" in httpx.get(f"{address}metrics", trust_env=False).text)
            os.kill(process, number)
            assert [task.result().status_code for task in tasks] == [200] * 5
        assert programs.ended() == [0]
        assert programs.output.endswith("closed\n")
    finally:
        _end(process)


def test_off_loopback_it_refuses_to_start_without_keys(tmp_path, monkeypatch):
    monkeypatch.delenv("NEARKIN_API_KEYS", raising=False)
    with pytest.raises(DataError, match="NEARKIN_API_KEYS"):
        serve(tmp_path / "any.gallery", ServeSettings(host="0.0.0.0"))


def test_writes_come_out_on_standard_error_without_a_log(images, programs):
    images.close()
    program = _PROGRAM.split("run = ")[0] + "serve(sys.argv[1], ServeSettings(port=0))"
    (process,) = programs.start(program, images.path)
    try:
        address = _address(programs)
        with httpx.Client(base_url=address, timeout=30, trust_env=False) as client:
            _wait(lambda: _ready(client))
            assert client.delete("/v1/items/item-00").status_code == 204
        os.kill(process, signal.SIGTERM)
        programs.ended()
    finally:
        _end(process)
    (line,) = [json.loads(line) for line in programs.errors.splitlines() if line.startswith("{")]
    assert (line["action"], line["ids"]) == ("remove", ["item-00"])


def test_keys_of_the_environment_that_make_no_sense_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARKIN_API_KEYS", "write:my-secret")
    with pytest.raises(DataError, match=r"\b1\b") as refused:
        serve(tmp_path / "any.gallery")
    assert "my-secret" not in str(refused.value)


def test_a_taken_port_is_told_in_a_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DataError, match=str(port)):
            serve(tmp_path / "any.gallery", ServeSettings(port=port))


def test_importing_the_settings_needs_no_web_framework():
    program = "import sys, nearkin.serve.settings, nearkin.serve.run; print('fastapi' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert found.stdout.strip() == "False"
