"""What the page of peers says must follow from the result, and the result from probes that can fail."""

from __future__ import annotations

import importlib
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PML = "pytorch_metric_learning"


@pytest.fixture(scope="module")
def modules():
    """Imports a module of the benchmarks, or the hook of the docs, by name."""
    folders = [str(BENCHMARKS), str(ROOT / "docs")]
    sys.path[:0] = folders
    yield importlib.import_module
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def probes(modules):
    return modules("peers_probes")


@pytest.fixture(scope="module")
def result():
    return json.loads((BENCHMARKS / "peers.json").read_text(encoding="utf-8"))


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A package that has little, one part of which cannot be imported."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text("NAMES = ['a', 'b']\n")
    (folder / "losses.py").write_text(
        "class BaseLoss: ...\nclass OneLoss:\n    def __init__(self, margin=1): ...\nclass _Hidden: ...\n"
    )
    (folder / "broken.py").write_text("import nothing_of_this_name\ndef pipeline(config): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "made_up"
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("probe", "says", "how"),
    [
        ("Name('losses.OneLoss')", "yes", "imported"),
        ("Name('losses.OtherLoss')", "no", "imported"),
        ("Name('nowhere.OneLoss')", "no", "imported"),
        ("Name('broken.pipeline')", "yes", "read"),
        ("Name('broken.other')", "no", "imported"),
        ("Option('losses.OneLoss', 'margin')", "yes", "imported"),
        ("Option('losses.OneLoss', 'scale')", "no", "imported"),
        ("Option('broken.pipeline', 'config')", "yes", "read"),
        ("Option('nowhere', 'config')", "no", "imported"),
        ("InPart('losses.OneLoss', 'one only')", "in part", "imported"),
        ("InPart('losses.OtherLoss', 'none')", "no", "imported"),
        ("Count(('losses',))", "1", "imported"),
        ("Count(('NAMES',))", "2", "imported"),
        ("Count(('miners',))", "no", "imported"),
        ("Absent('onnx')", "no", "searched"),
        ("Absent('ONE_?loss')", "perhaps", "searched"),
        ("Absent('pipelin')", "perhaps", "searched"),
        ("Absent('marg')", "perhaps", "searched"),
        ("Judged('yes', 'we think so', 'page.md')", "yes", "judged"),
    ],
)
def test_probes_answer_what_a_made_up_package_has(probes, made_up, probe, says, how):
    answer = probes.ask(eval(probe, vars(probes)), made_up)
    assert (answer.says, answer.how) == (says, how)
    assert answer.evidence


def test_a_package_that_is_not_there_has_nothing(probes):
    assert probes.ask(probes.Name("losses"), "no_such_package").says == "not installed"
    assert probes.ask(probes.Absent("losses"), "no_such_package").says == "not installed"


def test_a_function_goes_before_the_module_of_its_name(probes):
    assert probes.ask(probes.Option("search.exact", "memory_mb"), "nearkin").says == "yes"


def test_rows_of_the_result_are_those_of_the_code(modules, result):
    packages = [package.name for package in modules("peers_packages").TOOLKITS]
    rows = modules("peers_features").rows()
    assert [(row.theme, row.what) for row in rows] == [(row["theme"], row["what"]) for row in result["features"]]
    assert len({row.what for row in rows}) == len(rows)
    for row in result["features"]:
        assert list(row["cells"]) == packages
        assert not any(cell and cell["says"] in ("perhaps", "not installed") for cell in row["cells"].values()), row


def test_others_are_ahead_in_rows_too(result):
    """A table in which nearkin always has more would be an advertisement."""
    for peer in ("PML", "OML"):
        ahead = [row for row in result["features"] if row["cells"]["nearkin"]["says"] == "no" and row["cells"][peer]]
        assert sum(row["cells"][peer]["says"] != "no" for row in ahead) >= 5


@pytest.mark.skipif(version("pytorch-metric-learning") != "2.9.0", reason="the result is of version 2.9.0")
def test_pml_still_answers_as_the_result_says(modules, probes, result):
    assert result["peers"]["pytorch-metric-learning"] == "2.9.0"
    for row, kept in zip(modules("peers_features").rows(), result["features"], strict=True):
        if row.cells[1] is not None:
            assert probes.ask(row.cells[1], PML).as_dict() == kept["cells"]["PML"], row.what


def test_nearkin_has_what_the_result_says(modules, probes, result):
    """Counts may grow; what was there stays, and what was missing is not claimed."""
    for row, kept in zip(modules("peers_features").rows(), result["features"], strict=True):
        says, was = probes.ask(row.cells[0], "nearkin").says, kept["cells"]["nearkin"]["says"]
        if was.isdigit():
            assert int(says) >= int(was), row.what
        else:
            assert says == was, row.what


def test_the_table_of_features_is_what_the_result_says(modules, result):
    lines = modules("generate").on_page_markdown("<!-- generated: peers_features -->").splitlines()
    cells = {
        line.split(" | ")[0].removeprefix("| "): line.rstrip(" |").split(" | ")[1:] for line in lines if "|" in line
    }
    assert result["date"] in lines[0]
    for row in result["features"]:
        told = [re.sub(r"\[(.*)°\]\(.*\)", r"\1", cell) for cell in cells[row["what"]]]
        assert told == [cell["says"] if cell else "–" for cell in row["cells"].values()]


def test_every_answer_has_its_evidence_on_the_page(modules, result):
    text = modules("generate").on_page_markdown("<!-- generated: peers_evidence -->")
    for row in result["features"]:
        for cell in filter(None, row["cells"].values()):
            assert cell["evidence"].replace("|", "\\|") in text
            assert cell["how"] != "judged" or cell["link"]


def test_the_table_of_speed_is_what_the_result_says(modules, result):
    text = modules("generate").on_page_markdown("<!-- generated: peers_speed -->")
    if "speed" not in result:
        assert "Not measured yet" in text
        return
    for line in result["speed"]:
        assert line["low"] <= line["ratio"] <= line["high"]
        told = f"{line['what']} | {line['contender']} | {line['ratio']:.3g} ({line['low']:.3g} to {line['high']:.3g})"
        assert (told in text) is (line["contender"] != "nearkin")
    for name, (_, sign, bar) in result["bars"].items():
        assert result["figures"][name] >= bar if sign == ">=" else result["figures"][name] <= bar


def test_answers_that_differ_are_not_timed(modules):
    cases = modules("peers_cases")
    wrong = cases.Case("x", "sums", {"nearkin": lambda: 1, "other": lambda: 2}, lambda mine, theirs: mine == theirs)
    with pytest.raises(SystemExit, match="sums"):
        cases.measure(wrong, rounds=1)


def test_times_are_told_as_multiples_of_ours(modules, monkeypatch):
    cases = modules("peers_cases")
    seconds = {"nearkin": [1.0, 2.0, 4.0], "other": [2.0, 8.0, 4.0]}
    monkeypatch.setattr(cases, "in_turns", lambda runs, rounds, warm: seconds)
    contenders = dict.fromkeys(seconds, lambda: 1)
    ours, other = cases.measure(cases.Case("x", "sums", contenders, None, repeats=2, note="why"), rounds=3)
    assert (ours["ratio"], ours["note"], ours["checked"]) == (1, "why", False)
    assert (other["low"], other["ratio"], other["high"], other["milliseconds"]) == (1, 2, 4, 2000)
