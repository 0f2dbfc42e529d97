"""Lists of verification trials: as published, with several recordings on a side, and with normalised scores.

A score s(e, q) is normalised by how alike each side is to a cohort of strangers (s-norm, Kenny 2010):
((s - mean_e) / std_e + (s - mean_q) / std_q) / 2; as-norm takes only the strangers most like that side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError

_GENUINE = {"1": True, "target": True, "same": True, "0": False, "nontarget": False, "different": False}
_LEAST_COHORT = 2


@dataclass(frozen=True, eq=False)
class TrialList:
    """Who is enrolled, who asks, and whether they are one.

    Attributes:
        sides: names of the recordings of each side that occurs, in the order in which they first do.
        enrolled: places (t,) of the enrolled sides among these.
        queries: places (t,) of the asking ones.
        same: whether a trial is genuine, boolean (t,).
    """

    sides: tuple[tuple[str, ...], ...] = field(repr=False)
    enrolled: np.ndarray = field(repr=False)
    queries: np.ndarray = field(repr=False)
    same: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.same)

    @property
    def recordings(self) -> list[str]:
        """The name of every recording, sorted."""
        return sorted({name for side in self.sides for name in side})


def read_trials(path: str | Path) -> TrialList:
    """Read a list of trials, one a line: `1 a.wav b.wav` as VoxCeleb has them, or `a.wav b.wav target` as Kaldi.

    The word is 1, target or same for genuine trials, and 0, nontarget or different for the others. Several recordings
    of a side are joined by commas: `1 a.wav,b.wav c.wav`. Empty lines and those that begin with # are left out.

    Raises:
        DataError: the file cannot be read, or a line is none of these.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The list of trials {path} cannot be read ({error}): give a text file.") from error
    places: dict[tuple[str, ...], int] = {}
    rows: list[tuple[int, int, bool]] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) == 3 and words[0] in _GENUINE:
            word, *names = words
        elif len(words) == 3 and words[2] in _GENUINE:
            *names, word = words
        else:
            raise DataError(
                f"Line {number} of {path} is no trial: write 1 or 0 and two recordings, such as '1 a.wav b.wav'."
            )
        sides = [tuple(filter(None, name.split(","))) for name in names]
        if not all(sides):
            raise DataError(f"Line {number} of {path} names no recording on one side: write at least one.")
        asked = [places.setdefault(side, len(places)) for side in sides]
        rows.append((asked[0], asked[1], _GENUINE[word]))
    if not rows:
        raise DataError(f"{path} holds no trials: give lines such as '1 a.wav b.wav'.")
    enrolled, queries, same = (np.array(column) for column in zip(*rows, strict=True))
    return TrialList(tuple(places), enrolled, queries, same)


def draw_groups(codes: np.ndarray, size: int, seed: int = 0) -> np.ndarray:
    """Groups (g, size) of items of one class each, drawn at random; no item is in two, and those left over in none.

    Args:
        codes: class numbers (n,).
        size: items of a group.
        seed: of the draw.
    """
    check_whole(size, "The size of a group", 1)
    rng, groups = np.random.default_rng(seed), []
    for code in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == code))
        groups.append(rows[: len(rows) // size * size].reshape(-1, size))
    found = np.concatenate(groups)
    if not len(found):
        raise DataError(f"No class has {size} items to enrol together: ask for fewer.")
    return found


def cohort_moments(scores: np.ndarray, top: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation, each (n,), of the scores (n, c) of n sides with c strangers.

    Args:
        scores: the higher the more alike.
        top: only so many strangers that are most like a side (as-norm); None: all (s-norm).
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < _LEAST_COHORT:
        raise DataError(f"A cohort needs {_LEAST_COHORT} strangers or more, and scores (n, c), not {table.shape}.")
    if top is not None:
        check_whole(top, "The number of strangers to normalise by", _LEAST_COHORT)
        kept = min(top, table.shape[1])
        table = np.partition(table, table.shape[1] - kept, axis=1)[:, -kept:]
    return table.mean(axis=1), np.maximum(table.std(axis=1), np.finfo(np.float32).eps)


def normalise_scores(
    scores: np.ndarray, enrolled: tuple[np.ndarray, np.ndarray], queries: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Scores (t,) by the moments (mean (t,), deviation (t,)) of both sides of each trial."""
    return sum((scores - mean) / deviation for mean, deviation in (enrolled, queries)) / 2
