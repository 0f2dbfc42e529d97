"""Where a model looks: what each position of the pooled map has to do with the embedding.

weights: the share w_j that the pooling itself gives position j, sum_j w_j = 1.
contribution: c_j = <d(e.u)/df_j, f_j>, e the raw embedding, u = e / |e| held fixed: how far f_j pushes e its own way.
    Where only the direction of f_j counts (NetVLAD) this is 0, and c_j = <e - e_j, u>, e_j the embedding without f_j.
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

_NOTHING_SLOPED, _NOTHING_LEFT_OUT = 1e-5, 1e-6
"""A map of contributions that are all smaller than this, as a share of |e|, is rounding: drawn, it would be noise."""

_MOST_VALUES = 2**24
"""Numbers held at once of maps that lack a position."""


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

    Gradient times input on the pooled map, or what leaving a position out changes; see the head of this file. Zero
    where the embedding is zero, and where nothing but rounding is found.

    Raises:
        ModelError: no gradient passes this pooling.
    """
    with _evaluating(embedder), torch.inference_mode(False):
        with torch.no_grad():
            # A copy: a map that was made in inference mode takes no gradient.
            features = embedder.local_features(x).clone()
        if embedder.pooling.only_directions:
            return _left_out(embedder, features)
        return _sloped(embedder, features)


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
    # One by one: parts may be in another mode than the whole.
    modes = [(module, module.training) for module in embedder.modules()]
    embedder.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _sloped(embedder: Embedder, features: Tensor) -> Tensor:
    """Gradient times input (B, h, w) on a map (B, C, h, w)."""
    with torch.enable_grad():
        features = features.requires_grad_()
        raw = embedder.head(embedder.pooling(features))
        if not raw.requires_grad:
            raise ModelError(
                f"No gradient passes the pooling '{_name(embedder)}', so contributions cannot be told: ask for "
                "'weights' instead."
            )
        own_way = torch.nn.functional.normalize(raw.detach(), dim=1)
        (slope,) = torch.autograd.grad((raw * own_way).sum(), features)
    return _without_rounding((slope * features.detach()).sum(1), raw.detach(), _NOTHING_SLOPED)


@torch.no_grad()
def _left_out(embedder: Embedder, features: Tensor) -> Tensor:
    """How much shorter (B, h, w) the embedding of a map (B, C, h, w) is in its own direction without a position."""
    raw = embedder.head(embedder.pooling(features))
    own_way = torch.nn.functional.normalize(raw, dim=1).unsqueeze(1)
    positions = features.flatten(2)
    batch, channels, n = positions.shape
    if n == 1:
        nothing = features.new_zeros(batch, embedder.pooling.out_channels)
        change = ((raw - embedder.head(nothing)).unsqueeze(1) * own_way).sum(2)
    else:
        places = torch.arange(n, device=features.device)
        others = places.expand(n, n)[places[:, None] != places].view(n, n - 1)
        each = batch * max(channels * (n - 1), embedder.pooling.out_channels)
        change = torch.cat(
            [
                ((raw.unsqueeze(1) - _embedded(embedder, positions[:, :, some])) * own_way).sum(2)
                for some in others.split(max(1, _MOST_VALUES // each))
            ],
            dim=1,
        )
    return _without_rounding(change.view(batch, *features.shape[2:]), raw, _NOTHING_LEFT_OUT)


def _embedded(embedder: Embedder, sets: Tensor) -> Tensor:
    """Raw embeddings (B, s, d) of sets (B, C, s, n) of local features, as if each were a map of one row."""
    maps = sets.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    embedded: Tensor = embedder.head(embedder.pooling(maps))
    return embedded.unflatten(0, (sets.shape[0], sets.shape[2]))


def _without_rounding(found: Tensor, raw: Tensor, share: float) -> Tensor:
    """Maps (B, h, w), zero where all of one is below a share of the length of its raw embedding (B, d)."""
    least = share * torch.linalg.vector_norm(raw, dim=1)
    return torch.where((found.abs().amax((1, 2)) > least)[:, None, None], found, 0.0)


def _name(embedder: Embedder) -> str:
    config = embedder.pooling.config
    return type(embedder.pooling).__name__ if config is None else str(config["name"])
