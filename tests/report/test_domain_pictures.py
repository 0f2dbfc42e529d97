"""The heat map of domains: drawn, the same bytes twice, changed by its values, and refusals."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import draw_domain_matrix

NAMES = ["art", "photo", "sketch"]


def pixels(matrix, rows=NAMES, columns=NAMES):
    return np.asarray(Image.open(io.BytesIO(draw_domain_matrix(matrix, rows, columns, "P@1"))).convert("RGB")) / 255


def test_higher_shares_are_darker():
    low, high = pixels(np.full((3, 3), 0.1)), pixels(np.full((3, 3), 0.95))
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
    assert pixels(values).mean() > pixels(np.full((3, 3), 0.9)).mean()
    assert draw_domain_matrix(np.full((3, 3), math.nan), NAMES, NAMES, "P@1") == b""


def test_names_of_any_length_fit():
    long = [f"{name} as the second laboratory of the northern institute photographs it" for name in NAMES]
    assert pixels(np.eye(3), long, long).shape == pixels(np.eye(3)).shape


@pytest.mark.parametrize(("matrix", "match"), [(np.eye(2), r"\(2, 2\)"), (np.full((3, 3), 1.5), r"\[0, 1\]")])
def test_what_cannot_be_drawn_is_refused(matrix, match):
    with pytest.raises(DataError, match=match):
        draw_domain_matrix(matrix, NAMES, NAMES, "P@1")
