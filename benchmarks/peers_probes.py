"""Probes: questions to an installed package that code can answer, each with its evidence.

A name is looked for by importing it. Where a module cannot be imported, because something it needs is missing, its
source is read instead, and the answer says so. That a package has nothing of a kind is a search through the names of
everything it defines; a name that is found there is told, not judged.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Answer:
    """What a probe found.

    Args:
        says: "yes", "no", "in part", "perhaps", a count, or "not installed".
        evidence: the name that was found, what was looked for in vain, or the reason of a judgement.
        how: "imported", "read" in the source, "searched", or "judged" by a person.
        link: the page that a judgement rests on.
    """

    says: str
    evidence: str
    how: str
    link: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain values for JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}


class Probe(Protocol):
    """A question to a package."""

    def ask(self, module: str) -> Answer:
        """The answer of the package with this import name."""
        ...


@dataclass(frozen=True)
class Name:
    """Whether a dotted name is there, below the package's own.

    Args:
        dotted: such as "losses.ProxyAnchorLoss".
    """

    dotted: str

    def ask(self, module: str) -> Answer:
        """Yes or no."""
        full = f"{module}.{self.dotted}"
        _, how = _find(full)
        return Answer("no", f"no `{full}`", "imported") if how is None else Answer("yes", f"`{full}`", how)


@dataclass(frozen=True)
class Option:
    """Whether something takes a parameter.

    Args:
        dotted: the function, or the class that takes it.
        parameter: its name.
    """

    dotted: str
    parameter: str

    def ask(self, module: str) -> Answer:
        """Yes or no; no as well where the thing itself is missing."""
        full = f"{module}.{self.dotted}"
        found, how = _find(full)
        if how is None:
            return Answer("no", f"no `{full}`", "imported")
        told = f"`{full}({self.parameter}=)`"
        there = self.parameter in _parameters(found)
        return Answer("yes", told, how) if there else Answer("no", f"no {told}", how)


@dataclass(frozen=True)
class InPart:
    """Whether a name is there that does some of what the row asks.

    Args:
        dotted: the name.
        reason: what it does and what it does not.
    """

    dotted: str
    reason: str

    def ask(self, module: str) -> Answer:
        """In part, or no."""
        found = Name(self.dotted).ask(module)
        if found.says == "no":
            return found
        return Answer("in part", f"{found.evidence}: {self.reason}", found.how)


@dataclass(frozen=True)
class Count:
    """How many public classes a module has, or how many things a registry or a list.

    Args:
        dotted: the modules, registries, lists or functions that give one, counted together.
        besides: a pattern of names that are not of the kind, such as base classes.
        given: what functions are called with.
    """

    dotted: tuple[str, ...]
    besides: str = "^Base"
    given: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, module: str) -> Answer:
        """A number, or "no"."""
        names, ways = set(), set()
        for dotted in self.dotted:
            found, how = _find(f"{module}.{dotted}")
            if how is None:
                return Answer("no", f"no `{module}.{dotted}`", "imported")
            names |= {name for name in _members(found, self.given) if not re.search(self.besides, name)}
            ways.add(how)
        return Answer(str(len(names)), ", ".join(f"`{module}.{dotted}`" for dotted in self.dotted), " ".join(ways))


@dataclass(frozen=True)
class Absent:
    """That nothing in the package is named like this.

    Args:
        pattern: of names of modules, classes, functions and parameters, whatever the case.
    """

    pattern: str

    def ask(self, module: str) -> Answer:
        """No, or "perhaps" with what was found, for somebody to look at."""
        hits = sorted(name for name in _defined(module) if re.search(self.pattern, name, re.IGNORECASE))
        if hits:
            return Answer("perhaps", ", ".join(f"`{hit}`" for hit in hits[:3]), "searched")
        return Answer("no", f"nothing named like `{self.pattern}`", "searched")


@dataclass(frozen=True)
class Judged:
    """What no code can decide: a person's answer with its reason and the page it rests on.

    Args:
        says: the answer.
        reason: in a few words.
        link: the page.
    """

    says: str
    reason: str
    link: str

    def ask(self, module: str) -> Answer:
        """The judgement, whatever is installed."""
        return Answer(self.says, self.reason, "judged", self.link)


def ask(probe: Probe, module: str) -> Answer:
    """The answer of a package, or that it is not installed."""
    if not isinstance(probe, Judged) and importlib.util.find_spec(module) is None:
        return Answer("not installed", f"`{module}`", "imported")
    return probe.ask(module)


# ---------------------------------------------------------------- finding by importing


def _find(dotted: str) -> tuple[Any, str | None]:
    """What a dotted name means and whether it was "imported" or "read"; (None, None) if there is no such thing."""
    parts = dotted.split(".")
    found: Any = None
    for cut, part in enumerate(parts, start=1):
        # An attribute comes first: a package may give a function the name of the module it is in.
        if found is not None and hasattr(found, part):
            found = getattr(found, part)
            continue
        if found is not None and not inspect.ismodule(found):
            return None, None
        module = ".".join(parts[:cut])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            return (None, None) if error.name == module else _read(parts)
        except Exception:  # whatever a package raises because something it needs is missing or too new
            return _read(parts)
    return found, "imported"


def _parameters(found: Any) -> set[str]:
    if isinstance(found, ast.AST):
        return {argument.arg for argument in _arguments(found)}
    fields = getattr(found, "model_fields", None)
    return set(fields) if fields is not None else set(inspect.signature(found).parameters)


def _members(found: Any, given: Mapping[str, Any]) -> list[str]:
    if inspect.ismodule(found):
        return [name for name, value in vars(found).items() if inspect.isclass(value) and not name.startswith("_")]
    return [getattr(thing, "name", str(thing)) for thing in (found(**given) if callable(found) else found)]


# ---------------------------------------------------------------- finding by reading


def _read(parts: list[str]) -> tuple[Any, str | None]:
    """The definition of a dotted name in the package's source."""
    folder = _folder(parts[0])
    for cut in range(len(parts) - 1, 0, -1):
        place = folder.joinpath(*parts[1:cut])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.exists():
            continue
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and parts[cut:] == [node.name]:
                return node, "read"
        return None, None
    return None, None


@cache
def _defined(module: str) -> frozenset[str]:
    """Names of all modules, classes, functions and parameters that a package defines."""
    folder = _folder(module)
    names = set()
    for file in folder.rglob("*.py"):
        names.add(file.stem)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names |= {node.name, *(argument.arg for argument in _arguments(node))}
    return frozenset(names)


def _arguments(node: ast.AST) -> Iterator[ast.arg]:
    """The parameters of a function, or of a class's constructor."""
    if isinstance(node, ast.FunctionDef):
        yield from (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                yield from _arguments(part)


def _folder(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"There is no package '{module}' here.")
    return Path(next(iter(spec.submodule_search_locations)))
