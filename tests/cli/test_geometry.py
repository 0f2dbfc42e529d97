"""`nearkin geometry`: tables, page, picture and numbers, which audits are read, the runs it refuses, and its guide."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr
from typer.main import get_command

from nearkin.cli.app import app
from nearkin.metrics import GEOMETRY, geometry_correlations
from nearkin.recipe import load_recipe

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "geometry.md"
INPUTS = ("MC, input l2", "MC, input linf")


def shape(seed, **more):
    rng = np.random.default_rng(seed)
    values = dict(zip((*GEOMETRY, *INPUTS), rng.uniform(0.1, 3, len(GEOMETRY) + 2).tolist(), strict=True))
    return {**values, "d_DoV": float(rng.integers(5, 50)), **more}


@pytest.fixture
def audited(tmp_path):
    """Write a run with audits, each by the end of its file's name, and return its path."""

    def make(name, audits, data="birds"):
        path = tmp_path / name
        path.mkdir(parents=True)
        load_recipe("triplet").save(path / "recipe.yaml")
        for mark, values in audits.items():
            values = dict(values)
            facts = {"data": values.pop("data", data)}
            if "re-ranking" in values:
                facts["re-ranking"] = values.pop("re-ranking")
            stored = {"values": values, "intervals": {}, "facts": facts, "numbers": [*GEOMETRY, *INPUTS]}
            (path / f"audit{mark}.json").write_text(json.dumps(stored))
        return path

    return make


@pytest.fixture
def runs(audited):
    """Four runs: geometry in the run's own audit, or beside it."""
    rows = [shape(seed) for seed in range(4)]
    scores = [0.3, 0.35, 0.2, 0.5]
    made = [
        audited("one", {"": {**rows[0], "MAP@R": scores[0]}}),
        audited("two", {"": {"MAP@R": scores[1]}, "-geometry": rows[1]}),
        audited("three", {"-geometry-clustering": {**rows[2]}, "": {"MAP@R": scores[2], "P@1": 0.5}}),
        audited("four", {"-geometry": {**rows[3]}, "": {"MAP@R": scores[3]}}),
    ]
    return made, [{**row, "MAP@R": score} for row, score in zip(rows, scores, strict=True)]


def flat(text):
    return " ".join(text.split())


def test_both_tables_show_what_the_audits_say(runs, nearkin, tmp_path):
    paths, rows = runs
    code, out, err = nearkin("geometry", *paths, "--json", tmp_path / "found.json")
    assert (code, err) == (0, "")
    assert "run MAP@R D_inter D_intra phi pi_ratio R2 rho d_DoV MC, input l2 MC, input linf" in flat(out)
    for path, row in zip(paths, rows, strict=True):
        assert f"{path.name} {100 * row['MAP@R']:.1f} % {row['D_inter']:.3f} {row['D_intra']:.3f}" in flat(out)
    expected = geometry_correlations(rows, (*GEOMETRY, *INPUTS), "MAP@R")
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["measures"] == expected.to_dict()["measures"]
    assert told["against"] == "MAP@R"
    assert [run["name"] for run in told["runs"]] == ["one", "two", "three", "four"]
    assert told["runs"][1]["values"] == pytest.approx(rows[1])
    r = pearsonr([row["phi"] for row in rows], [row["MAP@R"] for row in rows]).statistic
    assert f"phi 4 {'+' if r > 0 else '−'}{abs(r):.3f}" in flat(out)
    assert "4 runs" in out
    assert "different" not in out


def test_another_metric_can_be_asked_for(runs, nearkin):
    paths, rows = runs
    code, out, _ = nearkin("geometry", *paths, "--against", "MC, input l2")
    assert code == 0
    assert "Correlation with MC, input l2" in out
    r = pearsonr([row["rho"] for row in rows], [row["MC, input l2"] for row in rows]).statistic
    assert f"rho 4 {'+' if r > 0 else '−'}{abs(r):.3f}" in flat(out)


def test_page_and_picture_are_written(runs, nearkin, tmp_path):
    paths, _ = runs
    code, out, _ = nearkin("geometry", *paths, "--out", tmp_path / "new" / "page.html")
    assert code == 0
    assert "page.html" in out.replace("\n", "")
    page = (tmp_path / "new" / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "Correlation with MAP@R" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert nearkin("geometry", *paths, "--out", tmp_path / "runs.PNG")[0] == 0
    assert (tmp_path / "runs.PNG").read_bytes().startswith(b"\x89PNG")


def test_metric_and_geometry_are_of_one_data_set_and_not_re_ranked(audited, nearkin):
    made = [
        audited(
            f"run{i}",
            {
                "": {"MAP@R": 0.1 * i + 0.1},
                "-fish": {**shape(i + 50), "MAP@R": 0.9, "data": "fish"},
                "-geometry": shape(i),
                "-k-reciprocal": {"P@1": 0.9, "re-ranking": "k-reciprocal"},
            },
        )
        for i in range(3)
    ]
    code, out, _ = nearkin("geometry", *made)
    assert code == 0
    assert "90.0 %" not in out
    assert f"run1 20.0 % {shape(1)['D_inter']:.3f}" in flat(out)
    code, _, err = nearkin("geometry", *made, "--against", "P@1")
    assert code != 0
    assert "P@1" in err


def test_a_measure_that_does_not_vary_is_told(audited, nearkin):
    made = [audited(f"run{i}", {"": {**shape(i, d_DoV=7.0), "MAP@R": 0.1 * i}}) for i in range(3)]
    code, out, _ = nearkin("geometry", *made)
    assert code == 0
    assert "d_DoV 3 constant d_DoV" in flat(out)


def test_runs_on_different_data_are_told_and_of_one_name_by_path(audited, nearkin):
    made = [audited(f"{place}/run", {"": {**shape(i), "MAP@R": 0.1 * i}}, place) for i, place in enumerate("abc")]
    code, out, _ = nearkin("geometry", *made)
    assert code == 0
    assert "different" in flat(out)
    assert str(made[0]) in out


def test_what_cannot_be_correlated_is_refused_in_one_sentence(runs, audited, nearkin, tmp_path):
    paths, _ = runs
    plain = audited("plain", {"": {"MAP@R": 0.3}})
    collapsed = audited("collapsed", {"": {name: 1.0 for name in GEOMETRY if name != "phi"}})
    damaged = audited("damaged", {})
    (damaged / "audit.json").write_text("{")
    for arguments, words in (
        (paths[:2], " 3 "),
        (paths[:1], " 3 "),
        ([*paths[:2], paths[0]], "twice"),
        ([*paths[:2], plain], "nearkin audit"),
        ([*paths[:2], collapsed], "phi"),
        ([*paths[:2], tmp_path / "nowhere"], "nowhere"),
        ([*paths[:2], damaged], "audit.json"),
        ([*paths, "--against", "P@1"], "P@1"),
        ([*paths, "--out", "a.txt"], "a.txt"),
    ):
        code, _, err = nearkin("geometry", *arguments)
        assert code != 0
        assert words in flat(err)
        assert err.count("\n") == 1


def test_the_command_is_told_by_help():
    assert "geometry" in get_command(app).commands


def test_the_python_of_the_guide_runs(capsys):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)


def test_the_commands_of_the_guide_run(audited, nearkin, tmp_path, monkeypatch):
    for seed, name in enumerate(("triplet", "switched", "margin")):
        audited(f"runs/{name}", {"": {**shape(seed), "MAP@R": 0.1 + 0.1 * seed}})
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^nearkin geometry .*$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands
    for command in commands:
        assert nearkin(*shlex.split(command)[1:])[0] == 0
