"""How run.py trains a model and judges it: naming classes, pairs of items, neighbours, episodes."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from nearkin.audits.subject import embed_items
from nearkin.data.catalogue import cache_directory
from nearkin.data.dataset import Dataset
from nearkin.data.splits import resolve_split
from nearkin.metrics import retrieval_metrics, verification_from_scores
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.models import Embedder, build_embedder
from nearkin.models.similarity_model import SimilarityModel
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.recipe import Recipe
from nearkin.training import Run, train

RECALLS = (1, 2, 4, 8, 16)
SETTINGS = ((5, 1), (5, 5), (20, 1))
"""Ways and shots of few-shot tests."""
TEST_EPISODES, TEST_QUERIES, TEST_SEED = 600, 15, 9
"""As in fewshot/run.py, so that its figures are of the same episodes."""
SCORES = ("cosine", "SIM", "cosine + SIM")
RESAMPLES = 300
FALSE_RATES = ndtr(np.linspace(-3.2, 1.3, 46))
"""False positive rates at which a DET curve is kept."""

Measure = Callable[[Embedder, nn.Module | None, Recipe, Dataset, tuple[str, ...]], dict[str, Any]]
"""Model, loss, recipe, test items in the order of their classes and training classes, to what a line says."""


def run_cell(dataset: Dataset, recipe: Recipe, measure: Measure) -> dict[str, Any]:
    """Train one model and judge it on the test items."""
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        result = train(
            dataset, recipe, run, source="benchmark", cache_directory=_features(), split=split, progress=False
        )
        history = run.history()
    if result.interrupted:
        raise SystemExit(130)
    asked, known = _by_class(dataset.select(split.test)), dataset.select(split.train)
    loss = result.objective.loss
    found = measure(result.embedder.eval(), loss, recipe, asked, tuple(known.classes))
    best = next((row for row in history if row["step"] == result.state.best_step and "val_MAP@R" in row), {})
    validated = {f"validation {name}": best[f"val_{name}"] for name in ("accuracy", "MAP@R") if f"val_{name}" in best}
    learned = {id(value): value for model in (result.embedder, loss) for value in model.parameters()}
    return {
        "seconds": round(result.state.seconds, 1),
        "best_step": result.state.best_step,
        "parameters": sum(value.numel() for value in learned.values() if value.requires_grad),
        "items": {"train": len(known), "val": len(split.val), "test": len(asked)},
        "classes": len(known.classes),
        **found,
        "values": {name: round(float(value), 5) for name, value in (found["values"] | validated).items()},
    }


def run_untrained(dataset: Dataset, recipe: Recipe, measure: Measure) -> dict[str, Any]:
    """Judge the pretrained features themselves."""
    split = resolve_split(dataset.manifest, recipe.data, recipe.training.seed)
    asked, known = _by_class(dataset.select(split.test)), dataset.select(split.train)
    embedder = build_embedder(recipe.model, seed=recipe.training.seed).eval()
    found = measure(embedder, None, recipe, asked, tuple(known.classes))
    return {
        "seconds": 0.0,
        "best_step": 0,
        "parameters": 0,
        "items": {"train": 0, "val": 0, "test": len(asked)},
        "classes": len(known.classes),
        **found,
        "values": {name: round(float(value), 5) for name, value in found["values"].items()},
    }


@torch.no_grad()
def classes_named(
    embedder: Embedder, loss: nn.Module | None, recipe: Recipe, asked: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Accuracy on classes that were trained on, by each way to name them, and which items were right."""
    points = torch.from_numpy(embed_items(embedder, asked, _features(), progress=False))
    ids = {name: place for place, name in enumerate(names)}
    truth = np.array([ids[label] for label in asked.labels])
    right = {}
    for way, scores in _class_scores(embedder, loss, recipe, points).items():
        right[f"accuracy, {way}"] = scores.argmax(dim=1).numpy() == truth
    return {
        "values": {name: hits.mean() for name, hits in right.items()},
        "right": {name: pack(hits) for name, hits in right.items()},
        "sizes": _sizes(asked),
    }


@torch.no_grad()
def pairs_verified(
    embedder: Embedder, loss: nn.Module | None, recipe: Recipe, asked: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Equal error rates of all pairs of unseen speakers' recordings, the first enrolled, and how they vary."""
    points = embedder.encode(asked, progress=False)
    _, codes = np.unique(asked.labels, return_inverse=True)
    first, second = np.triu_indices(len(points), k=1)
    scored = pair_scores(embedder, points, first, second)
    values, curves, resampled = {}, {}, {}
    same = codes[first] == codes[second]
    for name, scores in scored.items():
        found = verification_from_scores(scores, same)
        values |= {f"{measure}, {name}": found.values[measure] for measure in ("EER", "minDCF")}
        order = np.argsort(scores, kind="stable")[::-1]
        curves[name] = np.interp(FALSE_RATES, *_error_curve(scores[order], same[order])).round(5).tolist()
        drawn = resampled_errors(scores, codes[first], codes[second], RESAMPLES)
        resampled[f"EER, {name}"] = drawn.round(5).tolist()
    return {"values": values, "det": curves, "resampled": resampled}


def pair_scores(embedder: Embedder, points: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """What pairs of embeddings (n, d) score, (pairs,) each: by cosine, and where it was learned by similarity."""
    if not isinstance(embedder, SimilarityModel):
        directions = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
        return {SCORES[0]: (directions @ directions.T)[first, second].astype(np.float64)}
    blocks = np.array_split(np.arange(len(first)), max(1, len(first) // 16384))
    return {
        name: np.concatenate(
            [embedder.pair_scores(points[first[block]], points[second[block]], by=by) for block in blocks]
        ).astype(np.float64)
        for name, by in zip(SCORES, ("cosine", "sim", "cosine+sim"), strict=True)
    }


@torch.no_grad()
def items_found(
    embedder: Embedder, loss: nn.Module | None, recipe: Recipe, asked: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Recall@k of unseen classes, each item looked for among all others, and for which of them the first was right."""
    points = embed_items(embedder, asked, _features(), progress=False)
    spaces: dict[str, Any] = {"cosine": "cosine"}
    if isinstance(embedder, SimilarityModel):
        spaces["SIM"] = embedder.space
    elif loss is not None and embedder.space.name == "euclidean":
        spaces["distance"] = embedder.space
    values, right = {}, {}
    for name, space in spaces.items():
        found = retrieval_metrics(points, asked.labels, metrics=[f"Recall@{k}" for k in RECALLS], space=space)
        values |= {f"{measure}, {name}": value for measure, value in found.values.items()}
        right[f"Recall@1, {name}"] = pack(found.per_query["Recall@1"] > 0.5)
    return {"values": values, "right": right, "sizes": _sizes(asked)}


@torch.no_grad()
def episodes_answered(
    embedder: Embedder, loss: nn.Module | None, recipe: Recipe, asked: Dataset, names: tuple[str, ...]
) -> dict[str, Any]:
    """Accuracy of episodes of unseen classes, the prototypes replaced by means of the support; the same episodes."""
    points = embedder.encode(asked, progress=False)
    ways: dict[str, dict[str, Any]] = {"cosine": {"space": "sphere"}, "distance": {"space": "euclidean"}}
    if isinstance(embedder, SimilarityModel):
        network = embedder.network

        def similarity(support: Tensor, query: Tensor) -> Tensor:
            return network.table(query, support.mean(dim=2))

        ways["SIM"] = {"representation": similarity}
    values, differences = {}, {}
    for way, shot in SETTINGS:
        setting = f"{way}-way {shot}-shot"
        drawn = {"way": way, "shot": shot, "query": TEST_QUERIES, "episodes": TEST_EPISODES, "seed": TEST_SEED}
        found = {name: fewshot_accuracy(points, asked.labels, **drawn, **how) for name, how in ways.items()}
        values |= {f"{setting}, {name}": result.accuracy for name, result in found.items()}
        if "SIM" in found:
            for other in ("cosine", "distance"):
                gap = found["SIM"].minus(found[other])
                told = [round(value, 5) for value in (gap.difference, *gap.interval)]
                differences[f"{setting}, SIM - {other}"] = told
    return {"values": values, "episodes": differences}


def resampled_errors(scores: np.ndarray, first: np.ndarray, second: np.ndarray, resamples: int) -> np.ndarray:
    """Equal error rates (resamples,) with speakers drawn with replacement, the same ones in every call.

    A speaker drawn w times counts w times in genuine pairs, and in pairs with one drawn v times w v times.

    Args:
        scores: of pairs (n,), higher is more alike.
        first: speaker of the first of each pair, (n,), whole numbers from 0.
        second: likewise.
        resamples: how many.
    """
    order = np.argsort(scores, kind="stable")[::-1]
    scores, first, second = scores[order], first[order], second[order]
    same, speakers = first == second, int(max(first.max(), second.max())) + 1
    rng, found = np.random.default_rng(0), []
    for _ in range(resamples):
        weights = np.bincount(rng.integers(speakers, size=speakers), minlength=speakers).astype(np.float64)
        pairs = np.where(same, weights[first], weights[first] * weights[second])
        found.append(equal_error(*_error_curve(scores, same, pairs)))
    return np.array(found)


def equal_error(accepted: np.ndarray, refused: np.ndarray) -> float:
    """Where the two error rates of a curve are equal, between two points by a line."""
    after = int(np.argmax(accepted >= refused))
    if after == 0:
        return float(accepted[0])
    gap = refused - accepted
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(accepted[after - 1] + share * (accepted[after] - accepted[after - 1]))


def _error_curve(scores: np.ndarray, same: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """False positive rates, ascending, and false negative rates of thresholds between scores (n,), descending."""
    weights = np.ones(len(scores)) if weights is None else weights
    genuine, others = (np.cumsum(np.where(kind, weights, 0.0)) for kind in (same, ~same))
    last = np.append(scores[1:] < scores[:-1], True)  # equal scores are accepted together
    accepted, refused = others[last] / others[-1], 1.0 - genuine[last] / genuine[-1]
    return np.append(0.0, accepted), np.append(1.0, refused)


def pack(hits: np.ndarray) -> str:
    """Right or wrong (n,) as text."""
    return base64.b64encode(np.packbits(hits.astype(bool)).tobytes()).decode()


def unpack(text: str, count: int) -> np.ndarray:
    """The reverse of `pack`: bool (count,)."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count).astype(bool)


def _class_scores(embedder: Embedder, loss: nn.Module | None, recipe: Recipe, points: Tensor) -> Mapping[str, Tensor]:
    if isinstance(embedder, SimilarityModel):
        found = {"SIM": embedder.class_scores(points, "sim")}
        if recipe.objective.parameters.get("auxiliary_weight", 1.0) > 0:
            found["DOL"] = embedder.class_scores(points, "dol")
        return found
    if not isinstance(loss, ClassVectors):
        raise SystemExit(f"The loss of {recipe.name} cannot name classes.")
    return {"softmax": loss.class_scores(points)}


def _by_class(dataset: Dataset) -> Dataset:
    return dataset.select(np.argsort(dataset.labels.astype(str), kind="stable"))


def _sizes(dataset: Dataset) -> list[int]:
    """Items of each class, in the order of `_by_class`."""
    return np.unique(dataset.labels.astype(str), return_counts=True)[1].tolist()


def _features() -> Path:
    return cache_directory() / "features"
