"""Domain splits: every class trains, but only as some domains show it; whole domains are held out for the audit.

A domain is how items look whatever their class: photos and sketches, two cameras, two laboratories. The split says how
well known classes are told apart where they look as they never looked in training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.data.item_splits import draw_share
from nearkin.data.manifest import Manifest
from nearkin.errors import DataError, suggestion

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
    if not 0.0 <= val < 1.0:
        raise DataError(f"data.val_items must be a share of each class's items in [0, 1), not {val:g}.")
    labels, domains = np.asarray(labels), np.asarray(domains)
    held = np.isin(domains, _named(test, domains))
    names, codes = np.unique(labels, return_inverse=True)
    _check_classes(names, codes, held)
    _, domain_codes = np.unique(domains, return_inverse=True)
    cells, cell_of = np.unique(np.stack([codes, domain_codes]), axis=1, return_inverse=True)
    parts = np.where(held, "test", "train").astype(object)
    keys = np.random.default_rng(seed).random(len(labels))
    draw_share(parts, cell_of.ravel(), keys, val, "val", cells.shape[1])
    if val and not (parts == "val").any():
        raise DataError(
            f"data.val_items is {val:g} and no class has two items in a training domain: add items, or set "
            "data.val_items to 0."
        )
    train, validation, tested = (np.flatnonzero(parts == part).astype(np.int64) for part in ("train", "val", "test"))
    return train, validation, tested


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
            f"data.split 'domains' needs a column '{COLUMN}' in the manifest, and there is none: add one that says "
            "which domain each item is of, or set data.split to another way."
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
        raise DataError(f"Give the domains to hold out as a list of names, not as the text '{test}'.")
    names = sorted({str(name) for name in test})
    if not names:
        raise DataError(
            f"data.split 'domains' needs data.test_domains, the domains to hold out: choose of {', '.join(known)}, as "
            f"in data.test_domains=[{known[-1]}]."
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


def _check_classes(names: np.ndarray, codes: np.ndarray, held: np.ndarray) -> None:
    """Refuse fewer than two classes, and a class that only the held-out domains have."""
    if len(names) < 2:
        raise DataError(f"Dividing the domains of seen classes needs at least two classes, the data has {len(names)}.")
    missing = names[np.bincount(codes[~held], minlength=len(names)) == 0]
    if len(missing):
        more = f" (and {len(missing) - 1} other classes)" if len(missing) > 1 else ""
        raise DataError(
            f"Class '{missing[0]}'{more} has items in held-out domains alone, so that nothing could teach it: remove "
            "the class, or hold out other domains."
        )
