"""What is written on robustness must run, and agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import nearkin as nk
from nearkin.recipe import AuditSection

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guide" / "robustness.md"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_guide_runs(photos, tiny, tmp_path, monkeypatch):
    (tmp_path / "photos").symlink_to(photos)
    monkeypatch.chdir(tmp_path)
    nk.fit("photos", "triplet", overrides=tiny, out="runs/shop", progress=False)
    names: dict = {}
    for code in blocks(GUIDE):
        exec(compile(code, str(GUIDE), "exec"), names)
    assert names["done"].pixels.shape == names["pixels"].shape
    assert (names["worst"].reached | ~names["done"].wrong).float().mean() > 0.8
    assert names["found"].reached.dtype.is_floating_point is False


@pytest.mark.parametrize("page", ["voronoi.md", "smoothing.md"])
def test_the_methods_run(page):
    names: dict = {}
    for code in blocks(DOCS / "methods" / page):
        exec(compile(code, page, "exec"), names)
    if page == "voronoi.md":
        assert names["found"].voronoi.tolist() == [1.0, 1.0, 1.0]
        assert names["found"].standard[-1] == 0
        assert names["found"].global_robustness == 1.0
    else:
        assert len(names["found"].radii) == 3


def test_the_table_has_the_defaults_of_the_code():
    rows = re.findall(r"^\| `audit\.(\w+)` \| `([^`]+)` \|", GUIDE.read_text(encoding="utf-8"), re.M)
    usual = AuditSection().model_dump()
    assert len(rows) == 10
    for key, value in rows:
        assert yaml.safe_load(value) == usual[key], key
    assert usual["smoothing_sigma"] == 0.1
    assert usual["smoothing_samples"] == 200
