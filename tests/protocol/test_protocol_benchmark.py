"""A benchmark from end to end: every number again by hand, from kept runs and from the ledger."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from nearkin.audits.subject import subject_of_model
from nearkin.data.splits import class_folds, resolve_split
from nearkin.errors import DataError, RecipeError
from nearkin.metrics import class_bootstrap, clustering_metrics, holm, paired_permutation, retrieval_metrics
from nearkin.models import build_embedder
from nearkin.models.card import Card, CardParts
from nearkin.protocol import Cell
from nearkin.training import Run

NAMES = ("triplet", "contrastive")
COUNTED = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")


def ledger(book):
    return [json.loads(line) for line in book.ledger_file.read_text().splitlines()]


def rows_of(book, recipe, kind):
    return [row for row in ledger(book) if row["recipe"] == recipe and row["kind"] == kind]


def queries(book, row):
    return np.load(book.queries / f"{Cell.of(row).file}.npz")["values"].astype(float)


def hits(book, row):
    return np.load(book.queries / f"{Cell.of(row).file}.npz")["hits"].astype(float)


@pytest.fixture(scope="module")
def test_items(benchmark, patterns):
    return patterns.select(np.isin(patterns.labels, benchmark.contents.test_classes))


def test_every_cell_is_done_once(benchmark):
    cells = [Cell.of(row) for row in ledger(benchmark.book)]
    assert len(cells) == len(set(cells)) == 1 + 2 * 2 * (2 + 1)
    assert cells[0].kind == "untrained"
    assert benchmark.summary.missing == 0
    assert not benchmark.interrupted
    assert not benchmark.book.embeddings.exists()


def test_models_learn_from_other_folds_and_never_see_the_test_classes(benchmark, patterns, candidate):
    section = candidate("triplet").recipe.data
    plain = resolve_split(patterns.manifest, section.model_copy(update={"val_classes": 0.0}), 0)
    pool = patterns.labels[plain.train]
    for number, split in enumerate(class_folds(pool, 2, order="contiguous"), start=1):
        for name in NAMES:
            for seed in (0, 1):
                run = Run(benchmark.book.run_folder(Cell(name, "separate", seed, number)))
                classes = json.loads(run.card_file.read_text())["classes"]
                assert classes["train"] == sorted(set(pool[split.train]))
                assert classes["val"] == sorted(set(pool[split.val]))
                assert classes["test"] == benchmark.contents.test_classes
                assert run.recipe().training.seed == seed
                assert json.loads(run.card_file.read_text())["selected_on"] == "validation classes"


def test_separate_values_are_those_of_the_kept_models(benchmark, test_items):
    for row in rows_of(benchmark.book, "triplet", "separate"):
        run = Run(benchmark.book.run_folder(Cell.of(row)))
        embeddings = run.model().encode(test_items, progress=False)
        result = retrieval_metrics(embeddings, test_items.labels)
        for metric in ("MAP@R", "P@1", "R-precision", *COUNTED):
            assert row[metric] == pytest.approx(result.values[metric], abs=1e-5)
        assert row["NMI"] == pytest.approx(clustering_metrics(embeddings, test_items.labels)["NMI"], abs=1e-5)
        for place, metric in enumerate(COUNTED):
            np.testing.assert_array_equal(hits(benchmark.book, row)[place], result.per_query[metric])
        for place, metric in enumerate(("MAP@R", "P@1")):
            by_class = dict(zip(benchmark.contents.classes, row["per_class"][metric], strict=True))
            assert by_class == pytest.approx(result.per_class(metric), abs=1e-5)
            np.testing.assert_allclose(queries(benchmark.book, row)[place], result.per_query[metric], atol=5e-4)
        card = json.loads(run.card_file.read_text())
        assert row["validation_MAP@R"] == pytest.approx(card["validation"]["val_MAP@R"], abs=1e-5)
        assert (row["steps"], row["best_step"]) == (card["steps"], card["best_step"])
        assert row["selected_on"] == "validation classes"


def test_concatenated_values_are_those_of_all_folds_side_by_side(benchmark, test_items):
    for row in rows_of(benchmark.book, "contrastive", "concatenated"):
        parts = []
        for fold in (1, 2):
            run = Run(benchmark.book.run_folder(Cell("contrastive", "separate", row["seed"], fold)))
            raw = run.model().encode(test_items, progress=False)
            parts.append(raw / np.linalg.norm(raw, axis=1, keepdims=True))
        joined = np.concatenate(parts, axis=1)
        joined /= np.linalg.norm(joined, axis=1, keepdims=True)
        labels = test_items.labels
        found, first, fourth, vote = [], [], [], []
        for place, similarity in enumerate(joined @ joined.T):
            order = np.argsort(-np.delete(similarity, place), kind="stable")
            hits = (np.delete(labels, place) == labels[place])[order]
            total = int(hits.sum())
            precision = np.cumsum(hits[:total]) / np.arange(1, total + 1)
            found.append((precision * hits[:total]).sum() / total)
            first.append(float(hits[0]))
            fourth.append(float(hits[:4].any()))
            vote.append(float(hits[:5].sum() >= 3))
        assert row["MAP@R"] == pytest.approx(np.mean(found), abs=2e-5)
        assert row["P@1"] == pytest.approx(np.mean(first), abs=2e-5)
        assert row["Recall@4"] == pytest.approx(np.mean(fourth), abs=2e-5)
        assert row["kNN-Acc"] == pytest.approx(np.mean(vote), abs=2e-5)
        assert row["NMI"] == pytest.approx(clustering_metrics(joined, labels)["NMI"], abs=2e-5)
        separate = [other["MAP@R"] for other in rows_of(benchmark.book, "contrastive", "separate")]
        assert row["MAP@R"] not in separate


@pytest.mark.parametrize("kind", ["separate", "concatenated"])
def test_means_intervals_and_spread_follow_from_the_ledger(benchmark, kind):
    codes = np.load(benchmark.book.codes_file)
    assert [benchmark.contents.classes[code] for code in codes] == [f"class{c:02d}" for c in _test_codes(benchmark)]
    for row in benchmark.summary.rows:
        rows = rows_of(benchmark.book, row.name, kind)
        averaged = np.mean([queries(benchmark.book, one) for one in rows], axis=0)
        for place, metric in enumerate(("MAP@R", "P@1")):
            value, low, high = row.value(kind, metric)
            assert value == pytest.approx(np.mean([one[metric] for one in rows]), abs=1e-12)
            assert (low, high) == class_bootstrap(averaged[place], codes)
            assert low <= value <= high
        counted = np.mean([hits(benchmark.book, one) for one in rows], axis=0)
        for place, metric in enumerate(COUNTED):
            value, low, high = row.value(kind, metric)
            assert value == pytest.approx(counted[place].mean(), abs=1e-5)
            assert (low, high) == class_bootstrap(counted[place], codes)
        found = [one["NMI"] for one in rows]
        assert row.value(kind, "NMI") == pytest.approx((np.mean(found), np.nan, np.nan), nan_ok=True)
        assert row.ranges[kind] == (min(found), max(found))
        by_seed = [np.mean([one["MAP@R"] for one in rows if one["seed"] == seed]) for seed in (0, 1)]
        assert row.spread[kind] == pytest.approx(np.std(by_seed, ddof=1))


def _test_codes(benchmark):
    return [int(name.removeprefix("class")) for name in benchmark.contents.classes for _ in range(8)]


@pytest.mark.parametrize("kind", ["separate", "concatenated"])
def test_paired_tests_follow_from_the_ledger(benchmark, kind):
    first, second = benchmark.summary.rows
    assert (first.name, first.against, dict(first.differences)) == ("triplet", "", {})
    means = {
        name: np.mean([row["per_class"]["MAP@R"] for row in rows_of(benchmark.book, name, kind)], axis=0)
        for name in NAMES
    }
    expected = paired_permutation(dict(enumerate(means["contrastive"])), dict(enumerate(means["triplet"])))
    found = second.differences[kind]
    assert found.mean == pytest.approx(expected.difference)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert [found.p_value] == holm([expected.p_value])
    assert benchmark.summary.smallest_p == pytest.approx(0.25)  # 3 classes, 8 signs
    assert any("0.25" in note for note in benchmark.tables.notes())


def test_several_comparisons_are_corrected_and_name_their_baselines(benchmark, bench, candidate):
    both = [candidate("triplet"), candidate("contrastive")]
    result = bench(both, benchmark.book.path, seeds=2, against="untrained", keep_runs=True)
    untrained = rows_of(result.book, "untrained", "untrained")[0]["per_class"]["MAP@R"]
    raw = []
    for name in NAMES:
        mean = np.mean([row["per_class"]["MAP@R"] for row in rows_of(result.book, name, "separate")], axis=0)
        raw.append(paired_permutation(dict(enumerate(mean)), dict(enumerate(untrained))).p_value)
    assert [row.differences["separate"].p_value for row in result.summary.rows] == holm(raw)
    assert "difference to untrained features, mean over classes" in result.tables.headings()
    pairs = {"contrastive": "triplet", "triplet": "untrained"}
    result = bench(both, benchmark.book.path, seeds=2, against=pairs, keep_runs=True)
    assert [row.against for row in result.summary.rows] == ["untrained", "triplet"]
    lines = {line[0][0]: line[2] for line in result.tables.lines()}
    assert "triplet" in lines["contrastive"][-1]
    assert "untrained" in lines["triplet"][-1]
    # Not named again, the comparisons stay; named again, they change.
    assert [row.against for row in bench(both, result.book.path, seeds=2, keep_runs=True).summary.rows] == [
        "untrained",
        "triplet",
    ]
    bench(both, result.book.path, seeds=2, against="triplet", keep_runs=True)


def test_csv_has_the_ledgers_numbers(benchmark):
    lines = list(csv.DictReader(io.StringIO((benchmark.book.path / "table.csv").read_text())))
    assert [line["recipe"] for line in lines] == [*NAMES, "untrained"]
    for line, row in zip(lines, benchmark.summary.rows, strict=False):
        for kind in ("separate", "concatenated"):
            rows = rows_of(benchmark.book, line["recipe"], kind)
            for metric in ("MAP@R", "P@1"):
                assert float(line[f"{kind}_{metric}"]) == pytest.approx(np.mean([r[metric] for r in rows]), abs=1e-6)
        assert float(line["validation_MAP@R"]) == pytest.approx(row.validation, abs=1e-6)
        assert (line["models"], line["models_planned"]) == ("4", "4")
    assert lines[0]["separate_difference"] == ""
    assert float(lines[1]["separate_difference_p"]) == pytest.approx(
        benchmark.summary.rows[1].differences["separate"].p_value, abs=1e-6
    )
    assert lines[2]["concatenated_MAP@R"] == ""
    for line in lines[:2]:
        for kind in ("separate", "concatenated"):
            rows = rows_of(benchmark.book, line["recipe"], kind)
            found = [row["NMI"] for row in rows]
            stored = [float(line[f"{kind}_NMI{end}"]) for end in ("", "_min", "_max")]
            assert stored == pytest.approx([np.mean(found), min(found), max(found)], abs=1e-6)
            assert line[f"{kind}_Recall@1"] == line[f"{kind}_P@1"]
            assert line[f"{kind}_Recall@1_low"] == line[f"{kind}_P@1_low"]
            for metric in COUNTED:
                assert float(line[f"{kind}_{metric}"]) == pytest.approx(np.mean([r[metric] for r in rows]), abs=1e-6)
                assert float(line[f"{kind}_{metric}_low"]) <= float(line[f"{kind}_{metric}_high"])
    assert float(lines[2]["separate_NMI"]) == rows_of(benchmark.book, "untrained", "untrained")[0]["NMI"]
    assert lines[2]["separate_NMI_min"] == lines[2]["concatenated_NMI"] == ""


class _Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.sources = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1
        self.sources += [value for name, value in attrs if name in ("src", "href")]


def test_markdown_page_and_picture_can_be_read(benchmark):
    folder = benchmark.book.path
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[0] == "# patterns, fair protocol"
    second = lines.index("## NMI, Recall@k and kNN-Acc")
    for part, count in ((lines[:second], 3), (lines[second:], 2 * 2 + 1)):
        table = [line for line in part if line.startswith("|")]
        assert len(table) == 2 + count
        assert len({line.count("|") for line in table}) == 1
    page = _Cells()
    page.feed((folder / "table.html").read_text())
    assert page.rows == [len(benchmark.tables.headings())] * 4 + [len(benchmark.tables.further.headings)] * 6
    assert all(source.startswith("data:") for source in page.sources)
    assert any(source.startswith("data:image/png") for source in page.sources)
    assert Image.open(folder / "comparison.png").size[0] % 360 == 0  # 720 on the page, whatever the resolution


def test_the_conventional_protocol_is_labelled_test_selected_everywhere(bench, candidate, patterns, tmp_path):
    result = bench([candidate("triplet")], tmp_path / "book", protocol="conventional", keep_runs=True)
    (row,) = rows_of(result.book, "triplet", "separate")
    assert (row["fold"], row["protocol"], row["selected_on"]) == (None, "conventional", "test classes")
    # Selection and judgement are by the same classes: that is what makes it optimistic.
    assert row["validation_MAP@R"] == pytest.approx(row["MAP@R"], abs=1e-5)
    card = json.loads(Run(result.book.run_folder(Cell.of(row))).card_file.read_text())
    assert card["classes"]["val"] == card["classes"]["test"] == result.contents.test_classes
    assert len(card["classes"]["train"]) == 7
    assert rows_of(result.book, "triplet", "concatenated") == []
    assert "test-selected" in result.tables.title  # which the picture bears too
    assert "MAP@R, test-selected" in result.tables.headings()
    assert result.tables.further.headings[:2] == ["recipe", "NMI, test-selected"]
    assert any(note.startswith("Test-selected") for note in result.tables.notes())
    assert card["selected_on"] == "test classes"
    model = Run(result.book.run_folder(Cell.of(row))).model()
    subject = subject_of_model(model, patterns, cache_directory=tmp_path, progress=False)
    assert any("test-selected" in note.lower() for note in subject.notes)
    # Nothing was selected for untrained features, and there are no folds to speak of.
    trained, untrained = csv.DictReader(io.StringIO((result.book.path / "table.csv").read_text()))
    assert (trained["selected_on"], untrained["selected_on"]) == ("test classes (test-selected)", "")
    for text in (*result.tables.notes(), (result.book.path / "table.html").read_text().partition("<main")[2]):
        assert "fold" not in text
    for name in ("table.md", "table.csv", "table.html"):
        assert "test-selected" in (result.book.path / name).read_text()


def test_frozen_trunks_are_embedded_from_the_cache(bench, candidate, patterns, tmp_path, monkeypatch):
    from nearkin.models import Embedder

    frozen = candidate("frozen", "contrastive", "model.freeze=all", "model.cache=true")
    result = bench([frozen], tmp_path / "book", keep_runs=True)
    cell = Cell("frozen", "separate", 0, 1)
    model = Run(result.book.run_folder(cell)).model()
    items = patterns.select(np.isin(patterns.labels, result.contents.test_classes))
    plain = retrieval_metrics(model.encode(items, progress=False), items.labels)
    row = next(row for row in ledger(result.book) if Cell.of(row) == cell)
    assert row["MAP@R"] == pytest.approx(plain.values["MAP@R"], abs=1e-4)
    # Another recipe on the same trunk decodes nothing again.
    monkeypatch.setattr(Embedder, "encode", lambda *_, **__: pytest.fail("encoded again"))
    monkeypatch.setattr(type(patterns), "load", lambda *_: pytest.fail("decoded again"))
    monkeypatch.setattr("nearkin.protocol.worker.untrained_features", lambda *_: ("", None))
    bench([candidate("other", "triplet", "model.freeze=all", "model.cache=true")], tmp_path / "other")


def test_euclidean_models_are_concatenated_without_normalising(bench, candidate, patterns, tmp_path):
    flat = candidate("flat", "contrastive", "model.space=euclidean")
    result = bench([flat], tmp_path / "book", keep_runs=True)
    items = patterns.select(np.isin(patterns.labels, result.contents.test_classes))
    parts = [
        Run(result.book.run_folder(Cell("flat", "separate", 0, fold))).model().encode(items, progress=False)
        for fold in (1, 2)
    ]
    expected = retrieval_metrics(np.concatenate(parts, axis=1), items.labels, space="euclidean")
    (row,) = rows_of(result.book, "flat", "concatenated")
    assert row["MAP@R"] == pytest.approx(expected.values["MAP@R"], abs=1e-5)


EPISODES = (
    "training.episodic={way: 2, shot: 1, query: 2, validation_way: 2, validation_episodes: 10, record_every: null}"
)
SHAPE = ["data.classes_per_batch=2", EPISODES]


def test_an_episodic_recipe_stands_beside_a_plain_one(bench, candidate, tmp_path):
    plain = candidate("contrastive", "contrastive", "data.per_class=4")
    episodic = candidate("protonet-dr", "protonet-dr", *SHAPE)
    smaller = candidate(
        "fewer queries",
        "protonet-dr",
        "data.classes_per_batch=2",
        EPISODES.replace("query: 2", "query: 1"),
        "data.per_class=2",
    )
    done = bench([plain, episodic, smaller], tmp_path / "book", against="contrastive", keep_runs=True)
    assert done.summary.missing == 0
    told, others = done.contents.unequal_budgets()
    assert re.search(r"data\.classes_per_batch\D+2\D+4\D+data\.per_class\D+3\D+4", told)
    assert re.search(r"data\.per_class\D+2\D+4", others)
    rows = [json.loads(line) for line in done.book.ledger_file.read_text().splitlines()]
    told = [row["validation_MAP@R"] for row in rows if row["recipe"] == "protonet-dr" and row["validation_MAP@R"]]
    cards = [json.loads(path.read_text()) for path in (tmp_path / "book").rglob("card.json")]
    mine = [card for card in cards if card["recipe"]["training"]["episodic"]["query"] == 2]
    assert len(told) == len(mine) == 2
    assert sorted(told) == pytest.approx(sorted(card["validation"]["val_MAP@R"] for card in mine), abs=1e-5)
    assert any(card["validation"]["val_accuracy"] != pytest.approx(card["validation"]["val_MAP@R"]) for card in mine)


def test_episodes_that_the_folds_do_not_offer_are_refused_before_anything_starts(bench, candidate, tmp_path):
    wide = candidate("protonet-s", "protonet-s", *SHAPE, "training.episodic.validation_way=50")
    with pytest.raises(DataError, match="validation_way"):
        bench([wide], tmp_path / "book")
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_trunk_without_weights_is_refused_before_anything_is_written(bench, candidate, tmp_path):
    with pytest.raises(RecipeError, match=r"model\.pretrained"):
        bench([candidate("fine-tune")], tmp_path / "book")
    assert not (tmp_path / "book").exists()


def test_a_recipe_that_starts_from_a_model_of_the_test_classes_is_noted(bench, candidate, sound, patterns, tmp_path):
    book = shutil.copytree(sound, tmp_path / "book")
    tests = json.loads((book / "book.json").read_text())["test_classes"]
    plain = candidate("triplet")
    model = build_embedder(plain.recipe.model, seed=0)
    model.card = Card(classes=CardParts(train=[tests[0], "elsewhere"]))
    model.save(tmp_path / "known.safetensors")
    known = candidate("known", "triplet", f"model.start={tmp_path / 'known.safetensors'}")
    for _ in range(2):  # said once, and kept when others are added
        notes = bench([plain, known], book).tables.notes()
        assert [note for note in notes if note.startswith("known started from") and "1 test class of" in note]
    assert sum("started from" in note for note in bench([plain], book).tables.notes()) == 1


def test_means_over_classes_stand_beside_those_over_queries(benchmark):
    rows = list(csv.DictReader(io.StringIO(benchmark.tables.values())))
    for name in NAMES:
        (line,) = (row for row in rows if row["recipe"] == name)
        for kind in ("separate", "concatenated"):
            mine = rows_of(benchmark.book, name, kind)
            for metric in ("MAP@R", "P@1"):
                means = [np.mean(row["per_class"][metric]) for row in mine]
                assert float(line[f"{kind}_{metric} (classes)"]) == pytest.approx(np.mean(means), abs=1e-5)
                assert float(line[f"{kind}_{metric}"]) == pytest.approx(
                    np.mean([row[metric] for row in mine]), abs=1e-5
                )
    place = benchmark.tables.headings().index("MAP@R (classes)")
    shown = {line[0][0]: line[place][0] for line in benchmark.tables.lines()}
    means = [np.mean(row["per_class"]["MAP@R"]) for row in rows_of(benchmark.book, "triplet", "separate")]
    assert shown["triplet"] == f"{100 * np.mean(means):.1f} %"
