"""Recipes as they were when the studies of heads that start at random were measured.

The shipped recipes start a pretrained trunk's head from its features, choose the dimension and learn at rates for that
(docs/methods/start.md). Ledgers made before are of recipes without; `training_pays` repeats what is frozen from the new
start.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearkin import recipe as shipped
from nearkin.models.section import AUTO
from nearkin.recipe import Recipe

_BETA = shipped.load_recipe("multi-similarity").objective.parameters["beta"]
_SHORT = shipped.load_recipe("base").training
_LONG = {"max_steps": 1500, "lr_schedule": "constant", "evaluate_every": 50, "patience": 10}
_MULTI_SIMILARITY = ("multi-similarity", "multi-similarity-gsp")


def load_recipe(recipe: str | Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe with a head that starts at random, 128 dimensions and the rates for that; then overrides."""
    if isinstance(recipe, Recipe):
        return shipped.load_recipe(recipe, list(overrides))
    now = shipped.load_recipe(recipe)
    before = ["model.head_start=random"]
    if now.model.head_start != "random":
        before.append("training.lr=1e-3")
    if now.model.dimension == AUTO:
        before.append("model.dimension=128")
    if now.objective.parameters.get("beta") == _BETA:
        before.append("objective.parameters.beta=40")
    if all(getattr(now.training, key) == getattr(_SHORT, key) for key in _LONG):
        before += [f"training.{key}={value}" for key, value in _LONG.items()]
    if recipe == "learned-similarity":  # without smoothed targets and a fixed length
        recipe = now.model_copy(update={"objective": now.objective.model_copy(update={"parameters": {}})})
        before += ["model.space=euclidean", *(f"training.{key}={value}" for key, value in _LONG.items())]
    if recipe in _MULTI_SIMILARITY:
        before.append("data.classes_per_batch=16")
    return shipped.load_recipe(recipe, [*before, *overrides])
