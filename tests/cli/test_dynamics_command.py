"""`nearkin dynamics`: table, page, picture and numbers, the runs it refuses, and the examples of its guide."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from nearkin.cli.app import app
from nearkin.metrics.dynamics_comparison import compare_dynamics
from nearkin.recipe import load_recipe
from nearkin.training import Run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "dynamics.md"


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
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)
    assert "| Con-div ratio |" in capsys.readouterr().out


def test_the_commands_of_the_guide_run(trained, nearkin, tmp_path, monkeypatch):
    for seed, name in enumerate(("protonet-s", "protonet-dr")):
        trained(f"runs/{name}", rows(210, seed))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^nearkin dynamics .*$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert nearkin(*shlex.split(command)[1:])[0] == 0
    assert {"dynamics.html", "dynamics.json", "curves.png"} <= {path.name for path in tmp_path.iterdir()}


def test_the_command_is_told_by_help():
    assert "dynamics" in get_command(app).commands
