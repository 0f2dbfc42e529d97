"""Has the data shifted? Two data sets through one model: a two-sample test, classes that shifted, and novel items."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.drift_result import ClassDrift, DriftResult, Side
from nearkin.audits.subject import draw_rows, embed_items, seen_classes
from nearkin.confidence import Novelty
from nearkin.data.dataset import Dataset, drop_bad
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.sources import kind_of, open_data
from nearkin.data.stores import FolderStore, UnreadableError
from nearkin.errors import DataError
from nearkin.gallery.model import open_model
from nearkin.metrics import TwoSampleResult, holm, mmd_test
from nearkin.metrics.kernels import as_kernel, is_indefinite
from nearkin.models import Embedder
from nearkin.search import exact
from nearkin.storage import cache_directory

LEAST_ITEMS = 2
"""Items of each side that a test needs."""

MOST_PERMUTATIONS = 20_000
"""Most random divisions in the test of a class, unless more are requested."""

_NAMED = 5

_NAMES = ("reference", "new data")
_ALIKE = 1e-3
"""Share of the usual distance to the nearest reference item within which embeddings are those of one item."""

DriftSource = str | Path | Dataset
SideFilters = tuple[Mapping[str, str], Mapping[str, str]]

LIMIT = 2000
"""Default number of items drawn from each side: pairs grow with its square."""


def drift(
    model: Embedder | str | Path,
    reference: DriftSource,
    new: DriftSource,
    *,
    kernel: Any = "auto",
    permutations: int = 1000,
    alpha: float = 0.05,
    limit: int | None = LIMIT,
    by_class: bool = False,
    only: SideFilters = ({}, {}),
    seed: int = 0,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> DriftResult:
    """Tell whether new data differs from a reference, as a model sees both, and which new items are unlike it.

    The test is by the maximum mean discrepancy with random divisions (`nearkin.metrics.mmd_test`), the novelty of each
    item by its nearest reference item (`nearkin.confidence.Novelty`). Other shares of the same classes count as drift
    too. Both sides are opened and checked before either is embedded. See docs/guide/drift.md.

    Args:
        model: a model, the path of a run or model file, or the name of a pretrained backbone.
        reference: the data the model was built for, in any form that `fit` takes, or a folder of loose files.
        new: the data that is in question.
        kernel: "learned" (the model's own similarity), "gaussian" (of the distance in its space), "auto" (learned for
            a model with a learned similarity, gaussian else), or a kernel of `nearkin.metrics`.
        permutations: random divisions to compare with; the tests of classes take more where there are many classes.
        alpha: the p-value up to which it is called drift.
        limit: items of each side that are drawn at the most; None: all.
        by_class: also test each class that both sides have, with p-values after Holm; labels are needed then.
        only: column to value of the items to take, of the reference and of the new data, such as
            `({"domain": "photo"}, {"domain": "sketch"})`.
        seed: of the items and divisions that are drawn.
        skip_bad: leave out files that cannot be read.
        data_root: where catalogue data is found.
        progress: whether to show progress bars.
    """
    if not 0 < alpha < 1:
        raise DataError(f"alpha must be between 0 and 1 (exclusive), not {alpha!r}.")
    if limit is not None and limit < LEAST_ITEMS:
        raise DataError(f"A test needs at least two items on each side, so limit={limit} is too low.")
    embedder = open_model(model)
    tails = 1 + is_indefinite(as_kernel(kernel, embedder.space))
    if permutations < 1 or tails / (1 + permutations) > alpha:
        raise DataError(
            f"With {permutations} permutations p is at least {min(1.0, tails / (1 + max(permutations, 0))):.3g}, never "
            f"as low as {alpha:g}: ask for {math.ceil(tails / alpha) - 1} or more."
        )
    opened = [_open_side(source, data_root, progress, labelled=by_class) for source in (reference, new)]
    notes, card = [], embedder.card
    if seen_classes(opened[0], card) and opened[0].fingerprint() == card.data.fingerprint:
        notes.append(
            "The model was trained on items of the reference, and may place these closer together than new items of "
            "the same kind: a reference that it has not seen gives a fairer test."
        )
    chosen = []
    for place, (name, dataset) in enumerate(zip(_NAMES, opened, strict=True)):
        if dataset.kind != embedder.spec.kind:
            raise DataError(
                f"The model takes {embedder.spec.kind} but the {name} is {dataset.kind}: change one of them."
            )
        taken = dataset.where(**only[place]) if only[place] else dataset
        if not len(taken) and only[place]:
            raise DataError(f"No item of the {name} has {_words(only[place])}: check the columns of its manifest.")
        if limit is not None and len(taken) > limit:
            notes.append(f"Of the {name}, {limit:,} of {len(taken):,} items were drawn.")
            taken = taken.select(draw_rows(np.arange(len(taken)), limit, (seed, place)))
        chosen.append(taken)
    _check_sizes(chosen, by_class)
    for place, name in enumerate(_NAMES):
        whole, bad = drop_bad(chosen[place], skip_bad, progress, memory=cache_directory() / "checked")
        if bad:
            notes.append(f"Of the {name}, {len(bad)} files could not be read and were left out.")
        title = f"{whole.name} ({_words(only[place])})" if only[place] else whole.name
        chosen[place] = Dataset(whole.manifest, whole.store, whole.kind, title)
    _check_sizes(chosen, by_class)
    sides = [Side(one, embed_items(embedder, one, cache_directory() / "features", progress)) for one in chosen]
    return measure_drift(
        embedder,
        *sides,
        kernel=kernel,
        permutations=permutations,
        alpha=alpha,
        by_class=by_class,
        seed=seed,
        notes=notes,
    )


def measure_drift(
    embedder: Embedder,
    reference: Side,
    new: Side,
    *,
    kernel: Any = "auto",
    permutations: int = 1000,
    alpha: float = 0.05,
    by_class: bool = False,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> DriftResult:
    """`drift` of what is embedded already."""
    known = as_kernel(kernel, embedder.space)

    def test(first: Any, second: Any, divisions: int = permutations) -> TwoSampleResult:
        points = reference.embeddings[first], new.embeddings[second]
        return mmd_test(*points, known, permutations=divisions, seed=seed)

    novelty, told = Novelty(space=embedder.space).fit(reference.embeddings), list(notes)
    if copies := count_copies(reference, new):
        told.append(
            f"{copies:,} new items are copies of reference items: the test takes items to be drawn apart from each "
            "other, and copies hide a drift."
        )
    whole = test(slice(None), slice(None))
    if whole.two_sided and whole.p_value <= alpha and whole.deviations < 0:
        told.append(
            "The discrepancy is lower than chance gives: the learned similarity is no positive definite kernel, and "
            "shows the difference this way round, so test with the kernel 'gaussian' as well."
        )
    classes: list[ClassDrift] = []
    if by_class:
        names = shared_classes(reference.labels, new.labels)
        # Holm multiplies the smallest p by the number of classes: with k of them it reaches alpha only if there are at
        # least k / alpha divisions, twice as many for a two-sided test.
        needed = math.ceil((1 + whole.two_sided) * len(names) / alpha)
        taken = max(permutations, min(needed, MOST_PERMUTATIONS))
        for name in names:
            rows = np.flatnonzero(reference.labels == name), np.flatnonzero(new.labels == name)
            one = test(*rows, taken)
            sizes = len(rows[0]), len(rows[1])
            classes.append(ClassDrift(name, *sizes, one.statistic, one.p_value, 1.0, one.reachable_p))
        corrected = holm([one.p_value for one in classes])
        classes = [replace(one, corrected_p=float(p)) for one, p in zip(classes, corrected, strict=True)]
        told += _class_notes(classes, alpha, permutations, taken, needed)
    return DriftResult(
        test=whole,
        reference=reference,
        new=new,
        space=embedder.space,
        novelty=novelty.score(new.embeddings),
        novelty_p=novelty.p_values(new.embeddings),
        alpha=alpha,
        classes=classes,
        notes=told,
        facts={
            "model": str(embedder.card.name or embedder.backbone_name),
            "dimensions": str(reference.embeddings.shape[1]),
            "permutations": f"{permutations:,}",
            "seed": str(seed),
        },
    )


def shared_classes(reference: np.ndarray, new: np.ndarray) -> list[str]:
    """The classes with two items or more among labels (m,) and among labels (n,), sorted.

    Raises:
        DataError: there is none.
    """
    common = []
    for labels in (reference, new):
        names, counts = np.unique(labels.astype(str), return_counts=True)
        common.append(names[counts >= LEAST_ITEMS])
    shared = np.intersect1d(common[0], common[1]).tolist()
    if not shared:
        raise DataError(
            "No class has at least two items in both data sets, so classes cannot be tested one by one: omit by_class."
        )
    return shared


def _class_notes(classes: list[ClassDrift], alpha: float, permutations: int, taken: int, needed: int) -> list[str]:
    notes = []
    if taken < needed:
        notes.append(
            f"With {len(classes):,} classes and {taken:,} divisions of each, a class alone can hardly pass after Holm: "
            f"ask for {needed:,} permutations, or for fewer classes."
        )
    elif taken > permutations:
        notes.append(f"Each class was divided {taken:,} times at random, as fewer could show nothing after Holm.")
    # Those that could not pass after Holm even if every class were as far apart as its sizes allow.
    best = holm([one.smallest_p for one in classes])
    small = [one.name for one, p in zip(classes, best, strict=True) if p > alpha]
    if small:
        more = f" and {len(small) - _NAMED:,} more" if len(small) > _NAMED else ""
        notes.append(
            f"Classes with too few items to show a drift at {alpha:g}, whatever they look like: "
            f"{', '.join(small[:_NAMED])}{more}."
        )
    return notes


def _open_side(source: DriftSource, data_root: str | Path | None, progress: bool, labelled: bool) -> Dataset:
    """Open data in any form; unless labels are needed also a folder of loose files, all of one label."""
    try:
        return open_data(source, data_root=Path(data_root) if data_root else None, progress=progress)
    except DataError:
        loose = None if labelled or isinstance(source, Dataset) else _loose(Path(source).expanduser())
        if loose is None:
            raise
        return loose


def _loose(folder: Path) -> Dataset | None:
    """A folder of media files without any folder in it; None if it is something else."""
    if not folder.is_dir():
        return None
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    paths = [entry.name for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES | AUDIO_SUFFIXES]
    if not paths or any(entry.is_dir() for entry in entries):
        return None
    store, name = FolderStore(folder), folder.resolve().name
    for path in paths:
        with suppress(UnreadableError):  # a broken file is for the check to name; a link that leaves is refused here
            store.check([path])
    return Dataset(Manifest.from_rows(paths, [name] * len(paths)), store, kind_of(paths, folder), name)


def _check_sizes(sides: Sequence[Dataset], by_class: bool) -> None:
    for name, side in zip(_NAMES, sides, strict=True):
        if len(side) < LEAST_ITEMS:
            raise DataError(f"The {name} has {len(side)} items but a test needs at least two: add more.")
    if by_class:
        shared_classes(sides[0].labels, sides[1].labels)


def _words(only: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in only.items())


def count_copies(reference: Side, new: Side) -> int:
    """How many new items are in the reference too, by the content of their files.

    Where the one side has files and the other decoded images, by embeddings that hardly differ: how a batch was made
    up changes the last digits.
    """
    known, asked = _contents(reference.dataset), _contents(new.dataset)
    if {kind for kind, _ in known} != {kind for kind, _ in asked}:
        return _alike(reference.embeddings, new.embeddings)
    there = set(known)
    return sum(content in there for content in asked)


def _contents(dataset: Dataset) -> list[tuple[str, bytes]]:
    """Of each item what its store gives, "file" or the type and shape of an array, and a hash of it."""
    found = []
    for path in dataset.manifest.paths:
        raw = dataset.store.read(path)
        if isinstance(raw, bytes):
            found.append(("file", hashlib.sha256(raw).digest()))
        else:
            found.append(("pixels", hashlib.sha256(str(raw.shape).encode("ascii") + raw.tobytes()).digest()))
    return found


def _alike(reference: np.ndarray, new: np.ndarray) -> int:
    """How many new points are nearly one of the reference, against how far these usually are from each other."""
    others = exact(reference, k=1, space="euclidean")[1][:, 0].cpu().numpy()
    nearest = exact(new, reference, 1, space="euclidean")[1][:, 0].cpu().numpy()
    # Of the pairs once more: a search by products is not exact to the digits that count here.
    usual = np.linalg.norm(reference.astype(np.float64) - reference[others], axis=1)
    away = np.linalg.norm(new.astype(np.float64) - reference[nearest], axis=1)
    return int((away <= _ALIKE * np.median(usual)).sum())
