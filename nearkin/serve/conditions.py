"""Conditions that come from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nearkin.gallery.where import Condition, condition
from nearkin.gallery.where_nodes import Name
from nearkin.serve.problems import Problem


def outside_condition(where: str | None, parameters: Mapping[str, Any] | None) -> Condition | None:
    """A condition that may be asked over HTTP: on anything but `source`, which would tell the server's paths.

    Raises:
        Problem: if it asks for that.
        DataError: if it cannot be read.
    """
    parsed = condition(where, parameters)
    if parsed is not None and any(name.own and name.key == "source" for name in _names(parsed)):
        raise Problem("invalid-request", "A condition on source is not answered over HTTP.")
    return parsed


def _names(part: Any) -> Iterator[Name]:
    if (name := getattr(part, "name", None)) is not None:
        yield name
    for inner in (*getattr(part, "parts", ()), *filter(None, [getattr(part, "part", None)])):
        yield from _names(inner)
