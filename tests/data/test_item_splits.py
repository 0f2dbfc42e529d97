"""Seen-class splits: shares of every class, the split column, reproducible, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.domain_splits import split_items
from nearkin.data.manifest import Manifest
from nearkin.data.section import DataSection
from nearkin.data.splits import resolve_split
from nearkin.errors import DataError


def labels_of(sizes):
    return np.repeat([f"c{number:02d}" for number in range(len(sizes))], sizes)


def test_every_class_gives_its_share_to_each_part():
    labels = labels_of([20, 20, 20])
    train, val, test = split_items(labels, val=0.1, test=0.2, seed=3)
    for part, expected in ((train, 14), (val, 2), (test, 4)):
        assert np.unique(labels[part], return_counts=True)[1].tolist() == [expected] * 3
    assert sorted([*train, *val, *test]) == list(range(60))


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=8),
    val=st.floats(0, 0.9),
    test=st.floats(0, 0.9),
    seed=st.integers(0, 5),
)
def test_parts_are_disjoint_and_every_class_trains(sizes, val, test, seed):
    labels = labels_of(sizes)
    try:
        parts = split_items(labels, val=val, test=test, seed=seed)
    except DataError:
        assert val > 0
        assert split_items(labels, val=0.0, test=test, seed=seed)[0].size < 2 * len(sizes)
        return
    together = np.concatenate(parts)
    assert len(together) == len(labels) == len(set(together.tolist()))
    assert set(labels[parts[0]]) == set(labels)
    for part in parts:
        assert (np.diff(part) > 0).all()
    again = split_items(labels, val=val, test=test, seed=seed)
    assert all(np.array_equal(first, second) for first, second in zip(parts, again, strict=True))


def test_another_seed_draws_other_items():
    labels = labels_of([30, 30])
    assert not np.array_equal(split_items(labels, seed=0)[2], split_items(labels, seed=1)[2])


def manifest(labels, parts):
    names = [f"{number}.png" for number in range(len(labels))]
    return Manifest.from_rows(names, list(labels)).with_column("split", np.array(parts, dtype=object))


def test_a_column_says_which_items_test_and_validation_comes_out_of_the_training_items():
    labels = labels_of([10, 10])
    parts = (["train"] * 6 + ["test"] * 4) * 2
    split = resolve_split(manifest(labels, parts), DataSection(split="items", val_items=0.5), seed=0)
    assert split.test.tolist() == [6, 7, 8, 9, 16, 17, 18, 19]
    assert len(split.val) == 6
    assert set(split.val) <= set(range(6)) | set(range(10, 16))


def test_validation_rows_of_the_column_are_kept():
    labels = labels_of([4, 4])
    parts = ["train", "val", "test", "train"] * 2
    split = resolve_split(manifest(labels, parts), DataSection(split="items", val_items=0.5), seed=0)
    assert split.val.tolist() == [1, 5]
    assert split.test.tolist() == [2, 6]


def test_a_column_that_divides_classes_says_nothing_of_items():
    labels = labels_of([10, 10])
    split = resolve_split(manifest(labels, ["train"] * 10 + ["test"] * 10), DataSection(split="items"), seed=0)
    assert set(labels[split.train]) == set(labels[split.test]) == set(labels)


def test_without_a_split_column_shares_are_drawn():
    labels = labels_of([10, 10])
    rows = Manifest.from_rows([f"{number}.png" for number in range(20)], list(labels))
    split = resolve_split(rows, DataSection(split="items", test_items=0.3, val_items=0.0), seed=0)
    assert (len(split.train), len(split.val), len(split.test)) == (14, 0, 6)


def test_a_class_without_training_items_is_named():
    labels = labels_of([3, 3])
    parts = np.array(["test"] * 3 + ["train", "train", "test"], dtype=object)
    with pytest.raises(DataError, match="c00"):
        split_items(labels, parts=parts)


@pytest.mark.parametrize(
    ("share", "match"), [({"val": 1.0}, r"data\.val_items"), ({"test": -0.1}, r"data\.test_items")]
)
def test_shares_outside_the_unit_interval_are_refused(share, match):
    with pytest.raises(DataError, match=match):
        split_items(labels_of([3, 3]), **share)


def test_one_class_is_refused():
    with pytest.raises(DataError, match="two"):
        split_items(["only"] * 5)


def test_validation_that_no_class_has_an_item_for_is_told():
    with pytest.raises(DataError, match=r"data\.test_items"):
        split_items(labels_of([3, 3]), val=0.1, test=0.99)
