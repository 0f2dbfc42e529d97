"""Has the data shifted? Two data sets through one model: a two-sample test, and how novel each new item is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from nearkin.audits.drift_classes import LEAST_ITEMS, measure_classes
from nearkin.audits.drift_data import Choice, Only, Source, choose_items, count_copies, open_side
from nearkin.audits.drift_result import ClassDrift, DriftResult, Side
from nearkin.audits.subject import embed_items, seen_classes
from nearkin.confidence import Novelty
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.gallery.encoding import open_model
from nearkin.metrics import TwoSampleResult, mmd_test
from nearkin.metrics.kernels import as_kernel, is_indefinite
from nearkin.models import Embedder

LIMIT = 2000
"""Items of each side that are taken unless it is said how many: pairs grow with the square."""


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
    only: Only = ({}, {}),
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
    choice = Choice(only, limit, by_class, seed, skip_bad)
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
            "model": str(embedder.card.get("name") or embedder.backbone_name),
            "dimensions": str(reference.embeddings.shape[1]),
            "permutations": f"{permutations:,}",
            "seed": str(seed),
        },
    )


def _check(alpha: float, limit: int | None) -> None:
    if not 0 < alpha < 1:
        raise DataError(f"The level alpha must lie between 0 and 1, both excluded, not {alpha!r}.")
    if limit is not None and limit < LEAST_ITEMS:
        raise DataError(f"A test needs two items or more of each side, so the limit cannot be {limit}.")


def _check_permutations(permutations: int, alpha: float, two_sided: bool) -> None:
    tails = 1 + two_sided
    if permutations < 1 or tails / (1 + permutations) > alpha:
        raise DataError(
            f"With {permutations} permutations p is at least {min(1.0, tails / (1 + max(permutations, 0))):.3g}, never "
            f"as low as {alpha:g}: ask for {math.ceil(tails / alpha) - 1} or more."
        )


def _trained_notes(embedder: Embedder, reference: Dataset) -> list[str]:
    card = embedder.card
    if not seen_classes(reference, card) or reference.fingerprint() != card.get("data", {}).get("fingerprint"):
        return []
    return [
        "The model was trained on items of the reference, and may place these closer together than new items of the "
        "same kind: a reference that it has not seen gives a fairer test."
    ]
