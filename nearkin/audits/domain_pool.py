"""Items of several domains: which are asked, which are searched, and what a search finds across domains or within."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np

from nearkin.audits.subject import Subject
from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN, leave_one_domain_out
from nearkin.data.splits import Split
from nearkin.errors import DataError
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.metrics.classification import classification_metrics
from nearkin.metrics.intervals import draw_queries, percentile_interval
from nearkin.metrics.labels import label_codes
from nearkin.models.card import Card

HELD_OUT, TRAINED, NOT_TRAINED, UNKNOWN = "held out", "trained on", "not trained on", "training unknown"


@dataclass(frozen=True, eq=False)
class DomainPart:
    """Items that are not under audit themselves: those that trained, or those that validated.

    Args:
        labels: (m,).
        domains: (m,).
        embeddings: gives (m, d).
        baseline: gives what one would have without training, (m, F), or None.
    """

    labels: np.ndarray
    domains: np.ndarray
    embeddings: Callable[[], np.ndarray] = field(repr=False)
    baseline: Callable[[], np.ndarray | None] = field(repr=False)


@dataclass(frozen=True, eq=False)
class TrainedDomains:
    """How a model was trained on domains.

    Args:
        trained: the domains that training items are of; none if nothing was trained (0 steps).
        held_out: the domains that were left out on purpose, if the audit is of these.
        train: the training items, of a model with held-out domains.
        validation: likewise those that chose its weights.
    """

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    train: DomainPart | None = None
    validation: DomainPart | None = None

    def role(self, domain: str) -> str:
        """What training had to do with a domain: "held out", "trained on" or "not trained on"."""
        if domain in self.held_out:
            return HELD_OUT
        return TRAINED if domain in self.trained else NOT_TRAINED


def trained_domains(
    card: Card,
    dataset: Dataset,
    divided: Split | None,
    embed: Callable[[Dataset], np.ndarray],
    untrained: Callable[[Dataset], np.ndarray | None],
) -> TrainedDomains | None:
    """How a model was trained on domains; None if its card does not say.

    Args:
        card: of the model.
        dataset: all the data of the audit.
        divided: how the items of this data were divided, of a model of seen classes on its own data.
        embed: gives embeddings of items.
        untrained: gives what one would have without training.
    """
    known = card.domains
    if known is None:
        return None
    trained = () if card.steps == 0 else tuple(known.train)
    if divided is None or card.recipe["data"]["split"] != "domains":
        return TrainedDomains(trained)

    def part(rows: np.ndarray) -> DomainPart:
        items = dataset.select(rows)
        domains = items.manifest.column(COLUMN)
        return DomainPart(items.labels, domains, lambda: embed(items), lambda: untrained(items))

    return TrainedDomains(trained, tuple(known.test), part(divided.train), part(divided.val))


SearchSide = Literal["cross-domain", "in-domain"]
ACROSS: SearchSide = "cross-domain"
WITHIN: SearchSide = "in-domain"

METRICS = ("P@1", "R-precision", "MAP@R")


Answers = dict[str, np.ndarray]
"""Metric to its value for each item of a pool (n,), NaN for those that are not asked."""


@dataclass(frozen=True, eq=False)
class DomainPool:
    """Items of several domains.

    Args:
        embeddings: (n, d).
        labels: (n,).
        domains: (n,), strings.
        asked: mask (n,) of the items that may be queries.
        searched: mask (n,) of the items that may be found.
        known: the domains that searches across domains may find; None: all.
        baseline: features (n, F) to compare with, or None.
        dropped: how many items have no domain and are left out.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    asked: np.ndarray
    searched: np.ndarray
    known: tuple[str, ...] | None = None
    baseline: np.ndarray | None = None
    dropped: int = 0

    @classmethod
    def of(cls, subject: Subject) -> DomainPool:
        """The items of a subject, and of a model with held-out domains also those that trained and validated.

        Raises:
            DataError: the subject has no domains, or fewer than two.
        """
        if subject.domains is None:
            raise DataError(
                "The domains suite needs the domain of each item, but this data has no domains: add a column 'domain' "
                "to its manifest."
            )
        trained = subject.trained_domains
        if trained is not None and trained.train is not None and trained.validation is not None:
            return cls._with_training(subject, trained.train, trained.validation)
        domains = np.array([str(name).strip() for name in subject.domains], dtype=object)
        rows = np.flatnonzero(domains != "")
        everything = np.ones(len(rows), dtype=bool)
        leave_one_domain_out(domains[rows])  # refuses fewer than two
        return cls(
            subject.embeddings[rows],
            subject.labels[rows],
            domains[rows],
            everything if subject.gallery is None else ~subject.gallery[rows],
            everything if subject.gallery is None else subject.gallery[rows],
            baseline=None if subject.baseline is None else subject.baseline[rows],
            dropped=len(domains) - len(rows),
        )

    @classmethod
    def _with_training(cls, subject: Subject, train: DomainPart, validation: DomainPart) -> DomainPool:
        """The held-out items, which are asked and searched, those that trained (searched) and validated (asked)."""
        parts = [part for part in (train, validation) if len(part.labels)]  # a run may do without validation
        baseline = subject.baseline
        for part in parts:
            more = None if baseline is None else part.baseline()
            baseline = None if baseline is None or more is None else np.concatenate([baseline, more])
        sizes = [len(subject.labels), len(train.labels), len(validation.labels)]
        return cls(
            np.concatenate([subject.embeddings, *(part.embeddings() for part in parts)]),
            np.concatenate([subject.labels, *(part.labels for part in parts)]),
            np.concatenate([np.asarray(subject.domains), *(part.domains for part in parts)]),
            np.repeat([True, False, True], sizes),
            np.repeat([True, True, False], sizes),
            tuple(sorted(set(train.domains.tolist()))),
            baseline,
        )

    @property
    def names(self) -> list[str]:
        """The domains, sorted."""
        return sorted(set(self.domains.tolist()))

    def queries(self, domain: str) -> np.ndarray:
        """Rows of the items of a domain that are asked."""
        return np.flatnonzero(self.asked & (self.domains == domain))

    def gallery(self, domain: str, where: SearchSide) -> np.ndarray:
        """Rows that are searched for items of a domain: its own, or those of the others that are known."""
        if where == WITHIN:
            return np.flatnonzero(self.searched & (self.domains == domain))
        others = [name for name in (self.names if self.known is None else self.known) if name != domain]
        return np.flatnonzero(self.searched & np.isin(self.domains, others))

    def retrieve(
        self, features: np.ndarray, space: Any, asked: np.ndarray, known: np.ndarray, metrics: Sequence[str] = METRICS
    ) -> Answers:
        """Metrics of queries among searched items; a query never finds itself.

        Args:
            features: (n, F) of all items.
            space: how they are compared.
            asked: rows of the queries (q,); those of classes that are not searched are left out.
            known: rows of the searched items, ascending.
            metrics: which.
        """
        asked = asked[self._has_partner(asked, known)]
        if not len(asked):
            return self._spread(asked, {name: np.empty(0) for name in metrics})
        result = retrieval_metrics(
            features[asked],
            self.labels[asked],
            gallery=features[known],
            gallery_labels=self.labels[known],
            metrics=list(metrics),
            space=space,
            exclude=_places(asked, known),
        )
        return self._spread(asked, {name: result.per_query[name] for name in metrics})

    def classify(
        self, features: np.ndarray, space: Any, asked: np.ndarray, known: np.ndarray, k: Sequence[int]
    ) -> Answers:
        """Whether the nearest centroid, and votes of k, name the queries rightly that `retrieve` answers."""
        asked = asked[self._has_partner(asked, known)]
        if not len(asked):
            return {}
        result = classification_metrics(
            features[asked],
            self.labels[asked],
            reference=features[known],
            reference_labels=self.labels[known],
            k=k,
            space=space,
        )
        right = {f"accuracy, {name}": chosen == result.labels for name, chosen in result.predictions.items()}
        return self._spread(asked, right)

    def _spread(self, rows: np.ndarray, values: Mapping[str, np.ndarray]) -> Answers:
        """Values (r,) of some items as answers."""
        found = {name: np.full(len(self.labels), np.nan) for name in values}
        for name, column in values.items():
            found[name][rows] = column
        return found

    def asked_only(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values (q,) of the items that are asked, and their labels (q,)."""
        kept = ~np.isnan(column)
        return column[kept], self.labels[kept]

    def told(self, answers: Answers, resamples: int, seed: int) -> dict[str, Any]:
        """Means, and intervals over classes and queries, as JSON can hold them; no answer has other queries."""
        values = {name: self.asked_only(column)[0] for name, column in answers.items()}
        _, labels = self.asked_only(next(iter(answers.values())))
        if not len(labels):
            return {"queries": 0, "values": {}, "intervals": {}}
        intervals = class_bootstrap(values, labels, resamples=resamples, seed=seed)
        return {
            "queries": len(labels),
            "values": {name: float(column.mean()) for name, column in values.items()},
            "intervals": {name: list(pair) for name, pair in intervals.items()},
        }

    def matrix(self, space: Any, metric: str = "P@1") -> np.ndarray:
        """The metric (D, D) of each domain's queries (rows) in each gallery; NaN where there is nothing to find."""
        values = np.full((len(self.names), len(self.names)), np.nan)
        for (row, asked), (place, searched) in product(enumerate(self.names), repeat=2):
            sides = self.queries(asked), self.gallery(searched, WITHIN)
            column, _ = self.asked_only(self.retrieve(self.embeddings, space, *sides, (metric,))[metric])
            if len(column):
                values[row, place] = column.mean()
        return values

    def _has_partner(self, asked: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Whether (q,) other items of the same class are searched for a query."""
        if not len(asked) or not len(known):
            return np.zeros(len(asked), dtype=bool)
        codes, known_codes = label_codes(self.labels[asked], self.labels[known])
        sizes = np.bincount(known_codes, minlength=int(codes.max()) + 1)[codes]
        return sizes > (_places(asked, known) >= 0)


def domain_interval(
    values: Sequence[np.ndarray], labels: Sequence[np.ndarray], *, resamples: int, seed: int
) -> tuple[float, float]:
    """The 95 % interval (low, high) of a mean over domains of the mean of their queries.

    Classes are drawn, then queries of each from those of all domains together, as `class_bootstrap` does for a single
    domain: how many of a class are of which domain varies from draw to draw. A domain that a draw leaves without
    queries is left out of its mean.

    Args:
        values: for each domain those of its queries.
        labels: for each domain the classes of its queries.
        resamples: how many resamples to draw.
        seed: of the draws.
    """
    numbers, domains = np.concatenate(values), np.repeat(np.arange(len(values)), [len(one) for one in values])
    (codes,) = label_codes(np.concatenate(labels))
    means = []
    for drawn in draw_queries(codes, resamples, seed):
        sizes = np.bincount(domains[drawn], minlength=len(values))
        sums = np.bincount(domains[drawn], numbers[drawn], minlength=len(values))
        means.append((sums[sizes > 0] / sizes[sizes > 0]).mean())
    return percentile_interval(means)


def _places(asked: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where each asked row (q,) is among ascending known rows, -1 where it is not."""
    places = np.searchsorted(known, asked)
    inside = places < len(known)
    inside[inside] = known[places[inside]] == asked[inside]
    return np.where(inside, places, -1)
