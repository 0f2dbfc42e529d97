"""Seen-class splits: every class trains, and other items of the same classes validate and test.

This is the protocol of a classifier. It says how well known classes are told apart and how they lie, not how the model
does on classes that it has never seen: for that, hold out classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.errors import DataError


def split_items(
    labels: Sequence[str] | np.ndarray,
    *,
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    parts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (int64, ascending) of the training, validation and test items, each class divided alike.

    A share of a class is rounded to the nearest number of items, at least one where the share is positive, and leaves
    at least one item to train on.

    Args:
        labels: class of each item, (n,).
        val: share of a class's items in [0, 1) for validation; of its training items where `parts` names no validation.
        test: share of a class's items in [0, 1) for the test; without effect where `parts` says which they are.
        seed: of the draw.
        parts: "train", "val" or "test" for each item, (n,), of data that comes divided; None: all is drawn.

    Raises:
        DataError: a share outside [0, 1), or a class that would have nothing to train on.
    """
    for what, share in (("val_items", val), ("test_items", test)):
        if not 0.0 <= share < 1.0:
            raise DataError(f"data.{what} must be a share of each class's items in [0, 1), not {share:g}.")
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    given = np.full(len(codes), "train", dtype=object) if parts is None else np.asarray(parts, dtype=object)
    keys = np.random.default_rng(seed).random(len(codes))
    held = given.copy()
    if parts is None:
        draw_share(held, codes, keys, test, "test", len(names))
    if not (given == "val").any():
        draw_share(held, codes, keys, val, "val", len(names))
    _check(held, codes, names)
    if val and not (held == "val").any():
        raise DataError(
            f"data.val_items is {val:g} and no class has an item left to validate on: lower data.test_items, add "
            "items, or set data.val_items to 0."
        )
    train, validation, tested = (np.flatnonzero(held == part).astype(np.int64) for part in ("train", "val", "test"))
    return train, validation, tested


def draw_share(held: np.ndarray, codes: np.ndarray, keys: np.ndarray, share: float, part: str, groups: int) -> None:
    """Turn a share of each group's training items, those of the smallest keys, into another part, in place.

    Args:
        held: the part of each item, (n,), of which "train" is divided.
        codes: group of each item, (n,), whole numbers from 0.
        keys: a number for each item, (n,).
        share: in [0, 1), rounded to the nearest number of items; at least one, and one is left to train on.
        part: what the drawn items become.
        groups: how many there are.
    """
    if share == 0.0:
        return
    free = np.flatnonzero(held == "train")
    order = free[np.lexsort((keys[free], codes[free]))]
    counts = np.bincount(codes[free], minlength=groups)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    # `round` alone would give the smallest classes nothing; one item must be left to train on.
    wanted = np.minimum(np.maximum(1, np.rint(share * counts)), np.maximum(counts - 1, 0))
    held[order[rank < np.repeat(wanted, counts)]] = part


def _check(held: np.ndarray, codes: np.ndarray, names: np.ndarray) -> None:
    """Refuse a division that leaves a class, or all, without training items."""
    if len(names) < 2:
        raise DataError(f"Dividing the items of seen classes needs at least two classes, the data has {len(names)}.")
    trained = np.bincount(codes[held == "train"], minlength=len(names))
    if not trained.all():
        empty = names[trained == 0]
        more = f" (and {len(empty) - 1} other classes)" if len(empty) > 1 else ""
        raise DataError(
            f"Class '{empty[0]}'{more} has no item to train on, which data.split 'items' needs of every class: add "
            "items, remove the class, or hold out classes with data.split halves or fraction."
        )
