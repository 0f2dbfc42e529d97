"""Who looks at the training classes at every validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nearkin.data.hierarchy import Hierarchy
from nearkin.objectives import Objective
from nearkin.recipe import Recipe
from nearkin.training.clusters import ClusterWatch
from nearkin.training.hierarchy_watch import HierarchyWatch
from nearkin.training.run import Run
from nearkin.training.schedules.pool import Pool


def make_watch(
    recipe: Recipe,
    run: Run,
    pool: Pool,
    objective: Objective,
    class_names: Sequence[str],
    hierarchy: Hierarchy | None,
) -> Callable[[int], dict[str, float]] | None:
    """What looks at the training classes at every validation, where the recipe asks for it."""
    section, space = recipe.training, pool.embedder.space
    watches: list[Callable[[int], dict[str, float]]] = []
    if section.cluster_items is not None:
        watches.append(ClusterWatch(run.path, pool, space, class_names, section.cluster_items).look)
    if hierarchy is not None:
        watch = HierarchyWatch(pool, objective, space, hierarchy, class_names, section.hierarchy_items)
        watches.append(watch.look)
    if not watches:
        return None
    return lambda step: {name: value for look in watches for name, value in look(step).items()}
