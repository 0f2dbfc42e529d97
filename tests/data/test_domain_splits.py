"""Domain splits: whole domains are held out, shares of the others validate, reproducible, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import leave_one_domain_out, split_domains
from nearkin.data.export import with_split
from nearkin.data.manifest import Manifest
from nearkin.data.section import DataSection
from nearkin.data.splits import resolve_split
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

DOMAINS = ["art", "photo", "sketch"]


def table(sizes):
    """Labels and domains of sizes[class][domain] items, shuffled so that neither comes in runs."""
    labels, domains = [], []
    for label, row in enumerate(sizes):
        for domain, size in zip(DOMAINS, row, strict=False):
            labels += [f"c{label}"] * size
            domains += [domain] * size
    order = np.random.default_rng(0).permutation(len(labels))
    return np.array(labels, dtype=object)[order], np.array(domains, dtype=object)[order]


def manifest(labels, domains):
    names = [f"{number}.png" for number in range(len(labels))]
    return Manifest.from_rows(names, list(labels), domain=list(domains))


def test_the_named_domain_is_held_out_and_each_class_of_each_other_gives_its_share():
    labels, domains = table([[10, 20, 7], [30, 10, 9]])
    train, val, test = split_domains(labels, domains, test=["sketch"], val=0.1, seed=1)
    assert set(domains[test]) == {"sketch"}
    assert len(test) == 16
    assert sorted([*train, *val, *test]) == list(range(86))
    counts = {
        (label, domain): int(((labels[val] == label) & (domains[val] == domain)).sum())
        for label in ("c0", "c1")
        for domain in ("art", "photo")
    }
    assert counts == {("c0", "art"): 1, ("c0", "photo"): 2, ("c1", "art"): 3, ("c1", "photo"): 1}


@given(
    sizes=st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=2, max_size=6),
    held=st.lists(st.sampled_from(DOMAINS), min_size=1, max_size=2, unique=True),
    val=st.floats(0, 0.9),
    seed=st.integers(0, 5),
)
def test_parts_are_disjoint_and_every_class_trains_without_the_held_out_domains(sizes, held, val, seed):
    labels, domains = table(sizes)
    try:
        parts = split_domains(labels, domains, test=held, val=val, seed=seed)
    except DataError:
        there = set(domains)
        inside = [[size for name, size in zip(DOMAINS, row, strict=True) if name not in held] for row in sizes]
        lost = [sum(row) > 0 and not sum(kept) for row, kept in zip(sizes, inside, strict=True)]
        nothing_to_draw = val > 0 and not any(size > 1 for row in inside for size in row)
        assert len(set(labels)) < 2 or not set(held) < there or any(lost) or nothing_to_draw
        return
    train, held_in, test = parts
    together = np.concatenate(parts)
    assert len(together) == len(labels) == len(set(together.tolist()))
    assert set(domains[test]) == set(held)
    assert not set(domains[train]) & set(held)
    assert not set(domains[held_in]) & set(held)
    assert set(labels[train]) == set(labels)
    for part in parts:
        assert (np.diff(part) > 0).all()
    if val == 0:
        assert not len(held_in)
    again = split_domains(labels, domains, test=held, val=val, seed=seed)
    assert all(np.array_equal(first, second) for first, second in zip(parts, again, strict=True))


def test_another_seed_draws_other_validation_items_but_holds_out_the_same():
    labels, domains = table([[30, 30, 5], [30, 30, 5]])
    first, second = (split_domains(labels, domains, test=["sketch"], seed=seed) for seed in (0, 1))
    assert not np.array_equal(first[1], second[1])
    assert np.array_equal(first[2], second[2])


def test_a_recipe_asks_for_it_by_a_list_or_a_single_name():
    labels, domains = table([[10, 10, 4], [10, 10, 4]])
    sections = [DataSection(split="domains", test_domains=given, val_items=0.2) for given in (["photo"], "photo")]
    first, second = (resolve_split(manifest(labels, domains), section, seed=3) for section in sections)
    expected = split_domains(labels, domains, test=["photo"], val=0.2, seed=3)
    for found in (first, second):
        for name, part in zip(("train", "val", "test"), expected, strict=True):
            assert np.array_equal(getattr(found, name), part)


@pytest.mark.parametrize(("split", "seen"), [("items", True), ("domains", True), ("halves", False), ("auto", False)])
def test_a_section_says_whether_classes_are_seen(split, seen):
    assert DataSection(split=split).classes_are_seen is seen


@pytest.mark.parametrize(
    ("held", "match"),
    [
        (["skech"], "sketch"),
        ([], r"data\.test_domains"),
        (DOMAINS, "every"),
    ],
)
def test_names_that_cannot_be_held_out_are_refused(held, match):
    with pytest.raises(DataError, match=match):
        split_domains(*table([[3, 3, 3], [3, 3, 3]]), test=held)


def test_a_class_of_held_out_domains_alone_is_refused():
    with pytest.raises(DataError, match="c1"):
        split_domains(*table([[3, 3, 3], [0, 0, 3], [3, 3, 3]]), test=["sketch"])


def test_a_text_in_place_of_a_list_is_refused():
    with pytest.raises(DataError, match="list"):
        split_domains(*table([[3, 3, 3], [3, 3, 3]]), test="sketch")


def test_a_share_outside_the_unit_interval_is_refused():
    with pytest.raises(DataError, match=r"data\.val_items"):
        split_domains(*table([[3, 3, 3], [3, 3, 3]]), test=["sketch"], val=1.0)


def test_validation_that_no_class_has_an_item_for_is_told():
    with pytest.raises(DataError, match=r"data\.val_items"):
        split_domains(*table([[1, 1, 3], [1, 1, 3]]), test=["sketch"])


def test_one_class_is_refused():
    with pytest.raises(DataError, match="two"):
        split_domains(*table([[3, 3, 3]]), test=["sketch"])


def test_a_manifest_without_domains_is_refused():
    rows = Manifest.from_rows(["a", "b"], ["x", "y"])
    with pytest.raises(DataError, match="'domain'"):
        resolve_split(rows, DataSection(split="domains", test_domains=["photo"]), seed=0)


def test_an_item_without_a_domain_is_named():
    labels, domains = table([[3, 3, 3], [3, 3, 3]])
    domains[4] = " "
    with pytest.raises(DataError, match=r"4\.png"):
        resolve_split(manifest(labels, domains), DataSection(split="domains", test_domains=["photo"]), seed=0)


@pytest.mark.parametrize("split", ["auto", "halves", "items"])
def test_domains_that_a_split_would_ignore_are_refused(split):
    labels, domains = table([[3, 3, 3]] * 4)
    section = DataSection(split=split, test_domains=["photo"])
    with pytest.raises(DataError, match=r"data\.test_domains"):
        resolve_split(manifest(labels, domains), section, seed=0)


def test_a_table_cannot_be_divided_by_domains_without_their_names():
    labels, domains = table([[3, 3, 3], [3, 3, 3]])
    rows = manifest(labels, domains)
    dataset = Dataset(rows, ArrayStore(np.zeros((len(labels), 4, 4, 3), np.uint8), list(rows.paths)))
    with pytest.raises(DataError, match=r"data\.split"):
        with_split(dataset, by="domains", test=0.2, val=0.1, folds=0, seed=0)


def test_each_domain_is_left_out_once():
    domains = np.array(["photo", "sketch", "photo", "art"], dtype=object)
    out = leave_one_domain_out(domains)
    assert list(out) == ["art", "photo", "sketch"]
    assert [part.tolist() for part in out["photo"]] == [[1, 3], [0, 2]]
    with pytest.raises(DataError, match="two"):
        leave_one_domain_out(["photo"] * 3)
