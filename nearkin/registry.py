"""Names to things: one small registry that backbones, poolings, losses and data sets share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from nearkin.errors import ModelError, NearkinError, UnknownNameError, suggestion

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary filled by decorator that answers an unknown name with the nearest known one.

    Args:
        kind: what the entries are, for messages: "backbone", "loss", ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files the decorated object under `name`."""

        def file(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"The {self.kind} '{name}' is registered twice.")
            self._entries[name] = entry
            return entry

        return file

    def get(self, name: str) -> T:
        """Return the entry called `name`."""
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"There is no {self.kind} '{name}'.{suggestion(name, self._entries)}") from None

    def check(self, name: str, parameters: Iterable[str], error: type[NearkinError] = ModelError) -> None:
        """Refuse an unknown name, or parameters that the entry of this name, a callable, does not take."""
        entry = self.get(name)
        known = list(inspect.signature(entry).parameters) if callable(entry) else []
        for parameter in parameters:
            if parameter not in known:
                hint = suggestion(parameter, known) or " It takes none."
                raise error(f"The {self.kind} '{name}' has no parameter '{parameter}'.{hint}")

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
