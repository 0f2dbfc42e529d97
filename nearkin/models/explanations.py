"""Where a model looks: what each position of the pooled map has to do with the embedding.

weights: the share w_j that the pooling itself gives position j, sum_j w_j = 1.
contribution: c_j = <d(e.u)/df_j, f_j>, e the raw embedding, u = e / |e| held fixed: how far f_j pushes e its own way.
prototypes: how much of prototype m the pooling takes at position j, for poolings that have prototypes.

With average pooling and the head W, c_j = <W f_j, u> / n exactly. With every pooling that doubles when its map does
(average, maximum, GeM, their sums), the c_j add up to |e| less what the bias of the head adds: Euler's theorem on
homogeneous functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.embedder import Embedder
from nearkin.registry import Registry

explanations: Registry[Callable[[Embedder, Tensor], Tensor]] = Registry("explanation")
"""Kinds of maps by name: from a model and normalised inputs (B, C, H, W) to (B, h, w), or (B, M, h, w) for M parts."""

_EVEN = 0.01
"""Weights within this of average pooling's, as a share of them, tell nothing."""


@explanations.register("weights")
def position_weights(embedder: Embedder, x: Tensor) -> Tensor:
    """The pooling's own weights (B, h, w), summing to 1, for normalised inputs (B, C, H, W).

    Raises:
        ModelError: this pooling gives its positions no weights.
    """
    with _evaluating(embedder), torch.no_grad():
        weights = embedder.pooling.weights(embedder.local_features(x))
    if weights is None:
        raise ModelError(
            f"The pooling '{_name(embedder)}' gives positions no weights of their own: ask for 'contribution' instead."
        )
    return weights


@explanations.register("contribution")
def contributions(embedder: Embedder, x: Tensor) -> Tensor:
    """How much each position adds to the embedding, (B, h, w), signed, for normalised inputs (B, C, H, W).

    Gradient times input on the pooled map; see the head of this file. Zero where the embedding is zero.

    Raises:
        ModelError: no gradient passes this pooling.
    """
    with _evaluating(embedder), torch.inference_mode(False):
        with torch.no_grad():
            features = embedder.local_features(x)
        with torch.enable_grad():
            # A copy: a map that was made in inference mode takes no gradient.
            features = features.detach().clone().requires_grad_()
            raw = embedder.head(embedder.pooling(features))
            if not raw.requires_grad:
                raise ModelError(
                    f"No gradient passes the pooling '{_name(embedder)}', so contributions cannot be told: ask for "
                    "'weights' instead."
                )
            own_way = torch.nn.functional.normalize(raw.detach(), dim=1)
            (slope,) = torch.autograd.grad((raw * own_way).sum(), features)
    return (slope * features.detach()).sum(1)


@explanations.register("prototypes")
def prototype_shares(embedder: Embedder, x: Tensor) -> Tensor:
    """How much of each prototype is pooled where, (B, M, h, w), summing to 1, for normalised inputs (B, C, H, W).

    Raises:
        ModelError: this pooling has no prototypes.
    """
    plan = getattr(embedder.pooling, "plan", None)
    if plan is None:
        raise ModelError(
            f"The pooling '{_name(embedder)}' has no prototypes to tell apart: ask for 'contribution' instead, or "
            "train with the pooling 'gsp'."
        )
    with _evaluating(embedder), torch.no_grad():
        taken: Tensor = plan(embedder.local_features(x))
    return taken / taken.sum((1, 2, 3), keepdim=True).clamp_min(torch.finfo(taken.dtype).tiny)


def usual_explanation(embedder: Embedder, x: Tensor) -> str:
    """What to show of a model if nobody says: "weights" where its pooling has any that differ, else "contribution".

    Args:
        embedder: the model.
        x: some normalised inputs (B, C, H, W) to look at.
    """
    with _evaluating(embedder), torch.no_grad():
        weights = embedder.pooling.weights(embedder.local_features(x))
    if weights is None:
        return "contribution"
    relative = weights * weights[0].numel()
    return "weights" if bool(((relative - 1).abs() > _EVEN).any()) else "contribution"


@contextmanager
def _evaluating(embedder: Embedder) -> Iterator[None]:
    """The model in eval mode for a while, as it is when it encodes."""
    training = embedder.training
    embedder.eval()
    try:
        yield
    finally:
        embedder.train(training)


def _name(embedder: Embedder) -> str:
    config = embedder.pooling.config
    return type(embedder.pooling).__name__ if config is None else str(config["name"])
