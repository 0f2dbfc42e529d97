from __future__ import annotations

import importlib

import numpy as np
import pytest

from nearkin.data.section import DataSection
from nearkin.data.splits import resolve_split
from nearkin.errors import DataError

PER_CLASS = {"train": 5, "val": 3, "test": 4}
SIDE = 4


@pytest.fixture(scope="module")
def maker():
    return importlib.import_module("studies.gsp_collage.collages")


@pytest.fixture(scope="module")
def cast(maker):
    return maker.cast_classes({f"super {i}": [f"{i}.{j}" for j in range(5)] for i in range(6)}, seed=3, shared=2)


@pytest.fixture(scope="module")
def source(cast):
    """Three images a sub-class; the pixels of each are all its row, so that every tile tells where it is from."""
    labels = np.array([f"{i}.{j}" for i in range(6) for j in range(5) for _ in range(3)], dtype=object)
    images = np.broadcast_to(np.arange(len(labels), dtype=np.uint8)[:, None, None, None], (len(labels), SIDE, SIDE, 3))
    return images.copy(), labels


@pytest.fixture(scope="module")
def collages(maker, cast, source):
    return maker.make_collages(*source, cast, PER_CLASS, seed=1)


def tiles_of(dataset):
    """The rows (n, 4) of the source that the pixels of each collage tell, and whether every tile is of one image."""
    rows = []
    for index in range(len(dataset)):
        image = np.asarray(dataset.image(index))
        assert image.shape == (2 * SIDE, 2 * SIDE, 3)
        parts = [image[top : top + SIDE, left : left + SIDE] for top in (0, SIDE) for left in (0, SIDE)]
        assert all(part.min() == part.max() for part in parts)
        rows.append([int(part[0, 0, 0]) for part in parts])
    return np.array(rows)


def test_cifar_has_its_hundred_classes(maker):
    names = " ".join(maker.SUPER_CLASSES.values()).split()
    assert len(maker.SUPER_CLASSES) == 20
    assert len(set(names)) == len(names) == 100


def test_every_sub_class_has_one_role(maker, cast):
    sides = [*cast.foreground.values(), *cast.background.values()]
    names = [name for side in sides for name in side]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 30
    for role, count in maker.ROLES.items():
        assert len(cast.foreground[role]) == 4 * count
        assert len(cast.background[role]) == 2 * count
        supers = [name.split(".")[0] for name in cast.classes(role)]
        assert all(supers.count(name) == count for name in set(supers))
    behind = {name.split(".")[0] for side in cast.background.values() for name in side}
    assert len(behind) == 2
    assert behind.isdisjoint(name.split(".")[0] for side in cast.foreground.values() for name in side)


def test_a_collage_has_one_foreground_and_three_of_its_role_s_background(cast, collages, source):
    _, labels = source
    manifest = collages.whole.manifest
    rows = tiles_of(collages.whole)
    assert [" ".join(map(str, row)) for row in rows] == list(manifest.column("parts"))
    columns = (manifest.column(name) for name in ("sub_class", "split", "place"))
    for tiles, label, kind, role, place in zip(rows, manifest.labels, *columns, strict=True):
        names = list(labels[tiles])
        assert names.pop(int(place)) == kind
        assert kind in cast.foreground[role]
        assert label == f"super {kind.split('.')[0]} ({role})"
        assert set(names) <= set(cast.background[role])


def test_roles_share_no_class_and_no_image(collages, source):
    _, labels = source
    rows, roles = tiles_of(collages.whole), collages.whole.manifest.column("split")
    used = {role: set(rows[roles == role].ravel()) for role in PER_CLASS}
    for one in used:
        for other in set(used) - {one}:
            assert used[one].isdisjoint(used[other])
            assert set(labels[list(used[one])]).isdisjoint(labels[list(used[other])])


def test_counts_places_and_split(maker, cast, collages):
    manifest = collages.whole.manifest
    split = resolve_split(manifest, DataSection(split="column"), seed=0)
    for role, rows in (("train", split.train), ("val", split.val), ("test", split.test)):
        names, counts = np.unique(manifest.column("sub_class")[rows], return_counts=True)
        assert list(names) == cast.foreground[role]
        assert set(counts) == {PER_CLASS[role]}
        assert len(set(manifest.labels[rows])) == 4
    assert set(manifest.column("place")) == {"0", "1", "2", "3"}


def test_no_image_is_the_foreground_much_more_often_than_another(collages):
    rows, manifest = tiles_of(collages.whole), collages.whole.manifest
    main = rows[np.arange(len(rows)), manifest.column("place").astype(int)]
    for name in set(manifest.column("sub_class")):
        _, counts = np.unique(main[manifest.column("sub_class") == name], return_counts=True)
        assert len(counts) == 3
        assert counts.max() - counts.min() <= 1


def test_the_plain_items_are_the_foregrounds(collages):
    rows, manifest = tiles_of(collages.whole), collages.whole.manifest
    main = rows[np.arange(len(rows)), manifest.column("place").astype(int)]
    assert [int(np.asarray(collages.plain.image(index))[0, 0, 0]) for index in range(len(rows))] == list(main)
    assert list(collages.plain.labels) == list(collages.whole.labels)


def test_the_same_seed_makes_the_same_collages(maker, cast, collages, source):
    again = maker.make_collages(*source, cast, PER_CLASS, seed=1)
    other = maker.make_collages(*source, cast, PER_CLASS, seed=2)
    assert again.whole.fingerprint() == collages.whole.fingerprint()
    assert other.whole.fingerprint() != collages.whole.fingerprint()
    names = {f"super {i}": [f"{i}.{j}" for j in range(5)] for i in range(6)}
    assert maker.cast_classes(names, seed=3, shared=2) == cast
    assert maker.cast_classes(names, seed=4, shared=2) != cast


def test_bad_input_is_refused(maker, cast, source):
    images, labels = source
    with pytest.raises(DataError, match="5"):
        maker.cast_classes({"a": ["b", "c"]})
    missing = cast.foreground["val"][0]
    with pytest.raises(DataError, match=missing):
        maker.make_collages(images[labels != missing], labels[labels != missing], cast, PER_CLASS)
    surrounds = np.isin(labels, cast.background["test"])
    with pytest.raises(DataError, match="test"):
        maker.make_collages(images[~surrounds], labels[~surrounds], cast, PER_CLASS)
