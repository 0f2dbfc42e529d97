"""The guides to the gallery: their snippets run, on small made-up data, and what they name exists."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import nearkin as nk
from nearkin.cli import main
from nearkin.cli.app import app
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore, FolderStore
from nearkin.models import ModelSection, build_embedder

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = ("gallery", "service", "product-search", "species-unknown", "verify-speakers")


def _run(page):
    names = {}
    for block in re.findall(
        r"```python\n(.*?)```", (GUIDE / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        exec(compile(block, page, "exec"), names)
        if page == "product-search" and "gallery" not in names:
            _make_shop()
    return names


def _make_shop():
    """What the page's first command makes, with a smaller model."""
    with nk.Gallery.create("shop.gallery", _model("shop"), "catalogue.zip", progress=False):
        pass


def _model(name, **section):
    """A small network nobody trained, as a run has it."""
    tiny = {"backbone": "conv4", "channels": 3, "size": 16, "dimension": 16, **section}
    run = Path("runs") / name
    run.mkdir(parents=True)
    build_embedder(ModelSection(**tiny)).save(run / "model.safetensors")
    return run


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def catalogue(monkeypatch):
    """Pictures that are a pattern of their class plus noise, under any name of the catalogue."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (100, 8, 8, 3))
    labels = np.repeat([f"class {number:03d}" for number in range(100)], 20)
    noise = rng.normal(0, 40, (2000, 8, 8, 3))
    images = np.clip(np.repeat(patterns, 20, axis=0) + noise, 0, 255).astype(np.uint8)
    paths = [f"{number}.png" for number in range(2000)]
    manifest = Manifest.from_rows(paths, labels, split=["test"] * 2000)
    monkeypatch.setattr(nk, "open_data", lambda _: nk.Dataset(manifest, ArrayStore(images, paths), name="made up"))


def test_the_snippets_of_the_gallery_run(here):
    names = _run("gallery")
    match = names["match"]
    assert (match.label, match.known) == ("part 7", True)
    assert match.probability > 0.5
    assert names["near"].item.metadata["price"] < 20
    assert names["learned"].accept == 0.9
    names["gallery"].close()


def test_the_snippets_of_the_product_search_run(here, catalogue, capsys):
    names = _run("product-search")
    assert len(names["gallery"]) == 1000
    assert names["near"].item.metadata["price"] < 20
    assert names["right"].mean() > 0.1  # a hundred classes
    assert "named rightly" in capsys.readouterr().out
    names["gallery"].close()


def test_the_snippets_of_the_species_run(here, catalogue, capsys):
    _model("birds")
    names = _run("species-unknown")
    assert len(names["gallery"].stats().classes) == 60
    assert len(names["gallery"]) == 50 * 15 + 10 * 15
    assert (here / "stranger.jpg").exists()
    assert capsys.readouterr().out.count("forecast") == 3
    names["gallery"].close()


def test_the_snippets_of_the_speakers_run(here, monkeypatch, capsys):
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    paths, labels = [], []
    for speaker in range(20):
        for take in range(9):
            wave = np.sin(np.arange(6400) * (0.02 + 0.01 * speaker)) * 0.3 + 0.05 * rng.normal(size=6400)
            paths.append(f"{speaker}-{take}.flac")
            labels.append(f"speaker {speaker:02d}")
            soundfile.write(paths[-1], wave, 16_000)
    manifest = Manifest.from_rows(paths, labels, split=["test"] * len(paths))
    monkeypatch.setattr(nk, "open_data", lambda _: nk.Dataset(manifest, FolderStore(here), "audio", "made up"))
    _model("voices", backbone="tdnn", channels=None, size=None, pooling="stats")
    names = _run("verify-speakers")
    assert len(names["gallery"]) == 90
    assert names["answer"].threshold is not None
    assert capsys.readouterr().out.count("asked for") == 3
    names["gallery"].close()


def _commands():
    """Every command line of the guides, as arguments."""
    for page in PAGES:
        text = (GUIDE / f"{page}.md").read_text(encoding="utf-8")
        for line in re.findall(r"^nearkin .*$|(?<=`)nearkin [^`…]+(?=`)", text, flags=re.MULTILINE):
            yield page, shlex.split(line.replace("\n", " "), comments=True)[1:]


def test_the_commands_of_the_guides_can_be_given(capsys):
    """Names, options and arguments are checked; nothing is run."""
    lines = list(_commands())
    assert len(lines) > 40
    command = typer.main.get_command(app)
    wrong = []
    for page, words in lines:
        target, rest = command, list(words)
        while rest and hasattr(target, "commands") and rest[0] in target.commands:
            target = target.commands[rest.pop(0)]
        if not rest and target is not command:
            continue  # a command that is only named
        try:
            target.make_context("nearkin", rest)
        except Exception as error:
            wrong.append((page, words, str(error)))
    assert not wrong


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
