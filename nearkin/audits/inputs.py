"""The inputs suite: how far pixels alone tell the classes apart, before any network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, divide, draw_rows
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap, class_moments, class_separation
from nearkin.metrics.geometry import InputNorm
from nearkin.metrics.labels import label_codes
from nearkin.progress import track
from nearkin.recipe import AuditSection

NORMS: dict[InputNorm, float] = {"l2": 2.0, "linf": torch.inf}
SIDE = 32
"""Of the images, as in CIFAR and SVHN: every data set is then measured alike."""
_KNOWN, _ASKED = 2000, 1000
_ROWS = 64
"""Images whose distances to all known ones are taken at once."""


@suites.register("inputs")
def inputs_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """D_inter, D_intra, phi and R2 of the pixels, and the accuracy of 1-NN and of the nearest prototype among them.

    By both norms that attacks are bounded by. Where pixels tell classes apart badly, a network that keeps their
    distances, as training against attacks asks, has to give up some of its own. Reference: Kim 2023, table 5.3.
    """
    if subject.items is None or subject.items.kind != "image":
        raise DataError("The inputs suite measures pixels, so it needs image data, not embeddings or audio.")
    support, queries = divide(subject, section.seed)
    known = draw_rows(support, _KNOWN, section.seed)
    asked = draw_rows(queries[np.isin(subject.labels[queries], subject.labels[known])], _ASKED, section.seed)
    pixels = _pixels(subject, np.concatenate([known, asked]))
    ours, theirs = pixels[: len(known)], pixels[len(known) :]
    labels, truth = subject.labels[known], subject.labels[asked]
    found = SuiteResult(primary="phi, pixels l2")
    for norm in NORMS:
        separation = class_separation(ours, labels, norm=norm)
        for name, value in separation.items():
            found.add(f"{name}, pixels {norm}", value)
    found.add("R2, pixels", float(class_moments(ours, labels).separation()["R2"][0]))
    found.numbers = tuple(found.values)
    means, names = _prototypes(ours, labels)
    for norm, order in NORMS.items():
        nearest = labels[_nearest(theirs, ours, order)]
        closest = names[_nearest(theirs, means, order)]
        for what, taken in (("1-NN", nearest), ("nearest prototype", closest)):
            hits = (taken == truth).astype(np.float64)
            interval = class_bootstrap(hits, truth, **resampling(section))
            found.add(f"{what} accuracy, pixels {norm}", float(hits.mean()), interval)
    found.notes.append(
        f"Inputs: pixels of {SIDE} x {SIDE} in [0, 1], without any network. Separation is of {len(known):,} items of "
        f"{len(names):,} classes; {len(asked):,} others are given to the nearest of these, and to the nearest class "
        "mean. R2 is of pixels brought to length 1. By chance an accuracy is "
        f"{100 / len(names):.1f} %."
    )
    return found


def _pixels(subject: Subject, rows: np.ndarray) -> Tensor:
    """Pixels (r, 3072) of items in [0, 1]."""
    assert subject.items is not None
    images: list[Any] = []
    for row in track(rows, "Reading pixels", len(rows), subject.progress):
        image = subject.items.image(int(row)).convert("RGB").resize((SIDE, SIDE))
        images.append(np.asarray(image, np.float32).ravel() / 255.0)
    return torch.from_numpy(np.stack(images))


def _prototypes(points: Tensor, labels: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """The mean (C, D) of points (n, D) of each class, and the classes (C,)."""
    (codes,) = label_codes(labels)
    sizes = torch.from_numpy(np.bincount(codes))
    sums = torch.zeros(len(sizes), points.shape[1]).index_add_(0, torch.from_numpy(codes), points)
    _, first = np.unique(codes, return_index=True)
    return sums / sizes[:, None], labels[first]


def _nearest(asked: Tensor, known: Tensor, order: float) -> np.ndarray:
    """Places (q,) of the nearest of points (n, D) to others (q, D) by a norm."""
    return torch.cat([torch.cdist(part, known, order).argmin(dim=1) for part in asked.split(_ROWS)]).numpy()
