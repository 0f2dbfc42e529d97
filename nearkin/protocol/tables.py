"""The tables of a book: the same lines as Markdown, CSV, a page with the picture inside, and text for a terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from nearkin.metrics.retrieval import over_classes
from nearkin.protocol.book import Book, Contents
from nearkin.protocol.candidates import UNTRAINED, UNTRAINED_TITLE
from nearkin.protocol.ledger import CLUSTERED, COUNTED, KEPT, PRIMARY
from nearkin.protocol.summary import Summary
from nearkin.report.comparison import CONCATENATED, MODEL_KINDS, SEPARATE, BenchmarkRow, draw_benchmark
from nearkin.report.page import render_table
from nearkin.report.values import MISSING, Figure, TextTable, interval_text, value_text
from nearkin.storage import replacing, write_text

_SHARES = {"Recall@1": "P@1", **{metric: metric for metric in COUNTED}}
"""Columns that are shares of queries, and what the ledger calls them."""


def extra_metrics_table(contents: Contents, summary: Summary) -> TextTable | None:
    """The table; None where no cell has these metrics, as in books that earlier versions made.

    In a fair book every recipe has two lines, one for single models and one for all folds together.
    """
    if not summary.further:
        return None
    fair = contents.protocol == "fair"
    mark = "" if fair else ", test-selected"
    headings = ["recipe", *(["embeddings"] if fair else []), *(f"{name}{mark}" for name in (CLUSTERED, *_SHARES))]
    lines = []
    for row in summary.rows:
        for kind in MODEL_KINDS if fair else (SEPARATE,):
            lines.append([[row.name], *([[kind]] if fair else []), *_cells(row, kind)])
    if summary.untrained:
        row = BenchmarkRow(UNTRAINED_TITLE, {SEPARATE: summary.untrained})
        lines.append([[row.name], *([[MISSING]] if fair else []), *_cells(row, SEPARATE)])
    return TextTable("NMI, Recall@k and kNN-Acc", headings, lines, list(_notes(contents, summary)))


def extra_metrics(row: BenchmarkRow, kind: str) -> dict[str, float]:
    """The same numbers of one recipe for a file: name of the column to number, NaN where there is none."""
    numbers = {f"{kind}_{CLUSTERED}": row.value(kind, CLUSTERED)[0]}
    for end, value in zip(("_min", "_max"), row.ranges.get(kind, (math.nan, math.nan)), strict=True):
        numbers[f"{kind}_{CLUSTERED}{end}"] = value
    for name, metric in _SHARES.items():
        # Recall@1 stands beside the others, and is empty where they are.
        values = row.value(kind, metric) if _has(row, kind) else (math.nan, math.nan, math.nan)
        numbers |= _with_ends(f"{kind}_{name}", values)
    return numbers


def _with_ends(name: str, values: Sequence[float]) -> dict[str, float]:
    """A value and the ends of its interval by their columns."""
    return {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), values, strict=True)}


def _cells(row: BenchmarkRow, kind: str) -> Iterator[list[str]]:
    """NMI above its range, then every share above its interval."""
    if not _has(row, kind):
        yield from ([MISSING] for _ in (CLUSTERED, *_SHARES))
        return
    spread = [f"range {interval_text(*row.ranges[kind], True)}"] if kind in row.ranges else []
    yield [value_text(row.value(kind, CLUSTERED)[0], True), *spread]
    for metric in _SHARES.values():
        yield row.texts(kind, metric)


def _has(row: BenchmarkRow, kind: str) -> bool:
    return CLUSTERED in row.values.get(kind, {})


def _notes(contents: Contents, summary: Summary) -> Iterator[str]:
    fair = contents.protocol == "fair"
    yield (
        "Recall@k: of the query's class is at least one of its k nearest (Recall@1 is P@1). kNN-Acc: at least 3 of the "
        "5 nearest are; where a paper's kNN-Acc lies above its Recall@1, it is probably a plurality vote instead. "
        f"NMI: k-means with {len(contents.test_classes)} clusters, one for each test class, against the "
        "classes, normalised by the arithmetic mean of both entropies."
    )
    yield (
        "Below Recall@k and kNN-Acc the 95 % interval, as in the first table; below NMI the least and the greatest of "
        f"the single {f'folds and seeds, or of the seeds where folds are {CONCATENATED}' if fair else 'seeds'}: a "
        "clustering has no queries to resample, and models that share their test classes tell nothing of others."
    )
    rows = [*summary.rows, BenchmarkRow(UNTRAINED_TITLE, {SEPARATE: summary.untrained})]
    if any(values and not _has(row, kind) for row in rows for kind, values in row.values.items()):
        yield f"{MISSING} where MAP@R has a value: an earlier version measured some of these models without them."


_ORDERS = {"contiguous": ", the sorted classes cut in order", "random": ""}
"""What the notes say of the folds."""
_SHOWN = 0.05
_MARKDOWN = re.compile(r"[\\|`*_~\[\]]|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
"""What Markdown would not take for itself, and the beginnings of HTML."""
_BY_CLASS = over_classes(PRIMARY)
Cells = list[list[str]]
"""The cells of a line, each with its lines of text."""


class Tables:
    """The texts of the tables.

    Args:
        contents: what the book is about.
        summary: what it says so far.
        failed: what to call the models whose training failed.

    Attributes:
        further: the second table, of NMI, Recall@k and kNN-Acc; None where nothing was measured by them.
    """

    def __init__(self, contents: Contents, summary: Summary, failed: Sequence[str] = ()) -> None:
        self.failed = failed
        self.contents = contents
        self.summary = summary
        self.fair = contents.protocol == "fair"
        self.further = extra_metrics_table(contents, summary)

    @property
    def title(self) -> str:
        """The heading; a partial book and one whose models were chosen on the test classes say so."""
        name = self.contents.data["name"] or "benchmark"
        marks = [] if self.fair else ["test-selected"]
        if self.summary.missing:
            marks.append("partial")
        return f"{name}, {self.contents.protocol} protocol" + (f" ({', '.join(marks)})" if marks else "")

    def _columns(self) -> list[tuple[str, Callable[[BenchmarkRow], list[str]]]]:
        """What each column is called and what it says of a row, the most important first."""
        mark, bases = "" if self.fair else ", test-selected", set(self.contents.comparisons.values())
        base = f"difference to {_base_name(min(bases))}" if len(bases) == 1 else "difference to baseline"
        kinds = [(SEPARATE, "", "")] + ([(CONCATENATED, "concatenated ", ", concatenated")] if self.fair else [])
        columns: list[tuple[str, Callable[[BenchmarkRow], list[str]]]] = [("recipe", lambda row: [row.name])]
        for kind, before, after in kinds:
            columns.append((f"{before}MAP@R{mark}", partial(BenchmarkRow.texts, kind=kind, metric=PRIMARY)))
            if bases:  # without comparisons there is nothing to differ from
                columns.append((f"{base}, mean over classes{after}{mark}", partial(self._difference, kind=kind)))
        for metric in ("P@1", _BY_CLASS):
            for kind, before, _ in kinds:
                columns.append((f"{before}{metric}{mark}", partial(BenchmarkRow.texts, kind=kind, metric=metric)))
        return [
            *columns,
            ("SD over seeds, points", _spread),
            ("validation MAP@R" if self.fair else "selection MAP@R", lambda row: [value_text(row.validation, True)]),
            ("models", lambda row: [f"{row.finished} of {row.planned}" if row.planned else MISSING]),
            ("seconds", lambda row: [f"{row.seconds:,.0f}" if row.finished else MISSING]),
        ]

    def headings(self) -> list[str]:
        """The columns, the most important first."""
        return [heading for heading, _ in self._columns()]

    def lines(self) -> list[Cells]:
        """One line for each recipe, and one for untrained features."""
        rows = [*self.summary.rows]
        if self.summary.untrained:
            rows.append(BenchmarkRow(UNTRAINED_TITLE, {SEPARATE: self.summary.untrained}))
        return [[told(row) for _, told in self._columns()] for row in rows]

    def notes(self) -> list[str]:
        """What the reader must know."""
        return list(self._notes())

    def picture(self) -> bytes:
        """The picture as PNG bytes; none when nothing is finished."""
        untrained = self.summary.untrained.get(PRIMARY, (math.nan,))[0]
        return draw_benchmark(self.summary.rows, self.title, untrained=untrained)

    def markdown(self) -> str:
        """The tables, each with its notes."""
        parts = [f"# {_escaped(self.title)}", "", *_markdown(self.headings(), self.lines(), self.notes())]
        if self.further is not None:
            table = self.further
            parts += [f"## {_escaped(table.title)}", "", *_markdown(table.headings, table.rows, table.notes)]
        return "\n".join(parts)

    def page(self, picture: bytes) -> str:
        """The tables, the picture and the notes as one HTML file."""
        figure = Figure(
            "MAP@R",
            f"Dots are means over {self._averaged}, lines their 95 % intervals for other classes of the same kind. "
            "Whether two recipes differ is told by their paired difference, even where intervals overlap.",
            picture,
            f"MAP@R of {len(self.summary.rows)} recipes with intervals, "
            + ("single models and folds concatenated" if self.fair else "test-selected models"),
        )
        return render_table(
            self.title,
            self.headings(),
            self.lines(),
            figures=[figure],
            notes=self.notes(),
            further=[] if self.further is None else [self.further],
        )

    def values(self) -> str:
        """All numbers as CSV, one line for each recipe; empty where there is none."""
        rows = list(self.summary.rows)
        if self.summary.untrained:
            rows.append(BenchmarkRow(UNTRAINED, {SEPARATE: self.summary.untrained}))
        if not rows:
            return ""
        buffer, table = io.StringIO(), [self._numbers(row) for row in rows]
        writer = csv.DictWriter(buffer, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _number(value) for key, value in numbers.items()} for numbers in table)
        return buffer.getvalue()

    def _difference(self, row: BenchmarkRow, kind: str) -> list[str]:
        bases = set(self.contents.comparisons.values())
        if kind not in row.differences:
            return ["baseline" if row.name in map(_base_name, bases) and not row.against else MISSING]
        lines = row.differences[kind].lines(percent=True)
        return [*lines, f"to {_base_name(row.against)}"] if len(bases) > 1 else lines

    def _numbers(self, row: BenchmarkRow) -> dict[str, object]:
        numbers: dict[str, object] = {"recipe": row.name, "protocol": self.contents.protocol}
        selected_on = self.contents.selected_on + ("" if self.fair else " (test-selected)")
        numbers["selected_on"] = "" if row.name == UNTRAINED else selected_on
        kinds = MODEL_KINDS if self.fair else (SEPARATE,)
        for kind in kinds:
            for metric in KEPT:
                numbers |= _with_ends(f"{kind}_{metric}", row.value(kind, metric))
            numbers[f"{kind}_MAP@R_sd_over_seeds"] = row.spread.get(kind, math.nan)
            found = row.differences.get(kind)
            for name, end in (("mean", ""), ("low", "_low"), ("high", "_high"), ("p_value", "_p")):
                numbers[f"{kind}_difference{end}"] = math.nan if found is None else getattr(found, name)
        numbers["against"] = row.against
        numbers |= {"validation_MAP@R": row.validation, "models": row.finished, "models_planned": row.planned}
        numbers["seconds"] = row.seconds
        # Last: who reads older books by the place of a column finds the same there.
        for kind in kinds if self.further is not None else ():
            numbers |= extra_metrics(row, kind)
        for kind in kinds:
            for metric in map(over_classes, KEPT):
                numbers |= _with_ends(f"{kind}_{metric}", row.value(kind, metric))
        return numbers

    def _notes(self) -> Iterator[str]:
        contents, summary = self.contents, self.summary
        if summary.missing:
            missing = f"{summary.missing} of {summary.cells} cells {'is' if summary.missing == 1 else 'are'}"
            yield f"Partial: {missing} still missing, and every number may change."
        if self.failed:
            yield f"Training failed and has no numbers here: {'; '.join(self.failed)}."
        if self.fair:
            yield (
                f"Fair protocol: {contents.models} class-disjoint folds{_ORDERS[contents.fold_order]}; each model "
                "learns from the other folds and chooses its weights on its own, then meets "
                f"{len(contents.test_classes)} test classes for the first time. Values are means over folds and "
                "seeds; concatenated: the embeddings of a seed's folds together."
            )
        else:
            yield (
                "Test-selected: each model learns from all training classes and chooses its weights on the test "
                f"classes themselves ({len(contents.test_classes)}), so the numbers of trained models are optimistic."
            )
        yield from self._left_out()
        yield f"MAP@R and P@1 are means over queries, as in papers; {_BY_CLASS} is the mean over classes."
        yield f"Below each value its 95 % interval: classes resampled, then queries, averaged over {self._averaged}."
        if contents.comparisons and summary.tested:
            several = f", corrected for {summary.tested} comparisons by Holm's method" if summary.tested > 1 else ""
            yield (
                f"Difference: MAP@R minus that of the baseline, averaged over {self._averaged} and then over the "
                f"{len(contents.classes)} classes with queries: that of {_BY_CLASS}, where every class has the same "
                "weight, so MAP@R itself need not subtract to it. Below it the 95 % interval, classes "
                f"resampled; p by a two-sided sign-flip permutation test over classes{several}."
            )
            if self.fair:
                yield "Folds share training classes and are not independent: they are averaged, never counted."
            for told, pairs in contents.unequal_budgets().items():
                yield f"Not the same budget: {'; '.join(pairs)} differ in {told}. Make them equal with --set."
            if summary.smallest_p > _SHOWN:
                yield f"With so few classes p cannot be less than {summary.smallest_p:.3g}: nothing can be shown."
        if summary.untrained:
            yield f"Untrained features: {contents.untrained}, of the same test items; for orientation."
        yield from contents.data["notes"]

    @property
    def _averaged(self) -> str:
        return "folds and seeds" if self.fair else "seeds"

    def _left_out(self) -> Iterator[str]:
        """Which requests the test classes could not satisfy."""
        contents, count = self.contents, self.contents.dropped_queries
        if count:
            yield (
                f"{count} {'query has' if count == 1 else 'queries have'} nothing of the same class to find and "
                f"{'is' if count == 1 else 'are'} left out."
            )
        if len(contents.classes) < len(contents.test_classes):
            yield f"{len(contents.classes)} of the {len(contents.test_classes)} test classes have queries that count."


def write_tables(book: Book, tables: Tables) -> None:
    """Write table.md, table.csv, table.html and comparison.png."""
    picture = tables.picture()
    if picture:
        with replacing(book.path / "comparison.png") as temporary:
            temporary.write_bytes(picture)
    write_text(book.path / "table.md", tables.markdown())
    write_text(book.path / "table.csv", tables.values())
    write_text(book.path / "table.html", tables.page(picture))


def _base_name(base: str) -> str:
    return UNTRAINED_TITLE if base == UNTRAINED else base


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[Sequence[str]]], notes: Sequence[str]) -> Iterator[str]:
    """The lines of a table and its notes, an empty one after each."""
    yield "| " + " | ".join(map(_escaped, headings)) + " |"
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield "| " + " | ".join("<br>".join(map(_escaped, cell)) for cell in row) + " |"
    yield ""
    yield from (f"- {_escaped(note)}" for note in notes)
    yield ""


def _escaped(text: str) -> str:
    """A text that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def _spread(row: BenchmarkRow) -> list[str]:
    """Standard deviations over seeds in points, of single models and of all folds together."""
    spreads = [value_text(row.spread.get(kind, math.nan), True).removesuffix(" %") for kind in MODEL_KINDS]
    return [spreads[0]] + ([f"{spreads[1]} concatenated"] if spreads[1] != MISSING else [])


def _number(value: object) -> object:
    """As in the ledger: rounded; what is not known is empty."""
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else ""
