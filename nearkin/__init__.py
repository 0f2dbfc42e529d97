"""nearkin: learn a distance you can trust, and put it to work."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearkin import _moved
from nearkin._version import __version__
from nearkin.errors import NearkinError

if TYPE_CHECKING:
    from nearkin.api import audit, explain, fit, load, reweight, shorten
    from nearkin.audits import AuditResult
    from nearkin.audits.drift import drift
    from nearkin.data import Dataset, Manifest, open_data
    from nearkin.gallery import Gallery
    from nearkin.models import Embedder
    from nearkin.recipe import Recipe, list_recipes, load_recipe

__all__ = [
    "AuditResult",
    "Dataset",
    "Embedder",
    "Gallery",
    "Manifest",
    "NearkinError",
    "Recipe",
    "__version__",
    "audit",
    "drift",
    "explain",
    "fit",
    "list_recipes",
    "load",
    "load_recipe",
    "open_data",
    "reweight",
    "shorten",
]

_moved.install()

# torch takes a second to import: names are fetched when first used.
_HOMES = {
    "AuditResult": "nearkin.audits.result",
    "Dataset": "nearkin.data.dataset",
    "Embedder": "nearkin.models",
    "Gallery": "nearkin.gallery",
    "Manifest": "nearkin.data.manifest",
    "Recipe": "nearkin.recipe",
    "audit": "nearkin.api",
    "drift": "nearkin.audits.drift",
    "explain": "nearkin.api",
    "fit": "nearkin.api",
    "list_recipes": "nearkin.recipe",
    "load": "nearkin.api",
    "load_recipe": "nearkin.recipe",
    "open_data": "nearkin.data.sources",
    "reweight": "nearkin.api",
    "shorten": "nearkin.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nearkin' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
