"""What a tree over the classes adds to learning: losses that know near misses from far ones, and a term on proxies.

Hierarchical cross-entropy: - sum over the edges from the class up to the root of exp(-alpha height(child))
ln p(child | parent), p of a node being the sum of its classes'. Soft labels: cross-entropy with targets in proportion
to exp(-beta d). Distortion: mean of (s d/D - 1)^2 over pairs of proxies, D from the tree. Derivations:
docs/methods/hxe.md, soft-labels.md and distortion.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, RecipeError
from nearkin.objectives.proxy.bank import NodeRows, WeightRows
from nearkin.objectives.proxy.loss import (
    EMA_RATE,
    SCALE,
    LayoutAngle,
    LayoutDistance,
    Proxies,
    ProxyLoss,
    ScaleOption,
    TreeLayout,
    make_bank,
)
from nearkin.objectives.proxy.scales import SCALE_RATE, ScaleValue
from nearkin.objectives.proxy.scores import ConditionalScores, LinearScores, normface_scores, ratio_scores
from nearkin.objectives.registry import FLAT, LossShape, Regulariser, register_loss, register_regulariser
from nearkin.registry import NonNegative, Positive, Share
from nearkin.spaces import Space

ScoreKind = Literal["softmax", "normface", "proxy-dr", "conditional"]
"""The loss whose class scores are taken; conditional: a softmax among the children of every node of the tree."""
WeightedBy = Literal["height", "depth"]
"""A node's longest way down to a leaf, or its way up to the root, in edges."""

_UNUSED_BY_SOFTMAX = {
    "scale": SCALE,
    "scale_rate": SCALE_RATE,
    "proxies": "learned",
    "ema_rate": EMA_RATE,
    "tree_distance": "path",
    "layout_beta": 1.0,
    "layout_angle": None,
}


@register_loss("hxe", family="classification", spaces=FLAT, needs_hierarchy=True)
def hxe(
    shape: LossShape,
    *,
    alpha: NonNegative = 0.1,
    weighted_by: WeightedBy = "height",
    scores: ScoreKind = "softmax",
    scale: ScaleOption = SCALE,
    scale_rate: Positive = SCALE_RATE,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """Hierarchical cross-entropy: each decision on the way from the root to the class has a weight of its own.

    - sum over the edges from the class up to the root of exp(-alpha height(child)) ln p(child | parent); with alpha 0
    it is cross-entropy.

    Reference: Bertinetto, Mueller, Tertikas, Samangooei, Lord 2020, Making better mistakes: leveraging class
        hierarchies with deep networks; Kim 2023, section 4.2.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere, Lipschitz ball or
        Euclidean space; the scores of normface on the sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: a tree says which mistakes are near misses, and decisions at its levels should not count alike.

    Args:
        alpha: how fast the weights of edges fall; 0 is cross-entropy.
        weighted_by: what alpha is multiplied by: the height of an edge's lower node, as printed, so that fine
            distinctions count most; or its depth, as in the authors' code, so that coarse ones do.
        scores: whose class scores: softmax, a linear layer; normface, cosines; proxy-dr, distance ratios; conditional,
            a softmax among the children of every node of the tree.
        scale: of normface and proxy-dr: what nearness is multiplied by; dynamic: it follows training.
        scale_rate: of a dynamic scale: about how much ln s moves in a step.
        proxies: of normface and proxy-dr: learned by the optimiser, ema, mds, cosines or ranks.
        ema_rate: how much of a batch's class mean goes into an ema proxy.
        tree_distance: of the hierarchy, for mds and ranks: path or lcs.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> tree = Hierarchy.from_nested({"mammals": ["dog", "cat"], "fish": ["shark", "guppy"]})
        >>> section = ObjectiveSection(loss="hxe", parameters={"weighted_by": "depth", "alpha": 0.4})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=tree.classes, hierarchy=tree)
    """
    criterion = HierarchicalCrossEntropy(*_tree(shape, "loss 'hxe'"), alpha, weighted_by)
    layout = TreeLayout(tree_distance, layout_beta, layout_angle)
    return _over_scores(shape, "hxe", criterion, scores, scale, scale_rate, proxies, ema_rate, layout)


@register_loss("soft-labels", family="classification", spaces=FLAT, needs_hierarchy=True)
def soft_labels(
    shape: LossShape,
    *,
    beta: Positive = 10.0,
    scores: ScoreKind = "softmax",
    scale: ScaleOption = SCALE,
    scale_rate: Positive = SCALE_RATE,
    proxies: Proxies = "learned",
    ema_rate: Share = EMA_RATE,
    tree_distance: LayoutDistance = "path",
    layout_beta: Positive = 1.0,
    layout_angle: LayoutAngle | None = None,
) -> nn.Module:
    """Soft labels: cross-entropy with targets that are shared with the classes nearby in the tree.

    The target of class k for an item of class y is in proportion to exp(-beta d(y, k)), d being the LCS distance in
    [0, 1]; with a large beta it is cross-entropy.

    Reference: Bertinetto, Mueller, Tertikas, Samangooei, Lord 2020, Making better mistakes: leveraging class
        hierarchies with deep networks; Kim 2023, section 4.2.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere, Lipschitz ball or
        Euclidean space; the scores of normface on the sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: a tree says which mistakes are near misses, and these should be the likelier ones.

    Args:
        beta: how fast targets fall with the distance; large is cross-entropy.
        scores: whose class scores: softmax, a linear layer; normface, cosines; proxy-dr, distance ratios; conditional,
            a softmax among the children of every node of the tree.
        scale: of normface and proxy-dr: what nearness is multiplied by; dynamic: it follows training.
        scale_rate: of a dynamic scale: about how much ln s moves in a step.
        proxies: of normface and proxy-dr: learned by the optimiser, ema, mds, cosines or ranks.
        ema_rate: how much of a batch's class mean goes into an ema proxy.
        tree_distance: of the hierarchy, for mds and ranks: path or lcs; targets always go by lcs.
        layout_beta: of mds: the distance in the tree that becomes half of the largest chord.
        layout_angle: of mds: degrees between the farthest two classes; null: as printed with path, 90 with lcs.

    Example:
        >>> tree = Hierarchy.from_nested({"mammals": ["dog", "cat"], "fish": ["shark", "guppy"]})
        >>> section = ObjectiveSection(loss="soft-labels", parameters={"beta": 4})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=tree.classes, hierarchy=tree)
    """
    criterion = SoftLabels(*_tree(shape, "loss 'soft-labels'"), beta)
    layout = TreeLayout(tree_distance, layout_beta, layout_angle)
    return _over_scores(shape, "soft-labels", criterion, scores, scale, scale_rate, proxies, ema_rate, layout)


@register_regulariser("distortion")
def distortion(shape: LossShape, *, tree_distance: LayoutDistance = "path") -> nn.Module:
    """Arrange proxies like the tree: mean of (s d/D - 1)^2 over pairs of classes, with the s that fits best.

    d is the distance of two class vectors in the space, D that of their classes in the tree.

    Reference: Garnot, Landrieu 2021, Leveraging class hierarchies with metric-guided prototype learning.
    Needs: a loss that learns a vector for each class, such as 'proxy-dr'; a tree over the classes, `data.hierarchy`.
        Any space that the loss is defined in, any batch.
    Inputs: the loss's class vectors (C, d), labels (B,), unused.
    Use when: classes should lie as the tree has them, and the loss should keep its say.

    Args:
        tree_distance: D: path, edges between two classes; lcs, height of the node where they meet.

    Example:
        >>> tree = Hierarchy.from_nested({"mammals": ["dog", "cat"], "fish": ["shark", "guppy"]})
        >>> section = ObjectiveSection(loss="proxy-dr", regularisers=[{"name": "distortion"}])
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=tree.classes, hierarchy=tree)
    """
    tree, names = _tree(shape, "regulariser 'distortion'")
    return Distortion(shape.space, tree.distances(names, how=tree_distance))


def _tree(shape: LossShape, owner: str) -> tuple[Hierarchy, tuple[str, ...]]:
    if shape.hierarchy is None or shape.class_names is None:
        raise RecipeError(
            f"The {owner} needs a tree over the classes: set data.hierarchy to a file or to a name such as cifar100 "
            "(in Python: give make_objective hierarchy= and class_names=)."
        )
    return shape.hierarchy, shape.class_names


def _over_scores(
    shape: LossShape,
    name: str,
    criterion: nn.Module,
    kind: ScoreKind,
    scale: ScaleValue,
    scale_rate: float,
    proxies: Proxies,
    ema_rate: float,
    layout: TreeLayout,
) -> nn.Module:
    """A criterion over the class scores of another loss."""
    if kind in ("softmax", "conditional"):
        given = {
            "scale": scale,
            "scale_rate": scale_rate,
            "proxies": proxies,
            "ema_rate": ema_rate,
            "tree_distance": layout.distance,
            "layout_beta": layout.beta,
            "layout_angle": layout.angle,
        }
        for option, value in given.items():
            if value != _UNUSED_BY_SOFTMAX[option]:
                raise RecipeError(
                    f"The loss '{name}' has scores={kind}, a linear layer with no use for {option}={value}: leave "
                    f"{option} out, or set scores to normface or proxy-dr."
                )
        if kind == "conditional":
            siblings, paths = tree_nodes(*_tree(shape, f"loss '{name}'"))
            nodes = NodeRows(shape.space, paths, shape.dimension)
            return ProxyLoss(shape.space, nodes, ConditionalScores(siblings, paths, shape.dimension), criterion)
        rows = WeightRows(shape.space, shape.classes, shape.dimension)
        return ProxyLoss(shape.space, rows, LinearScores(shape.classes, shape.dimension), criterion)
    bank = make_bank(shape, name, proxies, ema_rate, layout)
    if kind == "proxy-dr":
        return ProxyLoss(
            shape.space, bank, ratio_scores(shape.space, shape.classes, scale, "chord", scale_rate), criterion
        )
    if shape.space.name != "sphere":
        raise RecipeError(
            f"The loss '{name}' has scores=normface, which are cosines, but the space is '{shape.space.name}': set "
            "model.space to 'sphere', or scores to softmax or proxy-dr."
        )
    return ProxyLoss(shape.space, bank, normface_scores(shape.classes, scale, scale_rate), criterion)


def tree_nodes(hierarchy: Hierarchy, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Of the nodes below the root, the number of each one's parent (N,) int64, and which are above each class (C, N).

    Args:
        hierarchy: a tree that has all the classes.
        classes: their names; other leaves of the tree do not count.
    """
    tree = hierarchy.restricted(classes)
    _, siblings = np.unique(np.array(tree.parents[1:]), return_inverse=True)
    paths = np.zeros((len(classes), len(siblings)), dtype=np.float32)
    for row, name in enumerate(classes):
        paths[row, [node - 1 for node in tree.ancestors(name) if node > 0]] = 1
    return torch.from_numpy(siblings.astype(np.int64)), torch.from_numpy(paths)


class HierarchicalCrossEntropy(nn.Module):
    """The criterion behind the loss 'hxe': scores (B, C) and labels (B,) to a scalar.

    Args:
        hierarchy: a tree that has all the classes.
        classes: their names, in the order of the scores; other leaves of the tree do not count.
        alpha: how fast the weights of edges fall; 0 is cross-entropy.
        weighted_by: what alpha is multiplied by, of the edge's lower node: its "height", so that fine distinctions
            count most, or its "depth", so that coarse ones do.
    """

    joins: Tensor
    weights: Tensor

    def __init__(
        self, hierarchy: Hierarchy, classes: Sequence[str], alpha: float = 0.1, weighted_by: WeightedBy = "height"
    ) -> None:
        super().__init__()
        tree = hierarchy.restricted(classes)
        depths = tree.depths()
        exponents = tree.heights() if weighted_by == "height" else depths
        common = depths[tree.common_ancestors(classes)]
        # How many edges above a class (row) the lowest node is that has another (column) below it as well.
        joins = common.diagonal()[:, None] - common
        weights = np.zeros((len(joins), joins.max()))
        for row, name in enumerate(classes):
            children = tree.ancestors(name)[: joins[row].max()]  # the edges further up are certain
            weights[row, : len(children)] = np.exp(-alpha * exponents[children])
        self.register_buffer("joins", torch.from_numpy(joins.astype(np.int16)), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights).float(), persistent=False)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch; softmax of the scores are the class probabilities."""
        # Conditionals do not change by a constant, and small numbers keep their digits.
        scores = scores - scores.detach().amax(dim=1, keepdim=True)
        joins, weights = self.joins[labels], self.weights[labels].to(scores.dtype)
        child = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
        loss = torch.zeros_like(child)
        for level in range(weights.shape[1]):
            parent = scores.masked_fill(joins > level + 1, -torch.inf).logsumexp(dim=1)
            loss = loss - weights[:, level] * (child - parent)
            child = parent
        return loss.mean()


class SoftLabels(nn.Module):
    """The criterion behind the loss 'soft-labels': scores (B, C) and labels (B,) to a scalar.

    Args:
        hierarchy: a tree that has all the classes.
        classes: their names, in the order of the scores.
        beta: how fast targets fall with the distance; large is cross-entropy.
    """

    targets: Tensor

    def __init__(self, hierarchy: Hierarchy, classes: Sequence[str], beta: float = 10.0) -> None:
        super().__init__()
        distances = torch.from_numpy(hierarchy.distances(classes, how="lcs"))
        self.register_buffer("targets", torch.softmax(-beta * distances, dim=1).float(), persistent=False)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch of the cross-entropy of the scores' softmax with the targets of the labels."""
        return functional.cross_entropy(scores, self.targets[labels].to(scores.dtype))


class Distortion(Regulariser):
    """The module behind the regulariser 'distortion'.

    Args:
        space: where the class vectors are points.
        distances: (C, C) that the tree has between the classes; above 0 off the diagonal.
    """

    takes = "proxies"
    first: Tensor
    second: Tensor
    wanted: Tensor

    def __init__(self, space: Space, distances: np.ndarray) -> None:
        super().__init__()
        self.space = space
        first, second = np.triu_indices(len(distances), k=1)
        wanted = distances[first, second]
        if not (np.isfinite(wanted) & (wanted > 0)).all():
            worst = int(np.argmin(np.where(np.isfinite(wanted), wanted, -np.inf)))
            raise DataError(
                f"Distances between different classes must be positive numbers, and that of the classes {first[worst]} "
                f"and {second[worst]} is {wanted[worst]:g}: part them in the hierarchy, or leave one out."
            )
        self.register_buffer("first", torch.from_numpy(first), persistent=False)
        self.register_buffer("second", torch.from_numpy(second), persistent=False)
        self.register_buffer("wanted", torch.from_numpy(wanted).float(), persistent=False)

    def forward(self, proxies: Tensor, labels: Tensor) -> Tensor:
        """Mean of (s r - 1)^2 with r = d/D over the pairs of class vectors (C, d); labels (B,) are unused.

        s = sum r / sum r^2 is what makes it least. Its derivative there is zero, so s is taken as a constant: the
        gradient is the same.
        """
        ratios = self.space.distance(proxies, proxies)[self.first, self.second] / self.wanted.to(proxies.dtype)
        fixed = ratios.detach()
        squares = fixed.square().sum()
        # Where all class vectors are one point, any scale is as good.
        scale = fixed.sum() / torch.where(squares == 0, torch.ones_like(squares), squares)
        return (scale * ratios - 1).square().mean()
