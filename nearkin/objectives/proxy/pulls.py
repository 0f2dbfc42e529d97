"""Losses that pull embeddings to proxies laid out by a hierarchy, and push nothing: CORR and H-spherical."""

from __future__ import annotations

from torch import nn

from nearkin.objectives.proxy.criteria import Pull
from nearkin.objectives.proxy.loss import ProxyLoss
from nearkin.objectives.proxy.nearness import cosines
from nearkin.objectives.proxy.options import TreeDistance, tree_proxies
from nearkin.objectives.proxy.scales import Scale
from nearkin.objectives.proxy.scores import ScaledScores
from nearkin.objectives.registry import SPHERE, LossShape, register_loss


@register_loss("corr", family="classification", spaces=SPHERE, needs_hierarchy=True)
def corr(shape: LossShape, *, tree_distance: TreeDistance = "path") -> nn.Module:
    """CORR: mean of 1 - cos(x, w) to the own class's proxy, the proxies being laid out by a hierarchy and fixed.

    As a classifier its scores are the cosines themselves: the order of classes is what they are for, and softmax of
    them is nearly flat.

    Reference: Barz, Denzler 2019, Hierarchy-based image embeddings for semantic image retrieval; the layout: Kim 2023,
        article IV.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: a tree over the classes is known and distances between embeddings shall be those of the tree.

    Args:
        shape: the run's dimension, classes, space and hierarchy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="corr")
        >>> names = [f"class {i}" for i in range(4)]
        >>> tree = Hierarchy.from_nested({"left": names[:2], "right": names[2:]})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=names, hierarchy=tree)
    """
    return _pull(shape, "corr", tree_distance, power=1)


@register_loss("h-spherical", family="classification", spaces=SPHERE, needs_hierarchy=True)
def h_spherical(shape: LossShape, *, tree_distance: TreeDistance = "path") -> nn.Module:
    """H-spherical: mean of (1 - cos(x, w))^2 to the own class's proxy, laid out by a hierarchy and fixed.

    As 'corr', but the far are pulled most and the near hardly.

    Reference: Mettes, van der Pol, Snoek 2019, Hyperspherical prototype networks; the layout: Kim 2023, article IV.
    Needs: any batch; labels 0 ... classes - 1; a tree over the classes, `data.hierarchy`. Sphere only.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: as for 'corr', where some samples are hard and the easy ones shall not be drawn together for nothing.

    Args:
        shape: the run's dimension, classes, space and hierarchy.
        tree_distance: of the hierarchy: path, edges between classes; lcs, height of the node where they meet.

    Example:
        >>> section = ObjectiveSection(loss="h-spherical", parameters={"tree_distance": "lcs"})
        >>> names = [f"class {i}" for i in range(4)]
        >>> tree = Hierarchy.from_nested({"left": names[:2], "right": names[2:]})
        >>> objective = make_objective(section, dimension=128, classes=4, class_names=names, hierarchy=tree)
    """
    return _pull(shape, "h-spherical", tree_distance, power=2)


def _pull(shape: LossShape, name: str, tree_distance: TreeDistance, power: int) -> nn.Module:
    bank = tree_proxies(shape, name, tree_distance)
    return ProxyLoss(shape.space, bank, ScaledScores(cosines, Scale(1.0)), Pull(power))
