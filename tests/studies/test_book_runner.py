"""Running the studies of the book: going on, failing, stopping, and the quick book's page, with made-up studies."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
running = importlib.import_module("studies.book.runner")
places = importlib.import_module("studies.places")
quick = importlib.import_module("studies.book.quick")
studies = importlib.import_module("studies.book.catalogue")

SCRIPT = """
import json, sys
from pathlib import Path
ledger, cells, until = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
done = len(ledger.read_text().splitlines()) if ledger.exists() else 0
for cell in range(done, min(cells, done + until)):
    with open(ledger, "a") as file:
        file.write(json.dumps({"cell": cell, "run": done}) + "\\n")
sys.exit(0 if done + until >= cells else 3)
"""


@pytest.fixture
def study(tmp_path):
    """Makes studies of some cells, of which each run finishes only so many."""
    script = tmp_path / "fake.py"
    script.write_text(SCRIPT)

    def make(name, cells=2, until=9):
        command = f"python {script} {tmp_path / name}.jsonl {cells} {until}"
        return studies.Study(name, command, f"{name}.jsonl", cells, 1, ("paper",))

    return make


def test_a_failing_study_does_not_stop_the_others_and_goes_on(study, tmp_path):
    chosen = [study("a"), study("b", cells=3, until=2), study("c")]
    first = running.run_studies(chosen, tmp_path, os.environ)
    assert first.finished == ["a", "c"]
    assert list(first.failed) == ["b"]
    assert "code 3" in first.failed["b"]
    second = running.run_studies(chosen, tmp_path, os.environ)
    assert (second.finished, second.skipped, second.failed) == (["b"], ["a", "c"], {})
    assert [line["run"] for line in chosen[1].lines(tmp_path)] == [0, 0, 2]


def test_finished_studies_run_again_when_asked(study, tmp_path):
    chosen = [study("a")]
    running.run_studies(chosen, tmp_path, os.environ)
    assert running.run_studies(chosen, tmp_path, os.environ, again=True).finished == ["a"]


def test_a_study_that_leaves_cells_out_failed(tmp_path):
    lazy = studies.Study("lazy", 'python -c "pass"', "lazy.jsonl", 1, 1, ("paper",))
    assert "0 of 1" in running.run_studies([lazy], tmp_path, os.environ).failed["lazy"]


def test_a_study_that_says_it_was_stopped_stops_all(study, tmp_path):
    stopped = studies.Study("s", 'python -c "raise SystemExit(130)"', "s.jsonl", 1, 1, ("paper",))
    outcome = running.run_studies([stopped, study("a")], tmp_path, os.environ)
    assert outcome.interrupted
    assert not outcome.finished


def test_an_interrupt_stops_the_study_and_the_runner(tmp_path):
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the suite runs in the background
sys.path.insert(0, {str(ROOT)!r})
from studies.book import runner as book_running
from studies.book.catalogue import Study
from pathlib import Path
book_running._GRACE = 0.2
study = Study("long", "python {tmp_path / "child.py"}", "x.jsonl", 1, 1, ())
sys.exit(130 if book_running.run_studies([study], Path("."), os.environ).interrupted else 0)
"""
    (tmp_path / "child.py").write_text(
        f"import time, pathlib\npathlib.Path({str(tmp_path / 'began')!r}).touch()\ntime.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(1200):
        if (tmp_path / "began").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


@pytest.mark.parametrize("end", ["", '{"cell": 1, "ru'])
def test_a_line_that_was_cut_short_does_not_count(study, tmp_path, end):
    one = study("a")
    (tmp_path / "a.jsonl").write_text('{"cell": 0}\n' + end)
    assert len(one.lines(tmp_path)) == 1
    assert not one.finished(tmp_path)


def test_the_lines_of_other_parts_do_not_count(tmp_path):
    one = studies.Study("a", "python x.py", "a.jsonl", 1, 1, (), {"part": "toy"})
    (tmp_path / "a.jsonl").write_text('{"part": "other"}\n')
    assert not one.finished(tmp_path)


def test_the_quick_page_has_both_figures(tmp_path):
    now, kept = tmp_path / "now", tmp_path / "kept"
    lines = {
        now: [
            {"cell": "x", "seed": 1, "values": {"top": 0.5, "list": [1, 2.5]}},
            {"cell": "y", "seed": 1, "values": {}},
        ],
        kept: [
            {"cell": "x", "seed": 1, "values": {"top": 0.25, "list": [1, 2]}},
            {"cell": "x", "seed": 2, "values": {}},
        ],
    }
    for folder, some in lines.items():
        folder.mkdir()
        (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    one = studies.Study("a", "python x.py", "a.jsonl", 2, 1, ("paper",))
    page = quick.quick_page([studies.Sample(one, ("cell", "seed"), (("values",),), 1)], now, kept)
    assert "| cell x, seed 1 | values top | 0.5 | 0.25 | +0.25 |" in page
    assert "| cell x, seed 1 | values list | 1 2.5 | 1 2 | +0.5 |" in page
    assert "seed 2" not in page


@pytest.mark.parametrize("sample", studies.SAMPLES, ids=lambda sample: sample.study.name)
def test_samples_name_figures_that_the_ledgers_have(sample):
    line = sample.study.lines()[0]
    assert set(sample.key) <= line.keys()
    for place in sample.figures:
        assert list(quick.numbers(line, place)), place


def test_a_tree_of_its_own_gets_everything(tmp_path):
    code = "\n".join(
        [
            "from studies.ned.run import LEDGER",
            "from studies.places import IMAGES, book_folder, located",
            "from studies.claims.kept_book import book_folder as read",
            "print(LEDGER, book_folder('cub'), located('studies/gsp_toy/x'), read('collage'), IMAGES)",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "NEARKIN_BOOK": str(tmp_path / "tree")},
    )
    assert all(path.startswith(str(tmp_path / "tree")) for path in done.stdout.split())
    assert (tmp_path / "tree" / "docs" / "images").is_dir()


BEFORE = {
    "studies/ned/ledger.jsonl": "benchmarks/ned.jsonl",
    "studies/dr_pictures/result.json": "benchmarks/dr_pictures.json",
    "studies/training_pays/rates.jsonl": "benchmarks/training_pays_rates.jsonl",
    "studies/fewshot/episodes": "benchmarks/fewshot",
    "studies/unified/tables": "benchmarks/unified",
    "studies/gsp/gsp-cub/ledger.jsonl": "benchmarks/books/gsp-cub/ledger.jsonl",
    "benchmarks/ccp.json": "benchmarks/ccp.json",
}


@pytest.mark.parametrize(("now", "before"), BEFORE.items())
def test_trees_of_before_are_read_where_they_are(now, before, tmp_path):
    assert places.located(now, tmp_path) == tmp_path / now
    (tmp_path / before).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / before).touch()
    assert places.located(now, tmp_path) == tmp_path / before
    (tmp_path / now).touch()
    assert places.located(now, tmp_path) == tmp_path / now


def test_an_unfinished_study_of_before_goes_on_there(tmp_path):
    one = studies.Study("ned", "python x.py", "studies/ned/ledger.jsonl", 2, 1, ("paper",))
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "ned.jsonl").write_text('{"cell": 0}\n')
    assert len(one.lines(tmp_path)) == 1
    assert not one.finished(tmp_path)
