"""Contrastive losses: each pair of a batch is pulled together or pushed apart to a fixed distance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.objectives.anchor_blocks import AnchorBlocks, cosine_terms, hinge_terms
from nearkin.objectives.distances import distance_in, library
from nearkin.objectives.parameters import NonNegative, Positive, Real
from nearkin.objectives.registry import PAIRS, SPHERE, LossShape, register_loss


@register_loss("contrastive", family="pairs", batch=PAIRS, miner="all")
def contrastive(shape: LossShape, *, pos_margin: NonNegative = 0.0, neg_margin: Positive = 0.3841) -> nn.Module:
    """Contrastive loss with two margins: mean of (d - m+)_+ over positives plus mean of (m- - d)_+ over negatives.

    Distances are not squared; each mean runs over its own non-zero terms.

    Reference: Hadsell, Chopra, LeCun 2006, Dimensionality reduction by learning an invariant mapping; margins for
        both kinds of pairs after Wu et al. 2017. C2 in Gürbüz 2022.
    Needs: at least two classes and two samples of each in a batch; class labels. Takes a miner. Any space.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: you want the plainest baseline, or distances with a meaning of their own (a threshold for "same").

    Args:
        shape: the run's dimension, classes and space.
        pos_margin: distance below which positives are near enough.
        neg_margin: distance beyond which negatives are far enough; on the sphere distances reach 2.

    Example:
        >>> section = ObjectiveSection(loss="contrastive", parameters={"pos_margin": 0.2652, "neg_margin": 0.5409})
        >>> objective = make_objective(section, dimension=128, classes=98)
    """
    distance = distance_in(shape.space)
    loss = library("losses").ContrastiveLoss(pos_margin=pos_margin, neg_margin=neg_margin, distance=distance)
    return AnchorBlocks(loss, distance, hinge_terms(pos_margin, neg_margin))


@register_loss("contrastive-cosine", family="pairs", batch=PAIRS, spaces=SPHERE)
def contrastive_cosine(shape: LossShape, *, margin: Real = 0.5) -> nn.Module:
    """Contrastive loss on cosines: [sum over positives (1 - cos) + sum over negatives (cos - m)_+] / B.

    Reference: Wang et al. 2020, Cross-batch memory for embedding learning (its public code). C1 in Gürbüz 2022.
    Needs: at least two classes and two samples of each in a batch; class labels. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: comparing with cross-batch memory, whose loss this is; sums favour classes with many pairs in a batch.

    Args:
        shape: the run's dimension, classes and space.
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
