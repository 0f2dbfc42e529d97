"""The pooling suite: what average pooling does to a model's local features, and how classes share them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.explaining import draw_looks
from nearkin.audits.local_encoder import LocalEncoder, LocalFeatures
from nearkin.audits.pooling_pictures import draw_cells, draw_examples, draw_hulls
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics.attributes import attribute_transfer
from nearkin.metrics.hulls import hull_overlap
from nearkin.metrics.labels import label_codes
from nearkin.metrics.local_features import (
    BoundCheck,
    active_prototypes,
    check_bound,
    class_histograms,
    shared_mass,
)
from nearkin.recipe import AuditSection
from nearkin.report.formatting import interval_text
from nearkin.report.local_features import LocalView
from nearkin.spaces import kcenter

_MOST_VALUES = 2**26
"""Numbers that all local features together may have: a quarter of a gigabyte."""

_ACTIVE = 0.005
"""Share of a class's mass above which a prototype is active in it: less is strays."""

_MOST_PROTOTYPES = 0.25
"""Share of the local features that may be prototypes: if all were, every radius would be 0 and no class overlap."""

_FEWEST_CLASSES = 4
"""With fewer, the transfer of attributes has no halves to speak of."""


@suites.register("pooling")
def pooling_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Mean pooling against the convex combination of prototypes that cover the local features, and class overlap."""
    if subject.local is None:
        raise DataError(
            "The pooling suite looks at the local features that a model pools: it needs a model and its data, not "
            "embeddings."
        )
    rows, notes = _sample(subject, subject.local, section)
    local = subject.local(rows, progress=subject.progress)
    case = _examine(local, subject.labels[rows], section.pooling_prototypes)
    found = SuiteResult(
        case.values(),
        notes=[_note(subject.local, local, case), *notes, *_fewer_prototypes(local, case, section.pooling_prototypes)],
        lower_is_better=_OVERLAPS,
        numbers=_NUMBERS,
        details={"pooling": case.details()},
    )
    _add_pictures(found, case, local, subject.local, rows)
    found.drawings.append(partial(draw_looks, subject.local.embedder, subject.local.dataset, rows, seed=section.seed))
    if local.attributes is not None:
        _add_transfer(found, local.attributes, subject.embeddings[rows], subject.labels[rows], section)
    return found


_RADIUS, _MEAN, _LARGEST, _WITHIN = (
    "covering radius",
    "|PCC - GAP|, mean",
    "|PCC - GAP|, largest",
    "images within the bound",
)
_ACTIVE_MEAN, _ACTIVE_SHARED = "active prototypes, mean of classes", "active prototypes, in several classes"
_OVERLAPS = ("class overlap, shared mass", "class overlap, hulls")
_NUMBERS = (_RADIUS, _MEAN, _LARGEST, _ACTIVE_MEAN)


@dataclass(frozen=True, eq=False)
class _Case:
    """Local features with prototypes, and what was found.

    Args:
        prototypes: (m, d).
        bound: pooling of each image.
        classes: (C,) names.
        codes: (B,) class of each image, as its place among the classes.
        active: (C, m) which prototypes are active in each class.
        shared: (C, C) mass that two classes put on the same prototypes.
        overlap: (C, C) of the hulls, in two dimensions.
    """

    prototypes: Tensor
    bound: BoundCheck
    classes: list[str]
    codes: np.ndarray
    active: np.ndarray
    shared: np.ndarray
    overlap: np.ndarray | None

    def values(self) -> dict[str, float]:
        """The findings in a few numbers."""
        anywhere = self.active.any(axis=0)
        several = self.active.sum(axis=0) > 1
        found = {
            _RADIUS: self.bound.covering_radius,
            _MEAN: float(self.bound.error.mean()),
            _LARGEST: float(self.bound.error.max()),
            _WITHIN: float(self.bound.holds.double().mean()),
            _ACTIVE_MEAN: float(self.active.sum(axis=1).mean()),
            _ACTIVE_SHARED: float(several.sum() / anywhere.sum()) if anywhere.any() else 0.0,
            _OVERLAPS[0]: _mean_of_pairs(self.shared),
        }
        return found if self.overlap is None else {**found, _OVERLAPS[1]: _mean_of_pairs(self.overlap)}

    def details(self) -> dict[str, object]:
        """The findings class by class, as JSON can hold them."""
        return {
            "classes": self.classes,
            "active prototypes": self.active.sum(axis=1).tolist(),
            "shared mass": self.shared.tolist(),
            **({} if self.overlap is None else {"hulls": self.overlap.tolist()}),
        }


def sample_items(labels: np.ndarray, classes: int, items: int, seed: int) -> np.ndarray:
    """Rows, ascending, of at most `items` items of each of at most `classes` classes; the same for the same seed."""
    (codes,) = label_codes(np.asarray(labels))
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(codes.max() + 1)[:classes]
    parts = [rng.permutation(np.flatnonzero(codes == code))[:items] for code in np.sort(chosen)]
    return np.sort(np.concatenate(parts))


def _sample(subject: Subject, local: LocalEncoder, section: AuditSection) -> tuple[np.ndarray, list[str]]:
    """Which items to look at, and what to say if they are fewer than asked for."""
    rows = sample_items(subject.labels, section.pooling_classes, section.pooling_items, section.seed)
    most = max(1, _MOST_VALUES // local(rows[:1]).features.numel())
    if len(rows) <= most:
        return rows, []
    classes = len(np.unique(label_codes(subject.labels[rows])[0]))
    if most < classes:
        note = f"Local features of more than {most:,} items would not fit into memory: one of each of as many classes."
        return sample_items(subject.labels, most, 1, section.seed), [note]
    items = most // classes
    fewer = sample_items(subject.labels, classes, items, section.seed)
    return fewer, [f"Local features of more than {items} items of a class would not fit into memory."]


def _examine(local: LocalFeatures, labels: np.ndarray, count: int) -> _Case:
    """Pick prototypes among the local features, which are scaled in place, and measure."""
    features = local.features
    if not features.isfinite().all():
        raise DataError("The model gives local features that are NaN or infinite: check its training.")
    largest = float(features.norm(dim=2).max())
    if largest > 0:
        features.div_(largest)
    flat = features.view(1, -1, features.shape[2])
    count = min(count, max(1, int(_MOST_PROTOTYPES * flat.shape[1])))
    prototypes = flat[0, kcenter(flat, count)[0]]
    bound = check_bound(features, prototypes)
    classes, codes = np.unique(labels.astype(str), return_inverse=True)
    histograms = class_histograms(bound.histogram, torch.from_numpy(codes))
    active = active_prototypes(histograms, _ACTIVE).numpy()
    groups = [prototypes[row].double().numpy() for row in active]
    return _Case(
        prototypes,
        bound,
        classes.tolist(),
        codes,
        active,
        shared_mass(histograms).numpy(),
        hull_overlap(groups) if features.shape[2] == 2 else None,
    )


def _mean_of_pairs(table: np.ndarray) -> float:
    """The mean over pairs of different classes of a symmetric table (C, C); 0 without pairs."""
    upper = table[np.triu_indices(len(table), 1)]
    return float(upper.mean()) if len(upper) else 0.0


def _note(encoder: LocalEncoder, local: LocalFeatures, case: _Case) -> str:
    height, width = local.grid
    behind = "the pooling and the head" if encoder.embedder.attention is None else "the pooling, attention and head"
    place = "in the coordinates of the embedding" if encoder.in_coordinates else f"before {behind}"
    return (
        f"Pooling: {len(case.codes):,} items of {len(case.classes)} classes, each with {height} x {width} local "
        f"features {place}, scaled so that the largest norm is 1; {len(case.prototypes)} of all these features are "
        f"prototypes (greedy k-center). GAP is their mean, whatever the model's own pooling, here {encoder.pooling}."
    )


def _fewer_prototypes(local: LocalFeatures, case: _Case, asked: int) -> list[str]:
    """What to say if there are fewer prototypes than asked for."""
    if len(case.prototypes) >= asked:
        return []
    features = local.features.shape[0] * local.features.shape[1]
    return [
        f"Pooling: {len(case.prototypes)} prototypes instead of {asked}, a quarter of the {features:,} local features "
        "that there are: more would make the radius and the overlap of classes vanish by themselves."
    ]


def _add_pictures(
    found: SuiteResult, case: _Case, local: LocalFeatures, encoder: LocalEncoder, rows: np.ndarray
) -> None:
    nearest = case.bound.nearest.numpy()
    view = LocalView.of(local.features.numpy(), case.prototypes.numpy(), nearest, case.codes)
    pictures = (lambda place: encoder.view(int(rows[place]))) if encoder.dataset.kind == "image" else None
    found.drawings.append(partial(draw_cells, view, case.bound.distance.numpy(), local.grid, pictures))
    found.drawings.append(partial(draw_hulls, view, case.active, case.classes, _ACTIVE))
    found.drawings.append(partial(draw_examples, view, case.classes, pictures))


def _add_transfer(
    found: SuiteResult, attributes: Tensor, embeddings: np.ndarray, labels: np.ndarray, section: AuditSection
) -> None:
    """How well the pooling's attributes predict the embeddings of unseen classes."""
    if len(np.unique(labels.astype(str))) < _FEWEST_CLASSES:
        found.notes.append(f"The transfer of attributes needs {_FEWEST_CLASSES} classes and is left out.")
        return
    transfer = attribute_transfer(attributes.numpy(), embeddings, labels, seed=section.seed)
    found.values.update(transfer.values)
    # Not among the intervals, which tell how sure a value is: these tell how much it depends on the halves.
    spread = {name.rpartition(", ")[2]: interval_text(*ends, True) for name, ends in transfer.intervals.items()}
    found.notes.append(
        f"Attribute transfer: between the {transfer.classes} sampled classes alone; the middle 95 % of "
        f"{transfer.splits:,} splits of them: {', '.join(f'{name} {ends}' for name, ends in spread.items())}."
    )
