"""Another head for a trained model: shorter embeddings, or principal directions re-weighted; nothing else changes.

With the head `W u + b`, the first k dimensions are its first k rows, and principal components are the head
`P W u + P (b - c)`, P (k, d) being the directions and c their centre: nothing is computed in addition when a sample is
encoded. When to use which: docs/guide/short-embeddings.md. Re-weighting `M (f - m)` is the head `M W u + M (b - m)`:
docs/methods/principal-reweighting.md.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from nearkin.checks import is_whole
from nearkin.errors import DataError, ModelError
from nearkin.spaces import Euclidean, PrincipalReweighting, PrincipalRotation
from nearkin.spaces.principal import check_turnable

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


def first_dimensions(embedder: Embedder, dimension: int) -> Embedder:
    """A copy of a model that gives the first dimensions of its raw embeddings; its card says so.

    Use when: the model was trained with `objective.prefixes`, or to see what that would be worth.

    Args:
        embedder: any model but one with a learned similarity; in any space.
        dimension: how many dimensions are left, below the model's own.
    """
    check_shorter(embedder, dimension)
    rows = np.eye(dimension, embedder.dimension)
    return _with_head(embedder, rows, np.zeros(embedder.dimension), {"method": "prefix"})


def principal_components(
    embedder: Embedder, points: np.ndarray, dimension: int, *, fitted_on: str = "given points"
) -> Embedder:
    """A copy of a model that gives the principal components of its embeddings; its card says how much these keep.

    Use when: the model was trained without prefixes, and on the sphere or in Euclidean space.

    Args:
        embedder: any model but one with a learned similarity.
        points: embeddings (n, d) as `encode` gives them, of items that nothing is measured on afterwards, such as those
            the model was trained on; at least as many as dimensions are left.
        dimension: how many dimensions are left, below the model's own.
        fitted_on: what these items are, for the card.
    """
    check_shorter(embedder, dimension)
    check_turnable(embedder.space)
    if len(points) < dimension:
        raise DataError(
            f"{dimension} principal components need at least as many items, and there are {len(points)}: bring more, "
            "or keep fewer dimensions."
        )
    rotation = PrincipalRotation(embedder.space).fit(points)
    facts = {
        "method": "pca",
        "kept": round(float(rotation.kept_[dimension - 1]), 6),
        "fitted_on": fitted_on,
        "items": len(points),
    }
    return _with_head(embedder, rotation.components_[:dimension], rotation.centre_, facts)


def reweighted(embedder: Embedder, change: PrincipalReweighting, **facts: Any) -> Embedder:
    """A copy of a model whose raw embeddings have their principal directions re-weighted; its card says how.

    Raw embeddings are changed, before the space projects them: on the sphere too this is a linear head.

    Reference: Kim 2023, section 6.2.3.

    Args:
        embedder: any model but one with a learned similarity.
        change: fitted on raw embeddings of the model, see `raw_embeddings`.
        facts: what else the card tells, such as what it was fitted on.
    """
    check_head(embedder, "re-weighted")
    matrix = (change.components_.T * change.weights_) @ change.components_
    told = {"power": change.power} if change.weights is None else {"weights": change.weights_.tolist()}
    return _with_head(embedder, matrix, change.mean_, told | facts, "reweighted")


def raw_embeddings(embedder: Embedder) -> Embedder:
    """The same model in Euclidean space, where `encode` gives what the head does; weights are shared."""
    raw = copy.copy(embedder)
    raw.space = Euclidean()
    return raw


def check_head(embedder: Embedder, done: str) -> None:
    """Refuse a model whose head cannot be shortened, or re-weighted, as `done` says."""
    from nearkin.models.similarity_model import SimilarityModel

    if isinstance(embedder, SimilarityModel):
        raise ModelError(
            f"A model with a learned similarity compares whole embeddings and cannot be {done}: train it with the "
            "model.dimension you need, or take a model without one."
        )
    if not isinstance(embedder.head, nn.Linear | nn.Identity):
        raise ModelError(f"Only a linear head or none can be {done}, not {type(embedder.head).__name__}.")


def check_shorter(embedder: Embedder, dimension: int) -> None:
    """Refuse a model that cannot be shortened, and a size that is not below its own."""
    check_head(embedder, "shortened")
    if not is_whole(dimension) or not 1 <= dimension < embedder.dimension:
        raise ModelError(
            f"A shorter embedding has 1 to {embedder.dimension - 1} dimensions, as the model's has "
            f"{embedder.dimension}: {dimension!r} is not among these."
        )


def _with_head(
    embedder: Embedder, rows: np.ndarray, centre: np.ndarray, facts: dict[str, Any], what: str = "shortened"
) -> Embedder:
    """A copy of a model whose raw embeddings are `rows` (k, d) times those of the model minus a centre (d,).

    What was done is the card's field of that name.
    """
    shorter = copy.deepcopy(embedder)
    like = next(embedder.parameters())
    matrix, shift = torch.from_numpy(rows), -torch.from_numpy(rows @ centre)
    if isinstance(embedder.head, nn.Linear):
        weight = matrix @ embedder.head.weight.detach().cpu().double()
        if embedder.head.bias is not None:
            shift = shift + matrix @ embedder.head.bias.detach().cpu().double()
    else:
        weight = matrix
    head = nn.Linear(weight.shape[1], len(rows)).to(like)
    with torch.no_grad():
        head.weight.copy_(weight)
        # A bias even where there was none: a saved linear head has one.
        head.bias.copy_(shift)
    shorter.head = head.train(embedder.head.training)
    earlier = getattr(shorter.card, what)
    before = {} if earlier is None else {"before": earlier}
    facts = {"of": embedder.fingerprint(), "dimension": embedder.dimension} | facts | before
    told: dict[str, Any] = {what: facts}
    shorter.card = replace(shorter.card, **told)
    return shorter
