"""Pictures of how a training went: episodes, clusters, instances with their proxies, and the class adversary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import RunError
from nearkin.models import Embedder
from nearkin.objectives import ObjectiveSection, regularisers
from nearkin.objectives.adversary import THRESHOLD
from nearkin.objectives.triplet import MARGINS
from nearkin.registry import parameters_of
from nearkin.report import Figure, draw_metric_curves
from nearkin.report.chance_constrained import MOST_PANELS, ProxyPanel, draw_instances, draw_proxies, evenly_spaced
from nearkin.report.dynamics import draw_accuracies, draw_adversary, draw_clusters, draw_dynamics
from nearkin.spaces import Space
from nearkin.training import Run
from nearkin.training.clusters import Clusters


def draw_training(run: Run, model: Embedder, notes: list[str]) -> list[Figure]:
    """Every picture of a training that was watched; `notes` gets what is missing for one."""
    recipe, history, snapshots = run.recipe(), run.history(), run.instances()
    if absent := absent_snapshots(snapshots, history):
        named = f"{len(absent)} instances" if len(absent) > 5 else f"instance{'s' if len(absent) > 1 else ''} "
        named += "" if len(absent) > 5 else ", ".join(map(str, absent))
        notes.append(
            f"The picture of the proxies leaves out {named}: missing or damaged in {run.instances_folder.name}/."
        )
    clusters = None
    try:
        clusters = run.clusters()
    except RunError:
        notes.append("The picture of clusters during training is left out: the run's clusters.npz is damaged.")
    return [
        draw_contest(history, recipe.objective),
        draw_geometry(snapshots, history, model.space, model.card["classes"]["train"]),
        *(draw_episodes(history, run.path.name) if recipe.training.schedule == "episodic" else []),
        draw_correlations(history),
        *draw_watched_clusters(clusters, recipe.objective),
    ]


def draw_course(history: Sequence[Mapping[str, float]]) -> Figure:
    """MAP@R, violated pairs, radius, spread and steps of each instance; without bytes if training had none.

    Args:
        history: rows of the training log.
    """
    return Figure(
        "Instances",
        "Each instance solves one problem with proxies of its own, until MAP@R on the validation classes no longer "
        "gains; then proxies are picked anew. A pair is violated where two items of a class are farther apart than the "
        "middle of the loss's margins, or two of different classes nearer; the mean loss over half the gap bounds how "
        "many are (Markov). The covering radius is how far items of the validation classes lie from "
        "the nearest of a few of their own class, averaged over how many those are.",
        draw_instances(history),
        "MAP@R, violated pairs and their bound, covering radius, spread of the proxies and steps against instances",
    )


def draw_geometry(
    snapshots: Sequence[Mapping[str, Tensor]],
    history: Sequence[Mapping[str, float]],
    space: Space,
    names: Sequence[str],
) -> Figure:
    """Points and proxies at the end of instances; without bytes if there are no snapshots.

    Args:
        snapshots: one an instance, in their order: its number `instance` (a scalar), raw `points` (n, d), `labels`
            (n,), `classes` (c,), `converged` (c, K, d) and `next` (c, K, d).
        history: rows of the training log, which say what each instance reached.
        space: where the model compares embeddings.
        names: the training classes, by class id.
    """
    panels = proxy_panels(snapshots, history, space)
    classes = snapshots[0]["classes"].tolist() if snapshots else []
    flat = not panels or panels[0].points.shape[1] <= 2
    plane = "" if flat else " The plane is that of the largest variance of all points shown."
    return Figure(
        "Proxies",
        "Training items at the end of instances, with the proxies the instance converged to and those picked to "
        f"follow them: proxies that lie apart cover their class.{plane} "
        "MAP@R and radius above a panel are those of the validation classes, which are not shown.",
        draw_proxies(panels, [names[number] if number < len(names) else str(number) for number in classes]),
        "Embedded training items by class, with the converged and the next proxies of several instances",
    )


def proxy_panels(
    snapshots: Sequence[Mapping[str, Tensor]],
    history: Sequence[Mapping[str, float]],
    space: Space,
    most: int = MOST_PANELS,
) -> list[ProxyPanel]:
    """At most `most` of the snapshots as panels of a picture; arguments as of `draw_geometry`."""
    reached, panels = _reached(history), []
    for place in evenly_spaced(len(snapshots), most):
        snapshot = snapshots[place]
        instance = int(snapshot["instance"])
        with torch.no_grad():
            points, converged, upcoming = (
                space.project(snapshot[part].float()).numpy() for part in ("points", "converged", "next")
            )
        log = reached.get(instance, {})
        panels.append(
            ProxyPanel(
                points,
                np.searchsorted(snapshot["classes"].numpy(), snapshot["labels"].numpy()),
                converged,
                upcoming,
                f"instance {instance}",
                log.get("instance_MAP@R", math.nan),
                log.get("instance_covering_radius", math.nan),
            )
        )
    return panels


def absent_snapshots(snapshots: Sequence[Mapping[str, Tensor]], history: Sequence[Mapping[str, float]]) -> list[int]:
    """The instances in the log of which no snapshot is there; arguments as of `draw_geometry`."""
    return sorted(_reached(history).keys() - {int(snapshot["instance"]) for snapshot in snapshots})


def _reached(history: Sequence[Mapping[str, float]]) -> dict[int, Mapping[str, float]]:
    """The rows of the log that tell of an instance, by its number."""
    return {int(row["instance"]): row for row in history if row.get("instance") is not None}


_NAME = "class-adversary"
_ADAPTIVE = (
    "While the coefficient is below zero the model helps a classifier to tell the training classes apart; above zero "
    "it hides from the classifier what serves these classes alone. The sign changes when the classifier's mean loss "
    "of an epoch crosses the dashed threshold; upright lines mark the first and the last such step. Where the loss "
    "falls on all the same, the classifier is winning."
)
_SOFT = (
    "A classifier of the training classes learns beside the loss, from smoothed labels, and the model helps it "
    "throughout. Its loss levels off above zero, as smoothed labels cannot be met exactly; an accuracy near 100 % "
    "says that it has nothing left to learn."
)
_ADAPTIVE_ALT = "Coefficient of the class adversary, loss and accuracy of its classifier against training steps"
_SOFT_ALT = "Loss and accuracy of the class adversary's classifier against training steps"


def draw_contest(history: Sequence[Mapping[str, float]], objective: ObjectiveSection) -> Figure:
    """What an adversary did against steps, with the coefficient unless it is soft; without bytes if there was none.

    Args:
        history: rows of the training log.
        objective: what training minimised.
    """
    threshold = turning_loss(objective)
    return Figure(
        "Class adversary",
        _SOFT if threshold is None else _ADAPTIVE,
        draw_adversary(history, threshold=threshold),
        _SOFT_ALT if threshold is None else _ADAPTIVE_ALT,
    )


def turning_loss(objective: ObjectiveSection) -> float | None:
    """The classifier's loss at which the model turns against it; None without an adaptive class adversary."""
    for term in objective.regularisers:
        if term.name == _NAME:
            declared = parameters_of(regularisers.get(_NAME).factory)
            chosen = {name: parameter.default for name, parameter in declared.items()} | term.parameters
            return (chosen["threshold"] or THRESHOLD) if chosen["kind"] == "adaptive" else None
    return None


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
    marks = {}
    if objective.loss == "growing-triplet":  # not from the log, whose rows have the margin of their last step
        stages = objective.parameters.get("margins") or MARGINS
        marks = {step: f"margin {margin:g}" for step, margin in stages if 0 < step < int(clusters.steps[-1])}
    return [
        Figure(
            "Clusters during training",
            "Training classes at each validation: the mean distance of a class's items to their centroid, how far "
            "centroids moved since the validation before, and the share of items nearest to their own centroid. Thin "
            "lines are classes, the thick line is their mean.",
            draw_clusters(
                clusters.steps,
                clusters.radii,
                clusters.drift,
                clusters.accuracy,
                class_names=clusters.class_names,
                marks=marks,
            ),
            "Cluster radii, centroid drift and centroid accuracy against training steps",
        )
    ]


def draw_correlations(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean correlations with the tree against training steps; without bytes where training had no tree.

    Args:
        history: rows of the training log.
    """
    metric = "Mean correlation with the tree (MC)"
    series = {}
    for name in ("prototypes", "proxies"):
        rows = [row for row in history if f"MC_{name}" in row]
        if rows:
            series[name] = ([row["step"] for row in rows], [row[f"MC_{name}"] for row in rows])
    return Figure(
        "Class tree during training",
        "How well the distances between training classes follow the tree, by the means of some of their items and, "
        "where the loss has some, by their proxies.",
        draw_metric_curves({metric: series} if series else {}, of="training classes", across="step", plain=[metric]),
        "Mean correlation of class distances with the tree against training steps",
    )
