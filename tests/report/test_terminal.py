import io
import math

from rich.console import Console

from nearkin.report import Column, ComparisonRow, MetricRow, comparison_table, metric_table
from nearkin.report.comparison import Contrast, PairedDifference


def shown(table, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_metric_table_shows_only_the_columns_that_are_filled():
    plain = shown(metric_table([MetricRow("MAP@R", 0.138)]))
    assert "13.8 %" in plain
    assert not any(word in plain for word in ("interval", "baseline", "change", "note"))
    full = shown(
        metric_table(
            [MetricRow("MAP@R", 0.138, 0.131, 0.145, "primary", baseline=0.13), MetricRow("ECE", math.nan)],
            title="CUB",
            baseline_name="raw features",
            level=0.9,
        )
    )
    for part in ("CUB", "90 % interval", "13.1 to 14.5 %", "raw features", "13.0 %", "+0.8", "primary", "–"):
        assert part in full


def test_names_in_brackets_are_not_markup():
    text = shown(metric_table([MetricRow("[red]x[/red]", 0.5, note="[/]")], title="[bold]"))
    for part in ("[red]x[/red]", "[/]", "[bold]"):
        assert part in text


def rows():
    return [
        ComparisonRow("runs/a", "proxy-anchor", {"MAP@R": (0.138, 0.13, 0.145), "radius": (0.9, math.nan, math.nan)}),
        ComparisonRow("runs/b", "contrastive", {"MAP@R": (0.117, 0.11, 0.124), "radius": (0.7, math.nan, math.nan)}),
        ComparisonRow("runs/c", "triplet", {"MAP@R": (math.nan, math.nan, math.nan)}),
    ]


def test_comparison_marks_the_best_of_each_column_in_its_direction():
    columns = [Column("MAP@R"), Column("radius", percent=False, lower_is_better=True)]
    lines = shown(comparison_table(rows(), columns)).splitlines()
    line = {name: next(text for text in lines if name in text) for name in ("runs/a", "runs/b", "runs/c")}
    assert "★ 13.8 %" in line["runs/a"]
    assert line["runs/a"].count("★") == 1
    assert "★ 0.700" in line["runs/b"]
    assert line["runs/c"].count("–") == 2
    assert any("13.0 to 14.5 %" in text for text in lines)


def test_comparison_shows_every_metric_by_default_and_long_names_whole():
    name = "runs/" + "x" * 90
    text = shown(comparison_table([ComparisonRow(name, "r", {"A": (0.1, 0, 1)}), *rows()]), width=80)
    assert all(metric in text for metric in ("A", "MAP@R", "radius"))
    assert text.count("x") >= 90


def test_differences_stand_beside_their_metric():
    contrast = Contrast("MAP@R", 0, "runs/a", {1: PairedDifference(-0.021, -0.03, -0.012, 0.003)})
    columns = [Column("MAP@R"), Column("radius", percent=False, lower_is_better=True)]
    text = shown(comparison_table(rows(), columns, contrast=contrast))
    lines = text.splitlines()
    head = next(line for line in lines if "radius ↓" in line)
    assert head.index("MAP@R") < head.index("to runs/a") < head.index("radius")
    first, second = (next(line for line in lines if line.strip().startswith(name)) for name in ("runs/a", "runs/b"))
    assert "reference" in first
    assert "−2.1 points" in second
    for part in ("difference", "−3.0 to −1.2", "p = 0.003", "↓ lower is better"):
        assert part in text
    assert "difference" not in shown(comparison_table(rows(), columns[1:], contrast=contrast))
    assert "lower" not in shown(comparison_table(rows(), columns[:1]))
