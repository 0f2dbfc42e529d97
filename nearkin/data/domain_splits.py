"""Splits in which every class trains: other items of the same classes, or whole domains, validate and test.

By items it is the protocol of a classifier. It says how well known classes are told apart and how they lie, not how the
model does on classes that it has never seen: for that, hold out classes.
A domain is how items look whatever their class: photos and sketches, two cameras, two laboratories. A split by domains
says how well known classes are told apart where they look as they never looked in training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.data.manifest import Manifest
from nearkin.errors import DataError, suggestion


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
    _check_shares(val_items=val, test_items=test)
    names, codes = _coded(labels, "items")
    given = np.full(len(codes), "train", dtype=object) if parts is None else np.asarray(parts, dtype=object)
    keys = np.random.default_rng(seed).random(len(codes))
    held = given.copy()
    if parts is None:
        draw_share(held, codes, keys, test, "test", len(names))
    if not (given == "val").any():
        draw_share(held, codes, keys, val, "val", len(names))
    empty = names[np.bincount(codes[held == "train"], minlength=len(names)) == 0]
    if len(empty):
        raise DataError(
            f"{_first_of(empty)} has no item to train on, which data.split 'items' needs of every class: add "
            "items, remove the class, or hold out classes with data.split halves or fraction."
        )
    if val and not (held == "val").any():
        raise DataError(
            f"data.val_items is {val:g} and no class has an item left to validate on: lower data.test_items, add "
            "items, or set data.val_items to 0."
        )
    return _positions(held)


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 <= share < 1.0:
            raise DataError(f"data.{name} must be a share of each class's items in [0, 1), not {share:g}.")


def _coded(labels: Sequence[str] | np.ndarray, divided: str) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and the class (n,) of each item as an index; refuse fewer than two."""
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    if len(names) < 2:
        raise DataError(f"Dividing the {divided} of seen classes needs at least two classes, not {len(names)}.")
    return names, codes


def _first_of(names: np.ndarray) -> str:
    return f"Class '{names[0]}'" + (f" (and {len(names) - 1} other classes)" if len(names) > 1 else "")


def _positions(held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


COLUMN = "domain"
"""The manifest's column that says which domain an item is of."""


def split_domains(
    labels: Sequence[str] | np.ndarray,
    domains: Sequence[str] | np.ndarray,
    *,
    test: Sequence[str],
    val: float = 0.1,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (int64, ascending) of the training, validation and test items.

    Items of the named domains test. Of the others a share of each class in each domain validates, rounded to the
    nearest number of items, at least one where the share is positive, always leaving at least one to train on.

    Args:
        labels: class of each item, (n,).
        domains: domain of each item, (n,).
        test: names of the domains to hold out.
        val: share of each class's items in each training domain, in [0, 1), for validation.
        seed: of the draw.

    Raises:
        DataError: no domain is named, one is not known or all are; a class is in held-out domains alone; a share
            outside [0, 1).
    """
    _check_shares(val_items=val)
    domains = np.asarray(domains)
    held = np.isin(domains, _named(test, domains))
    names, codes = _coded(labels, "domains")
    missing = names[np.bincount(codes[~held], minlength=len(names)) == 0]
    if len(missing):
        raise DataError(
            f"{_first_of(missing)} has items only in held-out domains, so it cannot be trained: remove "
            "the class, or hold out other domains."
        )
    _, domain_codes = np.unique(domains, return_inverse=True)
    cells, cell_of = np.unique(np.stack([codes, domain_codes]), axis=1, return_inverse=True)
    parts = np.where(held, "test", "train").astype(object)
    keys = np.random.default_rng(seed).random(len(codes))
    draw_share(parts, cell_of.ravel(), keys, val, "val", cells.shape[1])
    if val and not (parts == "val").any():
        raise DataError(
            f"data.val_items is {val:g} and no class has two items in a training domain: add items, or set "
            "data.val_items to 0."
        )
    return _positions(parts)


def leave_one_domain_out(domains: Sequence[str] | np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each domain the positions (int64, ascending) of all others' items and of its own."""
    names, codes = np.unique(np.asarray(domains), return_inverse=True)
    if len(names) < 2:
        raise DataError(f"Leaving one domain out needs at least two domains, the data has {len(names)}.")
    return {
        str(name): (np.flatnonzero(codes != code).astype(np.int64), np.flatnonzero(codes == code).astype(np.int64))
        for code, name in enumerate(names)
    }


def manifest_domains(manifest: Manifest) -> np.ndarray:
    """The domain (n,) of each item; refuse a manifest that does not say it of every one."""
    if not manifest.has(COLUMN):
        raise DataError(
            f"data.split 'domains' needs a column '{COLUMN}' in the manifest: add one with the domain of each item, "
            f"or choose another data.split."
        )
    domains = manifest.column(COLUMN)
    unknown = np.flatnonzero([not str(name).strip() for name in domains])
    if len(unknown):
        raise DataError(
            f"{len(unknown):,} items have no domain, such as {manifest.paths[unknown[0]]}: fill in the column "
            f"'{COLUMN}', or remove these rows."
        )
    return domains


def _named(test: Sequence[str], domains: np.ndarray) -> list[str]:
    """The domains to hold out, checked against those that there are."""
    known = [str(name) for name in np.unique(domains)]
    if isinstance(test, str):
        raise DataError(f"Pass the domains to hold out as a list of names, not as the text '{test}'.")
    names = sorted({str(name) for name in test})
    if not names:
        raise DataError(
            f"data.split 'domains' needs data.test_domains, the domains to hold out: choose from {', '.join(known)}, "
            f"as in data.test_domains=[{known[-1]}]."
        )
    for name in names:
        if name not in known:
            raise DataError(f"There is no domain '{name}' to hold out.{suggestion(name, known)}")
    if len(names) == len(known):
        raise DataError(
            f"data.test_domains holds out every domain ({', '.join(known)}), which leaves nothing to train on: name "
            "fewer of them."
        )
    return names
