"""A model on a list of verification trials: published ones, or every pair of a data set.

Each side is one recording or the mean of several; scores may be normalised by a cohort of strangers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
import torch

from nearkin.audits.learned_similarity import COSINE, FUSED, SIM
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, suggestion
from nearkin.metrics.intervals import Interval, percentile_interval
from nearkin.metrics.labels import label_codes
from nearkin.metrics.pairs import draw_trials, resampled_equal_errors
from nearkin.metrics.trials import TrialList, cohort_moments, draw_groups, normalise_scores
from nearkin.metrics.verification import VerificationResult, verification_from_scores
from nearkin.models import Embedder
from nearkin.models.similarity_model import SimilarityModel
from nearkin.models.similarity_sides import fused
from nearkin.spaces import Space, Sphere

ScoreNorm = Literal["none", "s", "as"]
Table = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From enrolled (e, d) and asking (q, d) embeddings to scores (e, q), the higher the more alike."""

ALL, SAME, OTHER = "all", "same", "other"
_TILE = 512
"""Enrolled sides whose scores with others are held at once."""


@dataclass(frozen=True, eq=False)
class ScoredList:
    """What trials say of a model.

    Attributes:
        results: part of the trials ("all", "same digit", "other digit") and score to metrics.
        intervals: the same to the 95 % interval of the EER, with the people drawn anew.
        scores: score to the value (t,) of each trial.
        notes: what a reader must know.
    """

    results: dict[tuple[str, str], VerificationResult]
    intervals: dict[tuple[str, str], Interval]
    scores: dict[str, np.ndarray] = field(repr=False)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [
            {
                "trials": part,
                "score": score,
                **result.values,
                "threshold": result.threshold,
                "genuine": result.genuine,
                "impostors": result.impostors,
                "EER interval": list(self.intervals[part, score]),
            }
            for (part, score), result in self.results.items()
        ]
        return {"results": rows, "notes": list(self.notes)}


def scores_of(model: Embedder | Space) -> dict[str, Table]:
    """The ways in which a model compares embeddings: by its similarity, the cosine and both, or by its distance."""
    if isinstance(model, SimilarityModel):
        similarity = _by_distance(model.space)

        def both(enrolled: np.ndarray, queries: np.ndarray) -> np.ndarray:
            learned, cosine = (torch.from_numpy(way(enrolled, queries)) for way in (similarity, _by_cosine))
            return fused(learned, cosine, "cosine+sim").numpy()

        return {SIM: similarity, COSINE: _by_cosine, FUSED: both}
    space = model.space if isinstance(model, Embedder) else model
    if isinstance(space, Sphere):
        return {COSINE: _by_cosine}
    return {"distance": _by_distance(space), COSINE: _by_cosine}


def _by_cosine(enrolled: np.ndarray, queries: np.ndarray) -> np.ndarray:
    a, b = (torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(x))) for x in (enrolled, queries))
    return (a @ b.T).numpy()


def _by_distance(space: Space) -> Table:
    @torch.no_grad()
    def table(enrolled: np.ndarray, queries: np.ndarray) -> np.ndarray:
        a, b = (torch.from_numpy(np.ascontiguousarray(x)) for x in (enrolled, queries))
        return -space.distance(b, a).T.cpu().numpy()

    return table


def list_pairs(dataset: Dataset, *, enrol: int = 1, most: int = 2_000_000, seed: int = 0) -> TrialList:
    """Every pair of a data set's recordings, or of groups of its recordings, as trials.

    Args:
        dataset: the recordings.
        enrol: recordings of one person on each side, drawn without repeats.
        most: trials of each kind; of more so many are drawn.
        seed: of the groups, of who is enrolled, and of the draw.
    """
    codes = label_codes(dataset.labels)[0]
    groups = draw_groups(codes, enrol, seed)
    trials = draw_trials(codes[groups[:, 0]], most=most, seed=seed)
    sides = tuple(tuple(str(dataset.manifest.paths[row]) for row in group) for group in groups)
    return TrialList(sides, trials.enrolled, trials.queries, trials.same)


def rows_of(trials: TrialList, dataset: Dataset) -> list[np.ndarray]:
    """The rows of each side in a data set, whose paths may be longer than those of the list and end otherwise.

    Raises:
        DataError: the data lacks a recording, or has two that may be meant.
    """
    depths = sorted({len(PurePosixPath(name).parts) for name in trials.recordings})
    known: dict[tuple[str, ...], int | None] = {}
    for row, path in enumerate(dataset.manifest.paths):
        parts = _stem(path)
        for depth in depths:
            if depth > len(parts):
                continue
            key = parts[-depth:]
            known[key] = None if key in known else row
    rows: dict[str, int] = {}
    missing = []
    for name in trials.recordings:
        # What follows a dot is a suffix, unless the data has a recording of the whole name.
        whole = PurePosixPath(name).parts
        key = whole if whole in known else _stem(name)
        if key in known and known[key] is None:
            raise DataError(f"The data has more than one recording '{name}': give longer paths in the list of trials.")
        found = known.get(key)
        if found is None:
            missing.append(name)
        else:
            rows[name] = found
    if missing:
        raise DataError(
            f"The data lacks {len(missing)} of {len(trials.recordings)} recordings of the trials, such as "
            f"'{missing[0]}': give the data that the list is of with --data."
        )
    return [np.array([rows[name] for name in side]) for side in trials.sides]


def _stem(path: str) -> tuple[str, ...]:
    """The parts of a path, without the suffix of the last one."""
    parts = PurePosixPath(path).parts
    return (*parts[:-1], PurePosixPath(parts[-1]).stem) if parts else ()


def score_list(
    model: Embedder,
    dataset: Dataset,
    trials: TrialList,
    *,
    content: str | None = None,
    norm: ScoreNorm | str = "none",
    cohort: Dataset | None = None,
    top: int = 200,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = True,
) -> ScoredList:
    """Score trials by every way in which a model compares, and tell how often each errs.

    Args:
        model: the model.
        dataset: where the recordings of the list are, with their people as labels.
        trials: the list.
        content: a column that says what is said: trials of the same and of other content are told apart.
        norm: "s": scores are normalised by a cohort; "as": by the strangers most like each side.
        cohort: recordings of people who are in no trial; needed to normalise.
        top: how many strangers "as" takes.
        resamples: of the people, for intervals.
        seed: of these.
        progress: show a bar.
    """
    if norm not in get_args(ScoreNorm):
        raise DataError(f"Scores are normalised by 's', 'as' or 'none', not '{norm}'.{suggestion(norm, ['s', 'as'])}")
    if norm != "none" and cohort is None:
        raise DataError("Normalised scores need a cohort: recordings of people who are in no trial.")
    rows = rows_of(trials, dataset)
    used, places = np.unique(np.concatenate(rows), return_inverse=True)
    vectors = model.encode(dataset.select(used), progress=progress)
    sides = means(vectors, np.split(places, np.cumsum([len(side) for side in rows])[:-1]), model.space)
    strangers = model.encode(cohort, progress=progress) if norm != "none" and cohort is not None else None
    scores = side_scores(model, sides, trials, strangers, top if norm == "as" else None)
    return measure_trials(scores, trials, rows, dataset, content, resamples, seed)


def side_scores(
    model: Embedder | Space,
    sides: np.ndarray,
    trials: TrialList,
    strangers: np.ndarray | None = None,
    top: int | None = None,
) -> dict[str, np.ndarray]:
    """Scores (t,) of trials by every way in which a model or a space compares.

    Args:
        model: what compares.
        sides: embeddings (g, d) of the sides of the list.
        trials: the list.
        strangers: embeddings (c, d) to normalise by; None: scores as they are.
        top: how many of them, those most like each side; None: all.
    """
    return {name: _scored(table, sides, trials, strangers, top) for name, table in scores_of(model).items()}


def measure_trials(
    scores: dict[str, np.ndarray],
    trials: TrialList,
    rows: Sequence[np.ndarray],
    dataset: Dataset,
    content: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> ScoredList:
    """How often scores (t,) err, with intervals over people; `rows` are those of each side in the data set."""
    people = label_codes(dataset.labels)[0][np.array([side[0] for side in rows])]
    if trials.same.all() or not trials.same.any():
        raise DataError(
            f"All {len(trials):,} trials are {'genuine' if trials.same[0] else 'of different people'}: error rates "
            "need both kinds, so add trials of the other."
        )
    results, intervals = {}, {}
    for part, kept in _parts(trials, rows, dataset, content).items():
        classes = people[trials.enrolled[kept]], people[trials.queries[kept]]
        some = {name: values[kept] for name, values in scores.items()}
        drawn = resampled_equal_errors(some, trials.same[kept], classes, resamples=resamples, seed=seed)
        for name, values in some.items():
            results[part, name] = verification_from_scores(values, trials.same[kept])
            intervals[part, name] = percentile_interval(drawn[name])
    return ScoredList(results, intervals, scores, tuple(_disagreements(people, trials)))


def means(vectors: np.ndarray, groups: Sequence[np.ndarray], space: Space) -> np.ndarray:
    """The mean (g, d) in a space of each group of rows of vectors (n, d); a group of one is the row itself."""
    single = np.array([vectors[group[0]] for group in groups])
    for place, group in enumerate(groups):
        if len(group) > 1:
            single[place] = space.mean(torch.from_numpy(vectors[group])).numpy()
    return single


def _scored(
    table: Table, sides: np.ndarray, trials: TrialList, strangers: np.ndarray | None, top: int | None
) -> np.ndarray:
    """Scores (t,) of trials between sides (g, d), normalised where there are strangers (c, d)."""
    scores = np.empty(len(trials))
    order = np.argsort(trials.enrolled, kind="stable")
    wanted = np.unique(trials.enrolled)
    for first in range(0, len(wanted), _TILE):
        some = wanted[first : first + _TILE]
        low, high = np.searchsorted(trials.enrolled[order], (some[0], some[-1] + 1))
        chosen = order[low:high]
        asked, column = np.unique(trials.queries[chosen], return_inverse=True)
        found = table(sides[some], sides[asked])
        scores[chosen] = found[np.searchsorted(some, trials.enrolled[chosen]), column]
    if strangers is None:
        return scores
    of_enrolled = cohort_moments(table(sides, strangers), top)
    of_queries = cohort_moments(table(strangers, sides).T, top)
    at = [
        tuple(values[places] for values in moments)
        for moments, places in ((of_enrolled, trials.enrolled), (of_queries, trials.queries))
    ]
    return normalise_scores(scores, *at)


def _parts(
    trials: TrialList, rows: Sequence[np.ndarray], dataset: Dataset, content: str | None
) -> dict[str, np.ndarray]:
    """Which trials (t,) belong to each part that has genuine and impostor trials."""
    parts = {ALL: np.ones(len(trials), bool)}
    if content is not None:
        if any(len(side) > 1 for side in rows):
            raise DataError(
                f"'{content}' tells single recordings apart, and sides hold several: leave one of both out."
            )
        said = dataset.manifest.column(content)[np.concatenate(rows)]
        same = said[trials.enrolled] == said[trials.queries]
        parts |= {f"{SAME} {content}": same, f"{OTHER} {content}": ~same}
    return {name: kept for name, kept in parts.items() if trials.same[kept].any() and not trials.same[kept].all()}


def _disagreements(people: np.ndarray, trials: TrialList) -> list[str]:
    """What to say where the list and the data's labels disagree."""
    wrong = int(((people[trials.enrolled] == people[trials.queries]) != trials.same).sum())
    return [f"{wrong:,} of {len(trials):,} trials disagree with the data's labels; the list counts."] if wrong else []
