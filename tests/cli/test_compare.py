"""`nearkin compare`: the table, its paired tests, the page, and all the audits that cannot be paired."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from nearkin.cli import main
from nearkin.cli.app import app
from nearkin.cli.compare import Audited, by_merit, class_differences, contrast_with
from nearkin.metrics import holm, paired_permutation
from nearkin.metrics.dynamics import compare_dynamics
from nearkin.recipe import load_recipe
from nearkin.report import Column, ComparisonRow
from nearkin.training import Run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "comparing.md"
SKILL = np.random.default_rng(0).uniform(0.1, 0.9, 200)  # what a class is worth, whatever the model


def by_class(shift, classes=30, seed=0, first=0, noise=0.02):
    values = SKILL[:classes] + shift + noise * np.random.default_rng(seed).normal(size=classes)
    return {f"class {number}": float(value) for number, value in enumerate(values, start=first)}


@pytest.fixture
def audited(tmp_path):
    """Write a run with an audit, and return its path."""

    def make(name, values, facts=None, **more):
        path = tmp_path / name
        path.mkdir(parents=True)
        load_recipe("triplet").save(path / "recipe.yaml")
        mean = float(np.mean(list(values.values())))
        audit = {
            "values": {"MAP@R": mean, "P@1": mean, "NMI": 0.5, "Recall@4": 0.9},
            "intervals": {"MAP@R": [mean - 0.05, mean + 0.05]},
            "per_class": {"MAP@R": values, "P@1": values},
            "facts": {"data": "birds", "classes": str(len(values)), "items": "600", **(facts or {})},
            **more,
        }
        (path / "audit.json").write_text(json.dumps(audit))
        return path

    return make


@pytest.fixture
def compare(monkeypatch, capsys):
    """Run the command; return its output with single spaces."""

    def run(*arguments, columns=150):
        monkeypatch.setattr(sys, "argv", ["nearkin", "compare", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert not stop.value.code, captured.err
        return " ".join(captured.out.split())

    return run


def test_the_table_shows_difference_interval_and_p(audited, compare):
    good, bad = by_class(0.03, seed=1), by_class(0.0, seed=2)
    text = compare(audited("bad", bad), audited("good", good))
    test = paired_permutation(bad, good)
    assert test.p_value < 0.001
    assert "to best" in text
    assert "reference" in text
    assert f"−{-100 * test.difference:.1f} points" in text
    assert f"−{-100 * test.low:.1f} to −{-100 * test.high:.1f}" in text
    assert "p < 0.001" in text
    assert "30 classes" in text
    assert "Holm" not in text
    assert "--against" not in text


def test_several_runs_are_corrected_and_another_reference_may_be_named(audited, compare):
    paths = [audited(f"run{n}", by_class(shift, seed=n)) for n, shift in enumerate((0.0, 0.002, 0.004, 0.006))]
    raw = [paired_permutation(by_class(s, seed=n), by_class(0.006, seed=3)) for n, s in enumerate((0.0, 0.002, 0.004))]
    corrected = holm([test.p_value for test in raw])
    text = compare(*paths)
    assert "Holm" in text
    assert "--against" in text
    for p_value in corrected:
        assert (f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}") in text
    named = compare(*paths[1:], "--against", paths[0])
    assert "to run0" in named
    assert named.count("points") == 3
    assert "--against" not in named
    assert compare(*paths, "--against", paths[0].parent / "." / "run0").count("points") == 3


def test_few_classes_are_told_what_they_can_show(audited, compare):
    text = compare(audited("a", by_class(0.1, 5, seed=1)), audited("b", by_class(0.0, 5, seed=2)))
    assert "0.0625" in text
    assert "p = 0.06" in text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"facts": {"data": "cars"}}, "cars"),
        ({"facts": {"items": "599"}}, "599"),
        ({"per_class": {}}, "audit"),
        ({"per_class": {"P@1": {}}}, "--metric"),
        ({"per_class": {"MAP@R": by_class(0, first=30)}}, "common"),
        ({"per_class": {"MAP@R": by_class(0, first=29)}}, "1 class"),
    ],
    ids=["data", "items", "old", "metric", "no class", "one class"],
)
def test_audits_that_cannot_be_paired_are_shown_with_the_reason(audited, compare, tmp_path, change, word):
    best, other = audited("best", by_class(0.1)), audited("other", by_class(0.0), **change)
    text = compare(best, other, "--out", tmp_path / "page.html")
    assert re.search(f"paired.*other.*{word}", text)
    assert "points" not in text
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 1
    assert re.search("paired.*other", page)


def test_those_that_can_be_paired_are(audited, compare):
    text = compare(
        audited("best", by_class(0.1)),
        audited("other", by_class(0.0, seed=1)),
        audited("old", by_class(0.0), per_class={}),
        audited("older", by_class(0.0), per_class={}),
    )
    assert text.count("points") == 1
    assert "Holm" not in text
    assert re.search(r"paired.*\bold\b", text)


def test_a_metric_without_classes_says_which_have_them(audited, compare):
    text = compare(audited("a", by_class(0.1)), audited("b", by_class(0.0)), "--metric", "NMI")
    assert "--metric" in text


def test_partly_shared_classes_are_compared_with_a_warning(audited, compare):
    text = compare(audited("a", by_class(0.1)), audited("b", by_class(0.0, first=10)))
    assert "20 classes" in text
    assert "different" in text


def test_unequal_classes_are_explained(audited, compare):
    a, b = audited("a", by_class(0.1)), audited("b", by_class(0.0))
    assert "weight" not in compare(a, b)
    stored = json.loads((a / "audit.json").read_text())
    stored["values"]["MAP@R"] += 0.01  # a mean over queries of unequal classes
    (a / "audit.json").write_text(json.dumps(stored))
    assert "weight" in compare(a, b)


def test_one_run_and_equal_runs(audited, compare, tmp_path):
    a, b = audited("a", by_class(0.0)), audited("b", by_class(0.0))
    assert "paired" not in compare(a)
    text = compare(a, b, "--out", tmp_path / "c.html")
    assert "±0 points" in text
    assert "p = 1.00" in text
    assert "less" not in text


def test_runs_of_the_same_name_are_told_apart(audited, compare):
    one, two = audited("one/run", by_class(0.1)), audited("two/run", by_class(0.0))
    text = compare(one, two, columns=400)
    assert str(one) in text


def test_a_narrow_terminal_keeps_the_judged_metric_and_its_difference(audited, compare):
    a, b = audited("a", by_class(0.1)), audited("b", by_class(0.0))
    wide, narrow = compare(a, b, columns=200), compare(a, b, columns=60)
    assert "NMI" in wide
    assert "NMI" not in narrow
    assert "MAP@R" in narrow
    assert "points" in narrow


@pytest.mark.parametrize("classes", [5, 200])
def test_the_page_has_the_differences_and_the_picture_of_the_classes(audited, compare, tmp_path, classes):
    paths = [audited(f"run{n}", by_class(shift, classes, seed=n)) for n, shift in enumerate((0.0, 0.05, 0.1))]
    compare(*paths, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
    assert page.count("data:image/png") == 2
    assert "run2 against run1" in text
    assert len(re.findall(r"−[0-9.]+ points −[0-9.]+ to −[0-9.]+ p [=<] 0\.[0-9]+", text)) == 2
    assert "difference to best" in text
    assert f"{classes} classes" in text
    assert bool(re.search(r"\bnot\b[^.;]*\brun1\b", text)) == (classes == 5)


def test_less_may_be_better():
    runs = [
        Audited(ComparisonRow(name, "r", {"EER": (value, np.nan, np.nan)}), {"EER": by_class(value)}, {})
        for name, value in (("a", 0.2), ("b", 0.1), ("c", np.nan), ("d", 0.3))
    ]
    assert by_merit(runs, Column("EER", lower_is_better=True)) == [1, 0, 3]
    assert by_merit(runs, Column("EER")) == [3, 0, 1]
    contrast, _ = contrast_with(runs[:2], Column("EER", lower_is_better=True), None)
    assert contrast.reference == 1
    assert contrast.differences[0].mean == pytest.approx(0.1)
    assert set(class_differences(runs[0], runs[1], "EER")) == set(by_class(0))


def test_metrics_that_are_no_shares_are_not_percents(audited, compare, tmp_path):
    paths = []
    for name, value in (("one", 3.081), ("two", 2.481)):
        classes = {f"class {number}": value + 0.01 * number for number in range(30)}
        more = {"numbers": ["NLL"], "lower_is_better": ["NLL", "ECE"], "per_class": {"NLL": classes}}
        paths.append(audited(name, by_class(0), intervals={"NLL": [value - 0.1, value + 0.1]}, **more))
        stored = json.loads((paths[-1] / "audit.json").read_text())
        stored["values"] = {"NLL": value, "ECE": 0.25}
        (paths[-1] / "audit.json").write_text(json.dumps(stored))
    text = compare(*paths, "--metric", "NLL", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    plain = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
    for told in (text, plain):
        assert "3.081" in told
        assert "2.981 to 3.181" in told
        assert "★ 2.481" in told
        assert "+0.600" in told
        assert "308" not in told
        assert "points" not in told
    assert "25.0 %" in plain
    assert re.search(r"NLL\W+2\.481", plain)


def test_an_audit_with_settings_of_its_own_is_told(audited, compare):
    changed = audited("changed", by_class(0.1), facts={"audit settings": "severities=[5]"})
    text = compare(changed, audited("usual", by_class(0.0)))
    assert text.count("severities=[5]") == 1


def test_the_guide_runs_as_written(audited, compare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, shift in (("anchor", 0.02), ("triplet", 0.01), ("plain", 0.0)):
        audited(f"runs/{name}", by_class(shift, seed=len(name)))
    text = GUIDE.read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)
    assert names["test"].classes == 30
    commands = re.findall(r"^nearkin compare (.*)$", text, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert "points" in compare(*command.split())
    assert (tmp_path / "comparison.html").exists()


def test_the_guides_number_of_classes_shows_the_difference_four_times_in_five():
    """8 (s / d)^2 classes with s = 2 d."""
    rng = np.random.default_rng(0)
    shown = 0
    for _ in range(100):
        values = {number: float(value) for number, value in enumerate(rng.normal(1, 2, size=32))}
        shown += paired_permutation(values, dict.fromkeys(values, 0.0), permutations=499).p_value <= 0.05
    assert 0.7 < shown / 100 < 0.9


def test_audits_of_old_are_shown_and_less_is_better_where_the_audit_says_so(audited, compare):
    new, old = audited("new", by_class(0.1), lower_is_better=["NMI"]), audited("old", by_class(0.0))
    stored = json.loads((old / "audit.json").read_text())
    del stored["per_class"]
    stored["values"]["NMI"] = 0.4
    (old / "audit.json").write_text(json.dumps(stored))
    text = compare(new, old)
    assert re.search(r"paired.*\bold\b", text)
    assert "NMI ↓" in text
    assert "★ 40.0 %" in text


SHARED = {"tree name": "a.nwk", "tree": "((k,l)g,(m,n)h);", "tree distance": "path", "diagonal": False}


@pytest.mark.parametrize(
    ("change", "metric", "word"),
    [
        ({"tree": "((k,m)g,(l,n)h);", "tree name": "b.nwk"}, "MC, prototypes", "tree"),
        ({"tree": "((k,l)g,m,n);"}, "HS@50", "tree"),
        ({"tree": ""}, "AHD@5", "tree"),
        ({"tree": "((k,m)g,(l,n)h);"}, "top-1", ""),
        ({"tree": "((k,m)g,(l,n)h);"}, "MAP@R", ""),
        ({"tree": "((n,m)other,(l,k)names);", "tree name": "b.nwk"}, "MC, prototypes", ""),
        ({"tree": "((k,l)g,(m,n,o)h);"}, "MC, prototypes", ""),
        ({"tree distance": "lcs"}, "severity", "lcs"),
        ({"diagonal": True}, "MC, proxies", "diagonal"),
        ({"diagonal": True}, "HS@50", ""),
        ({"references": "half"}, "top-5, proxies", "references"),
        ({"references": "half"}, "AHS@250", ""),
    ],
)
def test_runs_that_are_judged_unlike_are_not_paired(audited, compare, change, metric, word):
    best, other = by_class(0.1), by_class(0.0, seed=1)
    paths = []
    for name, values, judged in [("best", best, SHARED), ("other", other, SHARED | change)]:
        path = audited(name, values, per_class={metric: values}, details={"hierarchy": judged})
        stored = json.loads((path / "audit.json").read_text())
        stored["values"] = {metric: stored["values"]["P@1"]}
        (path / "audit.json").write_text(json.dumps(stored))
        paths.append(path)
    text = compare(*paths, "--metric", metric)
    assert ("points" in text) == (not word)
    assert word in text


DYNAMICS_GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "dynamics.md"


def rows(count, seed, noise=0.004):
    rng = np.random.default_rng(seed)
    made = []
    for step in range(100, 100 * count + 1, 100):
        con, div = np.exp(rng.normal([-0.002, 0.001], noise))
        ratios = {"norm_ratio": 1 - rng.gamma(1.5, noise), "con_alpha": con, "div_alpha": div, "con_div": con / div}
        made.append({"step": step, "loss": 1.0, "accuracy": rng.uniform(0.5, 0.9), **ratios})
        made.append({"step": step, "val_accuracy": rng.uniform(0.5, 0.6)})
    return made


@pytest.fixture
def trained(tmp_path):
    """Write a run with a log, and return its path."""

    def make(name, log, *overrides):
        path = tmp_path / name
        path.mkdir(parents=True)
        load_recipe("triplet", overrides=list(overrides)).save(path / "recipe.yaml")
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
        return path

    return make


@pytest.fixture
def pair(trained):
    return trained("soft", rows(30, 0, 0.01)), trained("ratio", rows(30, 1, 0.001))


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_shows_what_the_logs_say(pair, nearkin, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = nearkin("dynamics", *pair)
    assert (code, err) == (0, "")
    found = compare_dynamics(*(Run(path).history() for path in pair))
    assert "measure soft ratio Mann-Whitney p Fisher p" in flat(out)
    for measure in found.measures.values():
        assert "{:.5f} {:.5f}".format(*measure.geometric_mean) in flat(out)
    shares = found.measures["con_alpha"].proportion
    assert f"{100 * shares[0]:.1f} % below 1 {100 * shares[1]:.1f} % below 1" in flat(out)
    assert "30 checkpoints" in flat(out)
    assert "independent" in flat(out)
    assert "…" not in out
    assert "itself" not in out


def test_page_and_numbers_are_written(pair, nearkin, tmp_path):
    code, out, _ = nearkin(
        "dynamics", *pair, "--out", tmp_path / "new" / "page.html", "--json", tmp_path / "found.json"
    )
    assert code == 0
    assert str(tmp_path / "new" / "page.html") in flat(out).replace("- ", "-")
    page = (tmp_path / "new" / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "soft and ratio" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # nothing from elsewhere
    told = json.loads((tmp_path / "found.json").read_text())
    expected = compare_dynamics(*(Run(path).history() for path in pair), names=("soft", "ratio")).to_dict()
    assert told.pop("runs") == [str(path) for path in pair]
    assert told == expected
    for note in told["notes"]:
        assert note.replace("'", "&#39;") in page


def test_a_picture_alone_is_written(pair, nearkin, tmp_path):
    code, _, _ = nearkin("dynamics", *pair, "--out", tmp_path / "curves.PNG")
    assert code == 0
    assert (tmp_path / "curves.PNG").read_bytes().startswith(b"\x89PNG")


def test_steps_limit_table_and_picture(pair, nearkin, tmp_path):
    code, out, _ = nearkin(
        "dynamics", *pair, "--from-step", 500, "--to-step", 900, "--json", tmp_path / "a", "--out", tmp_path / "a.png"
    )
    assert code == 0
    assert "5 checkpoints" in flat(out)
    assert json.loads((tmp_path / "a").read_text())["steps"] == [[500, 900], [500, 900]]
    nearkin("dynamics", *pair, "--out", tmp_path / "whole.png")
    assert (tmp_path / "whole.png").read_bytes() != (tmp_path / "a.png").read_bytes()


def test_a_run_may_be_compared_with_itself_and_is_told_so(pair, nearkin, tmp_path):
    code, out, _ = nearkin("dynamics", pair[0], pair[1].parent / "." / "soft", "--out", tmp_path / "page.html")
    assert code == 0
    assert "itself" in flat(out)
    assert "soft (again)" in out
    assert "itself" in (tmp_path / "page.html").read_text()


def test_runs_of_one_name_are_told_apart_by_their_paths(trained, nearkin, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    first, second = trained("a/run", rows(5, 0)), trained("b/run", rows(5, 1))
    code, out, _ = nearkin("dynamics", first, second)
    assert code == 0
    assert str(first) in flat(out)
    assert str(second) in flat(out)


def plain_rows():
    return [{"step": 10, "loss": 1.0}]


def test_a_run_without_episodes_is_told_how_to_get_them(pair, trained, nearkin):
    code, _, err = nearkin("dynamics", pair[0], trained("plain", plain_rows()))
    assert code != 0
    assert "training.episodic.record_every" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("every", "told"), [("null", "null"), ("500", "500")])
def test_a_run_by_episodes_that_recorded_nothing_is_told_why(pair, trained, nearkin, every, told):
    shape = ["data.classes_per_batch=5", "data.per_class=17"]
    overrides = ["objective.loss=protonet-dr", "objective.miner=null", "training.schedule=episodic", *shape]
    run = trained("silent", plain_rows(), *overrides, f"training.episodic.record_every={every}")
    code, _, err = nearkin("dynamics", pair[0], run)
    assert code != 0
    assert "training.episodic.record_every" in err
    assert told in err


def test_what_is_no_run_is_refused(pair, nearkin, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, words in (("empty", "recipe.yaml"), ("nowhere", "nowhere")):
        code, _, err = nearkin("dynamics", pair[0], tmp_path / path)
        assert code != 0
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "page.txt"], "page.txt"),
        (["--from-step", "9000"], "9,000"),
        (["--from-step", "9", "--to-step", "8"], "step"),
    ],
)
def test_wrong_options_are_one_sentence_and_write_nothing(pair, nearkin, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, _, err = nearkin("dynamics", *pair, *arguments)
    assert code != 0
    assert words in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_finite_is_no_picture(trained, nearkin, tmp_path):
    empty = [{"step": 1, **dict.fromkeys(("norm_ratio", "con_alpha", "div_alpha", "con_div"))}]
    runs = trained("a", empty), trained("b", empty)
    code, _, err = nearkin("dynamics", *runs, "--out", tmp_path / "curves.png")
    assert code != 0
    assert "draw" in err
    assert not (tmp_path / "curves.png").exists()
    code, out, _ = nearkin("dynamics", *runs, "--out", tmp_path / "page.html")
    assert code == 0
    assert "defined" in flat(out)
    assert "data:image" not in (tmp_path / "page.html").read_text()


def test_the_python_of_the_guide_runs(capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", DYNAMICS_GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(DYNAMICS_GUIDE), "exec"), names)
    assert "| Con-div ratio |" in capsys.readouterr().out


def test_the_commands_of_the_guide_run(trained, nearkin, tmp_path, monkeypatch):
    for seed, name in enumerate(("protonet-s", "protonet-dr")):
        trained(f"runs/{name}", rows(210, seed))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^nearkin dynamics .*$", DYNAMICS_GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert nearkin(*shlex.split(command)[1:])[0] == 0
    assert {"dynamics.html", "dynamics.json", "curves.png"} <= {path.name for path in tmp_path.iterdir()}


def test_the_command_is_told_by_help():
    assert "dynamics" in get_command(app).commands
