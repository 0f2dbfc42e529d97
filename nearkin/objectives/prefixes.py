"""Trained prefixes: the first dimensions of an embedding learn to do without the others.

The loss is the weighted mean of the loss of whole embeddings, whose weight is 1, and of the same loss of their first k
dimensions for some k, projected into the space again: `(L_d + sum_k w_k L_k) / (1 + sum_k w_k)`. A mean, so that
learning rates and the weights of regularisers keep their meaning. Each size has proxies of its own, if its loss has
any. When to use it: docs/methods/prefixes.md.
Reference: Kusupati et al. 2022, Matryoshka representation learning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.objectives.miner import compared
from nearkin.objectives.proxy.bank import FixedProxies
from nearkin.objectives.registry import LossShape


class PrefixLoss(nn.Module):
    """The loss of the first dimensions of embeddings.

    Args:
        size: how many dimensions.
        weight: what it counts beside the loss of whole embeddings, which counts 1.
        loss: for embeddings of this size.
        miner: what chooses their pairs or triplets, or None.
    """

    def __init__(self, size: int, weight: float, loss: nn.Module, miner: nn.Module | None) -> None:
        super().__init__()
        self.size = size
        self.weight = weight
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor, **given: Tensor) -> Tensor:
        """Scalar loss, without the weight, of raw embeddings (B, d), labels (B,) and, where given, references."""
        if "ref_emb" in given:
            given = given | {"ref_emb": given["ref_emb"][:, : self.size]}
        return compared(self.loss, self.miner, embeddings[:, : self.size], labels, **given)


def make_prefixes(
    sizes: Sequence[int],
    weights: Sequence[float],
    shape: LossShape,
    loss: Callable[[LossShape], nn.Module],
    miner: Callable[[LossShape], nn.Module | None],
) -> list[PrefixLoss]:
    """The loss of each size.

    Args:
        sizes: how many dimensions, each below that of the shape.
        weights: what each counts.
        shape: of whole embeddings.
        loss: makes the loss of embeddings of a shape.
        miner: makes its miner, if it has any.

    Raises:
        RecipeError: for a size that is no prefix, and for proxies that a tree has laid out: each size has a layout of
            its own, and one embedding cannot follow two.
    """
    made = []
    for size, weight in zip(sizes, weights, strict=True):
        if size >= shape.dimension:
            raise RecipeError(
                f"objective.prefixes names {size}, and embeddings have {shape.dimension} dimensions: name smaller "
                "sizes only, as the whole embedding counts anyway."
            )
        cut = replace(shape, dimension=size)
        term = PrefixLoss(size, weight, loss(cut), miner(cut))
        if any(isinstance(module, FixedProxies) for module in term.modules()):
            raise RecipeError(
                "Proxies that a tree lays out lie differently in each size, and an embedding cannot follow them all: "
                "remove objective.prefixes, or let the proxies be learned."
            )
        made.append(term)
    return made
