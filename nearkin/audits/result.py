"""The outcome of an audit: a flat dictionary of floats, with all that is needed to tell and to draw it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.audits.subject import Subject, draw_rows, shown
from nearkin.recipe import AuditSection
from nearkin.report import (
    Figure,
    MetricRow,
    NeighbourRow,
    Report,
    Thumb,
    draw_curves,
    draw_histograms,
    draw_map,
    draw_neighbours,
    project_2d,
    write_report,
)
from nearkin.report.values import value_text
from nearkin.search import exact
from nearkin.spaces import Space
from nearkin.storage import write_json

_PLACES = (0.02, 0.15, 0.3, 0.45, 0.6, 0.8, 0.95, 1.0)
"""Which queries are shown, from the easiest (0) to the hardest (1)."""

_NEIGHBOURS = 8
_PAIRS = 40_000
_TSNE_POINTS = 1500
_MOST_CROSSES = 200
_THUMBNAIL = 112
_SEED = 0


def resampling(section: AuditSection) -> dict[str, Any]:
    """The arguments of everything that is resampled: how often, and by which seed."""
    return {"resamples": section.resamples, "seed": section.seed}


def gap_text(gap: float, low: float, high: float, digits: int = 1) -> str:
    """A difference of shares with its interval, in words."""
    signed = f"+.{digits}f"
    return f"{100 * gap:{signed}} points, 95 % interval {100 * low:{signed}} to {100 * high:{signed}}"


def draw_subject(subject: Subject) -> list[Figure]:
    """Every picture the subject allows."""
    figures = [] if subject.picture is None else [_neighbours(subject)]
    return [*figures, _distances(subject), draw_embedding_map(subject)]


def _neighbours(subject: Subject) -> Figure:
    """Queries chosen from all levels of success: from all neighbours right to none."""
    size = min(_NEIGHBOURS, len(subject.embeddings) - 1)
    distances, indices = exact(subject.embeddings, k=size, space=subject.space)
    found, values = indices.numpy(), shown(subject.space, distances)
    hits = subject.labels[found] == subject.labels[:, None]
    rng = np.random.default_rng(_SEED)
    by_success = np.lexsort((rng.permutation(len(hits)), -hits.sum(1)))
    chosen = [by_success[int(place * (len(by_success) - 1))] for place in _PLACES]

    def thumb(item: int) -> Thumb:
        return Thumb(subject.thumbnail(item, _THUMBNAIL), str(subject.labels[item]))

    rows = [
        NeighbourRow(
            thumb(query),
            [
                (thumb(item), float(value), bool(hit))
                for item, value, hit in zip(found[query], values[query], hits[query], strict=True)
            ],
        )
        for query in dict.fromkeys(chosen)
    ]
    return Figure(
        "Nearest neighbours",
        "Each row is a query and its nearest neighbours among all audited items, from easy queries to hard ones; "
        "ticks are of the query's class, crosses are not.",
        draw_neighbours(rows, number=subject.compared_by),
        "Grid of queries with their nearest neighbours, hits and misses framed",
    )


@torch.no_grad()
def _distances(subject: Subject) -> Figure:
    """Distances of sampled pairs of the same class and of different classes, each pair once."""
    rng = np.random.default_rng(_SEED)
    _, codes = np.unique(subject.labels, return_inverse=True)
    first = rng.integers(len(codes), size=_PAIRS)
    order = np.argsort(codes, kind="stable")
    starts, sizes = np.searchsorted(codes[order], np.arange(codes.max() + 1)), np.bincount(codes)
    mate = order[starts[codes[first]] + rng.integers(0, sizes[codes[first]])]
    other = rng.integers(len(codes), size=_PAIRS)
    points = torch.from_numpy(np.ascontiguousarray(subject.embeddings))

    def between(second: np.ndarray, kept: np.ndarray) -> np.ndarray:
        one, two = np.unique(np.sort([first[kept], second[kept]], axis=0), axis=1)
        distance = subject.space.distance(points[one][:, None], points[two][:, None])
        return shown(subject.space, distance[:, 0, 0]).numpy()

    same, different = between(mate, mate != first), between(other, codes[first] != codes[other])
    what = {"similarity": "similarities"}.get(subject.compared_by, "distances")
    return Figure(
        what.capitalize(),
        f"{what.capitalize()} of {len(same):,} pairs of the same class and {len(different):,} pairs of different "
        "classes; the less the two overlap, the better a threshold works.",
        draw_histograms(same, different, xlabel=subject.compared_by),
        f"Histograms of {what} between pairs of the same class and of different classes",
    )


def draw_embedding_map(subject: Subject) -> Figure:
    """Items in the plane, and the centroids of their classes, which are projected with them."""
    kept = draw_rows(np.arange(len(subject.embeddings)), _TSNE_POINTS, _SEED)
    centroids = _centroids(subject)
    both = np.concatenate([subject.embeddings[kept], centroids])
    points, _ = project_2d(both, method="tsne", seed=_SEED, max_points=len(both))
    told = ", black crosses are the centroids of classes" if len(centroids) else ""
    return Figure(
        "Map of the embedding",
        f"t-SNE of {len(kept):,} items{told}: near in the map means near in the embedding; far apart means little.",
        draw_map(points[: len(kept)], subject.labels[kept].astype(str), title="", crosses=points[len(kept) :]),
        "Two-dimensional map of the embedding, coloured by class",
    )


def _centroids(subject: Subject) -> np.ndarray:
    """The mean of each class (C, d); none where the space has no mean, or where they would hide the map."""
    _, codes = np.unique(subject.labels, return_inverse=True)
    if not isinstance(subject.space, Space) or codes.max() >= _MOST_CROSSES:
        return np.empty((0, subject.embeddings.shape[1]), subject.embeddings.dtype)
    points = torch.from_numpy(np.ascontiguousarray(subject.embeddings))
    means = [subject.space.mean(points[torch.from_numpy(codes == code)]) for code in range(codes.max() + 1)]
    return torch.stack(means).numpy()


@dataclass(eq=False)
class SuiteResult:
    """One suite's findings.

    Args:
        values: metric to value.
        intervals: metric to its 95 % interval, for the metrics that are means over queries.
        baseline: metric to the value of the subject's baseline embeddings.
        per_class: metric to the mean of each class, for paired comparisons.
        notes: what a reader must know.
        lower_is_better: the metrics of which less is better.
        numbers: the metrics that are plain numbers, not shares of 1.
        details: what is too much for a table, as JSON can hold it.
        drawings: pictures of the suite's own, drawn when a report is written.
        primary: what to judge by if nothing better was measured; empty: nothing of this suite.
    """

    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lower_is_better: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict, repr=False)
    drawings: list[Callable[[], Figure]] = field(default_factory=list, repr=False)
    primary: str = ""

    def add(
        self,
        name: str,
        value: float,
        interval: tuple[float, float] | None = None,
        per_class: dict[str, float] | None = None,
    ) -> None:
        """Take a metric, and of its interval and class means what it has."""
        self.values[name] = value
        if interval is not None:
            self.intervals[name] = interval
        if per_class is not None:
            self.per_class[name] = per_class

    def show(self, title: str, caption: str, alt: str, draw: Callable[..., bytes], *given: Any, **options: Any) -> None:
        """Take a picture, which `draw(*given, **options)` makes as PNG bytes when a report is written."""
        self.drawings.append(lambda: Figure(title, caption, draw(*given, **options), alt))

    def include(self, other: SuiteResult) -> None:
        """Take all that another result has, but for what to judge it by."""
        for part in ("values", "intervals", "baseline", "per_class", "details"):
            getattr(self, part).update(getattr(other, part))
        self.notes += other.notes
        self.drawings += other.drawings
        self.lower_is_better += other.lower_is_better
        self.numbers += other.numbers


@dataclass(eq=False, kw_only=True)
class AuditResult(SuiteResult):
    """All that the suites found; `result["MAP@R"]` works, and `result.report("audit.html")` draws everything.

    Args:
        subject: what was audited.
    """

    subject: Subject

    @property
    def higher_is_better(self) -> bool:
        """The direction of the primary metric."""
        return self.primary not in self.lower_is_better

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def rows(self) -> list[MetricRow]:
        """The metric table."""
        return [
            MetricRow(
                name,
                value,
                *self.intervals.get(name, (math.nan, math.nan)),
                percent=name not in self.numbers,
                baseline=self.baseline.get(name),
                lower_is_better=name in self.lower_is_better,
            )
            for name, value in self.values.items()
        ]

    def verdict(self) -> str:
        """One sentence: how well, on what, against what."""
        facts, name = self.subject.facts, self.primary
        if name not in self.values:
            return ""
        percent = name not in self.numbers
        text = f"{name} {value_text(self.values[name], percent)}"
        if name in self.intervals:
            low, high = self.intervals[name]
            text += f" (95 % interval {value_text(low, percent)} to {value_text(high, percent)})"
        text += f" over {facts.get('classes', '?')} classes and {facts.get('items', '?')} items"
        if name in self.baseline:
            text += f"; {self.subject.baseline_name} reach {value_text(self.baseline[name], percent)}"
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON can hold them."""
        return {
            "values": self.values,
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "baseline": {"name": self.subject.baseline_name, "values": self.baseline},
            "per_class": self.per_class,
            "facts": self.subject.facts,
            "notes": self.notes,
            "primary": self.primary,
            "higher_is_better": self.higher_is_better,
            "lower_is_better": list(self.lower_is_better),
            "numbers": list(self.numbers),
            "details": self.details,
        }

    def save(self, path: str | Path) -> None:
        """Write the numbers as JSON."""
        write_json(path, self.to_dict())

    def report(
        self,
        path: str | Path,
        *,
        title: str = "nearkin audit",
        recipe_yaml: str = "",
        history: Sequence[Mapping[str, float]] = (),
        training_pictures: Sequence[Figure] = (),
        facts: Mapping[str, str] | None = None,
        next_steps: Sequence[str] = (),
    ) -> Path:
        """Write one self-contained HTML file with tables and pictures, and return its path.

        Args:
            path: where to write it.
            title: the page's heading.
            recipe_yaml: the recipe behind the model.
            history: rows of the training log, drawn as curves.
            training_pictures: more pictures of the training, shown behind its curves.
            facts: more facts for the page's foot.
            next_steps: what to try next.
        """
        figures = [*training_pictures, *draw_subject(self.subject), *(draw() for draw in self.drawings)]
        if history:
            validated = "items" if self.subject.known is not None else "classes"
            curves = Figure(
                "Training curves",
                f"Loss over the steps, and metrics of the validation {validated}, which are never trained on.",
                draw_curves(history),
                "Loss and validation metrics against training steps",
            )
            figures = [curves, *figures]
            if any(row.get("instance") is not None for row in history):
                from nearkin.audits.training_pictures import draw_course

                figures.insert(1, draw_course(history))
        page = Report(
            title=title,
            verdict=self.verdict(),
            metrics=self.rows(),
            sections=figures,
            recipe_yaml=recipe_yaml,
            notes=list(self.notes),
            facts={**self.subject.facts, **(facts or {})},
            next_steps=list(next_steps),
            baseline_name=self.subject.baseline_name,
        )
        write_report(page, path)
        return Path(path)
