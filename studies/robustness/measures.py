"""How run.py judges a model: accuracy under attacks that must agree, and the geometry of its features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.attacks import (
    Classifier,
    PixelEmbedder,
    attack_classifier,
    class_codes,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.attacks.library import published_attack
from nearkin.data.dataset import Dataset
from nearkin.metrics.geometry import distance_correlation, geometry_metrics
from nearkin.models import Embedder, PixelReader, SimilarityModel
from studies.unified.measures import pack

ATTACKED = 500
"""Test items that are attacked, the same for every model."""
EPSILONS = (0.1, 0.3)
PUBLISHED = {"FGSM (1)": ("fgsm", None), "PGD (40)": ("pgd", 40), "PGD (100)": ("pgd", 100)}
STRONG_STEPS, RESTARTS, SQUARE_QUERIES = 200, 3, 1000
STRONG, SQUARE, WORST = "PGD (200) on the margin, 3 restarts", "Square (1000 queries)", "worst of all"
GEOMETRY_ITEMS = 1000
SEED = 0


def draw(dataset: Dataset, count: int) -> np.ndarray:
    """So many rows, the same for all who ask."""
    return np.sort(np.random.default_rng(SEED).choice(len(dataset), min(count, len(dataset)), replace=False))


def classifiers_of(embedder: Embedder, loss: nn.Module | None, names: tuple[str, ...]) -> dict[str, Classifier]:
    """Every way that a model has to name classes."""
    if isinstance(embedder, SimilarityModel):
        return {"SIM": classifier_of_similarity(embedder, "sim"), "DOL": classifier_of_similarity(embedder, "dol")}
    assert loss is not None
    scores = loss.eval().class_scores
    return {"softmax": classifier_of_scores(embedder, scores, names)}


def under_attack(
    embedder: Embedder, loss: nn.Module | None, asked: Dataset, known: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Accuracy on a fixed sample, clean and under each attack, of every way to name classes."""
    rows = draw(asked, ATTACKED)
    pixels = PixelReader(embedder, asked)(rows)
    ways = classifiers_of(embedder, loss, names)
    codes = class_codes(names, asked.labels[rows])
    hits: dict[str, np.ndarray] = {}
    for way, classifier in ways.items():
        hits[f"{way}, clean"] = answered(classifier, pixels, codes)
        for eps in EPSILONS:
            hits |= _attacked(way, classifier, pixels, codes, eps, ways)
    return {
        "values": {name: float(right.mean()) for name, right in hits.items()},
        "right": {name: pack(right) for name, right in hits.items()},
        "attacked": len(rows),
    }


def _attacked(
    way: str, classifier: Classifier, pixels: Tensor, codes: Tensor, eps: float, ways: dict[str, Classifier]
) -> dict[str, np.ndarray]:
    """Which items stay right (n,) at one epsilon: attacks of the paper, stronger ones, and those on other ways."""
    held: dict[str, np.ndarray] = {}
    found: dict[str, Tensor] = {}
    for name, (attack, steps) in PUBLISHED.items():
        done = published_attack(attack, classifier, pixels, codes, eps, steps=steps, seed=SEED, batch_size=250)
        held[f"{way}, {name} {eps:g}"], found[name] = ~done.wrong.numpy(), done.pixels
    strong = attack_classifier(
        classifier, pixels, codes, eps, raised="margin", steps=STRONG_STEPS, restarts=RESTARTS, seed=SEED,
        batch_size=250,
    )  # fmt: skip
    held[f"{way}, {STRONG} {eps:g}"] = ~strong.reached.numpy()
    square = published_attack("square", classifier, pixels, codes, eps, steps=SQUARE_QUERIES, seed=SEED, batch_size=500)
    held[f"{way}, {SQUARE} {eps:g}"] = ~square.wrong.numpy()
    for other, source in ways.items():
        if other != way:
            moved = published_attack("pgd", source, pixels, codes, eps, steps=100, seed=SEED, batch_size=250).pixels
            held[f"{way}, transferred from {other} {eps:g}"] = answered(classifier, moved, codes)
    clean = answered(classifier, pixels, codes)
    held[f"{way}, {WORST} {eps:g}"] = np.logical_and.reduce([clean, *held.values()])
    return held


@torch.no_grad()
def answered(classifier: Classifier, pixels: Tensor, codes: Tensor) -> np.ndarray:
    """Which images (n,) are named right."""
    return torch.cat([classifier(part).argmax(dim=1) for part in pixels.split(250)]).eq(codes).numpy()


def geometry_of(
    embedder: Embedder, loss: nn.Module | None, asked: Dataset, known: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Geometry of training features, how they resemble input distances, and test accuracy, clean and attacked."""
    rows = draw(asked, ATTACKED)
    pixels = PixelReader(embedder, asked)(rows)
    (classifier,) = classifiers_of(embedder, loss, names).values()
    codes = class_codes(names, asked.labels[rows])
    values = {"accuracy": float(answered(classifier, pixels, codes).mean())}
    for norm, eps in (("l2", 0.5), ("linf", 8 / 255)):
        done = attack_classifier(classifier, pixels, codes, eps, norm=norm, raised="margin", steps=40, batch_size=250)
        values[f"accuracy, {norm} {eps:.3g}"] = float((~done.reached).float().mean())
    return {"values": values | _geometry(embedder, known)}


def _geometry(embedder: Embedder, known: Dataset) -> dict[str, float]:
    """The measures of tables 5.1 and 5.4 on training items, which the seed's tables are about."""
    rows = draw(known, GEOMETRY_ITEMS)
    pixels = PixelReader(embedder, known)(rows)
    with torch.no_grad():
        model = PixelEmbedder(embedder)
        features = torch.cat([model(part) for part in pixels.split(250)]).numpy()
    found = dict(geometry_metrics(features, known.labels[rows]))
    for norm in ("l2", "linf"):
        # Of features as they are, by their Euclidean distance; the measures above normalise them.
        found[f"MC, {norm}"] = float(distance_correlation(pixels, features, norm=norm).value)
    return found
