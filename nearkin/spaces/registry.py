"""Spaces by name, so that a recipe or a checkpoint's card can build them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nearkin.errors import ModelError, suggestion
from nearkin.registry import Registry
from nearkin.spaces.base import Space

spaces: Registry[Callable[..., Space]] = Registry("space")


def make_space(name: str, **parameters: Any) -> Space:
    """Build a space: `make_space("sphere", metric="angle")`."""
    factory = spaces.get(name)
    known = list(inspect.signature(factory).parameters)
    for parameter in parameters:
        if parameter not in known:
            hint = suggestion(parameter, known) or " It takes none."
            raise ModelError(f"The space '{name}' has no parameter '{parameter}'.{hint}")
    return factory(**parameters)
