"""Heat maps of class distances: ranks, order, groups, names, sizes, bad input."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import draw_domain_matrix
from nearkin.report.canvas import HUES, MUTED
from nearkin.report.heat import _ranks, _spans, draw_class_distances


def random_distances(classes, seed=0):
    points = np.random.default_rng(seed).normal(size=(classes, 3))
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def names_of(classes):
    return [f"class{place}" for place in range(classes)]


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def count(png, colour):
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return int((np.abs(pixels(png) - wanted).max(axis=2) < 3).sum())


@given(st.integers(2, 12), st.integers(0, 99), st.integers(1, 4))
def test_a_rank_is_the_share_of_pairs_that_are_nearer(classes, seed, levels):
    matrix = np.ceil(levels * random_distances(classes, seed))
    ranks = _ranks("m", matrix, classes)
    values = matrix[np.triu_indices(classes, 1)]
    for row in range(classes):
        for column in range(classes):
            if row == column:
                assert np.isnan(ranks[row, column])
                continue
            below, equal = (values < matrix[row, column]).sum(), (values == matrix[row, column]).sum()
            expected = (below + (equal - 1) / 2) / max(len(values) - 1, 1)
            assert ranks[row, column] == pytest.approx(expected)


def test_only_the_order_of_distances_counts():
    matrix = random_distances(20)
    assert draw_class_distances({"m": matrix}, names_of(20)) == draw_class_distances({"m": matrix**3}, names_of(20))
    assert draw_class_distances({"m": matrix}, names_of(20)) != draw_class_distances(
        {"m": 1 / (matrix + 1)}, names_of(20)
    )


def test_the_nearest_pair_is_dark_and_the_farthest_light():
    matrix = np.full((4, 4), 2.0)
    matrix[0, 1] = matrix[1, 0] = 1
    matrix[2, 3] = matrix[3, 2] = 3
    np.fill_diagonal(matrix, 0)
    png = draw_class_distances({"m": matrix}, names_of(4))
    purple, yellow = "#440154", "#fde725"  # the ends of the scale
    assert count(png, purple) > 20_000
    assert count(png, yellow) > 20_000


def test_a_frame_closes_the_corners_that_the_diagonal_leaves_empty():
    plain = draw_class_distances({"m": random_distances(4)}, names_of(4))
    rows = np.abs(pixels(plain) - [int(MUTED[place : place + 2], 16) for place in (1, 3, 5)]).max(axis=2) < 40
    assert rows.mean(axis=1).max() > 0.5
    assert rows.mean(axis=0).max() > 0.5


def test_groups_are_marked_by_strips_as_long_as_they_are():
    groups = {name: "large" if place < 15 else "small" for place, name in enumerate(names_of(20))}
    with_groups = draw_class_distances({"m": random_distances(20)}, names_of(20), groups)
    key = 4 * 10 * 10  # a box beside the group's name
    large, small = (count(with_groups, colour) - key for colour in HUES[:2])
    assert large == pytest.approx(3 * small, rel=0.05)
    assert small > 1000
    assert count(draw_class_distances({"m": random_distances(20)}, names_of(20)), HUES[0]) < 50


def test_runs_of_one_group_are_spans():
    assert _spans(["a", "a", "b", "a", ""]) == [(0, 2, "a"), (2, 1, "b"), (3, 1, "a"), (4, 1, "")]


@pytest.mark.parametrize(("classes", "panels"), [(2, 1), (2, 3), (8, 2), (100, 1), (100, 3), (1000, 2)])
def test_any_number_of_classes_fits(classes, panels):
    matrices = {f"matrix {place}": random_distances(classes, place) for place in range(panels)}
    groups = {name: name[-2:] for name in names_of(classes)}
    image = Image.open(io.BytesIO(draw_class_distances(matrices, names_of(classes), groups)))
    assert image.width == 2 * 720
    assert image.height < 2 * 720


def test_names_are_written_where_a_row_has_room_for_one():
    few, many = ({"m": random_distances(classes)} for classes in (10, 80))
    assert draw_class_distances(few, names_of(10)) != draw_class_distances(few, [f"other{i}" for i in range(10)])
    assert draw_class_distances(many, names_of(80)) == draw_class_distances(many, [f"other{i}" for i in range(80)])


def test_nothing_to_compare_is_no_picture():
    assert draw_class_distances({}, names_of(5)) == b""
    assert draw_class_distances({"m": np.zeros((1, 1))}, ["a"]) == b""


@pytest.mark.parametrize("name", ["$5", "_hidden", "", "two\nlines", "x" * 300, "日本"])
def test_any_name_can_be_drawn(name):
    assert draw_class_distances({name: random_distances(3)}, [name, "b", "c"], {name: name or "g", "b": "h"})


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        (np.zeros((3, 4)), r"\(3, 4\)"),
        (np.full((4, 4), np.nan), "finite"),
        (np.arange(16.0).reshape(4, 4), "symmetric"),
        ("no numbers", "numbers"),
    ],
)
def test_what_are_no_distances_is_refused(matrix, told):
    with pytest.raises(DataError, match=told):
        draw_class_distances({"m": matrix}, names_of(4))


def test_more_heat_maps_than_fit_are_refused():
    with pytest.raises(DataError, match="3"):
        draw_class_distances({str(place): random_distances(3) for place in range(4)}, names_of(3))


NAMES = ["art", "photo", "sketch"]


def domain_pixels(matrix, rows=NAMES, columns=NAMES):
    return np.asarray(Image.open(io.BytesIO(draw_domain_matrix(matrix, rows, columns, "P@1"))).convert("RGB")) / 255


def test_higher_shares_are_darker():
    low, high = domain_pixels(np.full((3, 3), 0.1)), domain_pixels(np.full((3, 3), 0.95))
    assert high.shape == low.shape
    assert high.mean() < low.mean() - 0.1


def test_equal_values_give_equal_bytes_and_others_others():
    values = np.linspace(0.1, 0.9, 9).reshape(3, 3)
    first, again = (draw_domain_matrix(values, NAMES, NAMES, "P@1") for _ in range(2))
    assert first == again
    assert draw_domain_matrix(values.T, NAMES, NAMES, "P@1") != first


def test_a_cell_without_a_value_stays_empty_and_none_at_all_gives_no_picture():
    values = np.full((3, 3), 0.9)
    values[0, 0] = math.nan
    assert domain_pixels(values).mean() > domain_pixels(np.full((3, 3), 0.9)).mean()
    assert draw_domain_matrix(np.full((3, 3), math.nan), NAMES, NAMES, "P@1") == b""


def test_names_of_any_length_fit():
    long = [f"{name} as the second laboratory of the northern institute photographs it" for name in NAMES]
    assert domain_pixels(np.eye(3), long, long).shape == domain_pixels(np.eye(3)).shape


@pytest.mark.parametrize(("matrix", "match"), [(np.eye(2), r"\(2, 2\)"), (np.full((3, 3), 1.5), r"\[0, 1\]")])
def test_what_cannot_be_drawn_is_refused(matrix, match):
    with pytest.raises(DataError, match=match):
        draw_domain_matrix(matrix, NAMES, NAMES, "P@1")
