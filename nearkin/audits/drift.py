"""Has the data shifted? Two data sets through one model: a two-sample test, classes that shifted, and novel items."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.drift_result import ClassDrift, DriftResult, Side
from nearkin.audits.subject import embed_items, seen_classes
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
"""Random divisions of the test of a class, unless more are asked for."""

_NAMED = 5

ClassTest = Callable[[np.ndarray, np.ndarray, int], TwoSampleResult]
"""The test of rows of the reference and of the new data, with so many permutations."""


def shared_classes(reference: np.ndarray, new: np.ndarray) -> list[str]:
    """The classes with two items or more among labels (m,) and among labels (n,), sorted.

    Raises:
        DataError: there is none.
    """
    counts = [dict(zip(*np.unique(labels.astype(str), return_counts=True), strict=True)) for labels in (reference, new)]
    shared = [str(name) for name in counts[0] if min(count.get(name, 0) for count in counts) >= LEAST_ITEMS]
    if not shared:
        raise DataError(
            "No class has at least two items in both data sets, so classes cannot be tested one by one: omit by_class."
        )
    return sorted(shared)


def measure_classes(
    reference: Side, new: Side, test: ClassTest, *, permutations: int, alpha: float, two_sided: bool
) -> tuple[list[ClassDrift], list[str]]:
    """The test of every shared class, by name and after Holm, and what a reader must know of these tests.

    Holm multiplies the smallest p by the number of classes: with k of them it reaches alpha only if there are at least
    k / alpha divisions, twice as many for a two-sided test.

    Args:
        reference: the one side.
        new: the other.
        test: see `ClassTest`.
        permutations: at least so many.
        alpha: the p-value up to which it is called drift.
        two_sided: whether the test is.
    """
    names = shared_classes(reference.labels, new.labels)
    needed = math.ceil((1 + two_sided) * len(names) / alpha)
    taken = max(permutations, min(needed, MOST_PERMUTATIONS))
    found = []
    for name in names:
        rows = np.flatnonzero(reference.labels == name), np.flatnonzero(new.labels == name)
        one = test(*rows, taken)
        sizes = len(rows[0]), len(rows[1])
        found.append(ClassDrift(name, *sizes, one.statistic, one.p_value, 1.0, one.reachable_p))
    corrected = holm([one.p_value for one in found])
    classes = [replace(one, corrected_p=float(p)) for one, p in zip(found, corrected, strict=True)]
    notes = [_taken_note(taken, permutations, needed, len(names)), _small_note(classes, alpha)]
    return classes, [note for note in notes if note]


def _taken_note(taken: int, permutations: int, needed: int, classes: int) -> str:
    if taken < needed:
        return (
            f"With {classes:,} classes and {taken:,} divisions of each, a class alone can hardly pass after Holm: ask "
            f"for {needed:,} permutations, or for fewer classes."
        )
    if taken > permutations:
        return f"Each class was divided {taken:,} times at random, as fewer could show nothing after Holm."
    return ""


def _small_note(classes: list[ClassDrift], alpha: float) -> str:
    """Name the classes that could not pass after Holm even if every class were as far apart as its sizes allow."""
    best = holm([one.smallest_p for one in classes])
    small = [one.name for one, p in zip(classes, best, strict=True) if p > alpha]
    if not small:
        return ""
    more = f" and {len(small) - _NAMED:,} more" if len(small) > _NAMED else ""
    return (
        f"Classes with too few items to show a drift at {alpha:g}, whatever they look like: "
        f"{', '.join(small[:_NAMED])}{more}."
    )


DriftSource = str | Path | Dataset
SideFilters = tuple[Mapping[str, str], Mapping[str, str]]

_NAMES = ("reference", "new data")
_ALIKE = 1e-3
"""Share of the usual distance to the nearest reference item within which embeddings are those of one item."""


@dataclass(frozen=True)
class DriftItems:
    """Which items are compared.

    Args:
        only: column to value of the items to take, of the reference and of the new data.
        limit: items of each side that are drawn at the most; None: all.
        by_class: whether classes are tested too, and so must be known and shared.
        seed: of the items that are drawn.
        skip_bad: leave out files that cannot be read.
    """

    only: SideFilters = ({}, {})
    limit: int | None = None
    by_class: bool = False
    seed: int = 0
    skip_bad: bool = False


def open_side(source: DriftSource, data_root: str | Path | None, progress: bool, labelled: bool) -> Dataset:
    """Open data in any form; unless labels are needed also a folder of loose files, all of one label."""
    try:
        return open_data(source, data_root=Path(data_root) if data_root else None, progress=progress)
    except DataError:
        loose = None if labelled or isinstance(source, Dataset) else _loose(Path(source).expanduser())
        if loose is None:
            raise
        return loose


def choose_items(
    opened: Sequence[Dataset], choice: DriftItems, kind: str, progress: bool
) -> tuple[list[Dataset], list[str]]:
    """The items of both sides that are compared, and what a reader must know of them.

    Args:
        opened: the reference and the new data.
        choice: which items.
        kind: what the model takes, "image" or "audio".
        progress: whether to show progress bars.
    """
    notes, sides = [], []
    for place, (name, dataset) in enumerate(zip(_NAMES, opened, strict=True)):
        if dataset.kind != kind:
            raise DataError(f"The model takes {kind} but the {name} is {dataset.kind}: change one of them.")
        chosen = _only(dataset, choice.only[place], name)
        drawn = _drawn(chosen, choice.limit, (choice.seed, place))
        if len(drawn) < len(chosen):
            notes.append(f"Of the {name}, {len(drawn):,} of {len(chosen):,} items were drawn.")
        sides.append(drawn)
    _check_sizes(sides, choice.by_class)
    for place, name in enumerate(_NAMES):
        whole, bad = drop_bad(sides[place], choice.skip_bad, progress, memory=cache_directory() / "checked")
        if bad:
            notes.append(f"Of the {name}, {len(bad)} files could not be read and were left out.")
        sides[place] = _titled(whole, choice.only[place])
    _check_sizes(sides, choice.by_class)
    return sides, notes


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
        kind = "file" if isinstance(raw, bytes) else "pixels"
        shape = b"" if isinstance(raw, bytes) else str(raw.shape).encode("ascii")
        content = raw if isinstance(raw, bytes) else np.ascontiguousarray(raw).tobytes()
        found.append((kind, hashlib.sha256(shape + content).digest()))
    return found


def _alike(reference: np.ndarray, new: np.ndarray) -> int:
    """How many new points are nearly one of the reference, against how far these usually are from each other."""
    others = exact(reference, k=1, space="euclidean")[1][:, 0].cpu().numpy()
    nearest = exact(new, reference, 1, space="euclidean")[1][:, 0].cpu().numpy()
    # Of the pairs once more: a search by products is not exact to the digits that count here.
    usual = np.linalg.norm(reference.astype(np.float64) - reference[others], axis=1)
    away = np.linalg.norm(new.astype(np.float64) - reference[nearest], axis=1)
    return int((away <= _ALIKE * np.median(usual)).sum())


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


def _only(dataset: Dataset, wanted: Mapping[str, str], name: str) -> Dataset:
    if not wanted:
        return dataset
    chosen = dataset.where(**wanted)
    if not len(chosen):
        raise DataError(f"No item of the {name} has {_words(wanted)}: check the columns of its manifest.")
    return chosen


def _drawn(dataset: Dataset, limit: int | None, seed: tuple[int, int]) -> Dataset:
    """At most `limit` items, in their order; the two sides draw apart from each other."""
    if limit is None or len(dataset) <= limit:
        return dataset
    return dataset.select(np.sort(np.random.default_rng(seed).choice(len(dataset), limit, replace=False)))


def _titled(dataset: Dataset, only: Mapping[str, str]) -> Dataset:
    """The data set under a name that says what of it was taken."""
    name = f"{dataset.name} ({_words(only)})" if only else dataset.name
    return Dataset(dataset.manifest, dataset.store, dataset.kind, name)


def _words(only: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in only.items())


LIMIT = 2000
"""Items of each side that are taken unless it is said how many: pairs grow with the square."""


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
    _check(alpha, limit)
    embedder = open_model(model)
    _check_permutations(permutations, alpha, is_indefinite(as_kernel(kernel, embedder.space)))
    opened = [open_side(source, data_root, progress, labelled=by_class) for source in (reference, new)]
    notes = _trained_notes(embedder, opened[0])
    choice = DriftItems(only, limit, by_class, seed, skip_bad)
    chosen, told = choose_items(opened, choice, embedder.spec.kind, progress)
    sides = [Side(one, embed_items(embedder, one, cache_directory() / "features", progress)) for one in chosen]
    return measure_drift(
        embedder,
        sides[0],
        sides[1],
        kernel=kernel,
        permutations=permutations,
        alpha=alpha,
        by_class=by_class,
        seed=seed,
        notes=[*notes, *told],
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
    notes: list[str] | None = None,
) -> DriftResult:
    """`drift` of what is embedded already."""
    known = as_kernel(kernel, embedder.space)

    def test(first: Any, second: Any, divisions: int = permutations) -> TwoSampleResult:
        points = reference.embeddings[first], new.embeddings[second]
        return mmd_test(*points, known, permutations=divisions, seed=seed)

    novelty = Novelty(space=embedder.space).fit(reference.embeddings)
    told = list(notes or [])
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
        classes, of_classes = measure_classes(
            reference, new, test, permutations=permutations, alpha=alpha, two_sided=whole.two_sided
        )
        told.extend(of_classes)
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


def _check(alpha: float, limit: int | None) -> None:
    if not 0 < alpha < 1:
        raise DataError(f"alpha must be between 0 and 1 (exclusive), not {alpha!r}.")
    if limit is not None and limit < LEAST_ITEMS:
        raise DataError(f"A test needs at least two items on each side, so limit={limit} is too low.")


def _check_permutations(permutations: int, alpha: float, two_sided: bool) -> None:
    tails = 1 + two_sided
    if permutations < 1 or tails / (1 + permutations) > alpha:
        raise DataError(
            f"With {permutations} permutations p is at least {min(1.0, tails / (1 + max(permutations, 0))):.3g}, never "
            f"as low as {alpha:g}: ask for {math.ceil(tails / alpha) - 1} or more."
        )


def _trained_notes(embedder: Embedder, reference: Dataset) -> list[str]:
    card = embedder.card
    if not seen_classes(reference, card) or reference.fingerprint() != card.data.fingerprint:
        return []
    return [
        "The model was trained on items of the reference, and may place these closer together than new items of the "
        "same kind: a reference that it has not seen gives a fairer test."
    ]
