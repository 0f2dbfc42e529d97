"""Models that learned how to compare: their similarity, beside the cosine and the place of the same embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.audits.result import SuiteResult, resampling
from nearkin.audits.subject import Subject
from nearkin.errors import DataError
from nearkin.metrics import VerificationResult, class_bootstrap
from nearkin.metrics.classification import CENTROID, ClassificationResult, classification_metrics
from nearkin.metrics.intervals import Interval, percentile_interval
from nearkin.metrics.labels import label_codes
from nearkin.metrics.pairs import Trials, draw_trials, resampled_equal_errors
from nearkin.metrics.verification import verification_from_scores
from nearkin.models.similarity_model import SimilarityModel
from nearkin.models.similarity_sides import PairScore, fused
from nearkin.recipe import AuditSection

SIM, COSINE, FUSED, RAW, DOL = "SIM", "cosine", "cosine+SIM", "raw sum", "DOL"
NEAREST_MEAN = "nearest mean"
_SCORES: dict[str, PairScore] = {SIM: "sim", COSINE: "cosine"}
_ENTRIES = 2**22
"""Numbers of embeddings that are gathered at once."""


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """One list of trials, decided by each score.

    Attributes:
        results: score to metrics, "SIM" first; the baseline's under its name, last.
        intervals: score to the 95 % interval of its EER, over resamples of the classes.
        ahead: score to how much its EER is above the cosine's: difference, low, high; below zero it is better.
        trials: what was compared.
        baseline: name of the untrained features among the results; empty: there are none.
    """

    results: dict[str, VerificationResult]
    intervals: dict[str, Interval]
    ahead: dict[str, tuple[float, float, float]]
    trials: Trials = field(repr=False)
    baseline: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            name: {
                "values": dict(result.values),
                "threshold": result.threshold,
                **({"EER interval": list(self.intervals[name])} if name in self.intervals else {}),
                **({"EER minus cosine": list(self.ahead[name])} if name in self.ahead else {}),
            }
            for name, result in self.results.items()
        }


def score_trials(subject: Subject, learned: SimilarityModel, section: AuditSection, most: int) -> ScoredTrials:
    """Decide the same trials by the learned similarity, by the cosine and by both; `most` of each kind.

    In a trial the first item is enrolled and the second asks; without a gallery a coin says which is which.
    """
    known, asked = subject.searched, subject.asked
    codes = label_codes(subject.labels)[0]
    trials = draw_trials(codes[asked], None if subject.gallery is None else codes[known], most=most, seed=section.seed)
    enrolled, queries = known[trials.enrolled], asked[trials.queries]
    vectors = np.ascontiguousarray(subject.embeddings, dtype=np.float32)
    scores = {name: _score(learned, vectors, enrolled, queries, by) for name, by in _SCORES.items()}
    # Of the two that there are, as `pair_scores` would give it: comparing is what takes the time.
    both = torch.from_numpy(scores[SIM]), torch.from_numpy(scores[COSINE])
    scores |= {FUSED: fused(*both, "cosine+sim").numpy(), RAW: fused(*both, "raw-sum").numpy()}
    results = {name: verification_from_scores(values, trials.same) for name, values in scores.items()}
    drawn = resampled_equal_errors(scores, trials.same, (codes[enrolled], codes[queries]), **resampling(section))
    baseline = ""
    if subject.baseline is not None:
        baseline = subject.baseline_name or "baseline"
        results[baseline] = verification_from_scores(_cosines(subject.baseline, enrolled, queries), trials.same)
    usual = results[COSINE].values["EER"]
    ahead = {
        name: (results[name].values["EER"] - usual, *percentile_interval(values - drawn[COSINE]))
        for name, values in drawn.items()
        if name != COSINE
    }
    intervals = {name: percentile_interval(values) for name, values in drawn.items()}
    return ScoredTrials(results, intervals, ahead, trials, baseline)


def own_classifiers(
    subject: Subject, learned: SimilarityModel, result: ClassificationResult, section: AuditSection
) -> SuiteResult:
    """Name the items that `result` names by prototypes (SIM), dense layer (DOL) and the nearest mean of the base space.

    The means are those of the items that were trained on where they are at hand, else of the result's references. There
    are no values, and a note says why, if some of the classes were not trained on.
    """
    truth = result.labels.astype(str)
    if not set(truth) <= set(learned.classes):
        return SuiteResult(
            notes=[
                f"Classification by the model's own prototypes ({SIM}) and dense layer ({DOL}) is left out: these know "
                "the training classes, and not all audited classes are among them."
            ],
        )
    points = np.ascontiguousarray(subject.embeddings[subject.asked[result.rows]], dtype=np.float32)
    named = {SIM: learned.classify(points).labels.astype(str)}
    if learned.dense is not None:
        named[DOL] = learned.classify(points, by="dol").labels.astype(str)
    if subject.known is not None:
        reference, labels = subject.known()
        means = "the items that were trained on"
    else:
        rows = subject.searched[result.reference_rows]
        reference, labels, means = subject.embeddings[rows], subject.labels[rows], "the items of known class"
    nearest = classification_metrics(
        points, truth, reference=reference, reference_labels=labels.astype(str), k=[1], space=learned.base
    )
    named[NEAREST_MEAN] = nearest.predictions[CENTROID].astype(str)
    if len(named[NEAREST_MEAN]) != len(truth):
        raise DataError("Some audited classes have no reference items: audit data of the same classes.")
    found = _measured(truth, named, section)
    found.notes.append(
        f"Classification: {SIM} is by the model's own prototypes, {DOL} by its dense layer, and {NEAREST_MEAN} by the "
        f"distance of the embeddings to the means of {means}; all name the same items."
    )
    return found


def _measured(truth: np.ndarray, named: dict[str, np.ndarray], section: AuditSection) -> SuiteResult:
    """Accuracies with intervals over classes and their items, macro F1 with intervals over classes."""
    options, result = resampling(section), SuiteResult()
    for name, found in named.items():
        right, f1, recall = found == truth, {}, {}
        for one in np.unique(truth):
            ours, hits = truth == one, int((right & (truth == one)).sum())
            recall[str(one)] = float(right[ours].mean())
            f1[str(one)] = 2 * hits / int(ours.sum() + (found == one).sum())
        shares = list(f1.values())
        result.add(f"macro F1, {name}", float(np.mean(shares)), class_bootstrap(shares, list(f1), **options), f1)
        interval = class_bootstrap(right.astype(np.float64), truth, **options)
        result.add(f"accuracy, {name}", float(right.mean()), interval, recall)
    return result


def _score(
    learned: SimilarityModel, vectors: np.ndarray, enrolled: np.ndarray, queries: np.ndarray, by: PairScore
) -> np.ndarray:
    """Scores (t,) of the rows (t,) of enrolled items with those (t,) of queries."""
    parts = _parts(len(enrolled), max(vectors.shape[1], learned.network.hidden))
    return np.concatenate([learned.pair_scores(vectors[enrolled[at]], vectors[queries[at]], by) for at in parts])


def _cosines(vectors: np.ndarray, enrolled: np.ndarray, queries: np.ndarray) -> np.ndarray:
    points = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)))
    parts = _parts(len(enrolled), points.shape[1])
    return np.concatenate([(points[enrolled[at]] * points[queries[at]]).sum(dim=1).numpy() for at in parts])


def _parts(trials: int, width: int) -> list[slice]:
    """Trials in parts whose embeddings can be gathered at once."""
    step = max(1, _ENTRIES // width)
    return [slice(first, first + step) for first in range(0, trials, step)]
