"""A whole recipe: read by name or from a file, with what it extends and what is overridden, and validated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from nearkin.data.section import AudioSection, DataSection
from nearkin.errors import RecipeError, UnknownNameError, suggestion
from nearkin.models.section import AUTO, RANDOM, ModelSection
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe.audit_section import AuditSection
from nearkin.recipe.sections import AdversarialSection, TrainingSection, with_new_names
from nearkin.storage import write_text

try:  # eight times as fast
    from yaml import CSafeDumper as SafeDumper
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeDumper, SafeLoader  # type: ignore[assignment]

DEFAULT_RECIPE = "multi-similarity"

BY_DATA = "by_data"
"""The key of a recipe file under which settings depend on the data set."""
_DEFAULT = "default"

_RATE_FROM_START = 1e-4
"""Learning rate of a head that starts from the data: more undoes what the start knows."""

_PLAIN_AUDIO = AudioSection().model_dump(mode="json")
_ADVERSARIAL_LATER = {"l1_ratio": 100.0, "pairing_weight": 0.5, "pairing_margin": 0.03}

ADDED_LATER: dict[str, dict[str, Any]] = {
    "data": {"test_domains": [], "colour": None, "rotation": 0.0, "erase": 0.0, "audio": _PLAIN_AUDIO},
    "model": {
        "similarity": None,
        "head_start": "random",
        "start": None,
        "resize": None,
        "drop_path": 0.0,
        "size_feature": None,
    },
    "model.similarity": {"form": "concatenation", "depth": 1},
    "training.adversarial": _ADVERSARIAL_LATER,  # before the section, so that what is left can be the default of then
    "objective": {"proxy_start": "random", "switch": 0.0, "prefixes": [], "prefix_weights": None},
    "training": {
        "adversarial": AdversarialSection().model_dump(mode="json", exclude=set(_ADVERSARIAL_LATER)),
        "average_best": None,
        "betas": [0.9, 0.999],
        "full_rate_classes": 80,
        "full_rate_items": 3000,
        "gradient_accumulation": 1,
        "gradient_cache": None,
        "layer_decay": None,
        "plateau_patience": 3,
        "select": None,
        "sync_batch_norm": True,
    },
}
"""Keys that older recipes did not have, with the values that change nothing; what was measured before still counts."""

_OF_EPISODES = ("classes_per_batch", "per_class")
"""What training.episodic says in place of the data section."""


class _Loader(SafeLoader):
    """Safe YAML that reads 1e-4 as the number people mean (YAML 1.1 wants 1.0e-4)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


class Recipe(BaseModel):
    """A whole recipe. Load one with `load_recipe`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(default="custom", description="What the recipe is called.")
    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection = Field(default_factory=ModelSection)
    objective: ObjectiveSection = Field(default_factory=ObjectiveSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    audit: AuditSection = Field(default_factory=AuditSection)

    @model_validator(mode="after")
    def _take_batches_from_episodes(self) -> Recipe:
        """With episodes the batch has their shape; a recipe that names another one contradicts itself."""
        if self.training.schedule != "episodic":
            return self
        episodic = self.training.episodic
        shape = dict(zip(_OF_EPISODES, (episodic.way, episodic.shot + episodic.query), strict=True))
        for name, value in shape.items():
            given = getattr(self.data, name)
            if name in self.data.model_fields_set and given != value:
                raise RecipeError(
                    f"data.{name} is {given} and an episode needs {value} (training.episodic: way {episodic.way}, shot "
                    f"{episodic.shot}, query {episodic.query}): leave it out or set it to {value}, and change the "
                    "episode by training.episodic."
                )
        object.__setattr__(self, "data", self.data.model_copy(update=shape))
        return self

    @model_validator(mode="after")
    def _settle_start(self) -> Recipe:
        """Say where proxies start and how fast heads learn from there, so that a saved recipe tells."""
        from_data = self.model.head_start != RANDOM
        if self.objective.proxy_start is None:
            start = "prototypes" if from_data else "random"
            object.__setattr__(self, "objective", self.objective.model_copy(update={"proxy_start": start}))
        if from_data and "lr" not in self.training.model_fields_set:
            object.__setattr__(self, "training", self.training.model_copy(update={"lr": _RATE_FROM_START}))
        if self.model.dimension == AUTO and self.objective.prefixes:
            raise RecipeError(
                "objective.prefixes are sizes below the model's, which model.dimension auto leaves open: set "
                "model.dimension to a number, such as 128."
            )
        return self

    @model_validator(mode="after")
    def _check_learned(self) -> Recipe:
        """Refuse settings for parts that do not learn, or for images that are not looked at."""
        if self.training.layer_decay is not None and self.model.freeze == "all":
            raise RecipeError(
                "training.layer_decay is for stages that learn, and the whole backbone is frozen: freeze less "
                "(model.freeze), or set it to null."
            )
        for name in ("colour", "rotation", "erase"):
            if self.model.cache and getattr(self.data, name):
                raise RecipeError(
                    f"data.{name} changes images in every step, which a feature cache looks at only once: set "
                    f"model.cache to false, or remove data.{name}."
                )
        return self

    @model_serializer(mode="wrap")
    def _leave_out_what_episodes_say(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the batch's shape out where it follows from the episode's, which may then be changed by itself."""
        tree: dict[str, Any] = handler(self)
        if self.training.schedule == "episodic" and "data" in tree:
            tree["data"] = {name: value for name, value in tree["data"].items() if name not in _OF_EPISODES}
        return tree

    def to_yaml(self) -> str:
        """The resolved recipe as YAML that `load_recipe` reads back to an equal recipe."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=SafeDumper, sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe."""
        write_text(path, self.to_yaml())


def list_recipes() -> dict[str, str]:
    """The shipped recipes: name to the one line that opens each file."""
    found = {}
    for entry in resources.files("nearkin.recipes").iterdir():
        if entry.name.endswith(".yaml"):
            first = entry.read_text(encoding="utf-8").partition("\n")[0]
            found[entry.name.removesuffix(".yaml")] = first.lstrip("# ").strip()
    return dict(sorted(found.items()))


def load_recipe(
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    overrides: list[str] | None = None,
    data: str | None = None,
    *,
    saved: bool = False,
) -> Recipe:
    """Read a recipe by name or from a YAML file, apply `a.b=c` overrides, and validate it.

    Args:
        recipe: the name of a shipped recipe, the path of a YAML file, or a Recipe.
        overrides: assignments such as "training.max_steps=200"; the values are YAML.
        data: the catalogue's name of the data, for recipes whose settings depend on it (`by_data`); any other name is
            none of them.
        saved: it is the recipe of a run, which an earlier version may have let have settings that nothing uses.
    """
    if isinstance(recipe, Recipe):
        tree, name = recipe.model_dump(mode="json"), recipe.name
    else:
        tree, name = _read_tree(str(recipe), data, seen=())
    given: dict[str, Any] = {}
    for assignment in overrides or []:
        _assign(given, assignment)
    tree = _merge(tree, given)
    tree.setdefault("name", name)
    try:
        return Recipe.model_validate(tree, context={"saved": saved})
    except ValidationError as error:
        raise RecipeError(_explain(error, name)) from error


def recipe_schema() -> dict[str, Any]:
    """JSON schema of a recipe file, for editors."""
    schema = Recipe.model_json_schema()
    schema["properties"] = {
        "extends": {"type": "string", "description": "Name or path of the recipe to start from."},
        BY_DATA: {
            "type": ["string", "array", "object"],
            "description": "Settings by the catalogue's name of the data: tables of nearkin/recipe/parameters.yaml by "
            "name, or a mapping from data set (or default) to settings.",
        },
    } | schema["properties"]
    return schema


def settings_by_data(recipe: str | Path, overrides: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """What depends on the data in a recipe: name in the catalogue to keys such as `training.lr` and their values."""
    names: set[str] = set()
    _read_tree(str(recipe), None, seen=(), named=names)
    found = {name: dict(_flat(load_recipe(recipe, overrides, name).model_dump(mode="json"))) for name in sorted(names)}
    plain = dict(_flat(load_recipe(recipe, overrides).model_dump(mode="json")))
    differing = [key for key in plain if any(values.get(key) != plain[key] for values in found.values())]
    return {name: {key: values[key] for key in differing} for name, values in found.items()} if differing else {}


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_tree(
    recipe: str, data: str | None, seen: tuple[str, ...], named: set[str] | None = None
) -> tuple[dict[str, Any], str]:
    """The merged mapping of a recipe and what it extends, with the settings for the data, and the recipe's name.

    Args:
        recipe: name or file.
        data: name of the data in the catalogue, or None.
        seen: recipes that extend this one.
        named: takes the data sets that any of these recipes says something for.
    """
    text, name = _read_text(recipe)
    if name in seen:
        raise RecipeError(f"The recipe '{name}' extends itself ({' -> '.join((*seen, name))}): break the circle.")
    try:
        tree = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"The recipe '{name}' is not valid YAML: {' '.join(str(error).split())}.") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise RecipeError(f"The recipe '{name}' must be a mapping with the sections {', '.join(Recipe.model_fields)}.")
    tree = _in_todays_words(tree)
    parent = tree.pop("extends", None)
    for table in _tables(tree.pop(BY_DATA, []), name):
        if named is not None:
            named.update(table.keys() - {_DEFAULT})
        tree = _merge(tree, _in_todays_words(table.get(data or _DEFAULT, table.get(_DEFAULT, {}))))
    if parent is None:
        return tree, name
    if not isinstance(parent, str):
        raise RecipeError(f"The recipe '{name}' must name one recipe after 'extends:', not {parent!r}.")
    path = Path(recipe)
    if parent.endswith((".yaml", ".yml")) and not Path(parent).is_absolute() and path.suffix:
        parent = str(path.parent / parent)
    base, _ = _read_tree(parent, data, (*seen, name), named)
    base.pop("name", None)
    return _merge(base, tree), name


@cache
def _published() -> dict[str, dict[str, Any]]:
    """The tables of `parameters.yaml`, by name; nobody changes them."""
    text = (resources.files(__package__) / "parameters.yaml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = yaml.load(text, _Loader)
    return tables


def _tables(given: Any, name: str) -> list[dict[str, Any]]:
    """What stands under `by_data` in a recipe: mappings from data set to settings, some of them by name."""
    from nearkin.data.catalogue import catalogue

    published = _published()
    tables = []
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, str) and one not in published:
            raise UnknownNameError(f"The recipe '{name}' takes the table '{one}'.{suggestion(one, published)}")
        table = published[one] if isinstance(one, str) else one
        if not isinstance(table, dict) or not all(isinstance(settings, dict) for settings in table.values()):
            raise RecipeError(
                f"The recipe '{name}' must name tables of parameters after '{BY_DATA}:', or give settings by data set, "
                f"such as {{cub200: {{training: {{lr: 1e-5}}}}}}, not {one!r}."
            )
        for data in table:
            if data != _DEFAULT and data not in catalogue:
                raise UnknownNameError(
                    f"The recipe '{name}' has settings for '{data}', which is no data set of the catalogue."
                    f"{suggestion(str(data), [*catalogue, _DEFAULT])}"
                )
        tables.append(table)
    return tables


def _read_text(recipe: str) -> tuple[str, str]:
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        try:
            return path.read_text(encoding="utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"The recipe file {path} could not be read: {error}.") from error
    shipped = list_recipes()
    if recipe not in shipped:
        raise UnknownNameError(f"There is no recipe '{recipe}'.{suggestion(recipe, shipped)}")
    return (resources.files("nearkin.recipes") / f"{recipe}.yaml").read_text(encoding="utf-8"), recipe


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping.

    A child that names another loss, miner, schedule or optimiser, say, starts from that thing's own parameters,
    so the parent's parameters for the old one are dropped.
    """
    merged = dict(base)
    for owner, owned in _OWNED_PARAMETERS.items():
        if owner in over and owner in base and over[owner] != base[owner]:
            for name in owned:
                merged.pop(name, None)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


_OWNED_PARAMETERS = {
    "loss": ("parameters",),
    "miner": ("miner_parameters",),
    "pooling": ("pooling_parameters",),
    "space": ("space_parameters",),
    "schedule": ("cross_batch_memory", "chance_constrained", "episodic"),
    "lr_schedule": ("step_every", "step_factor", "plateau_patience"),
    "optimizer": ("momentum",),
}


def _assign(tree: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f"The override '{assignment}' must have the form section.key=value.")
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, UnicodeError) as error:  # half a character from the command line
        raise RecipeError(f"The value of the override '{assignment}' is not valid YAML.") from error
    change: dict[str, Any] = {keys[-1]: value}
    for part in reversed(keys[:-1]):
        change = {part: change}
    merged = _merge(tree, _in_todays_words(change))
    tree.clear()
    tree.update(merged)


def _in_todays_words(tree: dict[str, Any]) -> dict[str, Any]:
    """One file or override with old names translated, before what it extends mixes in."""
    training = tree.get("training")
    return {**tree, "training": with_new_names(training)} if isinstance(training, dict) else tree


def _explain(error: ValidationError, name: str) -> str:
    """One sentence for the first thing wrong with a recipe."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if isinstance(part, str)]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"The recipe '{name}' has an unknown key '{key}'.{suggestion(where[-1], _fields(where[:-1]))}"
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    # A whole section would bury the sentence.
    shown = "" if isinstance(given, dict) else f" (given {json.dumps(given, default=str)})"
    return f"The recipe '{name}' has a wrong value for '{key}': {message[:1].lower()}{message[1:]}{shown}."


def _fields(path: list[str]) -> list[str]:
    """Valid keys at a place in the recipe."""
    model: Any = Recipe
    for part in path:
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields) + (["extends"] if model is Recipe else [])
