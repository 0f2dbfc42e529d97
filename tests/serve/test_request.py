"""Forms are read as the standard library's parser of mail reads them; JSON of any make is read in bounded memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from email.parser import BytesParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser

from nearkin.serve.problems import Problem
from nearkin.serve.request import (
    Bounds,
    ChangeBody,
    IdentifyBody,
    _from_json,
    _parts,
    check_metadata,
    check_parameters,
    parse_json,
)

_NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


def _form(parts: list[tuple[str, bytes]], edge: bytes) -> bytes:
    pieces = [
        b"--"
        + edge
        + f'\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in parts
    ]
    return b"".join(pieces) + b"--" + edge + b"--\r\n"


@given(st.lists(st.tuples(_NAMES, st.binary(max_size=200)), max_size=6), st.sampled_from([b"x", b"----edge", b"a b?'"]))
def test_any_contents_come_back(parts, edge):
    if any(b"--" + edge in content for _, content in parts):
        return
    assert _parts(_form(parts, edge), edge) == parts


@given(st.lists(st.tuples(_NAMES, st.text("ab\t z-=", max_size=20)), min_size=1, max_size=4))
def test_the_standard_library_agrees(parts):
    raw = _form([(name, content.encode()) for name, content in parts], b"edge")
    mail = BytesParser().parsebytes(b'Content-Type: multipart/form-data; boundary="edge"\r\n\r\n' + raw)
    expected = [
        (part.get_param("name", header="content-disposition"), part.get_payload(decode=True))
        for part in mail.get_payload()
    ]
    assert _parts(raw, b"edge") == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"--edge",
        b"text",
        b"--edge\r\n\r\n",
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\nx',
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--edge',
        b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n--edge--",
        b'--edge\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--edge--',
        b'--edgeContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--edge--',
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\nX: ' + b"y" * 5000 + b"\r\n\r\nx\r\n--edge--",
        b'preamble\r\n--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--edge--',
    ],
)
def test_other_forms_are_refused(raw):
    with pytest.raises(Problem, match="malformed-body"):
        _parts(raw, b"edge")


def test_starlette_would_take_some_of_them():
    """Why `_parts` is our own; once this fails, `request.form()` may do."""
    half = b'--edge\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n\r\nx\r\n--edge'
    field = b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\xfe\r\n--edge--\r\n'

    async def read(raw: bytes) -> list:
        async def stream():
            yield raw

        form = await MultiPartParser(Headers({"content-type": "multipart/form-data; boundary=edge"}), stream()).parse()
        return form.multi_items()

    assert asyncio.run(read(half)) == []  # it ends early, and nobody is told
    assert asyncio.run(read(field)) == [("a", "ÿþ")]  # not UTF-8, and guessed


def test_very_many_parts_are_refused():
    with pytest.raises(Problem, match="too-many-items"):
        _parts(_form([("a", b"")] * 100, b"edge"), b"edge")


@pytest.mark.parametrize("boundary", [b"", b"x" * 300])
def test_a_boundary_is_needed(boundary):
    with pytest.raises(Problem, match="malformed-body"):
        _parts(b"--x--", boundary)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", '"\\ud800"', "[" * 10_000, b"\xff"])
def test_json_that_is_none_is_refused(text):
    with pytest.raises(Problem, match="malformed-body"):
        parse_json(text, "metadata")


_HOSTILE = """
import json, resource, sys, time
from nearkin.serve.request import Bounds, _from_json
from nearkin.serve.problems import Problem
from nearkin.serve.request import EnrolBody, SearchBody

def parameters(keys, size, value):
    return json.dumps({"parameters": {str(key): [value] * size for key in range(keys)}}).encode()

bodies = [
    (SearchBody, parameters(150, 990, []), Bounds(16)),
    (SearchBody, parameters(20, 990, []), Bounds(16)),
    (SearchBody, parameters(24, 990, {}), Bounds(16)),
    (EnrolBody, json.dumps({"vectors": [["a"] * 60_000] * 80}).encode(), Bounds(16)),
    (EnrolBody, json.dumps({"vectors": [["a"] * 60_000] * 16}).encode(), Bounds(16, 16 * 60_000)),
    (EnrolBody, json.dumps({"images": [1] * 40_000}).encode(), Bounds(16)),
    (EnrolBody, json.dumps({"label": "x", "metadata": {str(n): [] for n in range(20_000)}}).encode(), Bounds(16)),
    (SearchBody, json.dumps({str(number): 1 for number in range(1_000_000)}).encode(), Bounds(16)),
    (SearchBody, json.dumps({str(number): 1 for number in range(45_000)}).encode(), Bounds(16)),
]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = []
for model, raw, bounds in bodies:
    try:
        _from_json(raw, model, bounds)
    except Problem as problem:
        found.append((problem.status, len(problem.body())))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"found": found, "grown": grown, "seconds": time.process_time() - began}))
"""


def test_json_made_to_cost_memory_costs_little():
    ran = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout)
    assert [status for status, _ in told["found"]] == [413, 422, 422, 413, 422, 413, 422, 413, 422]
    assert all(size < 2000 for _, size in told["found"])
    assert told["grown"] < 150_000  # kilobytes; one of them took more than a million before
    assert told["seconds"] < 3


@pytest.mark.parametrize(
    ("parameters", "fine"),
    [
        ({"a": 1, "b": "x", "c": None, "d": True, "e": 0.5, "f": [1, "x", None]}, True),
        ({"a": [1] * 1000}, True),
        ({"a": [1] * 1001}, False),
        ({str(number): 1 for number in range(1001)}, False),
        ({str(number): [1] * 1000 for number in range(11)}, False),
        ({"a": [[1]]}, False),
        ({"a": {}}, False),
        ({"a": 2**63}, False),
        ({"a": [-(2**63)]}, True),
        ({"a": float("nan")}, False),
    ],
)
def test_parameters_are_values_or_lists_of_them(parameters, fine):
    if fine:
        assert check_parameters(parameters) is parameters
        return
    with pytest.raises(ValueError, match=r"value|64"):
        check_parameters(parameters)


@pytest.mark.parametrize("facts", [{"": 1}, {"a" * 1001: 1}, {"a": []}, {"a": 2**63}, {"a": float("inf")}])
def test_metadata_is_flat(facts):
    with pytest.raises(ValueError, match=r"name|value|64"):
        check_metadata(facts)
    assert check_metadata({"a": 1, "b": None}) == {"a": 1, "b": None}


def test_bodies_without_images_are_short():
    text = json.dumps({"metadata": {"a": "x" * 2_100_000}}).encode()
    with pytest.raises(Problem, match="body-too-large"):
        _from_json(text, ChangeBody, Bounds(16))
    with pytest.raises(Problem, match="body-too-large"):
        _from_json(text, IdentifyBody, Bounds(16, 16 * 8))
