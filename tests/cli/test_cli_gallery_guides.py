"""The guides to the gallery: what their snippets answer, and what they name exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import nearkin as nk
from nearkin.cli import main

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_snippets_of_the_gallery_run(here):
    names = {}
    for block in re.findall(
        r"```python\n(.*?)```", (GUIDE / "gallery.md").read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        exec(compile(block, "gallery.md", "exec"), names)
    match = names["match"]
    assert (match.label, match.known) == ("part 7", True)
    assert match.probability > 0.5
    assert names["near"].item.metadata["price"] < 20
    assert names["learned"].accept == 0.9
    names["gallery"].close()


def test_the_guide_to_the_service_names_every_problem_and_route(here, monkeypatch):
    pytest.importorskip("fastapi")
    from nearkin.serve.app import create_app
    from nearkin.serve.problems import list_problems
    from nearkin.serve.settings import ServeSettings

    text = (GUIDE / "service.md").read_text(encoding="utf-8")
    for slug, (status, _) in list_problems().items():
        (row,) = [line for line in text.splitlines() if line.startswith("|") and f"`{slug}`" in line]
        assert str(status) in row
    with nk.Gallery.create("x.gallery", dimension=3, name="x") as gallery:
        paths = create_app(gallery, ServeSettings()).openapi()["paths"]
    for path in paths:
        assert f"{path}`" in text, path


def test_the_options_of_serve_are_explained(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nearkin", "serve", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = (GUIDE / "service.md").read_text(encoding="utf-8")
    for option in set(re.findall(r"--[a-z-]{3,}", capsys.readouterr().out)) - {"--help", "--model", "--port"}:
        assert option in text, option
