"""A toy that shows what each loss does: forty points of five classes that move freely, and one that travels.

`pull` lets the points themselves learn by a loss, set up as in its recipe; `travel` moves one sample from its own class
to another and past it, and notes what the batch costs. Nothing but a fixed seed decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.data.hierarchy import Hierarchy
from nearkin.objectives import Objective, ObjectiveSection, losses, make_objective
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.recipe import load_recipe
from nearkin.spaces import Space
from nearkin.spaces.space import spaces

CLASSES = ("heron", "wren", "shark", "trout", "oak")
TREE = Hierarchy.from_nested({"animals": {"birds": ["heron", "wren"], "fish": ["shark", "trout"]}, "plants": ["oak"]})
ITEMS, SHOT = 8, 3
STEPS, RATE = 100, 0.02
"""Of Adam, for points and proxies alike."""
DRAWS = 12
"""Over how many draws of a random miner first moves and costs are averaged."""
LAYOUT_SEED = 1
"""Of proxies that a tree lays out: on a circle not every start ends well."""
_NEAR = {"sphere": np.radians(30), "euclidean": 0.5}
"""Standard deviation of a class before training: the angle on the circle, each coordinate in the plane."""
_PLANE_RADIUS = 1.2


@dataclass(frozen=True, eq=False)
class Pull:
    """What a loss does to the toy.

    Attributes:
        space: the recipe's.
        labels: (n,) the class of each point.
        support: (n,) whether a point is a support item of its class.
        start: (n, 2) points of the space before training.
        arrows: (n, 2) where each goes first: minus the gradient, along the space.
        end: (n, 2) points after training.
        proxies: (C, K, 2) what stands for the classes before training, K is 0 where nothing does.
        proxies_end: the same after training.
    """

    space: str
    labels: np.ndarray
    support: np.ndarray
    start: np.ndarray
    arrows: np.ndarray
    end: np.ndarray
    proxies: np.ndarray
    proxies_end: np.ndarray


@dataclass(frozen=True, eq=False)
class Travel:
    """What it costs a sample to be away from its class.

    Attributes:
        space: the recipe's.
        places: (m,) how far from the own class: degrees on the circle, else a distance; below 0 on the far side.
        costs: the loss (m,) of the batch on the way to each other class, by name.
        own: places of what stands for the own class.
        others: places of what stands for each other class.
    """

    space: str
    places: np.ndarray
    costs: dict[str, np.ndarray]
    own: list[float]
    others: dict[str, list[float]]


def recipe_of(loss: str) -> tuple[ObjectiveSection, Space]:
    """The objective and the space of the recipe that has the loss's name."""
    tree = ["data.hierarchy=cifar100"] if losses.get(loss).needs_hierarchy else []
    recipe = load_recipe(loss, tree)
    return recipe.objective, spaces.get(recipe.model.space)(**recipe.model.space_parameters)


def pull(loss: str, section: ObjectiveSection | None = None) -> Pull:
    """Let the toy's points learn by a loss for `STEPS` steps."""
    recipe, space = recipe_of(loss)
    objective = _objective(section or recipe, space, CLASSES, TREE, SHOT, ITEMS - SHOT)
    labels = torch.arange(len(CLASSES)).repeat_interleave(ITEMS)
    points = torch.nn.Parameter(_start(space.name))
    place_proxies(objective, torch.stack([points.data[labels == label].mean(0) for label in range(len(CLASSES))]))
    proxies = found_proxies(objective, space)
    start, arrows = space.project(points.data).clone(), -_gradient(objective, points, labels)
    learned = [points, *(p for p in objective.parameters() if p.requires_grad)]
    optimiser = torch.optim.Adam(learned, lr=RATE)
    objective.train()
    for _ in range(STEPS):
        optimiser.zero_grad()
        objective(points, labels).backward()
        optimiser.step()
        objective.stepped()
    support = (torch.arange(len(points)) % ITEMS < SHOT) & (losses.get(loss).family == "episodes")
    return Pull(
        space.name,
        labels.numpy(),
        support.numpy(),
        start.numpy(),
        arrows.numpy(),
        space.project(points.data).numpy(),
        proxies,
        found_proxies(objective, space),
    )


def _start(space: str) -> Tensor:
    """The toy's points (n, 2) before training: five neighbouring classes that overlap."""
    draw = torch.Generator().manual_seed(4)
    centres = torch.arange(len(CLASSES)).repeat_interleave(ITEMS) * 2 * torch.pi / len(CLASSES) + torch.pi / 2
    noise = torch.randn(len(centres), 2, generator=draw) * _NEAR[space]
    if space == "sphere":
        return _on_circle(centres + noise[:, 0])
    return _PLANE_RADIUS * _on_circle(centres) + noise


def _gradient(objective: Objective, points: torch.nn.Parameter, labels: Tensor) -> Tensor:
    """The gradient (n, 2) of the loss at the points, averaged over draws."""
    found = [torch.autograd.grad(objective(points, labels), [points])[0] for _ in range(_draws(objective))]
    return torch.stack(found).mean(dim=0)


def travel(loss: str) -> Travel:
    """Move one sample from its own class to each other one and past it."""
    section, space = recipe_of(loss)
    if losses.get(loss).family == "episodes":
        return _travel_episode(section, space)
    tree = losses.get(loss).needs_hierarchy
    names = ("heron", "wren", "shark") if tree else ("own", "other")
    kin = Hierarchy.from_nested({"birds": ["heron", "wren"], "fish": ["shark"]}) if tree else None
    objective = _objective(section, space, names, kin, 1, 1)
    round_ = space.name == "sphere"
    homes = _on_circle(torch.tensor([0.0, np.pi / 2, -np.pi / 2])) if round_ else _triangle()
    if not tree:
        homes = homes[:2] if round_ else torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    place_proxies(objective, homes)
    if tree and (laid_out := found_proxies(objective, space, len(names))).size:
        homes = torch.from_numpy(laid_out[:, 0])
    places = torch.linspace(-90, 180, 55) if round_ else torch.linspace(-2, 4, 61)
    costs, others = {}, {}
    for place in range(1, len(names)):
        word = "other class" if not tree else ("its sibling" if place == 1 else "a stranger")
        costs[word], far = _costs(objective, space, homes, place, places)
        others[word] = [far]
    return Travel(space.name, places.numpy(), costs, [0.0], others)


def _costs(objective: Objective, space: Space, homes: Tensor, towards: int, places: Tensor) -> tuple[np.ndarray, float]:
    """Costs (m,) of a batch whose first sample, of class 0, is at each place on the way to another class."""
    if space.name == "sphere":
        angles = torch.atan2(homes[:, 1], homes[:, 0])
        turn = torch.remainder(angles[towards] - angles[0] + torch.pi, 2 * torch.pi) - torch.pi
        moved, far = _on_circle(angles[0] + torch.sign(turn) * torch.deg2rad(places)), float(turn.abs().rad2deg())
    else:
        way = homes[towards] - homes[0]
        moved, far = homes[0] + places[:, None] * way / way.norm(), float(way.norm())
    fixed = homes.repeat_interleave(2, dim=0)[1:]  # one more of the own class, two of each other one
    labels = torch.arange(len(homes)).repeat_interleave(2)
    return _averaged(objective, [torch.cat([one[None], fixed]) for one in moved], labels), far


def _averaged(objective: Objective, batches: Sequence[Tensor], labels: Tensor) -> np.ndarray:
    objective.eval()
    with torch.no_grad():
        values = [[float(objective(batch, labels)) for _ in range(_draws(objective))] for batch in batches]
    return np.mean(values, axis=1)


def _draws(objective: Objective) -> int:
    """How often to ask the objective: a miner that draws counts its draws."""
    return DRAWS if objective.miner is not None and any(True for _ in objective.miner.buffers()) else 1


def _travel_episode(section: ObjectiveSection, space: Space) -> Travel:
    """A query passes by the two support items of its class and those of another."""
    own, other = [0.0, 1.2], [3.0, 3.6]
    objective = _objective(section, space, ("own", "other"), None, 2, 1)
    places = torch.linspace(-1, 4.5, 111)
    batches = [
        torch.tensor([[place, 0.0] for place in (*own, float(query), *other, np.mean(other))]) for query in places
    ]
    costs = {"other class": _averaged(objective, batches, torch.tensor([0, 0, 0, 1, 1, 1]))}
    return Travel(space.name, places.numpy(), costs, own, {"other class": other})


def _objective(
    section: ObjectiveSection,
    space: Space,
    names: Sequence[str],
    tree: Hierarchy | None,
    shot: int,
    query: int,
) -> Objective:
    shape = {"dimension": 2, "classes": len(names), "space": space, "episode": (shot, query)}
    return make_objective(section, **shape, seed=LAYOUT_SEED, class_names=names, hierarchy=tree)


def place_proxies(objective: Objective, points: Tensor) -> None:
    """Put every proxy that learns, class weights and centres too, on the point of its class (C, 2)."""
    for parameter in objective.proxies():
        if parameter.shape == points.shape:
            parameter.data.copy_(points)
        elif parameter.ndim == 2 and parameter.shape[0] == 2:  # a column for each proxy, class by class
            columns = points.T.repeat_interleave(parameter.shape[1] // len(points), dim=1)
            nudges = 0.15 * torch.randn(columns.shape, generator=torch.Generator().manual_seed(0))
            parameter.data.copy_(columns + (nudges if parameter.shape[1] > len(points) else 0))


def found_proxies(objective: Objective, space: Space, classes: int = len(CLASSES)) -> np.ndarray:
    """What stands for the classes, (C, K, 2); K is 0 where the loss compares samples alone."""
    if isinstance(objective.loss, ClassVectors):
        vectors = objective.loss.class_vectors().detach()[:, None]
    elif columns := [one.data for one in objective.proxies() if one.ndim == 2 and one.shape[0] == 2]:
        vectors = columns[0].T.unflatten(0, (classes, -1))
    elif rows := [one.data for one in objective.proxies() if one.ndim == 2]:
        vectors = rows[0][:, None]
    else:
        vectors = torch.zeros(classes, 0, 2)
    return space.project(vectors).clone().numpy()


def _on_circle(angles: Tensor) -> Tensor:
    return torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1).float()


def _triangle() -> Tensor:
    """Three points (3, 2) around the origin, two apart from each other."""
    return 2 / np.sqrt(3) * _on_circle(torch.tensor([np.pi, np.pi / 3, -np.pi / 3]))
