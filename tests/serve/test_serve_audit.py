"""The audit log: who changed what, who was refused, and nothing lost in silence."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest

from nearkin.errors import StorageError
from nearkin.serve.auditlog import AuditLog
from nearkin.serve.security import ANYBODY

RED = (200, 30, 30)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_writes_are_logged_without_the_key(guarded, tmp_path, paint, caplog):
    caplog.set_level(logging.INFO, "nearkin.audit")
    with guarded.client(headers={"x-api-key": "writer"}) as client:
        ids = client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": 'a"b'}).json()["ids"]
        for asked in ({"label": "c"}, {"label": None}, {"metadata": {"n": 1}}):
            client.patch("/v1/items/item-00", json=asked)
        for _ in range(2):
            client.post("/v1/items", files={"image": paint(RED)}, data={"id": "mine", "metadata": '{"b": 1, "a": 2}'})
        client.delete("/v1/items/item-01")
        client.delete("/v1/items/nothing")
    lines = _lines(tmp_path / "audit.jsonl")
    assert [(line["action"], line["ids"], line["changed"]) for line in lines] == [
        ("enrol", ids, {"label": 'a"b', "metadata": []}),
        ("change", ["item-00"], {"label": "c"}),
        ("change", ["item-00"], {"label": None}),
        ("change", ["item-00"], {"metadata": ["n"]}),
        ("add", ["mine"], {"label": None, "metadata": ["a", "b"]}),
        ("replace", ["mine"], {"label": None, "metadata": ["a", "b"]}),
        ("remove", ["item-01"], {}),
    ]
    assert {(line["role"], len(line["key"])) for line in lines} == {("write", 8)}
    assert "writer" not in (tmp_path / "audit.jsonl").read_text()
    assert len(caplog.records) == 7


def test_refused_writes_are_logged(guarded, tmp_path):
    with guarded.client(headers={"x-api-key": "reader"}) as client:
        client.delete("/v1/items/item-01")
        client.get("/v1/items")
    (line,) = _lines(tmp_path / "audit.jsonl")
    assert (line["action"], line["problem"], line["role"]) == ("refused", "role-required", "read")
    assert line["request"] == "DELETE /v1/items/item-01"


def test_a_log_that_is_rotated_goes_on(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write(ANYBODY, "remove", ["a"])
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
    log.write(ANYBODY, "remove", ["b"])
    log.close()
    assert [line["ids"] for line in _lines(tmp_path / "audit.1")] == [["a"]]
    assert [line["ids"] for line in _lines(tmp_path / "audit.jsonl")] == [["b"]]


def test_a_full_disk_does_not_swallow_lines(caplog):
    log = AuditLog(Path("/dev/full"))
    log.write(ANYBODY, "remove", ["a"])
    assert log.failures == 1
    assert "No space left" in caplog.text
    assert '"ids": ["a"]' in caplog.text


def test_a_log_that_cannot_be_written_is_told_at_once(tmp_path):
    with pytest.raises(StorageError, match="audit"):
        AuditLog(tmp_path / "none" / "audit.jsonl")
