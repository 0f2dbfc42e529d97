"""Old paths and names of what is documented: they still import, with a warning that names the new one.

A finder looks names up in one table, before any other finder: the old name of a package would else find the files of
its new one and run them a second time. What was imported by the old path is the new module itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, str] = {
    "nearkin.audits.explaining": "nearkin.audits.explanation",
    "nearkin.data.checking": "nearkin.data.dataset",
    "nearkin.data.item_splits": "nearkin.data.domain_splits",
    "nearkin.data.hierarchy_files": "nearkin.data.hierarchy",
    "nearkin.data.episodes": "nearkin.data.samplers",
    "nearkin.gallery.rounding": "nearkin.gallery.dtypes",
    "nearkin.metrics.hits": "nearkin.metrics.retrieval",
    "nearkin.objectives.adversarial": "nearkin.objectives.proxy.scores",
    "nearkin.objectives.prefixes": "nearkin.objectives.objective",
    "nearkin.objectives.contrastive": "nearkin.objectives.pairs",
    "nearkin.objectives.soft_pairs": "nearkin.objectives.pairs",
    "nearkin.objectives.ranking": "nearkin.objectives.triplet",
    "nearkin.objectives.growing_triplet": "nearkin.objectives.triplet",
    "nearkin.objectives.classification": "nearkin.objectives.proxies",
    "nearkin.objectives.proxy.margins": "nearkin.objectives.proxy.losses",
    "nearkin.objectives.proxy.pulls": "nearkin.objectives.proxy.losses",
    "nearkin.objectives.mining": "nearkin.objectives.miner",
    "nearkin.objectives.switching": "nearkin.objectives.miner",
    "nearkin.training.schedules": "nearkin.training.strategies",
}
"""Old path to new, such as "nearkin.data.episodes": "nearkin.data.samplers". A package brings its modules along; those
that have gone elsewhere have lines of their own, which come first."""


def new_path(path: str) -> str | None:
    """Where a module has moved, by itself or with a package that it is in; None if it has not."""
    if path in MOVED:
        return MOVED[path]
    package, _, name = path.rpartition(".")
    moved = new_path(package) if package else None
    return None if moved is None else f"{moved}.{name}"


class _Finder:
    """Finds modules by their old paths. (importlib.abc, whose classes this could name, takes 30 ms to import.)"""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for what has moved; None, which leaves it to the other finders, for all else."""
        if not MOVED or not fullname.startswith("nearkin.") or new_path(fullname) is None:
            return None
        return ModuleSpec(fullname, _Alias())  # type: ignore[arg-type]


class _Alias:
    """Puts the new module in place of the old name."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Any module does: it is replaced at once."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the new module and warn."""
        old = module.__name__
        new = new_path(old)
        assert new is not None
        # 2: whoever imports, since the frames of the import system are not counted.
        warnings.warn(f"{old} is now {new}: import it from there.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose old names still work, with a warning: old name to new."""

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {names[name]}: use that name.", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return __getattr__


def install() -> None:
    """Let old paths be imported; doing it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
