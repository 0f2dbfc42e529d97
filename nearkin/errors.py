"""Our exceptions: each message is one sentence that says what to change."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType


class NearkinError(Exception):
    """Base of everything nearkin raises on purpose."""


class DataError(NearkinError):
    """The data given cannot be used as it is."""


class RecipeError(NearkinError):
    """A recipe, or an override of one, is not valid."""


class UnknownNameError(NearkinError):
    """A name that no registry entry has."""


class MissingExtraError(NearkinError):
    """An optional dependency is needed and not installed."""


class ModelError(NearkinError):
    """A model cannot be built or used as asked."""


class MissingWeightsError(ModelError):
    """Pretrained weights are not where the user has to put them."""


class CheckpointError(NearkinError):
    """A checkpoint is missing, damaged or of another version."""


class RunError(NearkinError):
    """A run directory is not in the state the command needs."""


class FitError(DataError):
    """The data given does not hold what is to be learned from it."""


class TrainingError(NearkinError):
    """Training cannot go on."""


class LostProcessError(TrainingError):
    """Another process of the same training is gone, or does not answer."""


class StorageError(NearkinError):
    """A file could not be written; what was there before is untouched."""


def suggestion(name: str, valid: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest valid name, or the list of valid ones."""
    choices = sorted(valid)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Choose one of: {', '.join(choices)}." if choices else ""


def first_line(error: BaseException) -> str:
    """The first line of another package's error, to be quoted in brackets in ours."""
    return str(error).strip().partition("\n")[0].rstrip(".")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"This needs the package '{module.partition('.')[0]}', which could not be imported ({error}): "
            f"install it with  pip install 'nearkin[{extra}]'."
        ) from error


def drop_locals(error: BaseException) -> None:
    """Let go of what the functions that an error came through were working on, such as half-decoded images.

    The error's traceback otherwise keeps it as long as the error lives, often until Python next looks for cycles.
    """
    for one in _causes(error):
        traceback.clear_frames(one.__traceback__)


def drop_tracebacks(error: BaseException) -> None:
    """The same for an error that is kept as a value: the frames of a thread that made it would keep it, and it them."""
    for one in _causes(error):
        one.__traceback__ = None


def _causes(error: BaseException) -> list[BaseException]:
    """An error, what caused it, what caused that, and so on."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    return found
