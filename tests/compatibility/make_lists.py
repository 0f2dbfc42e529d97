"""List what users can rely on: commands, recipes, routes, registered names and everything on the reference pages.

    python tests/compatibility/make_lists.py 38e006d      # lists of that commit, written to lists.json beside this file
    PYTHONPATH=folder python tests/compatibility/make_lists.py --of folder      # lists of a checkout, printed

`test_public_lists.py` refuses a tree from which anything of lists.json has vanished. The module paths in lists.json are
those of that commit: no tool that renames modules may touch it.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LISTS = HERE / "lists.json"


def commands() -> dict[str, list[str]]:
    """Each command with its arguments and options, as `train: [DATA, --out, ...]`; "" is `nearkin` itself."""
    import typer

    from nearkin.cli import main

    started: list[typer.Typer] = []
    with mock.patch.object(typer.Typer, "__call__", lambda app: started.append(app)):
        main()
    found: dict[str, list[str]] = {}

    def walk(command: Any, path: str) -> None:
        found[path] = [
            name
            for parameter in command.params
            for name in (
                [*parameter.opts, *parameter.secondary_opts]
                if parameter.param_type_name == "option"
                else [str(parameter.name).upper()]
            )
        ]
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{path} {name}".strip())

    walk(typer.main.get_command(started[0]), "")
    return dict(sorted(found.items()))


def recipes() -> list[str]:
    """Names of the shipped recipes."""
    from nearkin.recipe import list_recipes

    return list(list_recipes())


def recipe_keys() -> list[str]:
    """Every key a recipe may have, dotted, and the values of keys that take one of few: `training.optimizer="adam"`."""
    from nearkin.recipe import recipe_schema

    schema = recipe_schema()

    def walk(node: dict[str, Any], key: str) -> Iterator[str]:
        node = _resolved(node, schema)
        for name, child in node.get("properties", {}).items():
            yield f"{key}.{name}".strip(".")
            yield from walk(child, f"{key}.{name}".strip("."))
        for value in [*node.get("enum", []), *([node["const"]] if "const" in node else [])]:
            yield f"{key}={json.dumps(value)}"
        for alternative in [*node.get("anyOf", []), *node.get("oneOf", [])]:
            yield from walk(alternative, key)
        if isinstance(node.get("items"), dict):
            yield from walk(node["items"], key)

    return sorted(set(walk(schema, "")))


def routes() -> dict[str, list[str]]:
    """Each method and path of the service with the names in its query, its body and its answers."""
    from nearkin.gallery import Gallery
    from nearkin.serve import create_app

    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "empty.gallery", dimension=2, name="none") as gallery,
    ):
        app: Any = create_app(gallery)
        document = app.openapi()
    found: dict[str, list[str]] = {}

    def walk(router: Any) -> None:
        for route in router.routes:
            inner = getattr(route, "original_router", None)  # FastAPI may keep included routers whole
            if inner is not None:
                walk(inner)
                continue
            for method in sorted(getattr(route, "methods", None) or []):
                described = document["paths"].get(route.path, {}).get(method.lower(), {})
                found[f"{method} {route.path}"] = sorted(set(_names_of_operation(described, document)))

    walk(app)
    return dict(sorted(found.items()))


def _names_of_operation(operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        yield f"{parameter['in']} {parameter['name']}"
    bodies = [("body", operation.get("requestBody", {}))]
    bodies += [("answer", answer) for status, answer in operation.get("responses", {}).items() if status < "300"]
    for place, body in bodies:
        for content in _resolved(body, document).get("content", {}).values():
            for name in _fields(content.get("schema", {}), document):
                yield f"{place} {name}"


def _fields(node: dict[str, Any], document: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Names of the fields of a schema, with those of the values in them, dotted."""
    node = _resolved(node, document)
    for alternative in [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]:
        yield from _fields(alternative, document, depth)
    if isinstance(node.get("items"), dict):
        yield from _fields(node["items"], document, depth)
    for name, child in node.get("properties", {}).items():
        yield name
        if depth < 4:
            yield from (f"{name}.{inner}" for inner in _fields(child, document, depth + 1))


def _resolved(node: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        found: Any = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


_REGISTRIES = {"nearkin.registry.Registry"}
"""Where the class of a registry has been defined."""


def registered() -> dict[str, list[str]]:
    """The names that recipes, options and functions take: of losses, poolings, spaces, suites, data sets, ..."""
    found: dict[str, set[str]] = {}
    gc.unfreeze()  # the tests freeze what they import, and what is frozen is not listed
    for thing in gc.get_objects():
        if {f"{kind.__module__}.{kind.__name__}" for kind in type(thing).__mro__} & _REGISTRIES:
            found.setdefault(thing.kind, set()).update(thing.names())
    return {kind: sorted(names) for kind, names in sorted(found.items()) if names}


def modules(root: Path) -> dict[str, dict[str, list[str]]]:
    """The public names of each documented module and each room: module to name to parameters, as in `names`."""
    pages = sorted((root / "docs" / "reference").glob("*.md"))
    targets = [target for page in pages for target in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)]
    rooms = [f"nearkin.{init.parent.name}" for init in (root / "nearkin").glob("*/__init__.py")]
    found: dict[str, dict[str, list[str]]] = {}
    for target in dict.fromkeys([*sorted(rooms), *targets]):
        module, chosen = target, None
        if not _file(root, target):
            module, _, name = target.rpartition(".")
            chosen = [name]
        found.setdefault(module, {}).update(names(module, chosen or _public(root, module)))
    return found


def names(module: str, chosen: list[str]) -> dict[str, list[str]]:
    """What there is at a module's names: each, and the public members of classes, to the parameters it takes.

    Names that the module does not have are left out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        home = importlib.import_module(module)
        found: dict[str, list[str]] = {}
        for name in chosen:
            if not hasattr(home, name):
                continue
            thing = getattr(home, name)
            found[name] = parameters(thing)
            if inspect.isclass(thing):
                found |= {f"{name}.{member}": taken for member, taken in members(thing).items()}
    return found


def members(kind: type) -> dict[str, list[str]]:
    """The public members of a class that it has from this package, and the fields it declares."""
    found: dict[str, list[str]] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "nearkin":
            declared = [*vars(base), *inspect.get_annotations(base), *getattr(base, "model_fields", {})]
            for name in declared:
                if not name.startswith("_") and name != "model_config" and name not in found:
                    found[name] = parameters(getattr(kind, name, None))
    return dict(sorted(found.items()))


def parameters(thing: Any) -> list[str]:
    """The names of what is passed to a function or class, keyword-only ones after "*"; empty for anything else."""
    if (not inspect.isroutine(thing) and not inspect.isclass(thing)) or getattr(thing, "_is_protocol", False):
        return []
    try:
        taken = [one for one in inspect.signature(thing).parameters.values() if not one.name.startswith("_")]
    except (TypeError, ValueError):
        return []
    found: list[str] = []
    for one in taken:
        if one.kind is one.KEYWORD_ONLY and not any(name.startswith("*") for name in found):
            found.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}
        found.append(stars.get(one.kind, "") + one.name)
    return found[found[:1] == ["self"] :]


def _file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _public(root: Path, module: str) -> list[str]:
    """A module's `__all__`; without one, what it defines."""
    home = importlib.import_module(module)
    if hasattr(home, "__all__"):
        return list(home.__all__)
    file = _file(root, module)
    assert file is not None
    defined: list[str] = []
    for statement in ast.parse(file.read_text("utf-8")).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined.append(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in defined if not name.startswith("_")]


def lists(root: Path) -> dict[str, Any]:
    """All of it, of the tree whose package is imported."""
    import nearkin

    if not Path(nearkin.__file__).is_relative_to(root):
        sys.exit(f"The package of {nearkin.__file__} is not the one of {root}.")
    documented = modules(root)
    return {
        "nearkin": sorted(nearkin.__all__),
        "commands": commands(),
        "recipes": recipes(),
        "recipe keys": recipe_keys(),
        "routes": routes(),
        "registered": registered(),
        "modules": documented,
    }


def extract(commit: str, folder: Path) -> None:
    """Write the tree of a commit into a folder.

    Raises:
        OSError: if there is no git.
        subprocess.CalledProcessError: if the commit is not there, as in a shallow clone.
    """
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "nearkin", "docs/reference"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def _lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each list."""
    if isinstance(value, dict) and value:
        inner = indent + " "
        rows = [f"{inner}{json.dumps(key)}: {_lines(child, inner)}" for key, child in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return json.dumps(value)


def main() -> None:
    match sys.argv[1:]:
        case ["--of", folder]:
            print(_lines(lists(Path(folder))))
        case [commit] if not commit.startswith("-"):
            with tempfile.TemporaryDirectory() as folder:
                extract(commit, Path(folder))
                environment = {**os.environ, "PYTHONPATH": folder}
                command = [sys.executable, __file__, "--of", folder]
                made = subprocess.run(
                    command, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
                )
            LISTS.write_text(made.stdout, encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
