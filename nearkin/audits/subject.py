"""What an audit looks at: embeddings with labels, wherever they came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from nearkin.audits.corrupted import CorruptedEncoder
from nearkin.audits.domain_parts import TrainedDomains, trained_domains
from nearkin.audits.local_encoder import LocalEncoder
from nearkin.audits.training_items import item_split, trained_embeddings
from nearkin.audits.untrained import Untrained
from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, MissingWeightsError
from nearkin.models import Embedder, FeatureCache, PixelReader, cache_point, pretrained_baseline
from nearkin.models.class_scores import ClassScores
from nearkin.models.embedder import ALL, POOLING
from nearkin.models.similarity_model import SimilarityModel
from nearkin.spaces import Space

_PRETRAINED = "pretrained features"


@dataclass(frozen=True, eq=False)
class Subject:
    """Embeddings under audit.

    Args:
        embeddings: (n, d).
        labels: (n,), of any type.
        space: how two of them are compared.
        gallery: mask (n,) of the items that are searched; None: each item is searched for among all the others.
        picture: index to an image to show, or None when there is nothing to look at.
        baseline: other embeddings of the same items, to compare with.
        baseline_name: what these are.
        facts: what to tell about model and data.
        notes: what a reader must know of how the items were chosen.
        own_data: whether the items are those that were held out when the model was trained.
        seen: the classes among the labels that had a part in training, each with it: "train", or "val" for those that
            the weights were chosen on.
        corrupted: from a corruption, a severity and rows (r,) to the embeddings (r, d) of these items so corrupted;
            None when there are no images to corrupt.
        corrupted_baseline: the same of the baseline embeddings; None where these are no pretrained features.
        local: gives the local features that the model pools, of any of the items; None when there is no model.
        hierarchy: a tree over the classes; None when nobody gave one.
        proxies: names of training classes and the points (C, d) that stood for them; None when there are none.
        known: gives embeddings (m, d) and labels (m,) of the items that a model of seen classes was trained on.
        untrained: gives what these items, or without them the audited ones, look like before anything is learned.
        learned: the model itself where it compares by a learned similarity; None otherwise.
        model: what made the embeddings; None where nobody knows.
        pixels: from rows (r,) to the pixels (r, C, H, W) in [0, 1] that the model sees of these items; None when there
            are no images.
        class_scores: how the loss that the model was trained by scores the classes it knew; None where nobody knows.
        domains: the domain (n,) of each item; None where the data has none.
        trained_domains: what training had to do with domains; None where nobody knows.
        trained: gives embeddings (m, d) of other items, which the model was trained on; None where there are none.
        progress: whether suites that take long show a bar.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    space: Space
    gallery: np.ndarray | None = None
    picture: Callable[[int], Image.Image] | None = None
    baseline: np.ndarray | None = None
    baseline_name: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    own_data: bool = False
    seen: dict[str, str] = field(default_factory=dict)
    corrupted: Callable[[str, int, np.ndarray], np.ndarray] | None = None
    corrupted_baseline: Callable[[str, int, np.ndarray], np.ndarray] | None = None
    local: LocalEncoder | None = None
    hierarchy: Hierarchy | None = None
    proxies: tuple[tuple[str, ...], np.ndarray] | None = None
    known: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    untrained: Untrained | None = None
    learned: SimilarityModel | None = None
    model: Embedder | None = None
    pixels: Callable[[np.ndarray], Tensor] | None = None
    class_scores: ClassScores | None = None
    domains: np.ndarray | None = None
    trained_domains: TrainedDomains | None = None
    trained: Callable[[], np.ndarray] | None = None
    progress: bool = True


def subject_of_model(
    embedder: Embedder, dataset: Dataset, *, cache_directory: Path, baseline: bool = True, progress: bool = True
) -> Subject:
    """Encode the part of a data set that the model has not been trained on.

    Args:
        embedder: the model.
        dataset: all the data.
        cache_directory: where the features of a frozen backbone are kept, for the next audit of the same data.
        baseline: also encode what one would have without training.
        progress: whether to show bars.
    """
    card = embedder.card
    chosen, notes = unseen_items(dataset, card)
    own_data = dataset.fingerprint() == card.get("data", {}).get("fingerprint")
    if not card.get("finished", True):
        notes.append(f"Training was stopped at step {card['steps']} and can be resumed.")
    if own_data and card.get("selected_on") == "test classes":
        notes.append(
            "Test-selected: the model's weights were chosen on these very classes, so the figures of the trained "
            "model are optimistic."
        )
    known = set(card.get("started_from", {}).get("classes", [])) & set(dataset.labels[chosen])
    if known:
        notes.append(
            f"The backbone began with the weights of a model that was trained on {len(known)} of these classes, so "
            "figures are optimistic."
        )
    part = dataset.select(chosen)
    seen = seen_classes(part, card)
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
        "data": _data_name(part, dataset, card),
        "classes": str(len(part.classes)),
        "items": str(len(part)),
        "backbone": embedder.backbone_name,
        "dimensions": str(embeddings.shape[1]),
    }
    if seen:
        trained, validated = (list(seen.values()).count(role) for role in ("train", "val"))
        facts["classes seen in training"] = f"{trained} trained, {validated} validated"
    return Subject(
        embeddings,
        part.labels,
        embedder.space,
        gallery=published_gallery(part),
        picture=part.image if part.kind == "image" else None,
        baseline=untrained,
        baseline_name=name,
        facts=facts,
        notes=notes,
        own_data=own_data,
        seen=seen,
        corrupted=CorruptedEncoder(embedder, part, cache_directory / "corrupted") if part.kind == "image" else None,
        corrupted_baseline=_corrupted_baseline(embedder, part, cache_directory) if name == _PRETRAINED else None,
        local=LocalEncoder(embedder, part),
        known=_known_items(embedder, dataset, cache_directory, progress),
        untrained=_untrained(embedder, dataset, part, cache_directory, progress),
        domains=part.manifest.column(COLUMN) if part.manifest.has(COLUMN) else None,
        trained_domains=trained_domains(
            card,
            dataset,
            item_split(dataset, card),
            lambda items: embed_items(embedder, items, cache_directory, progress),
            lambda items: untrained_features(embedder, items, cache_directory, progress)[1] if name else None,
        ),
        trained=trained_embeddings(
            dataset, card, chosen, lambda items: embed_items(embedder, items, cache_directory, progress)
        ),
        learned=embedder if isinstance(embedder, SimilarityModel) else None,
        model=embedder,
        pixels=PixelReader(embedder, part) if part.kind == "image" else None,
        progress=progress,
    )


def _corrupted_baseline(
    embedder: Embedder, part: Dataset, cache_directory: Path
) -> Callable[[str, int, np.ndarray], np.ndarray]:
    """What embeds corrupted items by the pretrained features; the network is made when it is first asked."""

    @cache
    def encoder() -> CorruptedEncoder:
        return CorruptedEncoder(pretrained_baseline(embedder), part, cache_directory / "corrupted")

    return lambda name, severity, rows: encoder()(name, severity, rows)


def unseen_items(dataset: Dataset, card: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Indices of the items whose class played no part in training, and what to say about the choice.

    Where the card has held-out classes that the data has too, these; else every class that did not train; and if the
    data has none of those, everything, labelled as such.
    """
    classes = card.get("classes", {})
    labels = dataset.labels
    divided = item_split(dataset, card)
    if divided is not None and card["recipe"]["data"]["split"] == "domains":
        absent = _named_domains(card)
        return divided.test, [
            f"Every class of this data was trained on, but no item of {absent}, and these are all of it: the figures "
            "say how known classes are told apart where they look otherwise, not how the model does on unseen ones."
        ]
    if divided is not None and len(divided.test):
        return divided.test, [
            "Every class of this data was trained on, and these are other items of them: the figures say how known "
            "classes are told apart, not how the model does on unseen ones."
        ]
    seen = np.isin(labels, [*classes.get("train", []), *classes.get("val", [])])
    held_out = np.isin(labels, classes.get("test", []))
    if held_out.any() and dataset.fingerprint() == card.get("data", {}).get("fingerprint"):
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


def _data_name(part: Dataset, dataset: Dataset, card: dict[str, Any]) -> str:
    """The data's name, with the domains that an audit of held-out ones is of: two such audits are of different data."""
    divided = item_split(dataset, card)
    if divided is None or card["recipe"]["data"]["split"] != "domains":
        return part.name
    return f"{part.name}, {_named_domains(card)}"


def _named_domains(card: dict[str, Any]) -> str:
    """The held-out domains of a model, in words."""
    names = card["recipe"]["data"]["test_domains"]
    return f"domain{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _known_items(
    embedder: Embedder, dataset: Dataset, cache_directory: Path, progress: bool
) -> Callable[[], tuple[np.ndarray, np.ndarray]] | None:
    """What gives the training items of a model of seen classes; None for other models and for other data."""
    divided = item_split(dataset, embedder.card)
    if divided is None:
        return None
    part = dataset.select(divided.train)

    def known() -> tuple[np.ndarray, np.ndarray]:
        return embed_items(embedder, part, cache_directory, progress), part.labels

    return known


def _untrained(embedder: Embedder, dataset: Dataset, part: Dataset, cache_directory: Path, progress: bool) -> Untrained:
    """Views of the training items of a model of seen classes, or else of the audited part."""
    divided = item_split(dataset, embedder.card)
    reference = part if divided is None else dataset.select(divided.train)

    def baseline() -> np.ndarray | None:
        return untrained_features(embedder, reference, cache_directory, progress)[1]

    return Untrained(embedder, reference, baseline, progress)


def seen_classes(dataset: Dataset, card: dict[str, Any]) -> dict[str, str]:
    """The classes of the data that had a part in training, in their order, to that part: "train" or "val"."""
    roles = {name: role for role in ("val", "train") for name in card.get("classes", {}).get(role, [])}
    return {name: roles[name] for name in dataset.classes if name in roles}


def check_labels(embeddings: np.ndarray, labels: np.ndarray) -> None:
    """Refuse what no suite could measure."""
    if len(embeddings) != len(labels):
        raise DataError(f"There are {len(embeddings)} embeddings and {len(labels)} labels: give one label each.")
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
        raise DataError(f"An audit needs at least two classes, but the labels name {len(counts)}: add items of others.")
    if not (counts > 1).any():
        raise DataError("No class has two items: an audit needs classes with at least two items each.")
    if (embeddings == embeddings[:1]).all():
        raise DataError(
            "Every embedding is the same point, so there is nothing to measure: check what made them, such as a model "
            "that collapsed or an array that was never filled."
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
    place = _kept_place(embedder)
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
    return "raw pixels", np.stack([_pixels(dataset.image(index)) for index in range(len(dataset))])


def _pretrained_features(embedder: Embedder, dataset: Dataset, cache_directory: Path, progress: bool) -> np.ndarray:
    """What the backbone gave before training, (n, F)."""
    place, rows = _kept_place(embedder), np.arange(len(dataset))
    if place == POOLING:
        pooled = _kept_features(embedder, dataset, place, cache_directory, progress).gather(rows)
        return (pooled[POOLING] if isinstance(pooled, dict) else pooled).numpy()
    baseline = pretrained_baseline(embedder)  # before anything is encoded: its weights may be missing
    if place is None:
        return baseline.encode(dataset, progress=progress)
    return _kept_features(embedder, dataset, place, cache_directory, progress).encode(baseline, rows)


def _kept_place(embedder: Embedder) -> str | None:
    """Where the features of a frozen backbone are cached; None: it is not frozen, or only maps could be kept unasked.

    Maps take much room: they are kept only for a model that was trained on cached ones.
    """
    if embedder.frozen_upto != ALL:
        return None
    at = cache_point(embedder)
    return None if _keeps_maps(embedder, at) and not _asked(embedder).get("cache") else at


def _kept_features(
    embedder: Embedder, dataset: Dataset, at: str, cache_directory: Path, progress: bool
) -> FeatureCache:
    """The cached features of a frozen backbone; maps as precise as those that it was trained on."""
    dtype: Literal["float32", "float16"] = _asked(embedder)["cache_dtype"] if _keeps_maps(embedder, at) else "float32"
    return FeatureCache.build(embedder, dataset, at=at, directory=cache_directory, dtype=dtype, progress=progress)


def _keeps_maps(embedder: Embedder, at: str) -> bool:
    return at != POOLING or bool(embedder.attended_stages)


def _asked(embedder: Embedder) -> dict[str, Any]:
    """The model section of the recipe that a model was trained by; empty if there was none."""
    return embedder.card.get("recipe", {}).get("model", {})


def _pixels(image: Image.Image, side: int = 28) -> np.ndarray:
    grey = np.asarray(image.convert("L").resize((side, side)), dtype=np.float32).ravel() / 255.0
    return grey - grey.mean()
