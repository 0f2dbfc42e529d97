"""What the robustness suite attacks: a sample of queries, and every inference that can name their classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks import (
    Classifier,
    PixelEmbedder,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.attacks.units import Unit
from nearkin.audits.calibration import OURS, divided, fit_estimators
from nearkin.audits.learned import DOL, SIM
from nearkin.audits.subject import Subject
from nearkin.audits.tables import draw_rows
from nearkin.confidence import Estimator
from nearkin.errors import DataError
from nearkin.recipe import AuditSection

PROTOTYPES = "prototypes (softmax)"
SOFTMAX = "softmax"
_BATCH = 64


@dataclass(frozen=True, eq=False)
class Scene:
    """Queries to attack and who answers them.

    Attributes:
        rows: the attacked queries, as rows of the subject (q,).
        others: all other items of the same classes, support and queries, as rows.
        support: rows of the items that the estimators were fitted to.
        pixels: of the attacked queries (q, C, H, W).
        truth: their labels (q,).
        fitted: estimators by name, fitted to the support.
        targets: classifiers by name, each attacked for itself.
        embed: pixels to points of the model's space.
        unit: of the epsilons.
    """

    rows: np.ndarray
    others: np.ndarray
    support: np.ndarray
    pixels: Tensor
    truth: np.ndarray
    fitted: dict[str, Estimator]
    targets: dict[str, Classifier]
    embed: PixelEmbedder
    unit: Unit

    def codes(self, target: str) -> Tensor:
        """True classes (q,) as the columns of a target."""
        return class_codes(self.targets[target].classes, self.truth)

    def smoothed(self, section: AuditSection) -> np.ndarray:
        """Places of the queries that smoothing certifies, drawn from all of them."""
        return draw_rows(np.arange(len(self.rows)), section.smoothed_queries, section.seed)

    @torch.no_grad()
    def embedded(self, pixels: Tensor) -> np.ndarray:
        """Embeddings (n, d) of pixels (n, C, H, W)."""
        return torch.cat([self.embed(part) for part in pixels.split(_BATCH)]).numpy()


def make_scene(subject: Subject, section: AuditSection) -> Scene:
    """Choose queries and fit who answers them; refuse what has no pixels to change."""
    if subject.model is None or subject.pixels is None:
        raise DataError(
            "The robustness suite changes images and embeds them again: it needs a model and image data, not "
            "embeddings or sounds."
        )
    support, queries = divided(subject, section.seed)
    queries = queries[np.isin(subject.labels[queries], subject.labels[support])]
    rows = draw_rows(queries, section.attacked_queries, section.seed)
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    embed = PixelEmbedder(subject.model)
    targets = {
        name: classifier_of_estimator(embed, fitted[name], name) for name in (OURS, PROTOTYPES) if name in fitted
    }
    truth = subject.labels[rows]
    named = set(truth.tolist())
    learned = subject.learned
    if learned is not None and named <= set(learned.classes):
        targets[SIM] = classifier_of_similarity(embed, "sim")
        if learned.dense is not None:
            targets[DOL] = classifier_of_similarity(embed, "dol")
    elif subject.class_scores is not None and named <= set(subject.class_scores.names):
        own = subject.class_scores
        targets[SOFTMAX] = classifier_of_scores(embed, own.scores, own.names, SOFTMAX)
    return Scene(
        rows,
        np.setdiff1d(np.flatnonzero(np.isin(subject.labels, subject.labels[support])), rows),
        support,
        subject.pixels(rows),
        truth,
        fitted,
        targets,
        embed,
        Unit.of(section.attack_unit, subject.model.spec),
    )
