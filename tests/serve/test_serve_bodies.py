"""Forms are read as the standard library's parser of mail reads them."""

from __future__ import annotations

from email.parser import BytesParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.serve.bodies import _parts, parse_json
from nearkin.serve.problems import Problem

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


def test_very_many_parts_are_refused():
    with pytest.raises(Problem, match="too-many-items"):
        _parts(_form([("a", b"")] * 100, b"edge"), b"edge")


@pytest.mark.parametrize("boundary", [b"", b"x" * 300])
def test_a_boundary_is_needed(boundary):
    with pytest.raises(Problem, match="malformed-body"):
        _parts(b"--x--", boundary)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", '"\\ud800"', "[" * 100_000, b"\xff"])
def test_json_that_is_none_is_refused(text):
    with pytest.raises(Problem, match="malformed-body"):
        parse_json(text, "metadata")
