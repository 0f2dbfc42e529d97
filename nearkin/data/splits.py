"""Class-disjoint splits: what is learned on some classes is proven on others.

Pure functions of labels: they give positions, never touch files, and are the same for the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nearkin.data.domain_splits import manifest_domains, split_domains, split_items
from nearkin.data.manifest import SPLIT_NAMES, Manifest
from nearkin.data.section import DataSection
from nearkin.errors import DataError, suggestion

# A retrieval metric compares classes, so every part of a split that is used needs two of them.
_FEWEST = 2

SPLIT_PARTS = SPLIT_NAMES | {"query": "test", "gallery": "test"}

Labels = Sequence[str] | np.ndarray

FoldOrder = Literal["contiguous", "random"]
"""How classes are dealt to folds: the sorted list cut in order, or drawn with a seed."""


@dataclass(frozen=True, eq=False)
class Split:
    """Positions (int64, ascending) of the three parts; `val` and `test` may be empty.

    No class is in two of them, except in a split of items or domains, where every class trains and others of its items
    validate and test.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def split_halves(labels: Labels) -> tuple[list[str], list[str]]:
    """Training and test classes of the zero-shot protocol: the first half of the sorted classes trains.

    With an odd number of classes training gets the one in the middle.
    """
    classes = _classes(labels)
    if len(classes) < 2 * _FEWEST:
        raise DataError(f"Splitting by halves needs at least {2 * _FEWEST} classes, two per half, not {len(classes)}.")
    middle = (len(classes) + 1) // 2
    return classes[:middle], classes[middle:]


def split_classes(
    labels: Labels, *, test: float | Sequence[str] = 0.5, val: float | Sequence[str] = 0.2, seed: int = 0
) -> Split:
    """Hold out classes for test, then carve validation classes out of the rest.

    Args:
        labels: class of each item.
        test: share of all classes in [0, 1), drawn with the seed, or the names of the classes.
        val: share of the classes that are left in [0, 1), drawn with the seed, or the names of the classes.
        seed: of the draw.

    A positive share takes at least two classes and leaves at least two to each other part.
    """
    classes = _classes(labels)
    test_names, val_names = _named(test, classes, "test"), _named(val, classes, "validation")
    if both := sorted(set(test_names) & set(val_names)):
        raise DataError(f"{_quoted(both, 'class')} named for both test and validation: keep each in one list.")
    rng = np.random.default_rng(seed)
    free = _without(classes, [*test_names, *val_names])
    reserved = _FEWEST * (1 + (_is_share(val) and _share(val, "val_classes") > 0))
    if _is_share(test):
        test_names = _draw(free, _share(test, "test_classes"), len(classes), reserved, rng, "test")
        free = _without(free, test_names)
    if _is_share(val):
        val_names = _draw(free, _share(val, "val_classes"), len(free), _FEWEST, rng, "validation")
    return _assemble(labels, train=None, val=val_names, test=test_names)


def split_from_column(manifest: Manifest, *, val: float | Sequence[str] = 0.2, seed: int = 0) -> Split:
    """Follow the manifest's `split` column (train, val, test; `query` and `gallery` count as test).

    Without rows for validation, `val` (a share or names) carves them out of the training classes.
    """
    labels = manifest.labels
    parts = _column_parts(manifest)
    train, held, test = (set(_classes(labels[parts == part])) for part in ("train", "val", "test"))
    if not train:
        raise DataError("The split column has no 'train' rows: add some, or set data.split to halves or fraction.")
    if train & test:
        raise DataError(
            f"{_quoted(sorted(train & test), 'class')} in both train and test of the split column: "
            "make it class-disjoint, or set data.split to halves or fraction to ignore it."
        )
    if held and not _is_share(val):
        raise DataError("The split column already has val rows: remove data.val_classes or those rows.")
    if held:
        check_disjoint(sorted(train), sorted(held))
        if test & held:
            raise DataError(f"{_quoted(sorted(test & held), 'class')} in both val and test of the split column.")
        return _assemble(labels, train=sorted(train), val=sorted(held), test=sorted(test))
    return _carve(labels, sorted(train), sorted(test), val, seed)


def resolve_split(manifest: Manifest, section: DataSection, seed: int) -> Split:
    """The split a recipe asks for.

    "auto" takes named test classes when there are some, else the split column when its classes are disjoint, else
    halves when the column's parts share their classes (a closed-set data set such as CIFAR-100, whose column then says
    nothing about unseen classes), else a seeded share.
    """
    named = not _is_share(section.test_classes)
    how: str = section.split
    if how == "auto":
        how = "fraction" if named else _supported(manifest)
    elif named and how != "fraction":
        raise DataError(f"data.split '{how}' would ignore the classes in data.test_classes: set it to fraction.")
    if section.test_domains and how != "domains":
        raise DataError(
            f"data.test_domains names domains, which data.split '{section.split}' would ignore: set data.split to "
            "domains."
        )
    if how == "domains":
        domains, held_out = manifest_domains(manifest), section.test_domains
        return Split(*split_domains(manifest.labels, domains, test=held_out, val=section.val_items, seed=seed))
    if how == "items":
        shares = {"val": section.val_items, "test": section.test_items}
        parts = _column_parts(manifest) if _has_parts(manifest) else None
        if parts is not None:  # a column that divides the classes, and not their items, does not count
            train, held = (set(manifest.labels[inside]) for inside in (parts == "train", parts != "train"))
            parts = parts if train & held else None
        return Split(*split_items(manifest.labels, **shares, seed=seed, parts=parts))
    if how == "column":
        return split_from_column(manifest, val=section.val_classes, seed=seed)
    if how == "halves":
        return _carve(manifest.labels, *split_halves(manifest.labels), section.val_classes, seed)
    return split_classes(manifest.labels, test=section.test_classes, val=section.val_classes, seed=seed)


def class_folds(labels: Labels, k: int, seed: int = 0, order: FoldOrder = "random") -> list[Split]:
    """Divide the classes into `k` folds of nearly equal size; split i validates on fold i and trains on the others.

    Args:
        labels: class of each item.
        k: how many folds.
        seed: of the draw, where the order is random.
        order: "contiguous" cuts the sorted list of classes in order, so that a fold holds neighbours of the list;
            "random" deals them out.
    """
    classes = np.array(sorted(_classes(labels), key=number_first), dtype=object)
    most = len(classes) // _FEWEST
    if most < 2:
        raise DataError(f"Folds need four training classes, two in each of two folds, not {len(classes)}: add classes.")
    if not 2 <= k <= most:
        raise DataError(
            f"Cannot make {k} folds of {len(classes)} training classes, as every fold needs two: choose at least 2 and "
            f"at most {most} folds, or add classes."
        )
    if order == "random":
        classes = np.random.default_rng(seed).permutation(np.array(_classes(labels), dtype=object))
    folds = np.array_split(classes, k)
    return [_assemble(labels, train=None, val=list(fold), test=[]) for fold in folds]


def number_first(name: str) -> tuple[bool, int, str]:
    """Key to sort class names by: those that begin with a number by that number, then all others as text."""
    digits = _NUMBER.match(name)
    return (digits is None, int(digits[0]) if digits else 0, name)


_NUMBER = re.compile("[0-9]+")


def check_disjoint(train_labels: Iterable[str], val_labels: Iterable[str], what: str = "validation") -> None:
    """Refuse `what` classes that are also trained on."""
    if shared := sorted(set(map(str, train_labels)) & set(map(str, val_labels))):
        raise DataError(
            f"{_quoted(shared, 'class')} among both the training and the {what} classes: "
            f"{what} must use classes that training has not seen."
        )


def check_classes(labels: Labels, minimum: int = 2, noun: str = "image") -> None:
    """Refuse classes with fewer than `minimum` items: a query needs a partner to be found."""
    names, counts = np.unique(np.asarray(labels), return_counts=True)
    if not len(names):
        raise DataError(f"The data has no {noun}s.")
    small = names[counts < minimum]
    if not len(small):
        return
    few = f"one {noun}" if minimum == 2 else f"fewer than {minimum} {noun}s"
    more = f"add another {noun}" if minimum == 2 else f"add {noun}s"
    if len(small) == 1:
        raise DataError(f"Class '{small[0]}' has {few}: {more}, remove the class, or leave it out with --skip-bad.")
    raise DataError(
        f"{len(small)} classes have {few} each ({_listed(small)}): {more} to each, remove them, "
        "or leave them out with --skip-bad."
    )


def drop_singletons(labels: Labels) -> np.ndarray:
    """Mask (n,) of the items whose class has at least two."""
    _, codes, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    return counts[codes] >= 2


def _classes(labels: Labels) -> list[str]:
    return [str(name) for name in np.unique(np.asarray(labels))]


def _without(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    gone = set(taken)
    return [name for name in names if name not in gone]


def _is_share(value: float | Sequence[str]) -> bool:
    return isinstance(value, int | float)


def _share(value: float | Sequence[str], what: str) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise DataError(f"{what} must be a share of the classes in [0, 1) or a list of class names, not {value}.")
    return float(value)


def _named(value: float | Sequence[str], classes: Sequence[str], what: str) -> list[str]:
    """The classes that `value` names, none when it is a share."""
    if isinstance(value, int | float):
        return []
    if isinstance(value, str):
        raise DataError(f"Give the {what} classes as a list of names, not as the text '{value}'.")
    names, known = sorted({str(name) for name in value}), set(classes)
    for name in names:
        if name not in known:
            raise DataError(f"There is no class '{name}' to use for {what}.{suggestion(name, classes)}")
    return names


def _draw(
    free: Sequence[str], share: float, total: int, reserved: int, rng: np.random.Generator, what: str
) -> list[str]:
    """Draw round(share * total) of the free classes, at least two, leaving at least `reserved`."""
    if share == 0.0:
        return []
    if len(free) < _FEWEST + reserved:
        raise DataError(
            f"There are {len(free)} classes to divide, and holding out {what} classes needs at least "
            f"{_FEWEST + reserved} (two a part): add classes, or set data.val_classes or data.test_classes to 0."
        )
    count = min(max(_FEWEST, round(share * total)), len(free) - reserved)
    return [free[position] for position in sorted(rng.permutation(len(free))[:count])]


def _carve(labels: Labels, train: Sequence[str], test: Sequence[str], val: float | Sequence[str], seed: int) -> Split:
    """Take validation classes out of the given training classes."""
    if _is_share(val):
        held = _draw(train, _share(val, "val_classes"), len(train), _FEWEST, np.random.default_rng(seed), "validation")
    else:
        held = _named(val, [*train, *test], "validation")
        if both := sorted(set(held) & set(test)):
            raise DataError(f"{_quoted(both, 'class')} named for validation and held out for test: choose others.")
    return _assemble(labels, train=_without(train, held), val=held, test=test)


def _assemble(labels: Labels, *, train: Sequence[str] | None, val: Sequence[str], test: Sequence[str]) -> Split:
    """Positions of the items of the named classes; `train` None means all the other classes."""
    classes, codes = np.unique(np.asarray(labels), return_inverse=True)
    code_of = {str(name): code for code, name in enumerate(classes)}

    def mask(names: Sequence[str]) -> np.ndarray:
        chosen = np.zeros(len(classes), dtype=bool)
        chosen[[code_of[name] for name in names]] = True
        return chosen

    val_mask, test_mask = mask(val), mask(test)
    train_mask = ~(val_mask | test_mask) if train is None else mask(train)
    for part, what in ((val, "validation"), (test, "test")):
        if len(part) == 1:
            raise DataError(
                f"'{part[0]}' is the only {what} class, which leaves nothing to confuse it with: hold out at least two."
            )
    if train_mask.sum() < _FEWEST:
        raise DataError(
            f"Training needs at least two classes, and of {len(classes)} only {int(train_mask.sum())} would be left: "
            "hold out fewer classes or add some."
        )
    return Split(*(np.flatnonzero(part[codes]).astype(np.int64) for part in (train_mask, val_mask, test_mask)))


def _column_parts(manifest: Manifest) -> np.ndarray:
    """The split column with its synonyms resolved: "train", "val" or "test" for every row."""
    given = manifest.column("split")
    parts = np.array([SPLIT_PARTS.get(str(value).strip().lower(), "") for value in given], dtype=object)
    if (unknown := np.flatnonzero(parts == "")).size:
        row = int(unknown[0])
        raise DataError(
            f"The split column says '{given[row]}' for {manifest.paths[row]} ({unknown.size} such rows): "
            "use train, val or test, or set data.split to halves or fraction."
        )
    return parts


def _has_parts(manifest: Manifest) -> bool:
    """Whether there is a split column that says anything."""
    return manifest.has("split") and any(str(value).strip() for value in manifest.column("split"))


def _supported(manifest: Manifest) -> str:
    """What "auto" means for this manifest."""
    if not _has_parts(manifest):
        return "fraction"
    parts = _column_parts(manifest)
    train, val, test = (set(_classes(manifest.labels[parts == part])) for part in ("train", "val", "test"))
    held = test or val
    if not train or not held:
        return "fraction"
    # A part that lies wholly inside the other is the closed-set protocol; a partial overlap is an error in the column.
    return "halves" if held <= train or train <= held else "column"


def _listed(names: Sequence[str] | np.ndarray) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _quoted(names: Sequence[str], noun: str) -> str:
    """The subject of a sentence: "Class 'a' is" or "3 classes ('a', 'b', 'c') are"."""
    if len(names) == 1:
        return f"{noun.capitalize()} '{names[0]}' is"
    return f"{len(names)} {noun}es ({_listed(names)}) are"
