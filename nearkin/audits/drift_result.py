"""What a comparison of two data sets found, told and drawn."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.audits.subject import compared_by, shown, thumbnail
from nearkin.data.dataset import Dataset
from nearkin.metrics import TwoSampleResult
from nearkin.report import (
    Figure,
    MetricRow,
    NeighbourRow,
    Report,
    Thumb,
    draw_map,
    draw_novel,
    draw_null,
    project_2d,
    write_report,
)
from nearkin.report.values import p_text
from nearkin.search import exact
from nearkin.storage import replacing, write_json

NOVEL = 0.05
"""The p-value up to which an item counts as novel."""

_STRIPS, _NEAREST, _THUMBNAIL = 6, 5, 208
_MAP_POINTS = 1500
_MAP_SEED = 0


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two data sets.

    Attributes:
        dataset: its items.
        embeddings: their points (n, d).
    """

    dataset: Dataset
    embeddings: np.ndarray = field(repr=False)

    @property
    def labels(self) -> np.ndarray:
        """The class of each item (n,)."""
        return self.dataset.labels

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True)
class ClassDrift:
    """The test of one class.

    Attributes:
        name: of the class.
        reference: how many items of it the reference has.
        new: how many the new data has.
        statistic: the squared discrepancy.
        p_value: as if it were the only class that is looked at.
        corrected_p: after Holm, for all classes together.
        smallest_p: what p can be at the least with so many items, before Holm.
    """

    name: str
    reference: int
    new: int
    statistic: float
    p_value: float
    corrected_p: float
    smallest_p: float


@dataclass(frozen=True, eq=False)
class DriftResult:
    """Whether new data differs from a reference, and which of its items are unlike it.

    Attributes:
        test: the two-sample test; x is the reference, y the new data.
        reference: the reference with its embeddings.
        new: the new data with its own.
        space: how embeddings are compared.
        novelty: of each new item (n,): its distance to the nearest reference item.
        novelty_p: how often an item like those of the reference would be as novel (n,).
        alpha: the p-value up to which it is called drift.
        classes: the test of each shared class, if asked for.
        notes: what a reader must know.
        facts: short pairs for the page.
    """

    test: TwoSampleResult
    reference: Side
    new: Side
    space: Any = field(repr=False)
    novelty: np.ndarray = field(repr=False)
    novelty_p: np.ndarray = field(repr=False)
    alpha: float = 0.05
    classes: list[ClassDrift] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def drifted(self) -> bool:
        """Whether the p-value is at most alpha."""
        return self.test.p_value <= self.alpha

    @property
    def novel_share(self) -> float:
        """Share of the new items whose novelty has a p-value of at most 0.05."""
        return float((self.novelty_p <= NOVEL).mean())

    def verdict(self) -> str:
        """In plain words: drift or not, how sure, how much."""
        test, p = self.test, p_text(self.test.p_value)
        alike = (
            f"two items are alike by {test.within_x:.3f} within the reference, {test.within_y:.3f} within the new "
            f"data, and {test.between:.3f} across"
        )
        sides = ", two-sided" if test.two_sided else ""
        if self.drifted:
            low = " by being less far apart than chance gives" if test.two_sided and test.deviations < 0 else ""
            return f"Drift: the new data differs from the reference{low} (p = {p}{sides}); on average {alike}."
        if test.reachable_p > self.alpha:
            return (
                f"No drift could be shown: with {len(self.reference)} and {len(self.new)} items p is never below "
                f"{p_text(test.reachable_p)}, and {self.alpha:g} is asked for; on average {alike}."
            )
        as_far = "are as far from what is usual" if test.two_sided else "differ as much"
        return (
            f"No drift found (p = {p}{sides}): divisions of these items at random {as_far} in "
            f"{100 * test.p_value:.0f} % of all cases; on average {alike}."
        )

    def novelty_verdict(self) -> str:
        """How many new items are novel, in plain words."""
        count = int((self.novelty_p <= NOVEL).sum())
        told = (
            f"Novel items: {count:,} of {len(self.new):,} ({100 * self.novel_share:.1f} %) at p <= {NOVEL:g}, where at "
            f"most {100 * NOVEL:g} % are expected if nothing has shifted."
        )
        if 1 / (1 + len(self.reference)) > NOVEL:
            return f"Novel items: none can be shown, as {len(self.reference)} reference items are too few."
        return told

    def rows(self) -> list[MetricRow]:
        """The table of the page."""
        test = self.test
        rows = [
            ("p-value", test.p_value, f"drift at {self.alpha:g} or below{'; two-sided' if test.two_sided else ''}"),
            ("MMD²", test.statistic, f"kernel: {test.kernel}"),
            ("MMD² against chance", test.deviations, "in standard deviations"),
            ("alike within the reference", test.within_x, ""),
            ("alike within the new data", test.within_y, ""),
            ("alike across", test.between, ""),
            ("novel items", self.novel_share, f"of the new data, p ≤ {NOVEL:g}"),
        ]
        for one in self.classes:
            note = f"after Holm; {one.reference:,} and {one.new:,} items"
            rows.append((f"p-value, {one.name}", one.corrected_p, note))
        return [MetricRow(name, value, percent=name == "novel items", note=note) for name, value, note in rows]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON can hold them."""
        test = self.test
        return {
            "drift": self.drifted,
            "p_value": test.p_value,
            "two_sided": test.two_sided,
            "smallest_reachable_p": test.reachable_p,
            "alpha": self.alpha,
            "statistic": test.statistic,
            "deviations": test.deviations,
            "within_reference": test.within_x,
            "within_new": test.within_y,
            "between": test.between,
            "kernel": str(test.kernel),
            "novel_share": self.novel_share,
            "novel_at": NOVEL,
            "reference": {"name": self.reference.dataset.name, "items": len(self.reference)},
            "new": {"name": self.new.dataset.name, "items": len(self.new)},
            "classes": [asdict(one) for one in self.classes],
            "facts": self.facts,
            "notes": self.notes,
        }

    def most_novel(self, count: int = 10) -> np.ndarray:
        """Rows of the most novel new items, first the most novel."""
        return np.argsort(-self.novelty, kind="stable")[:count]

    def figures(self) -> dict[str, Figure]:
        """The pictures by the names of their files; where items are no images, without these."""
        test = self.test
        where = "from the hill, on either side (two-sided test)," if test.two_sided else "right of the hill,"
        both = np.concatenate([self.reference.embeddings, self.new.embeddings])
        points, kept = project_2d(both, seed=_MAP_SEED, max_points=_MAP_POINTS)
        found = {
            "null": Figure(
                "Chance, and these two sets",
                "How far two sets of these sizes differ when all items are divided at random, and how far the "
                f"reference and the new data do: the farther {where} the less it can be chance.",
                draw_null(test.null, test.statistic, test.p_value, test.two_sided),
                "Histogram of the discrepancies of random divisions, with that of the two sets marked",
            ),
            "map": Figure(
                "Map of both sets",
                f"t-SNE of {len(kept):,} items: near in the map means near in the embedding; far apart means little. "
                "Where nothing has shifted, the two are mixed everywhere.",
                draw_map(points, np.where(kept < len(self.reference), "reference", "new")),
                "Two-dimensional map of the embeddings, the reference and the new data in two colours",
            ),
        }
        if self.new.dataset.kind == self.reference.dataset.kind == "image":
            found["novel"] = self._novel_figure()
        return found

    def write(self, folder: str | Path) -> Path:
        """Write drift.json, items.csv, the pictures and the page drift.html into a folder; return the page's path."""
        out = Path(folder)
        figures = self.figures()  # nothing is written unless everything could be drawn
        for name, figure in figures.items():
            with replacing(out / f"{name}.png") as temporary:
                temporary.write_bytes(figure.png)
        columns = self.new.dataset.manifest.paths, self.new.labels, self.novelty, self.novelty_p, self.test.witness_y
        with replacing(out / "items.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label", "novelty", "p_value", "witness"])
            for row in self.most_novel(len(self.new)):
                item, label, *numbers = (column[row] for column in columns)
                writer.writerow([item, label, *(f"{number:.6g}" for number in numbers)])
        page = Report(
            title=f"{self.new.dataset.name} against {self.reference.dataset.name}",
            verdict=f"{self.verdict()} {self.novelty_verdict()}",
            metrics=self.rows(),
            sections=list(figures.values()),
            notes=[*self.notes, "Other shares of the same classes count as drift too, and few items hide a small one."],
            facts={
                "reference": f"{self.reference.dataset.name}, {len(self.reference):,} items",
                "new": f"{self.new.dataset.name}, {len(self.new):,} items",
                **self.facts,
            },
        )
        write_report(page, out / "drift.html")
        write_json(out / "drift.json", self.to_dict())
        return out / "drift.html"

    def _novel_figure(self) -> Figure:
        chosen = self.most_novel(_STRIPS)
        size = min(_NEAREST, len(self.reference))
        distances, indices = exact(
            torch.from_numpy(self.new.embeddings[chosen]), self.reference.embeddings, size, space=self.space
        )

        def thumb(side: Side, row: int) -> Thumb:
            return Thumb(thumbnail(side.dataset.image(row), _THUMBNAIL), str(side.labels[row]))

        rows = [
            NeighbourRow(
                thumb(self.new, row),
                [
                    (thumb(self.reference, int(other)), float(shown(self.space, away)), False)
                    for other, away in zip(indices[place], distances[place], strict=True)
                ],
            )
            for place, row in enumerate(chosen.tolist())
        ]
        scores = [(float(shown(self.space, self.novelty[row])), float(self.novelty_p[row])) for row in chosen]
        return Figure(
            "The most novel items",
            "New items that are farthest from everything in the reference, the most novel first, and what is nearest "
            "to them there; p is how often an item of the reference is as far from all others.",
            draw_novel(rows, scores, compared_by(self.space)),
            "Rows of new items with their nearest items in the reference",
        )
