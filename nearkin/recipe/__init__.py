"""The recipe: everything a run needs to be repeated, validated before anything starts.

A recipe is YAML with five sections. The rooms above own theirs (`data`, `model`, `objective`); `training` and `audit`
lie below this room, so their sections are declared here. `extends:` names another recipe to start from.
"""

from nearkin.recipe.audit_section import AuditSection
from nearkin.recipe.recipe import DEFAULT_RECIPE, Recipe, list_recipes, load_recipe, recipe_schema, settings_by_data
from nearkin.recipe.sections import (
    AdversarialSection,
    ChanceConstrainedSection,
    CrossBatchMemorySection,
    EpisodicSection,
    TrainingSection,
)

__all__ = [
    "DEFAULT_RECIPE",
    "AdversarialSection",
    "AuditSection",
    "ChanceConstrainedSection",
    "CrossBatchMemorySection",
    "EpisodicSection",
    "Recipe",
    "TrainingSection",
    "list_recipes",
    "load_recipe",
    "recipe_schema",
    "settings_by_data",
]
