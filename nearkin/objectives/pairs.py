"""Losses on the pairs of a batch: contrastive ones, and those on all similarities at once by log-sum-exp.

Of large batches, anchors are taken a block at a time: no matrix of all pairs is ever held.
Each of these losses is a sum of means, and each mean a sum over anchors by a number of terms. Both add up over blocks
of anchors, and so do the gradients of the sums, which are taken block by block on the way forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.objectives.distances import contrastive_in, library, ratio_in, similarity_in
from nearkin.objectives.registry import FLAT, PAIRS, SPHERE, Given, LossShape, register_loss
from nearkin.registry import NonNegative, Positive, Real

Added = tuple[list[Tensor], list[Tensor]]
"""What a block adds: sums, and the number of terms of each, all scalars."""

Terms = Callable[[Tensor, Tensor, Tensor], Added]
"""From comparisons, positives and negatives, each (b, R), to what their anchors add."""

_AT_ONCE = 1 << 18
"""Pairs that are held together."""

_WHOLE = 1 << 20
"""Pairs up to which a batch is taken whole."""


class AnchorBlocks(nn.Module):
    """A loss that takes small batches, and a miner's choice, as it always does, and large batches in blocks.

    Args:
        loss: the loss, called as pytorch-metric-learning calls losses.
        compare: from raw anchors (b, d) and raw vectors (R, d) to their comparisons (b, R).
        terms: what a block of anchors adds.
        whole: pairs up to which a batch is taken whole.
        at_once: pairs of a block.
    """

    def __init__(
        self,
        loss: nn.Module,
        compare: Callable[[Tensor, Tensor], Tensor],
        terms: Terms,
        whole: int = _WHOLE,
        at_once: int = _AT_ONCE,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.compare = compare
        self.terms = terms
        self.whole = whole
        self.at_once = at_once

    def forward(
        self, embeddings: Tensor, labels: Tensor, choice: Any = None, *, ref_emb: Given = None, ref_labels: Given = None
    ) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,), with themselves or with references (R, d), (R,)."""
        others, their_labels, given = embeddings, labels, {}
        if ref_emb is not None and ref_labels is not None:
            others, their_labels, given = ref_emb, ref_labels, {"ref_emb": ref_emb, "ref_labels": ref_labels}
        if choice is None and len(labels) * len(their_labels) > self.whole:
            return self._in_blocks(embeddings, others, labels, their_labels)
        chosen = () if choice is None else (choice,)
        whole: Tensor = self.loss(embeddings, labels, *chosen, **given)
        return whole

    def _in_blocks(self, embeddings: Tensor, others: Tensor, labels: Tensor, their_labels: Tensor) -> Tensor:
        size = max(1, self.at_once // len(others))

        def block(first: int, anchors: Tensor, against: Tensor) -> Added:
            same = labels[first : first + len(anchors), None] == their_labels
            positives = same.clone()
            if their_labels is labels:
                positives.diagonal(first).fill_(False)
            return self.terms(self.compare(anchors, against), positives, same.logical_not_())

        loss: Tensor = _BlockwiseMeans.apply(embeddings, others, size, block)
        return loss


class _BlockwiseMeans(torch.autograd.Function):
    """The sum of means of what blocks of anchors add; their graphs live one at a time."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, others: Tensor, size: int, block: Callable[..., Added]) -> Tensor:
        # References may be remembered vectors, which need none.
        wanted = ctx.needs_input_grad[:2]
        against = others.detach().requires_grad_(wanted[1])
        sums: list[Tensor] = []
        counts: list[Tensor] = []
        slopes: list[tuple[Tensor, Tensor]] = []
        for first in range(0, len(embeddings), size):
            anchors = embeddings[first : first + size].detach().requires_grad_(wanted[0])
            with torch.set_grad_enabled(any(wanted)):
                added, number = block(first, anchors, against)
            if not sums:
                sums, counts = [torch.zeros_like(one) for one in added], [torch.zeros_like(one) for one in number]
                slopes = [(torch.zeros_like(embeddings), torch.zeros_like(others)) for _ in added]
            for place, (total, count) in enumerate(zip(added, number, strict=True)):
                sums[place] += total.detach()
                counts[place] += count
                if not any(wanted):
                    continue
                asked = [one for one in (anchors, against) if one.requires_grad]
                found = torch.autograd.grad(total, asked, retain_graph=place + 1 < len(added), materialize_grads=True)
                for one, gradient in zip(asked, found, strict=True):
                    rows = slopes[place][0][first : first + size] if one is anchors else slopes[place][1]
                    rows += gradient
        counts = [count.clamp(min=1) for count in counts]
        ctx.slopes = [(mine / count, theirs / count) for (mine, theirs), count in zip(slopes, counts, strict=True)]
        return torch.stack([total / count for total, count in zip(sums, counts, strict=True)]).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mine, theirs = (torch.stack(parts).sum(dim=0) * outer for parts in zip(*ctx.slopes, strict=True))
        return mine, theirs, None, None


def hinge_terms(pos_margin: float, neg_margin: float, squared: bool = False) -> Terms:
    """Of the contrastive loss on distances: (d - m+)_+ and (m- - d)_+, each with the number of those above zero.

    Squared: half the square of each instead.
    """

    def terms(distances: Tensor, positives: Tensor, negatives: Tensor) -> Added:
        pull = F.relu(distances - pos_margin) * positives
        push = F.relu(neg_margin - distances) * negatives
        if squared:
            pull, push = pull.square() / 2, push.square() / 2
        return [pull.sum(), push.sum()], [(pull > 0).sum(), (push > 0).sum()]

    return terms


def cosine_terms(margin: float, same: float) -> Terms:
    """Of the contrastive loss on cosines: all pairs of an anchor, and how many anchors there are.

    Args:
        margin: cosine below which negatives are far enough.
        same: cosine from which a positive is the anchor's copy.
    """

    def terms(cosines: Tensor, positives: Tensor, negatives: Tensor) -> Added:
        pull = (1 - cosines) * (positives & (cosines < same))
        push = F.relu(cosines - margin) * negatives
        return [pull.sum() + push.sum()], [torch.tensor(len(cosines), device=cosines.device)]

    return terms


def multi_similarity_terms(alpha: float, beta: float, base: float) -> Terms:
    """Of the multi-similarity loss: its value at each anchor, and how many anchors there are."""

    def terms(similarities: Tensor, positives: Tensor, negatives: Tensor) -> Added:
        pull = _soft_count(alpha * (base - similarities), positives) / alpha
        push = _soft_count(beta * (similarities - base), negatives) / beta
        return [(pull + push).sum()], [torch.tensor(len(similarities), device=similarities.device)]

    return terms


def supcon_terms(temperature: float) -> Terms:
    """Of the supervised contrastive loss: its value at each anchor, and how many of these are above zero."""

    def terms(similarities: Tensor, positives: Tensor, negatives: Tensor) -> Added:
        logits = similarities / temperature
        others = positives | negatives
        total = torch.logsumexp(logits.masked_fill(~others, -torch.inf), dim=1)
        found = positives.sum(dim=1)
        values = total - (logits * positives).sum(dim=1) / found.clamp(min=1)
        values = torch.where(found > 0, values, 0.0)
        counted = values > 0
        return [values[counted].sum()], [counted.sum()]

    return terms


def _soft_count(exponents: Tensor, chosen: Tensor) -> Tensor:
    """ln(1 + sum of exp over the chosen), (b,); the 1 alone, which is 0, where none is."""
    masked = exponents.masked_fill(~chosen, -torch.inf)
    return torch.logsumexp(F.pad(masked, (0, 1)), dim=1)


@register_loss("contrastive", family="pairs", batch=PAIRS, miner="all")
def contrastive(
    shape: LossShape, *, pos_margin: NonNegative = 0.0, neg_margin: Positive = 0.3841, squared: bool = False
) -> nn.Module:
    """Contrastive loss with two margins: mean of (d - m+)_+ over positives plus mean of (m- - d)_+ over negatives.

    Distances are not squared unless asked for; each mean runs over its own non-zero terms.

    Reference: Hadsell, Chopra, LeCun 2006, Dimensionality reduction by learning an invariant mapping; margins for
        both kinds of pairs after Wu et al. 2017. C2 in Gürbüz 2022.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the plainest baseline, or distances with a meaning of their own (a threshold for "same").

    Args:
        pos_margin: distance below which positives are near enough.
        neg_margin: distance beyond which negatives are far enough; on the sphere distances reach 2.
        squared: half the square of what a pair is beyond its margin, as first published: far pairs count most.

    Example:
        >>> section = ObjectiveSection(loss="contrastive", parameters={"pos_margin": 0.2652, "neg_margin": 0.5409})
        >>> objective = make_objective(section, dimension=128, classes=98)
    """
    loss = contrastive_in(shape.space, pos_margin, neg_margin, squared=squared)
    return AnchorBlocks(loss, loss.distance, hinge_terms(pos_margin, neg_margin, squared))


@register_loss("contrastive-cosine", family="pairs", batch=PAIRS, spaces=SPHERE)
def contrastive_cosine(shape: LossShape, *, margin: Real = 0.5) -> nn.Module:
    """Contrastive loss on cosines: [sum over positives (1 - cos) + sum over negatives (cos - m)_+] / B.

    Reference: Wang et al. 2020, Cross-batch memory for embedding learning (its public code). C1 in Gürbüz 2022.
    Needs: at least two classes and two samples of each in a batch; class labels. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: comparing with cross-batch memory, whose loss this is; sums favour classes with many pairs in a batch.

    Args:
        margin: cosine below which negatives are far enough.

    Example:
        >>> section = ObjectiveSection(loss="contrastive-cosine")
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return AnchorBlocks(ContrastiveCosine(margin), _cosines, cosine_terms(margin, ContrastiveCosine.SAME))


class ContrastiveCosine(nn.Module):
    """The module behind the loss 'contrastive-cosine'.

    Args:
        margin: cosine below which negatives are far enough.
    """

    SAME = 1 - 1e-5
    """Positives this close to 1 are the sample itself or its copy: nothing to pull, and noise in single precision."""

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(
        self, embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,); every pair counts in both orders.

        With raw references (R, d) and their labels (R,), of the B x R pairs of a sample and a reference.
        """
        unit = F.normalize(embeddings)
        if ref_emb is None or ref_labels is None:
            same = labels.unsqueeze(1) == labels
            itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
            return self._of(unit @ unit.T, same & ~itself, ~same)
        same = labels.unsqueeze(1) == ref_labels
        return self._of(unit @ F.normalize(ref_emb).T, same, ~same)

    def _of(self, cosines: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        pull = (1 - cosines)[positives & (cosines < self.SAME)].sum()
        push = F.relu(cosines - self.margin)[negatives].sum()
        return (pull + push) / len(cosines)


def _cosines(rows: Tensor, others: Tensor) -> Tensor:
    """Cosines (b, R) of raw vectors (b, d) and (R, d)."""
    return F.normalize(rows) @ F.normalize(others).T


@register_loss("multi-similarity", family="pairs", batch=PAIRS, spaces=FLAT, miner="all", switchable=False)
def multi_similarity(shape: LossShape, *, alpha: Positive = 2.0, beta: Positive = 40.0, base: Real = 0.5) -> nn.Module:
    """Multi-similarity: each anchor's positives and negatives, softly weighted by how hard they are.

    Mean over anchors of ln(1 + sum_p exp(-alpha (s - base)))/alpha + ln(1 + sum_n exp(beta (s - base)))/beta.

    Reference: Wang, Han, Huang, Dong, Scott 2019, Multi-similarity loss with general pair weighting.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner; its own is called
        'multi-similarity'. Sphere, Lipschitz ball or Euclidean space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want a strong pair loss with little tuning.

    Args:
        alpha: sharpness on positives.
        beta: sharpness on negatives.
        base: similarity from which pairs are judged.

    Example:
        >>> section = ObjectiveSection(loss="multi-similarity", miner="multi-similarity")
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    similarity = similarity_in(shape.space)
    loss = library("losses").MultiSimilarityLoss(alpha=alpha, beta=beta, base=base, distance=similarity)
    return AnchorBlocks(loss, similarity, multi_similarity_terms(alpha, beta, base))


@register_loss("supcon", family="pairs", batch=PAIRS, spaces=FLAT, miner="all", switchable=False)
def supcon(
    shape: LossShape,
    *,
    temperature: Positive = 0.1,
    similarity: Literal["product", "distance-ratio"] = "product",
) -> nn.Module:
    """Supervised contrastive: mean over anchors of -mean_p ln(exp(s_p/T) / sum over all others exp(s/T)).

    Reference: Khosla et al. 2020, Supervised contrastive learning.
    Needs: at least two classes and two samples of each in a batch, better large batches; class labels. Takes a miner.
        Sphere, Lipschitz ball or Euclidean space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: batches are large, or a backbone is trained from scratch.

    Args:
        temperature: low looks at the hardest pairs, high at all.
        similarity: product: s is the cosine on the sphere, the inner product elsewhere; distance-ratio: -ln d, so that
            the share of a pair is d^-(1/T), the same however the embedding is scaled.

    Example:
        >>> section = ObjectiveSection(loss="supcon", parameters={"temperature": 0.07})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    nearness = similarity_in(shape.space) if similarity == "product" else ratio_in(shape.space)
    loss = library("losses").SupConLoss(temperature=temperature, distance=nearness)
    return AnchorBlocks(loss, nearness, supcon_terms(temperature))


@register_loss("circle", family="pairs", batch=PAIRS, spaces=SPHERE, miner="all", switchable=False)
def circle(shape: LossShape, *, margin: Positive = 0.4, gamma: Positive = 80.0) -> nn.Module:
    """Circle loss: mean over anchors of softplus(lse_p(-gamma a_p (s - 1 + m)) + lse_n(gamma a_n (s - m))).

    The weights a_p = (1 + m - s)_+ and a_n = (s + m)_+ grow with the distance from the optimum and carry no gradient.

    Reference: Sun et al. 2020, Circle loss: a unified perspective of pair similarity optimization.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: positives and negatives are learned at very different paces.

    Args:
        margin: relaxation m; positives aim at 1 - m, negatives at m.
        gamma: scale; 80 for fine-grained retrieval, 128 to 256 for people and faces.

    Example:
        >>> section = ObjectiveSection(loss="circle", parameters={"margin": 0.25, "gamma": 128})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return library("losses").CircleLoss(m=margin, gamma=gamma)
