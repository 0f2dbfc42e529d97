"""The pooling suite: what average pooling does to a model's local features, and how classes share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearkin.audits.explanation import draw_looks
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics.labels import label_codes
from nearkin.metrics.local_features import (
    active_prototypes,
    attribute_transfer,
    check_bound,
    class_histograms,
    hull_overlap,
    shared_mass,
)
from nearkin.models import Embedder, Encoder
from nearkin.models.items import ItemLoader
from nearkin.progress import Progress
from nearkin.recipe import AuditSection
from nearkin.report.chance_constrained import evenly_spaced
from nearkin.report.local_features import (
    MOST_IMAGES,
    MOST_PATCHES,
    MOST_STRIPS,
    LocalView,
    draw_class_hulls,
    draw_pooled,
    draw_prototypes,
)
from nearkin.report.values import interval_text, value_text
from nearkin.spaces import kcenter

_ITEMS = 64
"""Items whose maps are held at once."""


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """What a model pools.

    Args:
        features: (r, n, d) float32, the positions of a map row by row.
        grid: how many rows and columns of positions a map has; n is their product.
        attributes: (r, M) float32, where the pooling gives attributes.
    """

    features: Tensor
    grid: tuple[int, int]
    attributes: Tensor | None


class LocalEncoder:
    """A model on the items of one data set, stopped before the pooling.

    A linear head behind the pooling is applied to each local feature: it is affine, so the mean of what it gives is
    what it gives for the mean. Not so where the pooling does not keep the coordinates of the map, or where attention
    comes between: the head then takes more than the pooled vector.

    Args:
        embedder: the model.
        dataset: the items.
    """

    def __init__(self, embedder: Embedder, dataset: Dataset) -> None:
        self.embedder = embedder
        self.dataset = dataset
        self._encoder: Encoder | None = None

    @property
    def pooling(self) -> str:
        """The name of the model's own pooling."""
        config = self.embedder.pooling.config
        return type(self.embedder.pooling).__name__ if config is None else config["name"]

    @property
    def through_head(self) -> bool:
        """Whether a linear head is applied to each local feature."""
        return isinstance(self.embedder.head, nn.Linear) and self._pooled_alike

    @property
    def in_coordinates(self) -> bool:
        """Whether local features and embeddings, before these are projected, have the same coordinates."""
        return self.through_head or (isinstance(self.embedder.head, nn.Identity) and self._pooled_alike)

    @property
    def _pooled_alike(self) -> bool:
        """Whether what the head takes has the coordinates of a local feature; an equal size alone does not tell."""
        pooling = self.embedder.pooling
        alike = pooling.keeps_coordinates and pooling.out_channels == pooling.channels
        return alike and self.embedder.attention is None

    def __call__(self, rows: np.ndarray, *, progress: bool = False) -> LocalFeatures:
        """The local features of the items `rows` (r,), r >= 1."""
        features, attributes, grid = torch.empty(0), [], (0, 0)
        with Progress("Local features", len(rows), progress) as bar:
            for start in range(0, len(rows), _ITEMS):
                some = rows[start : start + _ITEMS]
                found, grid, given = self._of(some)
                if start == 0:
                    features = found.new_empty(len(rows), *found.shape[1:])
                features[start : start + len(some)] = found
                attributes += given
                bar.advance(len(some))
        return LocalFeatures(features, grid, torch.cat(attributes) if attributes else None)

    @torch.inference_mode()
    def _of(self, rows: np.ndarray) -> tuple[Tensor, tuple[int, int], list[Tensor]]:
        """Local features (r, n, d), the grid, and attributes (r, M) in a list, which is empty without any."""
        last = self.embedder.backbone.stage_names[-1]
        if self._encoder is None:
            self._encoder = Encoder(self.embedder, at=last)
        model = self._encoder.embedder
        maps = torch.from_numpy(self._encoder.encode(self.dataset.select(rows), progress=False))
        local = model.local_features(maps.to(self._encoder.device), start=last)
        given = [model.pooling.with_attributes(local)[1].float().cpu()] if model.pooling.gives_attributes else []
        positions = local.flatten(2).transpose(1, 2)
        features = model.head(positions) if self.through_head else positions
        return features.float().cpu(), (local.shape[2], local.shape[3]), given

    def view(self, row: int) -> Image.Image:
        """The image of an item as the model sees it: resized and cropped."""
        sample = ItemLoader(replace(self.embedder.spec, size_feature=None)).of_dataset(self.dataset, row)
        pixels = sample.permute(1, 2, 0).numpy()
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])


_MOST_VALUES = 2**26
"""Numbers that all local features together may have: a quarter of a gigabyte."""

_ACTIVE = 0.005
"""Share of a class's mass above which a prototype is active in it: less is strays."""

_MOST_PROTOTYPES = 0.25
"""Share of the local features that may be prototypes: if all were, every radius would be 0 and no class overlap."""

_PATCH = 2.5
"""Side of a part of an image around a position, in positions: a position sees far beyond its own place."""

_RADIUS, _MEAN, _LARGEST = "covering radius", "|PCC - GAP|, mean", "|PCC - GAP|, largest"
_ACTIVE_MEAN = "active prototypes, mean of classes"
_OVERLAPS = ("class overlap, shared mass", "class overlap, hulls")

_FEWEST_CLASSES = 4
"""With fewer, the transfer of attributes has no halves to speak of."""


@suites.register("pooling")
def pooling_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Mean pooling against the convex combination of prototypes that cover the local features, and class overlap."""
    if subject.local is None:
        raise DataError(
            "The pooling suite needs a model and its data, not embeddings: it looks at the local features that the "
            "model pools."
        )
    rows, notes = _sample(subject, subject.local, section)
    local = subject.local(rows, progress=subject.progress)
    prototypes = _scaled_prototypes(local.features, section.pooling_prototypes)
    bound = check_bound(local.features, prototypes)
    names, codes = np.unique(subject.labels[rows].astype(str), return_inverse=True)
    classes = names.tolist()
    histograms = class_histograms(bound.histogram, torch.from_numpy(codes))
    active, shared = active_prototypes(histograms, _ACTIVE).numpy(), shared_mass(histograms).numpy()
    anywhere, several = active.any(axis=0), active.sum(axis=0) > 1
    found = SuiteResult(
        {
            _RADIUS: bound.covering_radius,
            _MEAN: float(bound.error.mean()),
            _LARGEST: float(bound.error.max()),
            "images within the bound": float(bound.holds.double().mean()),
            _ACTIVE_MEAN: float(active.sum(axis=1).mean()),
            "active prototypes, in several classes": float(several.sum() / anywhere.sum()) if anywhere.any() else 0.0,
            _OVERLAPS[0]: _mean_of_pairs(shared),
        },
        notes=notes,
        lower_is_better=_OVERLAPS,
        numbers=(_RADIUS, _MEAN, _LARGEST, _ACTIVE_MEAN),
    )
    details = found.details["pooling"] = {
        "classes": classes,
        "active prototypes": active.sum(axis=1).tolist(),
        "shared mass": shared.tolist(),
    }
    if local.features.shape[2] == 2:
        overlap = hull_overlap([prototypes[row].double().numpy() for row in active])
        found.add(_OVERLAPS[1], _mean_of_pairs(overlap))
        details["hulls"] = overlap.tolist()
    found.notes.insert(0, _note(subject.local, local, len(classes), len(prototypes)))
    if len(prototypes) < section.pooling_prototypes:
        found.notes.append(
            f"Pooling: {len(prototypes)} prototypes instead of {section.pooling_prototypes}, a quarter of the "
            f"{local.features.shape[:2].numel():,} local features that there are: more would make the radius and the "
            "overlap of classes vanish by themselves."
        )
    view = LocalView.of(local.features.numpy(), prototypes.numpy(), bound.nearest.numpy(), codes)
    encoder = subject.local
    pictures = (lambda place: encoder.view(int(rows[place]))) if encoder.dataset.kind == "image" else None
    _show_pictures(found, view, bound.distance.numpy(), local.grid, pictures, active, classes)
    found.drawings.append(partial(draw_looks, subject.local.embedder, subject.local.dataset, rows, seed=section.seed))
    if local.attributes is not None:
        _add_transfer(found, local.attributes, subject.embeddings[rows], subject.labels[rows], section)
    return found


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


def _scaled_prototypes(features: Tensor, count: int) -> Tensor:
    """Prototypes (m, d) among local features (r, n, d), which are scaled in place."""
    if not features.isfinite().all():
        raise DataError("The model gives local features that are NaN or infinite: check its training.")
    largest = float(features.norm(dim=2).max())
    if largest > 0:
        features.div_(largest)
    flat = features.view(1, -1, features.shape[2])
    count = min(count, max(1, int(_MOST_PROTOTYPES * flat.shape[1])))
    return flat[0, kcenter(flat, count)[0]]


def _mean_of_pairs(table: np.ndarray) -> float:
    """The mean over pairs of different classes of a symmetric table (C, C); 0 without pairs."""
    upper = table[np.triu_indices(len(table), 1)]
    return float(upper.mean()) if len(upper) else 0.0


def _note(encoder: LocalEncoder, local: LocalFeatures, classes: int, prototypes: int) -> str:
    height, width = local.grid
    behind = "the pooling and the head" if encoder.embedder.attention is None else "the pooling, attention and head"
    place = "in the coordinates of the embedding" if encoder.in_coordinates else f"before {behind}"
    return (
        f"Pooling: {len(local.features):,} items of {classes} classes, each with {height} x {width} local "
        f"features {place}, scaled so that the largest norm is 1; {prototypes} of all these features are "
        f"prototypes (greedy k-center). GAP is their mean, whatever the model's own pooling, here {encoder.pooling}."
    )


PictureOf = Callable[[int], Image.Image]
"""From the place of an image to what the model sees of it."""


def _show_pictures(
    found: SuiteResult,
    view: LocalView,
    distances: np.ndarray,
    grid: tuple[int, int],
    pictures: PictureOf | None,
    active: np.ndarray,
    classes: list[str],
) -> None:
    """Local features by prototype, hulls of classes, and single images.

    Args:
        found: what gets the pictures.
        view: local features and prototypes.
        distances: (B, n) of the local features to their prototypes.
        grid: rows and columns of positions, n in all.
        pictures: gives the images.
        active: which prototypes are active in each class (C, m).
        classes: (C,) names.
    """
    plane = circle = ""
    if view.dimensions > 2:
        whose = f"the local features, which have {view.dimensions} dimensions"
        plane = f" The plane is that of the largest variance of {whose}."
        circle = " Distances can only shrink in the plane, the circle does not."
    below = " Below, the parts of images nearest to the prototypes that hold most features." if pictures else ""
    found.show(
        "Local features and prototypes",
        "Each dot is a local feature, what the model has of one place of an image, in the colour of its nearest "
        f"prototype; boxes are prototypes. No feature is farther from its prototype than the covering radius.{below}"
        f"{plane}",
        "Local features in the plane, coloured by their nearest prototype",
        lambda: draw_prototypes(view, _patches(view, distances, grid, pictures)),
    )
    found.show(
        "Hulls of classes",
        "Average pooling puts an image near the hull of its prototypes: no farther away than |PCC - GAP|, which is at "
        f"most the covering radius, {value_text(view.radius, False)}. A class has the hull of the prototypes that are "
        f"active in it; those with at most {100 * _ACTIVE:g} % of its features are dropped, so images with rare parts "
        "may lie farther out. Where hulls overlap, images of different classes can come to lie together. With a large "
        f"radius or in many dimensions, hulls tell little. A ring marks a hull without area.{plane}",
        "Convex hulls of the active prototypes of each class, with pooled images",
        draw_class_hulls,
        view,
        active,
        classes,
    )
    shown = []
    for code in evenly_spaced(len(classes), MOST_IMAGES):  # of each class the image whose error is the median
        mine = np.flatnonzero(view.labels == code)
        shown.append(int(mine[np.argsort(view.errors[mine], kind="stable")[len(mine) // 2]]))
    found.show(
        "Average pooling of single images",
        "The mean of an image's local features (GAP) beside the prototypes weighted by how many features fall to each "
        "(PCC): the two are never farther apart than the covering radius of the prototypes over the image's own "
        f"features, the circle.{circle}{plane}",
        "Local features of single images with their prototypes, mean and convex combination",
        lambda: draw_pooled(
            view,
            shown,
            [classes[view.labels[image]] for image in shown],
            [None if pictures is None else pictures(image) for image in shown],
        ),
    )


def _patches(
    view: LocalView, distances: np.ndarray, grid: tuple[int, int], pictures: PictureOf | None
) -> dict[int, list[Image.Image]]:
    """Parts of images nearest to the prototypes with the most features, each of another image."""
    if pictures is None:
        return {}
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
