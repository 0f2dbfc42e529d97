"""The pictures of the pooling suite: cells of prototypes, hulls of classes, and single images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from nearkin.report import Figure
from nearkin.report.class_hulls import draw_class_hulls
from nearkin.report.formatting import value_text
from nearkin.report.local_features import MOST_PATCHES, MOST_STRIPS, LocalView, draw_prototypes
from nearkin.report.pooled import MOST_IMAGES, draw_pooled
from nearkin.report.proxies import evenly_spaced

Pictures = Callable[[int], Image.Image]
"""From the place of an image to what the model sees of it."""

_PATCH = 2.5
"""Side of a part of an image around a position, in positions: a position sees far beyond its own place."""


def draw_cells(view: LocalView, distances: np.ndarray, grid: tuple[int, int], pictures: Pictures | None) -> Figure:
    """Local features by prototype, and what the prototypes with the most of them look like.

    Args:
        view: local features and prototypes.
        distances: (B, n) of the local features to their prototypes.
        grid: rows and columns of positions, n in all.
        pictures: gives the images, or None when there is nothing to look at.
    """
    patches = {} if pictures is None else _patches(view, distances, grid, pictures)
    below = " Below, the parts of images nearest to the prototypes that hold most features." if patches else ""
    return Figure(
        "Local features and prototypes",
        "Each dot is a local feature, what the model has of one place of an image, in the colour of its nearest "
        f"prototype; boxes are prototypes. No feature is farther from its prototype than the covering radius.{below}"
        f"{_plane(view)}",
        draw_prototypes(view, patches),
        "Local features in the plane, coloured by their nearest prototype",
    )


def draw_hulls(view: LocalView, active: np.ndarray, classes: Sequence[str], least: float) -> Figure:
    """The hulls of the active prototypes (C, m) of each class; `least` is the share of its features that one needs."""
    return Figure(
        "Hulls of classes",
        "Average pooling puts an image near the hull of its prototypes: no farther away than |PCC - GAP|, which is at "
        f"most the covering radius, {value_text(view.radius, False)}. A class has the hull of the prototypes that are "
        f"active in it; those with at most {100 * least:g} % of its features are dropped, so images with rare parts "
        "may lie farther out. Where hulls overlap, images of different classes can come to lie together. With a large "
        f"radius or in many dimensions, hulls tell little. A ring marks a hull without area.{_plane(view)}",
        draw_class_hulls(view, active, classes),
        "Convex hulls of the active prototypes of each class, with pooled images",
    )


def draw_examples(view: LocalView, classes: Sequence[str], pictures: Pictures | None) -> Figure:
    """For images of different classes, their mean and the convex combination of their prototypes."""
    shown = _typical(view, evenly_spaced(len(classes), MOST_IMAGES))
    names = [classes[view.labels[image]] for image in shown]
    thumbs = [None if pictures is None else pictures(image) for image in shown]
    circle = " Distances can only shrink in the plane, the circle does not." if view.dimensions > 2 else ""
    return Figure(
        "Average pooling of single images",
        "The mean of an image's local features (GAP) beside the prototypes weighted by how many features fall to each "
        "(PCC): the two are never farther apart than the covering radius of the prototypes over the image's own "
        f"features, the circle.{circle}{_plane(view)}",
        draw_pooled(view, shown, names, thumbs),
        "Local features of single images with their prototypes, mean and convex combination",
    )


def _plane(view: LocalView) -> str:
    if view.dimensions <= 2:
        return ""
    return f" The plane is that of the largest variance of the local features, which have {view.dimensions} dimensions."


def _typical(view: LocalView, classes: Sequence[int]) -> list[int]:
    """Of each class the image whose error is the median."""
    chosen = []
    for place in classes:
        mine = np.flatnonzero(view.labels == place)
        chosen.append(int(mine[np.argsort(view.errors[mine], kind="stable")[len(mine) // 2]]))
    return chosen


def _patches(
    view: LocalView, distances: np.ndarray, grid: tuple[int, int], pictures: Pictures
) -> dict[int, list[Image.Image]]:
    """Parts of images nearest to the prototypes with the most features, each of another image."""
    mass = np.bincount(view.nearest.ravel(), minlength=len(view.prototypes))
    found = {}
    for prototype in np.argsort(-mass, kind="stable")[:MOST_STRIPS]:
        away = np.where(view.nearest == prototype, distances, np.inf)
        images = np.argsort(away.min(axis=1), kind="stable")[:MOST_PATCHES]
        images = images[np.isfinite(away[images].min(axis=1))]
        found[int(prototype)] = [_part(pictures(int(i)), int(away[i].argmin()), grid) for i in images]
    return found


def _part(image: Image.Image, position: int, grid: tuple[int, int]) -> Image.Image:
    """The square of an image around a position of its map."""
    rows, columns = grid
    row, column = divmod(position, columns)
    side = round(min(_PATCH * max(image.height / rows, image.width / columns), image.height, image.width))
    left = round(float(np.clip((column + 0.5) * image.width / columns - side / 2, 0, image.width - side)))
    top = round(float(np.clip((row + 0.5) * image.height / rows - side / 2, 0, image.height - side)))
    return image.crop((left, top, left + side, top + side))
