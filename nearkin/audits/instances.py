"""The pictures of a chance-constrained training: what each instance reached, and where its proxies lay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nearkin.report import Figure
from nearkin.report.instances import draw_instances
from nearkin.report.proxies import MOST_PANELS, ProxyPanel, draw_proxies, evenly_spaced
from nearkin.spaces import Space


def draw_course(history: Sequence[Mapping[str, float]]) -> Figure:
    """MAP@R, covering radius, spread and steps of each instance; without bytes if training had none.

    Args:
        history: rows of the training log.
    """
    return Figure(
        "Instances",
        "Each instance solves one problem with proxies of its own, until MAP@R on the validation classes no longer "
        "gains; then proxies are picked anew. The covering radius is how far items of the validation classes lie from "
        "the nearest of a few of their own class, averaged over how many those are.",
        draw_instances(history),
        "MAP@R, covering radius, spread of the proxies and steps against instances",
    )


def draw_geometry(
    snapshots: Sequence[Mapping[str, Tensor]],
    history: Sequence[Mapping[str, float]],
    space: Space,
    names: Sequence[str],
) -> Figure:
    """Points and proxies at the end of instances; without bytes if there are no snapshots.

    Args:
        snapshots: one an instance, in their order: its number `instance` (a scalar), raw `points` (n, d), `labels`
            (n,), `classes` (c,), `converged` (c, K, d) and `next` (c, K, d).
        history: rows of the training log, which say what each instance reached.
        space: where the model compares embeddings.
        names: the training classes, by class id.
    """
    panels = proxy_panels(snapshots, history, space)
    classes = snapshots[0]["classes"].tolist() if snapshots else []
    flat = not panels or panels[0].points.shape[1] <= 2
    plane = "" if flat else " The plane is that of the largest variance of all points shown."
    return Figure(
        "Proxies",
        "Training items at the end of instances, with the proxies the instance converged to and those picked to "
        f"follow them: proxies that lie apart cover their class.{plane} "
        "MAP@R and radius above a panel are those of the validation classes, which are not shown.",
        draw_proxies(panels, [names[number] if number < len(names) else str(number) for number in classes]),
        "Embedded training items by class, with the converged and the next proxies of several instances",
    )


def proxy_panels(
    snapshots: Sequence[Mapping[str, Tensor]],
    history: Sequence[Mapping[str, float]],
    space: Space,
    most: int = MOST_PANELS,
) -> list[ProxyPanel]:
    """At most `most` of the snapshots as panels of a picture; arguments as of `draw_geometry`."""
    reached = _reached(history)
    return [_panel(snapshots[place], reached, space) for place in evenly_spaced(len(snapshots), most)]


def absent_snapshots(snapshots: Sequence[Mapping[str, Tensor]], history: Sequence[Mapping[str, float]]) -> list[int]:
    """The instances in the log of which no snapshot is there; arguments as of `draw_geometry`."""
    return sorted(_reached(history).keys() - {int(snapshot["instance"]) for snapshot in snapshots})


def _reached(history: Sequence[Mapping[str, float]]) -> dict[int, Mapping[str, float]]:
    """The rows of the log that tell of an instance, by its number."""
    return {int(row["instance"]): row for row in history if row.get("instance") is not None}


def _panel(snapshot: Mapping[str, Tensor], log: Mapping[int, Mapping[str, float]], space: Space) -> ProxyPanel:
    """A snapshot in the model's space, with what the log says of its instance."""
    instance = int(snapshot["instance"])
    reached = log.get(instance, {})
    with torch.no_grad():
        points, converged, upcoming = (
            space.project(snapshot[part].float()).numpy() for part in ("points", "converged", "next")
        )
    return ProxyPanel(
        points,
        np.searchsorted(snapshot["classes"].numpy(), snapshot["labels"].numpy()),
        converged,
        upcoming,
        f"instance {instance}",
        reached.get("instance_MAP@R", math.nan),
        reached.get("instance_covering_radius", math.nan),
    )
