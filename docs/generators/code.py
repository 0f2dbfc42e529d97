"""Tables of what the package has, from its code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from pydantic import BaseModel

from generators.markdown import table


def _catalogue() -> str:
    from nearkin.data.catalogue import catalogue_table

    rows = catalogue_table()
    return table(rows[0], (row.values() for row in rows))


def _recipes() -> str:
    from nearkin.recipe import list_recipes

    return table(("recipe", "what it is"), ((f"`{name}`", line) for name, line in list_recipes().items()))


def _keys() -> str:
    """Every key of every section, with its default and description."""
    from nearkin.recipe import Recipe

    parts = []
    for section, field in Recipe.model_fields.items():
        model = field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        defaults = model()
        rows = [
            (f"`{name}`", f"`{_plain(getattr(defaults, name))}`", key.description or "")
            for name, key in model.model_fields.items()
        ]
        parts.append(f"### {section}\n\n{table(('key', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _plain(value: object) -> str:
    return str(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def _backbones() -> str:
    from nearkin.models import list_backbones

    return ", ".join(f"`{name}`" for name in list_backbones())


def _poolings() -> str:
    """Every pooling, with what its docstring says of it: the first line, and when to use it."""
    from nearkin.models.pooling import list_poolings, poolings

    rows = []
    for name in list_poolings():
        words = " ".join(inspect.getdoc(poolings.get(name)).split())
        when = re.search(r"Use when: (.*?)(?: Args:|$)", words)
        rows.append((f"`{name}`", words.partition(". ")[0].rstrip("."), when[1].rstrip(".") if when else ""))
    return table(("pooling", "what it is", "use when"), rows)


def _modules() -> str:
    """Every module of the package by room, with the first sentence of its docstring."""
    package = Path(__file__).parents[2] / "nearkin"
    parts = []
    for room in sorted({path.parent for path in package.rglob("*.py")}):
        rows = []
        for path in sorted(room.glob("*.py")):
            words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if path.stem not in ("__init__", "__main__"):
                rows.append((f"`{path.name}`", " ".join(words.split("\n\n")[0].split())))
        if rows:
            name = room.relative_to(package.parent).as_posix()
            parts.append(f"### {name}/\n\n{table(('module', 'what it is'), rows)}")
    return "\n\n".join(parts)


TABLES = {
    "modules": _modules,
    "catalogue": _catalogue,
    "recipes": _recipes,
    "keys": _keys,
    "backbones": _backbones,
    "poolings": _poolings,
}
