"""What is told of a model names no folder of the server."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nearkin.serve.answers import plain, stats_answer
from nearkin.serve.routes import evenly_chosen


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/srv/models/birds", "birds"),
        ("/srv/my models/birds/", "birds"),
        ("trained on /srv/private/data", "trained on data"),
        ("--data=/srv/x", "--data=x"),
        ("-I/srv/x and '/a/b'", "-I/srv/x and 'b'"),
        ("file:///srv/x", "x"),
        ("see file:/srv/x", "see x"),
        ("../shared/x", "x"),
        ("in ../shared/x", "in x"),
        ("\\\\host\\share\\x", "x"),
        ("C:\\a\\b", "b"),
        ("at C:/a/b now", "at b now"),
        ("~/x/y", "y"),
        ("~bob/x", "x"),
        ("PATH:/srv/x", "PATH:x"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("see https://example.org/a", "see https://example.org/a"),
        ("m/s, 1/2, a / b", "m/s, 1/2, a / b"),
        ("resnet50/imagenet", "resnet50/imagenet"),
    ],
)
def test_of_a_path_only_its_last_name_is_told(said, told):
    assert plain(said) == told
    assert plain({said: [said]}) == {told: [told]}


def test_documents_become_json():
    assert plain({"a": (1, True, None, 0.5), 2: {float("inf")}}) == {"a": [1, True, None, 0.5], "2": [None]}


def test_labels_are_told_as_they_are(vectors):
    vectors.add([[1.0] * 8], "/a/b", progress=False)
    assert stats_answer(vectors.stats())["classes"]["/a/b"] == 1


@pytest.mark.parametrize(("count", "limit"), [(0, 3), (3, 3), (10, 3), (10, 9), (2000, 1)])
def test_a_part_is_spread_over_the_whole(count, limit):
    chosen = evenly_chosen(range(count), limit)
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
    assert all(b - a >= count // limit for a, b in pairwise(chosen))
