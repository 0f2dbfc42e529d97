"""What an audit looks at: embeddings with labels, wherever they came from, divided into queries and references."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN
from nearkin.data.section import DataSection
from nearkin.data.splits import Split, resolve_split
from nearkin.errors import DataError, MissingWeightsError
from nearkin.metrics.labels import halves
from nearkin.models import Embedder, FeatureCache, PixelReader, cache_point, pretrained_baseline
from nearkin.models.card import Card
from nearkin.models.embedder import ALL, POOLING, ClassScores
from nearkin.models.similarity import LearnedSpace
from nearkin.models.similarity_model import SimilarityModel
from nearkin.spaces import Space

if TYPE_CHECKING:
    from nearkin.audits.domain_pool import TrainedDomains
    from nearkin.audits.hierarchy import Untrained
    from nearkin.audits.pooling_suite import LocalEncoder
    from nearkin.data.hierarchy import Hierarchy

    Corrupted = Callable[[str, int, np.ndarray], np.ndarray]

TREE_FACT = "tree"
"""Where the facts of a subject say which tree it is judged by."""

_PRETRAINED = "pretrained features"
_SIDE = 28
"""Of the images whose raw pixels are a baseline."""


class Subject:
    """Embeddings under audit, with the model, the data and the cache that they come from.

    Everything else that a suite may need is a property, computed from these when first used and then kept. For
    embeddings of your own, pass the properties that you have by name: `Subject(x, y, Sphere(), gallery=mask)`.

    Args:
        embeddings: (n, d).
        labels: (n,), of any type.
        space: how two embeddings are compared.
        baseline: other embeddings of the same items, to compare with.
        baseline_name: what these are.
        facts: what to tell about model and data.
        notes: what a reader must know of how the items were chosen.
        hierarchy: a tree over the classes, if there is one.
        model: what made the embeddings; None if unknown.
        data: all the data, of which the audited items are a part.
        rows: rows (n,) of the audited items in the data; None: all of them.
        cache_directory: where features and embeddings are kept for the next audit.
        run: directory of the model's run, which has its proxies.
        progress: whether suites that take long show a bar.
        given: values of the properties below.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        space: Space,
        *,
        baseline: np.ndarray | None = None,
        baseline_name: str = "",
        facts: dict[str, str] | None = None,
        notes: list[str] | None = None,
        hierarchy: Hierarchy | None = None,
        model: Embedder | None = None,
        data: Dataset | None = None,
        rows: np.ndarray | None = None,
        cache_directory: Path | None = None,
        run: Path | None = None,
        progress: bool = True,
        **given: Any,
    ) -> None:
        self.embeddings, self.labels, self.space = embeddings, labels, space
        self.baseline, self.baseline_name = baseline, baseline_name
        self.facts = {} if facts is None else facts
        self.notes = [] if notes is None else notes
        self.hierarchy = hierarchy
        self.model, self.data, self.rows, self.cache_directory = model, data, rows, cache_directory
        self.run, self.progress = run, progress
        for name in given:
            if not isinstance(getattr(type(self), name, None), cached_property):
                raise TypeError(f"Subject has no property '{name}'.")
        vars(self).update(given)

    def changed(self, **changes: Any) -> Subject:
        """A copy with other values of some arguments or properties."""
        other = copy(self)
        vars(other).update(changes)
        return other

    def embed(self, items: Dataset) -> np.ndarray:
        """Embeddings (m, d) of more items by the model."""
        assert self.model is not None
        assert self.cache_directory is not None
        return embed_items(self.model, items, self.cache_directory, self.progress)

    def untrained_features(self, items: Dataset) -> np.ndarray | None:
        """What one would have of more items without training, (m, F), if there is anything."""
        assert self.model is not None
        assert self.cache_directory is not None
        return untrained_features(self.model, items, self.cache_directory, self.progress)[1]

    def thumbnail(self, row: int, side: int, *, square: bool = False) -> Image.Image:
        """The picture of an item, at most `side` wide and high; cropped to its middle square if asked for."""
        assert self.picture is not None
        return thumbnail(self.picture(int(row)), side, square=square)

    @property
    def card(self) -> Card:
        """The card of the model, empty without one."""
        return Card() if self.model is None else self.model.card

    @property
    def compared_by(self) -> str:
        """What the space gives: "similarity" where it was learned, else "distance"."""
        return compared_by(self.space)

    @property
    def asked(self) -> np.ndarray:
        """Rows of the items that are queries: all of them without a gallery."""
        return np.arange(len(self.labels)) if self.gallery is None else np.flatnonzero(~self.gallery)

    @property
    def searched(self) -> np.ndarray:
        """Rows of the items that are searched: all of them without a gallery."""
        return np.arange(len(self.labels)) if self.gallery is None else np.flatnonzero(self.gallery)

    @cached_property
    def items(self) -> Dataset | None:
        """The audited items, if they came from a data set."""
        return self.data if self.data is None or self.rows is None else self.data.select(self.rows)

    @cached_property
    def gallery(self) -> np.ndarray | None:
        """Mask (n,) of the items that are searched; None: each item is searched for among all the others."""
        return None if self.items is None else published_gallery(self.items)

    @cached_property
    def picture(self) -> Callable[[int], Image.Image] | None:
        """From an index to the image of an item; None if there are no images."""
        return self.items.image if self.items is not None and self.items.kind == "image" else None

    @cached_property
    def pixels(self) -> Callable[[np.ndarray], Tensor] | None:
        """From rows (r,) to the pixels (r, C, H, W) in [0, 1] that the model sees; None if there are no images."""
        if self.model is None or self.items is None or self.items.kind != "image":
            return None
        return PixelReader(self.model, self.items)

    @cached_property
    def own_data(self) -> bool:
        """Whether the items are those that were held out when the model was trained."""
        return self.data is not None and self.data.fingerprint() == self.card.data.fingerprint

    @cached_property
    def seen(self) -> dict[str, str]:
        """The classes among the labels that had a part in training, each with it: "train" or "val"."""
        return {} if self.items is None else seen_classes(self.items, self.card)

    @cached_property
    def split(self) -> Split | None:
        """How the items of a model of seen classes were divided; None for other models and for other data."""
        return None if self.data is None or self.model is None else item_split(self.data, self.card)

    @cached_property
    def known(self) -> Callable[[], tuple[np.ndarray, np.ndarray]] | None:
        """Gives embeddings (m, d) and labels (m,) of the items that trained, of a model of seen classes."""
        if self.data is None or self.split is None:
            return None
        part = self.data.select(self.split.train)
        return lambda: (self.embed(part), part.labels)

    @cached_property
    def trained(self) -> Callable[[], np.ndarray] | None:
        """Gives embeddings (m, d) of the items that trained and are not audited; None if there are none."""
        if self.data is None or self.model is None:
            return None
        data = self.data
        rows = np.setdiff1d(training_rows(data, self.card), np.arange(len(data)) if self.rows is None else self.rows)
        return (lambda: self.embed(data.select(rows))) if len(rows) else None

    @cached_property
    def domains(self) -> np.ndarray | None:
        """The domain (n,) of each item, if the data has domains."""
        manifest = None if self.items is None else self.items.manifest
        return manifest.column(COLUMN) if manifest is not None and manifest.has(COLUMN) else None

    @cached_property
    def trained_domains(self) -> TrainedDomains | None:
        """What training had to do with domains; None if unknown."""
        if self.data is None or self.model is None:
            return None
        from nearkin.audits.domain_pool import trained_domains

        untrained = self.untrained_features if self.baseline_name else lambda items: None
        return trained_domains(self.card, self.data, self.split, self.embed, untrained)

    @cached_property
    def learned(self) -> SimilarityModel | None:
        """The model, if it compares by a learned similarity."""
        return self.model if isinstance(self.model, SimilarityModel) else None

    @cached_property
    def proxies(self) -> tuple[tuple[str, ...], np.ndarray] | None:
        """Names of the training classes and the points (C, d) that stood for them; None if none were kept."""
        if self.run is None:
            return None
        from nearkin.training import Run

        found = Run(self.run).class_vectors()
        return None if found is None else (found.names, found.proxies)

    @cached_property
    def class_scores(self) -> ClassScores | None:
        """How the loss that trained the model scores the classes it knew; None if unknown."""
        if self.run is None or self.model is None:
            return None
        from nearkin.training.run import run_classifier

        return run_classifier(self.run, self.model)

    @cached_property
    def local(self) -> LocalEncoder | None:
        """Gives the local features that the model pools; None without a model and data."""
        if self.model is None or self.items is None:
            return None
        from nearkin.audits.pooling_suite import LocalEncoder

        return LocalEncoder(self.model, self.items)

    @cached_property
    def corrupted(self) -> Corrupted | None:
        """From a corruption, a severity and rows (r,) to embeddings (r, d) of corrupted items; None without images."""
        return self._corrupted(self.model)

    @cached_property
    def corrupted_baseline(self) -> Corrupted | None:
        """The same by the pretrained features; None if the baseline is something else."""
        if self.model is None or self.baseline_name != _PRETRAINED:
            return None
        return self._corrupted(pretrained_baseline(self.model))

    def _corrupted(self, model: Embedder | None) -> Corrupted | None:
        if model is None or self.items is None or self.cache_directory is None or self.items.kind != "image":
            return None
        from nearkin.audits.corruption import CorruptedEncoder

        return CorruptedEncoder(model, self.items, self.cache_directory / "corrupted")

    @cached_property
    def untrained(self) -> Untrained | None:
        """Views without any training of the items that trained a model of seen classes, else of the audited ones."""
        if self.model is None or self.data is None or self.items is None:
            return None
        from nearkin.audits.hierarchy import Untrained

        reference = self.items if self.split is None else self.data.select(self.split.train)
        return Untrained(self.model, reference, lambda: self.untrained_features(reference), self.progress)


def compared_by(space: Any) -> str:
    """What a space gives: "similarity" where it was learned, else "distance"."""
    return "similarity" if isinstance(space, LearnedSpace) else "distance"


def shown(space: Any, distances: Any) -> Any:
    """Distances as a picture shows them: of a learned similarity the similarity itself."""
    return -distances if isinstance(space, LearnedSpace) else distances


def thumbnail(image: Image.Image, side: int, *, square: bool = False) -> Image.Image:
    """An RGB copy of an image, at most `side` wide and high; of its middle square if asked for."""
    small = image.convert("RGB")
    if square:
        edge = min(small.size)
        left, top = (small.width - edge) // 2, (small.height - edge) // 2
        small = small.crop((left, top, left + edge, top + edge))
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def subject_of_model(
    embedder: Embedder,
    dataset: Dataset,
    *,
    cache_directory: Path,
    baseline: bool = True,
    hierarchy: Hierarchy | None = None,
    run: Path | None = None,
    progress: bool = True,
) -> Subject:
    """Encode the part of a data set that the model has not been trained on.

    Args:
        embedder: the model.
        dataset: all the data.
        cache_directory: where the features of a frozen backbone are kept, for the next audit of the same data.
        baseline: also encode what one would have without training.
        hierarchy: a tree over the classes, if there is one.
        run: directory of the model's run, if it has one.
        progress: whether to show bars.
    """
    card = embedder.card
    chosen, notes = unseen_items(dataset, card)
    part = dataset.select(chosen)
    own_data = dataset.fingerprint() == card.data.fingerprint
    if card.finished is False:
        notes.append(f"Training was stopped at step {card.steps} and can be resumed.")
    if own_data and card.selected_on == "test classes":
        notes.append(
            "Test-selected: the model's weights were chosen on these very classes, so the figures of the trained "
            "model are optimistic."
        )
    known = set((card.started_from or {}).get("classes", [])) & set(part.labels)
    if known:
        notes.append(
            f"The backbone began with the weights of a model that was trained on {len(known)} of these classes, so "
            "figures are optimistic."
        )
    name, untrained = "", None
    if baseline:
        try:
            name, untrained = untrained_features(embedder, part, cache_directory, progress)
        except MissingWeightsError:
            notes.append(
                f"Training began with the published weights of {embedder.backbone_name}, whose file is not on this "
                "machine, so nothing is compared with pretrained features."
            )
    embeddings = embed_items(embedder, part, cache_directory, progress)
    facts = {
        "data": ", ".join(filter(None, [part.name, _held_out_domains(dataset, card)])),
        "classes": str(len(part.classes)),
        "items": str(len(part)),
        "backbone": embedder.backbone_name,
        "dimensions": str(embeddings.shape[1]),
    }
    seen = seen_classes(part, card)
    if seen:
        trained, validated = (list(seen.values()).count(role) for role in ("train", "val"))
        facts["classes seen in training"] = f"{trained} trained, {validated} validated"
    return Subject(
        embeddings,
        part.labels,
        embedder.space,
        baseline=untrained,
        baseline_name=name,
        facts=facts,
        notes=notes,
        hierarchy=hierarchy,
        model=embedder,
        data=dataset,
        rows=chosen,
        cache_directory=cache_directory,
        run=run,
        progress=progress,
        items=part,
        seen=seen,
    )


def item_split(dataset: Dataset, card: Card) -> Split | None:
    """How the items of a model of seen classes were divided; None for other models and for other data."""
    section = DataSection.model_validate(card.recipe.get("data", {}))
    if not section.classes_are_seen or dataset.fingerprint() != card.data.fingerprint:
        return None
    return resolve_split(dataset.manifest, section, int(card.recipe["training"]["seed"]))


def training_rows(dataset: Dataset, card: Card) -> np.ndarray:
    """Rows of the items that trained: by the division of the items if there was one, else all of training classes."""
    divided = item_split(dataset, card)
    if divided is not None:
        return divided.train
    return np.flatnonzero(np.isin(dataset.labels, card.classes.train))


def unseen_items(dataset: Dataset, card: Card) -> tuple[np.ndarray, list[str]]:
    """Indices of the items whose class played no part in training, and what to say about the choice.

    Where the card has held-out classes that the data has too, these; else every class that did not train; and if the
    data has none of those, everything, labelled as such.
    """
    labels = dataset.labels
    divided = item_split(dataset, card)
    domains = _held_out_domains(dataset, card)
    if divided is not None and domains:
        return divided.test, [
            f"Every class of this data was trained on, but no item of {domains}, and these are all of it: the figures "
            "say how known classes are told apart where they look otherwise, not how the model does on unseen ones."
        ]
    if divided is not None and len(divided.test):
        return divided.test, [
            "Every class of this data was trained on, and these are other items of them: the figures say how known "
            "classes are told apart, not how the model does on unseen ones."
        ]
    seen = np.isin(labels, [*card.classes.train, *card.classes.val])
    held_out = np.isin(labels, card.classes.test)
    if held_out.any() and dataset.fingerprint() == card.data.fingerprint:
        return np.flatnonzero(held_out), []
    if not seen.any():
        return np.arange(len(labels)), []
    if not seen.all():
        left_out = len(set(labels[seen]))
        return np.flatnonzero(~seen), [
            f"{left_out} classes of the data trained or validated the model and are left out: give data without the "
            "others to audit them."
        ]
    return np.arange(len(labels)), [
        "Every class of this data was trained on: these figures do not tell how the model does on unseen classes, nor "
        "on unseen items unless these were kept out of training."
    ]


def _held_out_domains(dataset: Dataset, card: Card) -> str:
    """The held-out domains that an audit is of, in words; empty: it is not of domains."""
    if item_split(dataset, card) is None or card.recipe["data"]["split"] != "domains":
        return ""
    names = card.recipe["data"]["test_domains"]
    return f"domain{'' if len(names) == 1 else 's'} {', '.join(names)}"


def seen_classes(dataset: Dataset, card: Card) -> dict[str, str]:
    """The classes of the data that had a part in training, in their order, to that part: "train" or "val"."""
    roles = dict.fromkeys(card.classes.val, "val") | dict.fromkeys(card.classes.train, "train")
    return {name: roles[name] for name in dataset.classes if name in roles}


def check_labels(embeddings: np.ndarray, labels: np.ndarray) -> None:
    """Refuse what no suite could measure."""
    if len(embeddings) != len(labels):
        raise DataError(f"There are {len(embeddings)} embeddings but {len(labels)} labels: pass one label each.")
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
        raise DataError(f"An audit needs at least two classes, but the labels have {len(counts)}: add items.")
    if not (counts > 1).any():
        raise DataError("No class has two items: an audit needs classes with at least two items each.")
    if (embeddings == embeddings[:1]).all():
        raise DataError(
            "All embeddings are identical, so there is nothing to measure: the model may have collapsed, or the array "
            "may never have been filled."
        )


def published_gallery(dataset: Dataset) -> np.ndarray | None:
    """The published query/gallery division (In-shop's `role` column) as a mask (n,), where the data set has one."""
    if not dataset.manifest.has("role"):
        return None
    role = dataset.manifest.column("role")
    gallery = role == "gallery"
    return gallery if gallery.any() and (role == "query").any() else None


def asked_and_searched(embeddings: np.ndarray, labels: np.ndarray, gallery: np.ndarray | None) -> dict[str, Any]:
    """The arguments of `retrieval_metrics` that say what is looked for and where: among themselves, or in a gallery.

    Args:
        embeddings: (n, d).
        labels: (n,).
        gallery: mask (n,) of the items that are searched; None: each item is searched for among all the others.
    """
    if gallery is None:
        return {"embeddings": embeddings, "labels": labels}
    return {
        "embeddings": embeddings[~gallery],
        "labels": labels[~gallery],
        "gallery": embeddings[gallery],
        "gallery_labels": labels[gallery],
    }


def embed_items(embedder: Embedder, dataset: Dataset, cache_directory: Path, progress: bool) -> np.ndarray:
    """Embeddings (n, d), from cached features where the whole backbone is frozen."""
    place = _cache_place(embedder)
    if place is None:
        return embedder.encode(dataset, progress=progress)
    return _kept_features(embedder, dataset, place, cache_directory, progress).encode(embedder, np.arange(len(dataset)))


def untrained_features(
    embedder: Embedder, dataset: Dataset, cache_directory: Path, progress: bool
) -> tuple[str, np.ndarray | None]:
    """What one would have without training, and its name: pretrained features, or else the pixels themselves."""
    if embedder.pretrained:
        return _PRETRAINED, _pretrained_features(embedder, dataset, cache_directory, progress)
    if dataset.kind != "image":
        return "", None
    images = [dataset.image(index).convert("L").resize((_SIDE, _SIDE)) for index in range(len(dataset))]
    grey = np.stack([np.asarray(image, dtype=np.float32).ravel() / 255.0 for image in images])
    return "raw pixels", grey - grey.mean(axis=1, keepdims=True)


def _pretrained_features(embedder: Embedder, dataset: Dataset, cache_directory: Path, progress: bool) -> np.ndarray:
    """What the backbone gave before training, (n, F)."""
    place, rows = _cache_place(embedder), np.arange(len(dataset))
    if place is not None and place[0] == POOLING:
        pooled = _kept_features(embedder, dataset, place, cache_directory, progress).gather(rows)
        return (pooled[POOLING] if isinstance(pooled, dict) else pooled).numpy()
    baseline = pretrained_baseline(embedder)  # before anything is encoded: its weights may be missing
    if place is None:
        return baseline.encode(dataset, progress=progress)
    return _kept_features(embedder, dataset, place, cache_directory, progress).encode(baseline, rows)


CachePlace = tuple[str, Literal["float32", "float16"]]


def _cache_place(embedder: Embedder) -> CachePlace | None:
    """Where the features of a frozen backbone are cached, and how precisely; None if they are not.

    Maps take much room: they are kept only for a model that was trained on cached ones, as precisely as those.
    """
    if embedder.frozen_upto != ALL:
        return None
    at, asked = cache_point(embedder), embedder.card.recipe.get("model", {})
    if at == POOLING and not embedder.attended_stages:
        return at, "float32"
    return (at, asked["cache_dtype"]) if asked.get("cache") else None


def _kept_features(
    embedder: Embedder, dataset: Dataset, place: CachePlace, directory: Path, progress: bool
) -> FeatureCache:
    at, dtype = place
    return FeatureCache.build(embedder, dataset, at=at, directory=directory, dtype=dtype, progress=progress)


def divide(subject: Subject, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the support and of the queries: the published division, or half of each class by a seed."""
    if subject.gallery is not None:
        return np.flatnonzero(subject.gallery), np.flatnonzero(~subject.gallery)
    return halves(subject.labels, seed)


def draw_rows(rows: np.ndarray, most: int, seed: int | tuple[int, int]) -> np.ndarray:
    """At most so many of the rows, ascending; the same for the same seed."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def leave_classes_out(labels: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Which of `rows` (r,) are of a random half of their classes, rounded up, bool (r,): the known half."""
    names = np.unique(labels[rows])
    known = np.random.default_rng(seed).permutation(len(names)) < (len(names) + 1) // 2
    return np.isin(labels[rows], names[known])
