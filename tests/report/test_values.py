import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.report.values import change_text, clean, interval_text, level_text, shorten, value_text


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [
        (0.138, True, "13.8 %"),
        (1.0, True, "100.0 %"),
        (0.0, True, "0.0 %"),
        (-0.00001, True, "0.0 %"),
        (0.99949, True, "99.9 %"),
        (0.873, False, "0.873"),
        (-0.0001, False, "0.000"),
        (12.3456, False, "12.346"),
        (12345.6, False, "12,346"),
        (math.nan, True, "–"),
        (math.nan, False, "–"),
        (math.inf, True, "–"),
    ],
)
def test_values_are_written_as_percent_or_plain(value, percent, text):
    assert value_text(value, percent) == text


@pytest.mark.parametrize(
    ("low", "high", "percent", "text"),
    [
        (0.131, 0.145, True, "13.1 to 14.5 %"),
        (0.5, 1.25, False, "0.500 to 1.250"),
        (math.nan, 0.5, True, "–"),
        (0.5, math.inf, True, "–"),
    ],
)
def test_intervals(low, high, percent, text):
    assert interval_text(low, high, percent) == text


@pytest.mark.parametrize(
    ("value", "baseline", "percent", "text"),
    [
        (0.138, 0.130, True, "+0.8"),
        (0.130, 0.138, True, "−0.8"),
        (0.13000001, 0.13, True, "±0"),
        (2000.0, 500.0, False, "+1,500"),
        (0.5, None, True, "–"),
        (math.nan, 0.1, True, "–"),
        (0.1, math.nan, True, "–"),
    ],
)
def test_changes_carry_a_sign(value, baseline, percent, text):
    assert change_text(value, baseline, percent) == text


def test_levels():
    assert level_text(0.95) == "95 % interval"
    assert level_text(0.999) == "99.9 % interval"


@given(st.floats(0, 1))
def test_percent_reads_back_to_within_half_a_digit(value):
    assert float(value_text(value, percent=True).removesuffix(" %")) == pytest.approx(100 * value, abs=0.0500001)


@given(st.text(st.characters(exclude_categories=()), max_size=60), st.integers(2, 40))
def test_any_name_becomes_one_short_printable_line(text, limit):
    line = shorten(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    line.encode("utf-8")


def test_bytes_that_are_not_unicode_are_replaced():
    assert clean("bad\udcff\nname\x00.png") == "bad? name .png"
