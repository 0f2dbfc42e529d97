"""The outcome of an audit: a flat dictionary of floats, with all that is needed to tell and to draw it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.audits.instances import draw_course
from nearkin.audits.pictures import draw_subject
from nearkin.audits.subject import Subject
from nearkin.report import Figure, MetricRow, Report, draw_curves, write_report
from nearkin.report.formatting import value_text
from nearkin.storage import write_json


@dataclass(frozen=True, eq=False)
class AuditResult:
    """Values by metric name; `result["MAP@R"]` works, and `result.report("audit.html")` draws everything.

    Args:
        values: metric to value.
        intervals: metric to its 95 % interval.
        baseline: metric to the baseline's value.
        per_class: metric to the mean of each class.
        subject: what was audited.
        notes: what a reader must know.
        primary: the metric to judge by.
        higher_is_better: its direction.
        lower_is_better: the metrics of which less is better.
        numbers: the metrics that are plain numbers, not shares of 1.
        details: what is too much for a table, by suite, as JSON can hold it.
        drawings: pictures of the suites, drawn when a report is written.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    baseline: dict[str, float]
    per_class: dict[str, dict[str, float]]
    subject: Subject
    notes: list[str] = field(default_factory=list)
    primary: str = "MAP@R"
    higher_is_better: bool = True
    lower_is_better: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict, repr=False)
    drawings: list[Callable[[], Figure]] = field(default_factory=list, repr=False)

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def rows(self) -> list[MetricRow]:
        """The metric table."""
        missing = (math.nan, math.nan)
        return [
            MetricRow(
                name,
                value,
                *self.intervals.get(name, missing),
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
            figures = [curves, draw_course(history), *figures]
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
