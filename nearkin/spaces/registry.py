"""Spaces by name, so that a recipe or a checkpoint's card can build them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearkin.registry import Registry
from nearkin.spaces.base import Space

spaces: Registry[Callable[..., Space]] = Registry("space")


def make_space(name: str, **parameters: Any) -> Space:
    """Build a space: `make_space("sphere", metric="angle")`."""
    spaces.check(name, parameters)
    return spaces.get(name)(**parameters)
