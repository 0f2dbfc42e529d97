"""Pictures of how a training went: accuracy and dynamics of its episodes, and its clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.objectives import ObjectiveSection
from nearkin.objectives.growing_triplet import MARGINS
from nearkin.report import Figure
from nearkin.report.clusters import draw_clusters
from nearkin.report.dynamics import draw_accuracies, draw_dynamics
from nearkin.training.clusters import Clusters

Rows = Sequence[Mapping[str, Any]]


def draw_episodes(history: Rows, name: str) -> list[Figure]:
    """Accuracy of training and validation episodes, and how updates moved their points; none without episodes.

    Args:
        history: rows of the training log.
        name: of the run.
    """
    if not any("val_accuracy" in row or "norm_ratio" in row for row in history):
        return []
    return [
        Figure(
            "Episodes",
            "Share of the queries given to their class, in episodes of training classes and of validation classes. The "
            "weights with the best validation accuracy were kept.",
            draw_accuracies({name: history}),
            "Accuracy of training and validation episodes against training steps",
        ),
        Figure(
            "Training dynamics",
            "What single updates did to the points of their episode. A norm ratio near 1 says that the update did not "
            "merely scale the embedding; the other ratios are taken after scale is accounted for.",
            draw_dynamics({name: history}),
            "Norm ratio, con-alpha, div-alpha and con-div ratios against training steps",
        ),
    ]


def draw_watched_clusters(clusters: Clusters | None, objective: ObjectiveSection) -> list[Figure]:
    """Radii and centroids of the training classes against steps, with a mark where a margin grew; none unwatched.

    Args:
        clusters: what the training saw of its classes.
        objective: what the recipe says of the loss.
    """
    if clusters is None:
        return []
    picture = draw_clusters(
        clusters.steps,
        clusters.radii,
        clusters.drift,
        clusters.accuracy,
        class_names=clusters.class_names,
        marks=_grown(objective, int(clusters.steps[-1])),
    )
    return [
        Figure(
            "Clusters during training",
            "Training classes at each validation: the mean distance of a class's items to their centroid, how far "
            "centroids moved since the validation before, and the share of items nearest to their own centroid. Thin "
            "lines are classes, the thick line is their mean.",
            picture,
            "Cluster radii, centroid drift and centroid accuracy against training steps",
        )
    ]


def _grown(objective: ObjectiveSection, last: int) -> dict[int, str]:
    """The steps after which a margin grew in a run of `last` steps, and to what."""
    if objective.loss != "growing-triplet":
        return {}
    # Not from the log, whose rows have the margin of their last step.
    stages = objective.parameters.get("margins") or MARGINS
    return {step: f"margin {margin:g}" for step, margin in stages if 0 < step < last}
