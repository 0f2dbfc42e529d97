"""The second table: NMI, Recall@k and kNN-Acc, and books that were made before they were measured."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nearkin.protocol.book import Book, Contents
from nearkin.protocol.ledger import Ledger
from nearkin.protocol.summary import Summariser, Summary
from nearkin.protocol.tables import Tables
from nearkin.recipe import load_recipe
from nearkin.report.comparison import BenchmarkRow

BOOKS = Path(__file__).parents[2] / "studies" / "ccp"
FURTHER = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc", "NMI")
COLUMNS = ("NMI", "Recall@1", "Recall@2", "Recall@4", "Recall@8", "kNN-Acc")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures are looked at elsewhere."""
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")


def values(first=0.5, nmi=0.61):
    found = {"MAP@R": (0.2, 0.1, 0.3), "P@1": (first, 0.4, 0.6), "Recall@2": (0.6, 0.5, 0.7)}
    found |= {"Recall@4": (0.7, 0.6, 0.8), "Recall@8": (0.8, 0.7, 0.9), "kNN-Acc": (0.55, 0.45, 0.65)}
    return found | {"NMI": (nmi, math.nan, math.nan)}


def make(protocol="fair", further=True, untrained=None):
    rows = [
        BenchmarkRow("old", {"separate": {name: values()[name] for name in ("MAP@R", "P@1")}}),
        BenchmarkRow(
            "new|er",
            {"separate": values(), "concatenated": values(0.52, 0.64)},
            ranges={"separate": (0.6, 0.62)},
        ),
    ]
    folds = [["x"], ["z"]] if protocol == "fair" else [["t"]]
    contents = Contents(protocol, {"name": "birds", "notes": []}, ["t", "u"], ["t", "u", "v"], folds)
    content = load_recipe("triplet").model_dump(mode="json")
    contents.recipes = {row.name: {"seeds": 2, "content": content} for row in rows}
    return Tables(contents, Summary(rows, untrained or {}, 0, 6, math.nan, 0, further))


def test_columns_are_those_of_the_literature_and_lines_those_of_both_ways():
    table = make(untrained=values(nmi=0.4)).further
    assert table.headings == ["recipe", "embeddings", *COLUMNS]
    assert [(line[0], line[1]) for line in table.rows] == [
        (["old"], ["separate"]),
        (["old"], ["concatenated"]),
        (["new|er"], ["separate"]),
        (["new|er"], ["concatenated"]),
        (["untrained features"], ["–"]),
    ]
    assert table.rows[0][2:] == table.rows[1][2:] == [["–"]] * 6
    assert table.rows[2][2:] == [
        ["61.0 %", "range 60.0 to 62.0 %"],
        ["50.0 %", "40.0 to 60.0 %"],
        ["60.0 %", "50.0 to 70.0 %"],
        ["70.0 %", "60.0 to 80.0 %"],
        ["80.0 %", "70.0 to 90.0 %"],
        ["55.0 %", "45.0 to 65.0 %"],
    ]
    assert table.rows[3][2] == ["64.0 %"]
    assert table.rows[4][2] == ["40.0 %"]


def test_notes_say_how_each_is_measured_and_what_the_dashes_are():
    first, second, third = make().further.notes
    assert "kNN-Acc" in first
    assert "k-means" in first
    assert "NMI" in second
    assert third.startswith("–")
    tables = make()
    tables.summary.rows.pop(0)
    assert len(Tables(tables.contents, tables.summary).further.notes) == 2


def test_test_selected_models_are_marked_here_too():
    table = make("conventional").further
    assert table.headings == ["recipe", *(f"{name}, test-selected" for name in COLUMNS)]
    assert [line[0] for line in table.rows] == [["old"], ["new|er"]]
    assert "fold" not in " ".join(table.notes)


def test_every_file_has_them():
    tables = make()
    lines = tables.markdown().splitlines()
    second = lines[lines.index("## NMI, Recall@k and kNN-Acc") :]
    assert r"| new\|er | separate | 61.0 %<br>range 60.0 to 62.0 % | 50.0 %<br>40.0 to 60.0 % |" in "\n".join(second)
    assert any(line.startswith("- Recall@k: ") for line in second)
    page = tables.page(b"")
    assert "<h2>NMI, Recall@k and kNN-Acc</h2>" in page
    assert '<td class="number">61.0 %<br><small>range 60.0 to 62.0 %</small></td>' in page
    old, new = csv.DictReader(io.StringIO(tables.values()))
    assert old["separate_P@1"] == "0.5"
    assert {old[f"{kind}_{name}"] for kind in ("separate", "concatenated") for name in COLUMNS} == {""}
    assert (new["separate_NMI"], new["separate_NMI_min"], new["separate_NMI_max"]) == ("0.61", "0.6", "0.62")
    assert (new["concatenated_NMI"], new["concatenated_NMI_min"]) == ("0.64", "")
    assert [new[f"separate_Recall@1{end}"] for end in ("", "_low", "_high")] == ["0.5", "0.4", "0.6"]
    assert [new[f"concatenated_kNN-Acc{end}"] for end in ("", "_low", "_high")] == ["0.55", "0.45", "0.65"]


def test_where_no_cell_has_them_nothing_is_shown():
    tables = make(further=False)
    assert tables.further is None
    for text in (tables.markdown(), tables.page(b"").partition("<main")[2], tables.values()):
        assert not any(word in text for word in ("NMI", "Recall", "kNN"))


def tables_of(folder):
    book = Book(folder)
    contents, codes = book.read(), np.load(book.codes_file)
    ledger = Ledger(book.ledger_file, book.queries, contents, len(codes))
    return Tables(contents, Summariser(codes, ledger).summarise(contents))


def test_a_book_of_old_gives_the_tables_it_gave():
    folder = BOOKS / "rates"
    if "NMI" in (folder / "table.csv").read_text():
        pytest.skip("this book was measured anew")
    tables = tables_of(folder)
    assert tables.markdown() == (folder / "table.md").read_text()
    assert tables.values() == (folder / "table.csv").read_text()


@pytest.fixture(scope="module")
def old(sound, tmp_path_factory):
    """A book as an earlier version would have left it."""
    path = shutil.copytree(sound, tmp_path_factory.mktemp("old") / "book")
    rows = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if key not in FURTHER} for row in rows]
    (path / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    for file in (path / "queries").glob("*.npz"):
        np.savez_compressed(file, values=np.load(file)["values"])
    return path


@pytest.fixture
def book(old, tmp_path):
    return shutil.copytree(old, tmp_path / "book")


def test_an_old_book_is_read_without_them(book, bench, candidate):
    result = bench([candidate("triplet")], book)
    assert result.summary.missing == 0
    assert result.tables.further is None
    assert "NMI" not in (book / "table.csv").read_text()


def test_a_recipe_that_comes_later_has_them_and_the_old_one_has_dashes(book, old, bench, candidate):
    before = (old / "ledger.jsonl").read_text()
    plain = tables_of(old)
    result = bench([candidate("triplet"), candidate("contrastive")], book)
    assert (book / "ledger.jsonl").read_text().startswith(before)
    by_name = {tuple(line[0] + line[1]): line[2:] for line in result.tables.further.rows}
    assert by_name["triplet", "separate"] == by_name["triplet", "concatenated"] == [["–"]] * 6
    assert ["–"] not in by_name["contrastive", "separate"] + by_name["contrastive", "concatenated"]
    assert any(note.startswith("–") for note in result.tables.further.notes)
    # The first table knows nothing of it.
    assert result.tables.lines()[0][1] == plain.lines()[0][1]


def test_a_mean_over_some_of_the_models_is_not_shown(book, bench, candidate):
    result = bench([candidate("triplet")], book, seeds=2)
    (row,) = result.summary.rows
    assert set(row.value("separate", "MAP@R")) != {math.nan}
    assert "NMI" not in row.values["separate"]
    assert row.ranges == {}
    assert [line[2:] for line in result.tables.further.rows] == [[["–"]] * 6] * 3
