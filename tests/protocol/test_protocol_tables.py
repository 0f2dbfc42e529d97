"""The table's texts from plain values: names of any kind, missing numbers, and the guide's own example."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from nearkin.metrics import paired_permutation
from nearkin.protocol.book import Contents
from nearkin.protocol.summary import Summary, _smallest
from nearkin.protocol.tables import Tables
from nearkin.recipe import load_recipe
from nearkin.report.comparison import BenchmarkRow, PairedDifference, draw_benchmark
from nearkin.report.terminal import text_table

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "fair-comparisons.md"
NAME = "a|b <i>[red]"


def make(protocol="fair", missing=0, against=None, untrained=None):
    value = {"MAP@R": (0.5, 0.4, 0.6), "P@1": (0.7, 0.6, 0.8)}
    rows = [
        BenchmarkRow("plain", {"separate": value}, {"separate": math.nan}, 0.55, finished=2, planned=4, seconds=1234.5),
        BenchmarkRow(
            NAME,
            {"separate": value, "concatenated": value},
            {"separate": 0.0123, "concatenated": 0.004},
            0.6,
            "plain",
            {"separate": PairedDifference(0.02, 0.01, 0.03, 0.0004)},
            4,
            4,
            60.0,
        ),
    ]
    folds = [["x", "y"], ["z", "w"]] if protocol == "fair" else [["t", "u"]]
    content = load_recipe("triplet").model_dump(mode="json")
    recipes = {row.name: {"seeds": 2, "content": content} for row in rows}
    contents = Contents(protocol, {"name": "birds", "notes": ["2 files were left out."]}, ["t", "u"], ["t", "u"], folds)
    contents.recipes, contents.against = recipes, against
    contents.untrained = "raw pixels"
    return Tables(contents, Summary(rows, untrained or {}, missing, 6, 0.001, 1))


def test_every_line_fills_every_column():
    for tables in (make(), make("conventional"), make(untrained={"MAP@R": (0.1, 0.05, 0.2)})):
        assert {len(line) for line in tables.lines()} == {len(tables.headings())}


def test_who_had_more_to_work_with_is_told():
    tables = make()
    assert "budget" not in tables.markdown()
    tables.contents.recipes[NAME]["content"] = load_recipe("triplet-ccp").model_dump(mode="json")
    (note,) = [line.replace("\\", "") for line in tables.markdown().splitlines() if "budget" in line]
    for told in ("training.max_steps 3000 and 400", "training.patience 60 and None", "data.classes_per_batch 8 and 16"):
        assert told in note
    assert "per_class 4" not in note


def test_names_of_any_kind_stay_names():
    tables = make()
    line = next(line for line in tables.markdown().splitlines() if line.startswith("| a"))
    assert line.startswith(
        r"| a\|b \<i>\[red\] | 50.0 %<br>40.0 to 60.0 % | +2.0 points<br>+1.0 to +3.0<br>p < 0.001 |"
    )
    assert "a|b &lt;i&gt;[red]" in tables.page(b"")
    console = Console(width=300, file=io.StringIO())
    console.print(text_table(tables.headings(), tables.lines()))
    assert NAME in console.file.getvalue()
    assert next(line for line in csv.reader(io.StringIO(tables.values())) if line[0] == NAME)


def test_what_is_missing_is_a_dash_on_the_page_and_empty_in_the_file():
    tables = make(missing=3)
    assert "partial" in tables.title
    assert "3 of 6" in tables.notes()[0]
    assert tables.notes()[-1] == "2 files were left out."
    cells = dict(zip(tables.headings(), tables.lines()[0], strict=True))
    assert cells["difference to plain, mean over classes"] == ["baseline"]
    assert cells["concatenated MAP@R"] == ["–"]
    assert cells["SD over seeds, points"] == ["–"]
    assert cells["models"] == ["2 of 4"]
    assert cells["seconds"] == ["1,234"]
    cells = dict(zip(tables.headings(), tables.lines()[1], strict=True))
    assert cells["SD over seeds, points"] == ["1.2", "0.4 concatenated"]
    assert cells["difference to plain, mean over classes, concatenated"] == ["–"]
    plain, other = csv.DictReader(io.StringIO(tables.values()))
    assert plain["concatenated_MAP@R"] == plain["separate_difference"] == ""
    assert float(other["separate_difference"]) == 0.02
    assert float(other["separate_difference_p"]) == 0.0004


def test_names_in_headings_and_titles_stay_names_too():
    tables = make(against={"plain": NAME})
    tables.contents.data["name"] = "<b>birds*"
    lines = tables.markdown().splitlines()
    assert lines[0] == r"# \<b>birds\*, fair protocol"
    assert r"difference to a\|b \<i>\[red\], mean over classes" in lines[2]
    counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert counts == {len(tables.headings()) + 1}


def test_long_headings_of_the_page_wrap():
    heads = re.findall(r"<th scope=\"col\"[^>]*>", make().page(b""))
    assert len(heads) == len(make().headings())
    assert all("white-space: normal" in head for head in heads)


def test_one_cell_is_missing_not_one_cells():
    note = make(missing=1).notes()[0]
    assert "1 of 6" in note
    assert "cells are" not in note


def test_a_difference_says_what_it_is_a_mean_of():
    (note,) = [note for note in make().notes() if note.startswith("Difference")]
    assert "MAP@R" in note
    assert "class" in note
    assert "mean over classes" in GUIDE.read_text()


def test_where_there_are_no_folds_none_are_spoken_of():
    tables = make("conventional")
    tables.contents.data["notes"] = []
    assert all("fold" not in text for text in (*tables.notes(), *tables.headings()))
    marked = [heading for heading in tables.headings() if "test-selected" in heading]
    assert [heading.partition(",")[0] for heading in marked] == [
        "MAP@R",
        "difference to plain",
        "P@1",
        "MAP@R (classes)",
    ]
    assert any("optimistic" in note for note in tables.notes())


def test_queries_without_a_partner_are_counted():
    tables = make()
    assert not any("left out" in note for note in tables.notes()[:-1])
    tables.contents.dropped_queries = 3
    tables.contents.test_classes = ["t", "u", "v"]
    notes = tables.notes()
    assert any("3 queries" in note for note in notes)
    assert any("2 of the 3" in note for note in notes)
    assert any("2 classes" in note for note in notes)


def test_recipes_that_agree_everywhere_are_not_for_want_of_classes():
    equal = paired_permutation({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5})
    unequal = paired_permutation({1: 0.6, 2: 0.5, 3: 0.4}, {1: 0.5, 2: 0.4, 3: 0.2})
    assert math.isnan(_smallest([equal]))
    assert math.isnan(_smallest([]))
    assert _smallest([equal, unequal]) == 0.5


def test_a_picture_of_nothing_is_no_picture():
    assert draw_benchmark([BenchmarkRow("a", {})], "birds") == b""
    rows = make().summary.rows
    assert draw_benchmark(rows, "birds").startswith(b"\x89PNG")
    assert draw_benchmark(rows, "birds") == draw_benchmark(rows, "birds")
    assert draw_benchmark(rows, "birds") != draw_benchmark(rows, "birds", untrained=0.3)


def test_the_guides_example_runs(photos, tiny, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    small = block.replace('[f"model.dimension={size}"]', '[*TINY, f"model.dimension={size}"]')
    small = small.replace("folds=4", "folds=2").replace("seeds=3", "seeds=1").replace('"photos"', "PHOTOS")
    assert small.count("TINY") == small.count("PHOTOS") == small.count("folds=2") == small.count("seeds=1") == 1
    monkeypatch.chdir(tmp_path)
    exec(small, {"TINY": [*tiny, "training.max_steps=2"], "PHOTOS": photos})
    out = capsys.readouterr().out
    assert re.search(r"triplet, 128 dimensions: \d+\.\d % \(\d+\.\d to \d+\.\d\)", out)
    assert re.search(r"[+-]\d+\.\d points, p = \d\.\d{3}", out)
    assert (tmp_path / "books" / "dimensions" / "table.html").exists()


@pytest.mark.parametrize("file", ["book.json", "ledger.jsonl", "queries/", "embeddings/"])
def test_the_guide_names_the_files_of_a_book(file):
    assert f"`{file}`" in GUIDE.read_text()
