import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.manifest import Manifest
from nearkin.data.section import DataSection
from nearkin.data.splits import (
    check_classes,
    check_disjoint,
    class_folds,
    drop_singletons,
    number_first,
    resolve_split,
    split_classes,
    split_from_column,
    split_halves,
)
from nearkin.errors import DataError


def labels_of(classes, items=3):
    """Interleaved labels c00, c01, ...: positions of a class are not contiguous."""
    return np.array([f"c{one:03d}" for _ in range(items) for one in range(classes)], dtype=object)


def manifest_of(labels, **columns):
    return Manifest.from_rows([f"{row}.png" for row in range(len(labels))], labels, **columns)


def classes_in(labels, split):
    return tuple(set(np.asarray(labels)[part]) for part in (split.train, split.val, split.test))


def check_is_partition(labels, split):
    train, val, test = classes_in(labels, split)
    assert len(train | val | test) == len(train) + len(val) + len(test)
    everything = np.concatenate([split.train, split.val, split.test])
    assert everything.dtype == np.int64
    assert sorted(everything) == list(range(len(labels)))
    assert len(train) >= 2
    assert len(val) != 1
    assert len(test) != 1


@given(
    classes=st.integers(6, 60),
    test=st.floats(0, 0.99),
    val=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_shares_partition_the_items_by_class(classes, test, val, seed):
    labels = labels_of(classes)
    split = split_classes(labels, test=test, val=val, seed=seed)
    check_is_partition(labels, split)
    _, held, tested = classes_in(labels, split)
    assert bool(held) == (val > 0)
    assert bool(tested) == (test > 0)
    again = split_classes(labels, test=test, val=val, seed=seed)
    for name in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(split, name), getattr(again, name))


def test_shares_are_of_all_and_of_the_remaining_classes():
    labels = labels_of(100)
    train, val, test = classes_in(labels, split_classes(labels, test=0.3, val=0.1, seed=3))
    assert (len(train), len(val), len(test)) == (63, 7, 30)


def test_another_seed_draws_other_classes():
    labels = labels_of(50)
    draws = {frozenset(classes_in(labels, split_classes(labels, seed=seed))[2]) for seed in range(5)}
    assert len(draws) == 5


def test_the_split_depends_on_the_classes_not_on_the_order_of_items():
    labels = labels_of(20)
    shuffled = np.random.default_rng(0).permutation(labels)
    assert classes_in(labels, split_classes(labels, seed=1)) == classes_in(shuffled, split_classes(shuffled, seed=1))


def test_explicit_lists_are_followed():
    labels = labels_of(8)
    split = split_classes(labels, test=["c000", "c003"], val=["c007", "c001"])
    check_is_partition(labels, split)
    assert classes_in(labels, split)[1:] == ({"c007", "c001"}, {"c000", "c003"})


def test_a_list_and_a_share_go_together():
    labels = labels_of(8)
    split = split_classes(labels, test=0.25, val=["c000", "c001"], seed=5)
    check_is_partition(labels, split)
    assert classes_in(labels, split)[1] == {"c000", "c001"}


@pytest.mark.parametrize(
    ("classes", "asked", "message"),
    [
        (8, {"test": ["c00"]}, "c00"),
        (8, {"test": ["c000", "c001"], "val": ["c001", "c002"]}, "c001"),
        (8, {"test": ["c000"]}, "c000"),
        (8, {"test": "c000"}, "list"),
        (8, {"test": 1.0}, r"1\.0"),
        (8, {"test": float("nan")}, "nan"),
        (8, {"val": -0.1}, r"-0\.1"),
        (3, {}, "6"),
        (5, {}, "6"),
        (3, {"val": 0}, "4"),
        (1, {"test": 0, "val": 0}, "two"),
        (3, {"test": ["c000", "c001"], "val": 0}, "1"),
    ],
)
def test_bad_requests_say_what_to_change(classes, asked, message):
    with pytest.raises(DataError, match=message):
        split_classes(labels_of(classes), **asked)


def test_four_classes_are_enough_without_validation():
    labels = labels_of(4)
    split = split_classes(labels, val=0)
    check_is_partition(labels, split)
    assert len(split.val) == 0


@pytest.mark.parametrize(("classes", "trained"), [(4, 2), (7, 4), (200, 100)])
def test_the_first_half_of_the_sorted_classes_trains(classes, trained):
    train, test = split_halves(labels_of(classes)[::-1])
    assert train == [f"c{one:03d}" for one in range(trained)]
    assert test == [f"c{one:03d}" for one in range(trained, classes)]


def test_halves_need_four_classes():
    with pytest.raises(DataError, match="4"):
        split_halves(labels_of(3))


def column_manifest(**parts):
    """A manifest with a split column: part=list of classes, two items each."""
    rows = [(name, part) for part, names in parts.items() for name in names for _ in range(2)]
    return manifest_of([name for name, _ in rows], split=[part for _, part in rows])


def test_the_column_is_followed_and_validation_carved_from_train():
    manifest = column_manifest(train=list("abcdefghij"), test=list("xyz"))
    split = split_from_column(manifest, val=0.3, seed=1)
    check_is_partition(manifest.labels, split)
    _, val, test = classes_in(manifest.labels, split)
    assert test == set("xyz")
    assert len(val) == 3
    assert val < set("abcdefghij")


def test_a_column_with_val_rows_needs_no_share():
    manifest = column_manifest(train=list("abc"), validation=list("de"), query=list("xy"))
    train, val, test = classes_in(manifest.labels, split_from_column(manifest))
    assert (train, val, test) == (set("abc"), set("de"), set("xy"))


def test_named_validation_classes_come_out_of_the_column_s_training_classes():
    manifest = column_manifest(train=list("abcd"), test=list("xy"))
    assert classes_in(manifest.labels, split_from_column(manifest, val=["a", "b"]))[1] == {"a", "b"}
    with pytest.raises(DataError, match="'x'"):
        split_from_column(manifest, val=["a", "x"])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": "abc", "test": "cde"}, "'c'"),
        ({"train": "abc", "val": "cd", "test": "xy"}, "'c'"),
        ({"train": "abc", "val": "de", "test": "ex"}, "'e'"),
        ({"val": "abc", "test": "xy"}, "'train'"),
        ({"train": "abc", "tset": "xy"}, "'tset'"),
        ({"train": "abcd", "test": "x"}, "'x'"),
        ({"train": "abcdefgh", "test": "abcdefgi"}, "2 more"),
    ],
)
def test_a_column_that_cannot_be_followed_is_refused(parts, message):
    with pytest.raises(DataError, match=message):
        split_from_column(column_manifest(**{part: list(names) for part, names in parts.items()}))


def test_a_manifest_without_the_column_is_refused_when_it_is_asked_for():
    with pytest.raises(DataError, match="split"):
        resolve_split(manifest_of(labels_of(8)), DataSection(split="column"), 0)


@pytest.mark.parametrize(
    ("parts", "train", "test"),
    [
        ({"train": "abcdef", "test": "xyz"}, set("abcdef"), set("xyz")),  # disjoint: the column
        ({"train": "abcdefgh", "test": "abcdefgh"}, set("abcd"), set("efgh")),  # closed set: halves
        ({"train": "abcdefgh", "test": "aceg"}, set("abcd"), set("efgh")),
        ({"train": "abcdef", "val": "xyz"}, set("abcdef"), set()),  # the column's validation is kept
    ],
)
def test_auto_picks_what_the_column_supports(parts, train, test):
    manifest = column_manifest(**{part: list(names) for part, names in parts.items()})
    found = classes_in(manifest.labels, resolve_split(manifest, DataSection(), seed=0))
    assert found[0] | (found[1] - set("xyz")) == train
    assert found[2] == test


@pytest.mark.parametrize("values", [None, "", "train"])
def test_auto_draws_a_share_without_a_usable_column(values):
    labels = labels_of(20)
    manifest = manifest_of(labels) if values is None else manifest_of(labels, split=[values] * len(labels))
    split = resolve_split(manifest, DataSection(test_classes=0.5), seed=4)
    assert classes_in(labels, split) == classes_in(labels, split_classes(labels, test=0.5, val=0.15, seed=4))


def test_auto_refuses_a_column_that_overlaps_by_mistake():
    manifest = column_manifest(train=list("abcd"), test=list("dxyz"))
    with pytest.raises(DataError, match="'d'"):
        resolve_split(manifest, DataSection(), seed=0)
    check_is_partition(manifest.labels, resolve_split(manifest, DataSection(split="fraction"), seed=0))


def test_named_test_classes_beat_the_column_under_auto_and_clash_with_it_when_asked():
    manifest = column_manifest(train=list("abcdef"), test=list("xyz"))
    named = DataSection(test_classes=["a", "x"])
    assert classes_in(manifest.labels, resolve_split(manifest, named, 0))[2] == {"a", "x"}
    for split in ("column", "halves"):
        with pytest.raises(DataError, match=r"data\.split"):
            resolve_split(manifest, named.model_copy(update={"split": split}), 0)


def test_halves_carve_validation_from_the_training_half():
    labels = labels_of(40)
    split = resolve_split(manifest_of(labels), DataSection(split="halves"), seed=2)
    check_is_partition(labels, split)
    _, val, test = classes_in(labels, split)
    assert test == set(split_halves(labels)[1])
    assert len(val) == 3


@given(classes=st.integers(4, 40), data=st.data(), seed=st.integers(0, 1000))
def test_every_class_validates_in_exactly_one_fold(classes, data, seed):
    k = data.draw(st.integers(2, classes // 2))
    labels = labels_of(classes)
    folds = class_folds(labels, k, seed)
    assert len(folds) == k
    for fold in folds:
        check_is_partition(labels, fold)
        assert len(fold.test) == 0
    assert sorted(np.concatenate([fold.val for fold in folds])) == list(range(len(labels)))
    sizes = [len(classes_in(labels, fold)[1]) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("k", [0, 1, 5, 9])
def test_too_many_or_too_few_folds(k):
    with pytest.raises(DataError, match="folds"):
        class_folds(labels_of(8), k)


def test_three_classes_make_no_folds():
    with pytest.raises(DataError, match="four"):
        class_folds(labels_of(3), 2)


def test_contiguous_folds_cut_the_sorted_list_in_order():
    folds = class_folds(labels_of(10), 4, order="contiguous")
    held = [sorted({str(name) for name in labels_of(10)[fold.val]}) for fold in folds]
    assert [len(part) for part in held] == [3, 3, 2, 2]
    assert [name for part in held for name in part] == [f"c{number:03d}" for number in range(10)]
    for fold in folds:
        check_is_partition(labels_of(10), fold)


@pytest.mark.parametrize("form", ["{}", "{}.Black_footed", "{}-x"])
def test_names_that_begin_with_a_number_are_cut_in_the_order_of_the_numbers(form):
    names = [form.format(number) for number in (9, 10, 100, 11, 2, 1)]
    held = [set(np.array(names, dtype=object)[fold.val]) for fold in class_folds(names, 3, order="contiguous")]
    assert held == [{form.format(a), form.format(b)} for a, b in ((1, 2), (9, 10), (11, 100))]


def test_numbered_names_come_before_others_and_equal_numbers_go_by_the_rest():
    assert sorted(["owl", "10", "2b", "02a", "Ant"], key=number_first) == ["02a", "2b", "10", "Ant", "owl"]


def test_random_folds_are_those_of_earlier_versions():
    names = labels_of(8)
    drawn = np.array_split(np.random.default_rng(5).permutation(np.unique(names)), 3)
    assert [set(names[fold.val]) for fold in class_folds(names, 3, 5)] == [set(part) for part in drawn]


def test_overlapping_validation_classes_are_named():
    check_disjoint(["a", "b"], ["c"])
    with pytest.raises(DataError, match="'b'"):
        check_disjoint(["a", "b", "b"], ["b", "a", "c"], what="test")


def test_a_class_with_one_image_is_named():
    check_classes(["a", "a", "b", "b"])
    with pytest.raises(DataError, match="--skip-bad"):
        check_classes(["a", "a", "b"])
    with pytest.raises(DataError, match="recording"):
        check_classes(list("abcdefg"), noun="recording")
    with pytest.raises(DataError, match="4"):
        check_classes(["a"] * 3, minimum=4)
    with pytest.raises(DataError, match="images"):
        check_classes([])


def test_singletons_can_be_dropped():
    labels = np.array(["a", "b", "a", "c"], dtype=object)
    np.testing.assert_array_equal(drop_singletons(labels), [True, False, True, False])
    check_classes(labels[drop_singletons(labels)])


@pytest.mark.data
def test_real_data_follow_the_zero_shot_protocol(data_root):
    from nearkin.data.sources import open_data

    for name in ("cub200", "cifar100"):  # the one by its column, the other, a closed set, by halves
        labels = (manifest := open_data(data_root / f"{name}.zip", progress=False).manifest).labels
        split = resolve_split(manifest, DataSection(), seed=0)
        check_is_partition(labels, split)
        assert classes_in(labels, split)[2] == set(split_halves(labels)[1])
