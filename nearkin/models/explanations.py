"""Where a model looks: what each position of a map has to do with the embedding.

attention: the share a_j that each attended stage gives position j of its own map, sum_j a_j = 1.
weights: the share w_j that the pooling gives position j of the map it pools, sum_j w_j = 1.
contribution: c_j = <d(e.u)/df_j, f_j>, f_j the local features that are pooled, e the raw embedding, u = e / |e| held
    fixed: how far f_j pushes e its own way. Where only the direction of f_j counts (NetVLAD) this is 0, and
    c_j = <e - e_j, u>, e_j the embedding without f_j.
grad-cam: g_j = max(0, <alpha, f_j>), alpha the mean over positions of d(e.u)/df_j (Selvaraju et al. 2017).
prototypes: how much of prototype m the pooling takes at position j, for poolings that have prototypes.

With average pooling and the head W, c_j = <W f_j, u> / n exactly, and g_j is the positive part of it. With every
pooling that doubles when its map does (average, maximum, GeM, their sums), the c_j add up to |e| less what the bias of
the head adds: Euler's theorem on homogeneous functions.

In a model with attention the pooled map acts on e by itself and through what is attended to; contribution and grad-cam
hold the maps of earlier stages fixed, and what these add to e is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.embedder import Embedder, Features
from nearkin.registry import Registry

explanations: Registry[Callable[[Embedder, Tensor], Features]] = Registry("explanation")
"""Kinds of maps by name: from a model and normalised inputs (B, C, H, W) to (B, h, w), or (B, M, h, w) for M parts; or
to a dictionary of such maps by the stages that they are of."""

_EVEN = 0.01
"""Weights within this of average pooling's, as a share of them, tell nothing."""

_NOTHING_SLOPED, _NOTHING_LEFT_OUT = 1e-5, 1e-6
"""A map of contributions that are all smaller than this, as a share of |e|, is rounding: drawn, it would be noise."""

_MOST_VALUES = 2**24
"""Numbers held at once of maps that lack a position."""


@explanations.register("attention")
def stage_attention(embedder: Embedder, x: Tensor) -> dict[str, Tensor]:
    """The weight (B, h, w) of each position by attended stage, summing to 1, for normalised inputs (B, C, H, W).

    Raises:
        ModelError: the model attends to no stages.
    """
    if embedder.attention is None:
        raise ModelError(
            "This model attends to no earlier stages: ask for 'grad-cam' or 'contribution' instead, or train with "
            "model.attention."
        )
    with _evaluating(embedder), torch.no_grad():
        local, attended = embedder.maps(x)
        return embedder.attention.weights(attended, embedder.pooling(local))


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
        local, attended = _own_maps(embedder, x)
        if embedder.pooling.only_directions:
            return _left_out(embedder, local, attended)
        slope, raw = _slope(embedder, local, attended)
        return _without_rounding((slope * local).sum(1), raw, _NOTHING_SLOPED)


@explanations.register("grad-cam")
def grad_cam(embedder: Embedder, x: Tensor) -> Tensor:
    """Grad-CAM (B, h, w) of the map that is pooled, nowhere negative, for normalised inputs (B, C, H, W).

    Channels, not positions, are weighed by the gradient, so this shows where the channels are that the embedding as a
    whole depends on, even if a pooling took nothing from there; a contribution shows what was taken. A model of a
    metric has no class scores: the gradient is that of the embedding's length in its own direction. The CAM of a class
    needs a classifier.

    Zero where the embedding is zero, and where nothing but rounding is found.

    Reference: Selvaraju et al. 2017, Grad-CAM, equations 1 and 2.

    Raises:
        ModelError: no gradient passes this pooling.
    """
    with _evaluating(embedder), torch.inference_mode(False):
        local, attended = _own_maps(embedder, x)
        slope, raw = _slope(embedder, local, attended)
        found = (slope.mean((2, 3), keepdim=True) * local).sum(1).relu()
        return _without_rounding(found, raw, _NOTHING_SLOPED)


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
    """What to show of a model by default: what differs between positions, and is the model's own choice.

    "attention" if the model has some that differs, else "weights" if its pooling has any that do, else "contribution".

    Args:
        embedder: the model.
        x: some normalised inputs (B, C, H, W) to look at.
    """
    with _evaluating(embedder), torch.no_grad():
        local, attended = embedder.maps(x)
        weights = embedder.pooling.weights(local)
        given = {} if embedder.attention is None else embedder.attention.weights(attended, embedder.pooling(local))

    def differ(weights: Tensor | None) -> bool:  # (B, h, w) that sum to 1, from those of average pooling
        return weights is not None and bool(((weights * weights[0].numel() - 1).abs() > _EVEN).any())

    if any(map(differ, given.values())):
        return "attention"
    return "weights" if differ(weights) else "contribution"


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


@torch.no_grad()
def _own_maps(embedder: Embedder, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """What `Embedder.maps` gives, as copies: a map that was made in inference mode takes no part in a gradient."""
    local, attended = embedder.maps(x)
    return local.clone(), {stage: map_.clone() for stage, map_ in attended.items()}


def _embedded(embedder: Embedder, local: Tensor, attended: dict[str, Tensor]) -> Tensor:
    """Raw embeddings (B, d) of what `Embedder.maps` gives."""
    return embedder.head(embedder.merge(local, attended))


def _slope(embedder: Embedder, local: Tensor, attended: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The gradient (B, C, h, w), by the pooled map, of how far the embedding goes its own way; raw embeddings (B, d).

    Raises:
        ModelError: there is none.
    """
    with torch.enable_grad():
        features = local.detach().requires_grad_()
        raw = _embedded(embedder, features, attended)
        own_way = torch.nn.functional.normalize(raw.detach(), dim=1)
        slope = _gradient((raw * own_way).sum(), features)
        if slope is None and _gradient(embedder.pooling(features).sum(), features) is None:
            raise ModelError(
                f"No gradient passes the pooling '{_name(embedder)}', so neither contributions nor Grad-CAM can be "
                "computed: ask for 'weights' instead."
            )
    # Attention that averages, without the last vector beside it, takes no notice of the pooled map.
    return torch.zeros_like(local) if slope is None else slope, raw.detach()


def _gradient(value: Tensor, by: Tensor) -> Tensor | None:
    """The gradient of a number; None where it does not depend on `by`."""
    return torch.autograd.grad(value, by, allow_unused=True)[0] if value.requires_grad else None


@torch.no_grad()
def _left_out(embedder: Embedder, local: Tensor, attended: dict[str, Tensor]) -> Tensor:
    """How much shorter (B, h, w) the embedding of a map (B, C, h, w) is in its own direction without a position."""
    raw = _embedded(embedder, local, attended)
    own_way = torch.nn.functional.normalize(raw, dim=1).unsqueeze(1)
    positions = local.flatten(2)
    batch, channels, n = positions.shape
    if n == 1:
        nothing = embedder.normalise.mean.new_zeros(batch, embedder.pooling.out_channels)
        features = nothing if embedder.attention is None else embedder.attention(attended, nothing)
        change = ((raw - embedder.head(features)).unsqueeze(1) * own_way).sum(2)
    else:
        places = torch.arange(n, device=local.device)
        others = places.expand(n, n)[places[:, None] != places].view(n, n - 1)
        size = embedder.pooling.out_channels
        compared = [map_[0, 0].numel() * max(map_.shape[1], size) for map_ in attended.values()]
        each = batch * max(channels * (n - 1), size, *compared)
        change = torch.cat(
            [
                ((raw.unsqueeze(1) - _of_sets(embedder, positions[:, :, some], attended)) * own_way).sum(2)
                for some in others.split(max(1, _MOST_VALUES // each))
            ],
            dim=1,
        )
    return _without_rounding(change.view(batch, *local.shape[2:]), raw, _NOTHING_LEFT_OUT)


def _of_sets(embedder: Embedder, sets: Tensor, attended: dict[str, Tensor]) -> Tensor:
    """Raw embeddings (B, s, d) of sets (B, C, s, n) of local features, as if each were a map of one row."""
    maps = sets.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    count = sets.shape[2]
    repeated = {stage: map_.repeat_interleave(count, dim=0) for stage, map_ in attended.items()}
    return _embedded(embedder, maps, repeated).unflatten(0, (sets.shape[0], count))


def _without_rounding(found: Tensor, raw: Tensor, share: float) -> Tensor:
    """Maps (B, h, w), zero where all of one is below a share of the length of its raw embedding (B, d)."""
    least = share * torch.linalg.vector_norm(raw, dim=1)
    return torch.where((found.abs().amax((1, 2)) > least)[:, None, None], found, 0.0)


def _name(embedder: Embedder) -> str:
    config = embedder.pooling.config
    return type(embedder.pooling).__name__ if config is None else str(config["name"])
