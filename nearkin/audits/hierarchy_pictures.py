"""The pictures of class hierarchies: distances and trees, known beside learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.data.hierarchy import Hierarchy
from nearkin.metrics.tree_comparison import recovered_clades
from nearkin.metrics.tree_inference import infer_tree
from nearkin.report import Figure, draw_metric_curves
from nearkin.report.class_distances import draw_class_distances
from nearkin.report.dendrogram import Dendrogram, draw_dendrograms
from nearkin.report.groups import leaf_groups


def draw_distances(
    known: Hierarchy,
    distances: np.ndarray,
    names: Sequence[str],
    learned: Mapping[str, np.ndarray],
    told: Mapping[str, str],
) -> Figure:
    """Distances between classes: the tree's, and those of what stands for the classes.

    Args:
        known: the tree of these classes alone, which decides their order and groups.
        distances: the tree's (C, C).
        names: (C,) of their rows.
        learned: what stands for the classes to distances (C, C).
        told: the same to what its heading adds.
    """
    places = {name: place for place, name in enumerate(names)}
    order = [places[name] for name in known.classes]
    titled = {f"{name.capitalize()}: {told[name]}": matrix for name, matrix in learned.items()}
    matrices = {"Known tree": distances, **titled}
    return Figure(
        "Distances between classes",
        "Each row and column is a class, in the order of the known tree, its groups along the edges; the darker, the "
        "nearer two classes are among all pairs. MC is the mean correlation of a class's distances with the tree's.",
        draw_class_distances(
            {title: matrix[np.ix_(order, order)] for title, matrix in matrices.items()},
            known.classes,
            leaf_groups(known.parents, known.names),
        ),
        "Heat maps of distances between classes: of the known tree and of the embedding",
    )


def draw_trees(known: Hierarchy, names: Sequence[str], learned: Mapping[str, np.ndarray]) -> Figure:
    """The known tree beside one inferred from the first of learned distances (C, C) by average linkage."""
    source, distances = next(iter(learned.items()))
    inferred = infer_tree(distances, names)
    return Figure(
        "Known tree and inferred tree",
        f"The inferred tree joins the classes whose {source} are nearest, then groups by the mean distance of their "
        "classes; branches are as long as the distances say. Colours are groups of the known tree: a branch of one "
        "colour holds one group only.",
        draw_dendrograms([known_dendrogram(known), inferred_dendrogram(inferred, source, known)]),
        "Dendrograms of the known and of the inferred class tree, side by side",
    )


def known_dendrogram(tree: Hierarchy) -> Dendrogram:
    """The known tree; its own branch lengths, where it has some, are not comparable and are not drawn."""
    groups = len(tree.clades())
    note = f"{len(tree.classes):,} classes, {groups:,} group{'' if groups == 1 else 's'}"
    return Dendrogram(tree.parents, tree.names, title="Known tree", note=note)


def inferred_dendrogram(tree: Hierarchy, source: str, known: Hierarchy | None) -> Dendrogram:
    """The inferred tree with its branch lengths, and how many groups of the known one it has."""
    note = f"of {source}"
    if known is not None and known.clades():
        recovered = recovered_clades(known, tree)
        note += f": {len(recovered.found):,} of {len(known.clades()):,} groups recovered"
    return Dendrogram(tree.parents, tree.names, tree.lengths, title="Inferred tree", note=note)


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
