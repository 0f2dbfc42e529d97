"""`nearkin correlate` over audited runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import spearmanr


@pytest.fixture
def runs(tmp_path):
    """Directories with audits as runs have them."""
    rng = np.random.default_rng(0)
    made = []
    for place in range(6):
        folder = tmp_path / f"run{place}"
        folder.mkdir()
        values = {"MC, prototypes": rng.random(), "AHD@1": rng.random()}
        audit = {"values": values, "facts": {"data": "birds"}, "numbers": []}
        (folder / "audit.json").write_text(json.dumps(audit))
        other = {"values": {"top-1": rng.random(), "AHD@1": 9.0}, "facts": {"data": "birds"}, "numbers": []}
        (folder / "audit-more.json").write_text(json.dumps(other))
        elsewhere = {"values": {"P@1": 0.5}, "facts": {"data": "others"}, "numbers": []}
        (folder / "audit-other.json").write_text(json.dumps(elsewhere))
        made.append((folder, values | {"top-1": other["values"]["top-1"]}))
    return made


def test_any_measures_are_correlated_over_runs(nearkin, runs, tmp_path):
    names = ["MC, prototypes", "AHD@1", "top-1"]
    asked = [part for name in names for part in ("--measure", name)]
    folders = [folder for folder, _ in runs]
    told, page = tmp_path / "table.json", tmp_path / "table.html"
    code, out, err = nearkin("correlate", *folders, *asked, "--json", told, "--out", page)
    assert code == 0, err
    found = {tuple(pair["of"]): pair["spearman"] for pair in json.loads(told.read_text())["pairs"]}
    for (first, second), value in found.items():
        x, y = ([values[name] for _, values in runs] for name in (first, second))
        assert value == pytest.approx(spearmanr(x, y).statistic)
    assert len(found) == 3
    assert "AHD@1" in out
    assert "Spearman" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--measure", "AHD@1", "--measure", "AHD@2"], "AHD@1"),
        (["--measure", "AHD@1", "--measure", "P@1"], "P@1"),
        (["--measure", "AHD@1"], "two measures"),
        (["--measure", "AHD@1", "--measure", "top-1", "--out", "table.png"], ".html"),
    ],
)
def test_what_cannot_be_correlated_is_one_sentence(nearkin, runs, asked, message):
    code, _, err = nearkin("correlate", *(folder for folder, _ in runs), *asked)
    assert code == 2
    assert message in " ".join(err.split())
