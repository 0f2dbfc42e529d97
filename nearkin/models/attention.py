"""Attention of a network's intermediate stages to its last vector (Al-Kaabi, Monsefi, Zabihzadeh, section 3.1).

The last stage sees what tells the training classes apart; earlier ones see more, and tell less. So the vectors q_j of
an earlier map are averaged, each as much as it has to do with the last vector u: p = sum_j a_j q_j, and
a = softmax_j S(q_j, u). The p of all attended stages, side by side, are the features:

- multiplicative: S = <W1 q, u>, or with a second matrix <W1 q, W2 u>;
- additive: S = w^T tanh(W1 q + u), or w^T tanh(W1 q + W2 u);
- multi-dimensional: as additive with a matrix W in place of w: a weight for each channel of q, whose softmax runs over
  the positions too;
- average: S = 0, every position counts alike: what attention must beat.

All scores are zero at first, so that training starts from average pooling. Derivation: docs/methods/attention.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin._moved import renamed
from nearkin.errors import ModelError
from nearkin.spaces.space import widen

Score = Literal["additive", "multiplicative", "multi-dimensional", "average"]
Fusion = Literal["concatenate", "sum"]


class StageAttention(nn.Module):
    """Attended features of several stages of a backbone.

    Args:
        widths: the attended stages, first to last, and the channels of their maps.
        last: size of the last vector, u.
        score: how a vector of a map is compared with u.
        matrices: 1, the lighter form, compares in the space of u; 2 also maps u, to a space of size `hidden`.
        fusion: "concatenate" puts the attended vectors side by side; "sum" maps each to the size of u and adds them.
        append: whether u is one of the vectors that are fused.
        hidden: size of the space of comparison with two matrices; None: that of u.
        normalise: whether every vector that is fused is first brought to mean 0 and variance 1 over its channels (layer
            norm): stages differ in scale several times over, and the largest would decide alone.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        last: int,
        *,
        score: Score = "additive",
        matrices: Literal[1, 2] = 1,
        fusion: Fusion = "concatenate",
        append: bool = True,
        hidden: int | None = None,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if not widths:
            raise ModelError("Attention needs a stage to attend to: name one in model.attention.stages.")
        check_options(score, matrices, hidden)
        self.stages = tuple(widths)
        self.fusion: Fusion = fusion
        self.append = append
        self.normalise = normalise
        self.out_channels = last if fusion == "sum" else sum(widths.values()) + (last if append else 0)
        compared = {"score": score, "matrices": matrices, "hidden": hidden}
        self._options = {**compared, "fusion": fusion, "append": append, "normalise": normalise}
        size = last if hidden is None else hidden
        kind = {"multiplicative": _Multiplicative, "average": _Average}.get(score, _Additive)
        self.scores = nn.ModuleDict()
        self.projections = nn.ModuleDict()
        for stage, channels in widths.items():
            outputs = channels if score == "multi-dimensional" else 1
            self.scores[stage] = kind(channels, last, size, outputs, two=matrices == 2)
            if fusion == "sum":
                self.projections[stage] = nn.Linear(channels, last, bias=False)

    def forward(self, maps: Mapping[str, Tensor], u: Tensor) -> Tensor:
        """The features (B, F) of maps (B, C_i, H_i, W_i) by stage and last vectors u (B, l)."""
        self._check(maps)
        vectors = [self._attended(stage, maps[stage], u) for stage in self.stages]
        if self.append:
            vectors.append(self._scaled(u))
        return torch.cat(vectors, dim=1) if self.fusion == "concatenate" else torch.stack(vectors).sum(0)

    def weights(self, maps: Mapping[str, Tensor], u: Tensor) -> dict[str, Tensor]:
        """The weight (B, H_i, W_i) of each position by stage, summing to 1; with a weight a channel, their mean."""
        self._check(maps)
        return {
            stage: self._weights(stage, maps[stage], u).mean(1).unflatten(1, maps[stage].shape[2:])
            for stage in self.stages
        }

    def to_dict(self) -> dict[str, Any]:
        """What `StageAttention` was given, but for sizes; JSON-safe."""
        return {"stages": list(self.stages), **self._options}

    def _check(self, maps: Mapping[str, Tensor]) -> None:
        missing = [stage for stage in self.stages if stage not in maps]
        if missing:
            raise ModelError(
                f"The attention needs the map of '{missing[0]}' too: start the model with all that Embedder.cut gives."
            )

    def _weights(self, stage: str, map_: Tensor, u: Tensor) -> Tensor:
        """Weights (B, 1, n), or (B, C, n) with one for each channel."""
        return widen(self.scores[stage](map_, u).flatten(2)).softmax(dim=2)

    def _attended(self, stage: str, map_: Tensor, u: Tensor) -> Tensor:
        weights, vectors = self._weights(stage, map_, u), map_.flatten(2)
        if weights.shape[1] == 1:
            attended = self._scaled((vectors @ weights.mT.to(vectors.dtype)).squeeze(2))
        else:
            attended = self._scaled((weights * vectors).sum(2))
        return self.projections[stage](attended) if self.fusion == "sum" else attended

    def _scaled(self, vectors: Tensor) -> Tensor:
        return functional.layer_norm(vectors, vectors.shape[1:]) if self.normalise else vectors


class _Additive(nn.Module):
    """w^T tanh(W1 q + W2 u) for every vector q of a map; `outputs` columns of w."""

    def __init__(self, channels: int, last: int, size: int, outputs: int, two: bool) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, size, 1, bias=False)
        self.outer: nn.Module = nn.Linear(last, size, bias=False) if two else nn.Identity()
        self.score = nn.Conv2d(size, outputs, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, map_: Tensor, u: Tensor) -> Tensor:
        """Scores (B, outputs, H, W) of a map (B, C, H, W) and vectors (B, l)."""
        # In place: what is compared is the largest tensor of the module, and only its tanh is needed again.
        return self.score(self.inner(map_).add_(self.outer(u)[:, :, None, None]).tanh_())


class _Multiplicative(nn.Module):
    """<W1 q, W2 u> for every vector q of a map, as <q, W1^T W2 u>: one matrix product a sample, not one a position."""

    def __init__(self, channels: int, last: int, size: int, outputs: int, two: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(size, channels, bias=False)  # the transpose of W1
        self.outer: nn.Module = nn.Linear(last, size, bias=False) if two else nn.Identity()
        nn.init.zeros_(self.inner.weight)

    def forward(self, map_: Tensor, u: Tensor) -> Tensor:
        """Scores (B, 1, H, W) of a map (B, C, H, W) and vectors (B, l)."""
        # In single precision: long vectors multiply to more than half precision can hold.
        with torch.autocast(map_.device.type, enabled=False):
            asked = self.inner(widen(self.outer(widen(u)))).unsqueeze(1)
            return (asked @ widen(map_).flatten(2)).unflatten(2, map_.shape[2:])


class _Average(nn.Module):
    """Zero for every vector of a map."""

    def __init__(self, channels: int, last: int, size: int, outputs: int, two: bool) -> None:
        super().__init__()

    def forward(self, map_: Tensor, u: Tensor) -> Tensor:
        """Scores (B, 1, H, W) of a map (B, C, H, W)."""
        return map_.new_zeros(map_.shape[0], 1, *map_.shape[2:])


def check_options(score: str, matrices: int, hidden: int | None) -> None:
    """Refuse options that contradict each other.

    Raises:
        ModelError: they do.
    """
    if score == "average" and (matrices == 2 or hidden is not None):
        raise ModelError(
            "Averages compare nothing, so they have no matrices: leave model.attention.matrices and "
            "model.attention.hidden out, or choose another score."
        )
    if hidden is not None and matrices == 1:
        raise ModelError(
            "With one matrix, vectors are compared at the size of the last one, which is fixed: set "
            "model.attention.matrices to 2, or remove model.attention.hidden."
        )


def default_stages(names: list[str]) -> list[str]:
    """The stages to attend to by default: the three before the last one.

    Raises:
        ModelError: there is none before the last.
    """
    if len(names) < 2:
        raise ModelError(
            f"Attention looks at stages before the last, but this backbone has only one ({names[0]}): choose another, "
            "or set model.attention to null."
        )
    return names[-4:-1]


__getattr__ = renamed(__name__, usual_stages="default_stages")
