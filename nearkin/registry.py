"""Names to things, such as backbones, poolings and losses, and their parameters checked against the signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from nearkin.errors import ModelError, NearkinError, UnknownNameError, suggestion


def _check_odd(value: int) -> int:
    if value % 2 == 0:
        raise PydanticCustomError("odd", "Input should be odd")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
OddCount = Annotated[int, Field(ge=1), AfterValidator(_check_odd)]


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters a factory declares: its keyword-only arguments."""
    signature = inspect.signature(factory)
    return {name: p for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_parameters(
    factory: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    names: Collection[str],
    owner: str,
    key: str,
    error: type[NearkinError],
) -> dict[str, Any]:
    """Return `given` with its values converted to the declared types.

    Args:
        factory: a function or class whose annotations declare the types; what has none takes any value.
        given: parameters as a recipe gives them.
        names: the arguments of the factory that are parameters; others are not the recipe's to give.
        owner: who takes them, for messages: "loss 'triplet'".
        key: where the recipe has them, for messages: "objective.parameters".
        error: what is raised for a name that is not among `names`, or a value of the wrong type or out of range.
    """
    checked = {}
    for name, value in given.items():
        if name not in names:
            known = suggestion(str(name), names) or " It has none."
            raise error(f"The {owner} has no parameter '{name}' ({key}.{name}).{known}")
        hint = _hints(factory).get(name, Any)
        if isinstance(value, bool) and _is_number(hint):
            raise error(f"The {owner} needs a number as {key}.{name}, not {str(value).lower()}.")
        try:
            checked[name] = TypeAdapter(hint).validate_python(value)
        except ValidationError as invalid:
            message = invalid.errors()[0]["msg"].removeprefix("Input ")
            raise error(f"The {owner} cannot take {key}.{name}={value!r}: it {message}.") from None
    return checked


def _is_number(hint: Any) -> bool:
    """Whether a number is meant, or a number or None: pydantic would take true for 1."""
    if get_origin(hint) is Annotated:
        return _is_number(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return all(kind is type(None) or _is_number(kind) for kind in get_args(hint))
    return hint in (int, float)


@cache
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    function = factory.__init__ if inspect.isclass(factory) else factory
    return get_type_hints(function, include_extras=True)


T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary filled by decorator that answers an unknown name with the nearest known one.

    Args:
        kind: what the entries are, for messages: "backbone", "loss", ...
        modules: names to the modules that register them, imported when `get` first asks for a name.
    """

    def __init__(self, kind: str, modules: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._modules = dict(modules or {})

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
        if name not in self._entries and name in self._modules:
            import_module(self._modules[name])
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"There is no {self.kind} '{name}'.{suggestion(name, self)}") from None

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
        return sorted({*self._entries, *self._modules})

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
