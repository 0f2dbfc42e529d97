"""Learning from a gallery: items are left out one at a time, and the rest of the gallery is asked about them."""

from __future__ import annotations

import numpy as np

from nearkin.confidence.checks import check_between, check_whole
from nearkin.gallery.calibration.calibration import Calibration
from nearkin.gallery.calibration.identification import Identification, fit_identification, too_little
from nearkin.gallery.calibration.left_out import MOST_NEIGHBOURS, class_sizes, leave_out
from nearkin.gallery.calibration.pair_rule import fit_pair_rule
from nearkin.gallery.calibration.pairs import compare_pairs
from nearkin.gallery.calibration.unknown import Horizon, fit_horizon, too_few
from nearkin.gallery.store import Sample, Store
from nearkin.spaces import Space

_FEW_CLASSES = 10


def fit_calibration(
    store: Store, space: Space, *, accept: float = 0.95, points: int = 10_000, seed: int = 0, progress: bool = False
) -> Calibration:
    """Learn how sure answers are, which queries are unknown, and which pairs are the same.

    What the gallery is too small for stays None, with the reason. Probabilities are given that a query is of an
    enrolled class; a class with a single item cannot be tested, since nothing is left of it when that is left out.
    Copies and items of one occasion (frames of a video) that are enrolled as several make all of it too confident.

    Args:
        store: the gallery.
        space: how its vectors are compared.
        accept: the share of queries of enrolled classes that are to count as known.
        points: look at so many labelled items at the most, drawn at random; each is compared with the whole gallery.
        seed: of the draws.
        progress: whether to show a bar.
    """
    check_between(accept, "accept")
    check_whole(points, "points", 1)
    check_whole(seed, "seed", 0)
    # Read first: what is written meanwhile counts as a change since.
    changes, generation, items = store.changes, store.generation, len(store)
    sample = store.sample(int(points), int(seed), labelled=True)
    sizes = class_sizes(store, sample.codes)
    k = max(1, min(MOST_NEIGHBOURS, int(sizes.sum()) - 1))
    similarity = bool(getattr(space, "similarity", False))
    identification, horizon = _learn(store, sample, sizes, k, float(accept), similarity, progress)
    return Calibration(
        items,
        changes,
        generation,
        float(accept),
        k,
        identification,
        horizon,
        fit_pair_rule(compare_pairs(store, space, sample, sizes, int(seed))),
        _notes(sizes, identification, horizon),
    )


def _learn(
    store: Store, sample: Sample, sizes: np.ndarray, k: int, accept: float, similarity: bool, progress: bool
) -> tuple[Identification, Horizon]:
    """What items that are left out tell; nothing is searched for where they are too few for anything."""
    mates = int((sizes[sample.codes] > 1).sum())
    little, few = too_little(int((sizes > 1).sum()), mates), too_few(mates, accept)
    identification = Identification(items=mates, reason=little, similarity=similarity)
    horizon = Horizon(items=mates, reason=few)
    if little and few:
        return identification, horizon
    left_out = leave_out(store, sample, sizes, k, progress)
    if not little:
        identification = fit_identification(left_out, similarity)
    if not few:
        horizon = fit_horizon(left_out, accept)
    return identification, horizon


def _notes(sizes: np.ndarray, identification: Identification, horizon: Horizon) -> tuple[str, ...]:
    notes = list(identification.notes)
    single, classes = int((sizes == 1).sum()), int((sizes > 0).sum())
    if single:
        verb = "class has" if single == 1 else "classes have"
        notes.append(f"{single:,} {verb} a single item: how sure answers for these are could not be tested.")
    if horizon.rejected is not None and classes < _FEW_CLASSES:
        notes.append(
            f"With only {classes} classes, leaving one out says little of how classes that are not enrolled will fare."
        )
    return tuple(notes)
