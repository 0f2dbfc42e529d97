"""Has the data shifted? Two data sets through one model: a two-sample test, and how novel each new item is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.drift_result import ClassDrift, DriftResult, Side
from nearkin.audits.subject import embed_items, seen_classes
from nearkin.confidence import Novelty
from nearkin.data.catalogue import cache_directory
from nearkin.data.checking import drop_bad
from nearkin.data.dataset import Dataset
from nearkin.data.sources import open_data
from nearkin.errors import DataError
from nearkin.gallery.encoding import open_model
from nearkin.metrics import TwoSampleResult, holm, mmd_test
from nearkin.metrics.kernels import as_kernel
from nearkin.models import Embedder

Source = str | Path | Dataset

LIMIT = 2000
"""Items of each side that are taken unless it is said how many: pairs grow with the square."""

_LEAST_ITEMS = 2


def drift(
    model: Embedder | str | Path,
    reference: Source,
    new: Source,
    *,
    kernel: Any = "auto",
    permutations: int = 1000,
    alpha: float = 0.05,
    limit: int | None = LIMIT,
    by_class: bool = False,
    only: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    seed: int = 0,
    skip_bad: bool = False,
    data_root: str | Path | None = None,
    progress: bool = True,
) -> DriftResult:
    """Tell whether new data differs from a reference, as a model sees both, and which new items are unlike it.

    The test is by the maximum mean discrepancy with random divisions (`nearkin.metrics.mmd_test`), the novelty of each
    item by its nearest reference item (`nearkin.confidence.Novelty`). Other shares of the same classes count as drift
    too. See docs/guide/drift.md.

    Args:
        model: a model, the path of a run or model file, or the name of a pretrained backbone.
        reference: the data the model was built for, in any form that `fit` takes.
        new: the data that is in question.
        kernel: "learned" (the model's own similarity), "gaussian" (of the distance in its space), "auto" (learned for
            a model with a learned similarity, gaussian else), or a kernel of `nearkin.metrics`.
        permutations: random divisions to compare with.
        alpha: the p-value up to which it is called drift.
        limit: items of each side that are drawn at the most; None: all.
        by_class: also test each class that both sides have, with p-values after Holm.
        only: column to value of the items to take, of the reference and of the new data, such as
            `({"domain": "photo"}, {"domain": "sketch"})`.
        seed: of the items and divisions that are drawn.
        skip_bad: leave out files that cannot be read.
        data_root: where catalogue data is found.
        progress: whether to show progress bars.
    """
    _check(permutations, alpha, limit)
    embedder = open_model(model)
    as_kernel(kernel, embedder.space)  # told before anything is encoded
    opened = [_open(source, data_root, progress) for source in (reference, new)]
    notes = _trained_notes(embedder, opened[0])
    sides = []
    for place, (name, dataset) in enumerate(zip(("reference", "new data"), opened, strict=True)):
        chosen = _only(dataset, only[place], name)
        drawn = _drawn(chosen, limit, (seed, place))
        if len(drawn) < len(chosen):
            notes.append(f"Of the {name}, {len(drawn):,} of {len(chosen):,} items were drawn.")
        drawn, bad = drop_bad(drawn, skip_bad, progress, memory=cache_directory() / "checked")
        if bad:
            notes.append(f"Of the {name}, {len(bad)} files could not be read and were left out.")
        if len(drawn) < _LEAST_ITEMS:
            raise DataError(f"The {name} has {len(drawn)} items, and a test needs two or more: give more.")
        vectors = embed_items(embedder, drawn, cache_directory() / "features", progress)
        sides.append(Side(_titled(drawn, only[place]), vectors))
    return measure_drift(
        embedder,
        sides[0],
        sides[1],
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
    notes: list[str] | None = None,
) -> DriftResult:
    """`drift` of what is embedded already."""
    known = as_kernel(kernel, embedder.space)

    def test(rows: tuple[Any, Any]) -> TwoSampleResult:
        points = reference.embeddings[rows[0]], new.embeddings[rows[1]]
        return mmd_test(*points, known, permutations=permutations, seed=seed)

    novelty = Novelty(space=embedder.space).fit(reference.embeddings)
    told = list(notes or [])
    if copies := _copies(reference.embeddings, new.embeddings):
        told.append(
            f"{copies:,} new items have the very embedding of a reference item: the test takes items to be drawn apart "
            "from each other, and copies hide a drift."
        )
    whole = test((slice(None), slice(None)))
    if known.name == "learned" and (1 + int((whole.null <= whole.statistic).sum())) / (1 + permutations) <= alpha:
        told.append(
            "The discrepancy is lower than chance gives: the learned similarity is no positive definite kernel, and "
            "may show a difference this way round, so test with the kernel 'gaussian' as well."
        )
    return DriftResult(
        test=whole,
        reference=reference,
        new=new,
        space=embedder.space,
        novelty=novelty.score(new.embeddings),
        novelty_p=novelty.p_values(new.embeddings),
        alpha=alpha,
        classes=_classes(reference, new, test) if by_class else [],
        notes=told,
        facts={
            "model": str(embedder.card.get("name") or embedder.backbone_name),
            "dimensions": str(reference.embeddings.shape[1]),
            "permutations": f"{permutations:,}",
            "seed": str(seed),
        },
    )


def _classes(reference: Side, new: Side, test: Any) -> list[ClassDrift]:
    """The test of every class that has two items or more on both sides, by name."""
    found = []
    for name in sorted(set(reference.labels) & set(new.labels)):
        rows = np.flatnonzero(reference.labels == name), np.flatnonzero(new.labels == name)
        if min(map(len, rows)) >= _LEAST_ITEMS:
            result = test(rows)
            found.append(ClassDrift(name, len(rows[0]), len(rows[1]), result.statistic, result.p_value, 1.0))
    if not found:
        raise DataError(
            "No class has two items or more in both sets, so classes cannot be tested one by one: leave out by_class."
        )
    corrected = holm([one.p_value for one in found])
    return [replace(one, corrected_p=p) for one, p in zip(found, corrected, strict=True)]


def _check(permutations: int, alpha: float, limit: int | None) -> None:
    if not 0 < alpha < 1:
        raise DataError(f"The level alpha must lie between 0 and 1, both excluded, not {alpha!r}.")
    if permutations < 1 or 1 / (1 + permutations) > alpha:
        raise DataError(
            f"With {permutations} permutations p is at least {1 / (1 + max(permutations, 0)):.3g}, never as low as "
            f"{alpha:g}: ask for {int(np.ceil(1 / alpha)) - 1} or more."
        )
    if limit is not None and limit < _LEAST_ITEMS:
        raise DataError(f"A test needs two items or more of each side, so the limit cannot be {limit}.")


def _open(source: Source, data_root: str | Path | None, progress: bool) -> Dataset:
    return open_data(source, data_root=Path(data_root) if data_root else None, progress=progress)


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


def _trained_notes(embedder: Embedder, reference: Dataset) -> list[str]:
    card = embedder.card
    if not seen_classes(reference, card) or reference.fingerprint() != card.get("data", {}).get("fingerprint"):
        return []
    return [
        "The model was trained on items of the reference, and may place these closer together than new items of the "
        "same kind: a reference that it has not seen gives a fairer test."
    ]


def _copies(reference: np.ndarray, new: np.ndarray) -> int:
    """How many new vectors are equal to one of the reference."""
    known = {row.tobytes() for row in np.ascontiguousarray(reference)}
    return sum(row.tobytes() in known for row in np.ascontiguousarray(new))
