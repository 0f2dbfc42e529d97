"""What 38e006d wrote to disk still opens and answers the same.

That commit is taken out of git and makes everything once a session, in a process of its own; see `make_artefacts.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import nearkin
from nearkin.gallery import Gallery
from nearkin.gallery.calibration import identification
from nearkin.models.bulk import embed_shards, read_embeddings, shard_states
from nearkin.protocol import Book
from nearkin.recipe import load_recipe
from nearkin.training import Loop, Run

HERE = Path(__file__).resolve().parent
COMMIT = "38e006d"
FONTS = matplotlib.get_cachedir()
"""Where matplotlib has a list of fonts, which takes it seconds to make."""
PATIENCE = 240
"""Seconds until the old package must have made everything, on a busy machine."""


def _script(name):
    spec = importlib.util.spec_from_file_location(f"compatibility_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make, make_lists = _script("make_artefacts"), _script("make_lists")


def _made(folder: Path) -> str:
    """Have the old package make everything in a folder; what went wrong, or nothing."""
    try:
        make_lists.extract(COMMIT, folder / "tree")
    except OSError as error:
        return f"skip: git is not available ({error})"
    except subprocess.CalledProcessError as error:
        return f"skip: {COMMIT} is not in this copy of the repository ({error.stderr.decode().strip()})"
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "tree"),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "caches of old"),
        "MPLCONFIGDIR": FONTS,
    }
    command = [sys.executable, str(HERE / "make_artefacts.py"), str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="session")
def old(tmp_path_factory) -> Path:
    """The folder with what the old package made, once for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compatibility"
    outcome = folder / "outcome"
    try:
        folder.mkdir()
    except FileExistsError:
        until = time.monotonic() + PATIENCE + 60
        while not outcome.exists():
            assert time.monotonic() < until, "the other process has not made the artefacts"
            time.sleep(0.1)
    else:
        trouble = "it was stopped"
        try:
            trouble = _made(folder)
        finally:
            part = folder / "outcome.part"
            part.write_text(trouble, encoding="utf-8")
            part.rename(outcome)
    trouble = outcome.read_text(encoding="utf-8")
    if trouble.startswith("skip: "):
        pytest.skip(trouble.removeprefix("skip: "))
    assert not trouble, f"{COMMIT} could not make its artefacts:\n{trouble}"
    return folder


@pytest.fixture(scope="session")
def told(old):
    """What the old package answered."""
    return json.loads((old / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def as_then(tmp_path_factory, monkeypatch):
    """One thread, as the old package had, so that sums are equal to the last bit, and a cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "compatibility caches"))
    monkeypatch.setenv("MPLCONFIGDIR", FONTS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def differences(old, new, place="answer"):
    """Where two JSON values differ; numbers may by rounding, and the new one may say more."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{place}.{key} is missing" for key in old if key not in new]
        inner = [line for key in old if key in new for line in differences(old[key], new[key], f"{place}.{key}")]
        return gone + inner
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, f"{place}[{number}]")]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    same = bool(np.isclose(old, new, rtol=1e-5, atol=1e-6, equal_nan=True)) if numbers else old == new
    return [] if same else [f"{place}: {old!r} became {new!r}"]


def test_recipes_say_what_they_said(old):
    files = sorted((old / "recipes").glob("*.yaml"))
    assert len(files) > 60
    wrong = []
    for file in files:
        before = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        wrong += differences(before, load_recipe(file).model_dump(mode="json"), file.stem)
    assert wrong == []


@pytest.mark.parametrize("name", make.RUNS)
def test_a_finished_run_reads_as_it_did(name, old, told):
    run = Run(old / "finished" / name)
    assert differences(yaml.safe_load(run.recipe_file.read_text()), run.recipe().model_dump(mode="json")) == []
    assert run.history()[-1]["step"] > 0
    card = json.loads(run.card_file.read_text(encoding="utf-8"))
    assert differences(card, json.loads(json.dumps(dict(run.model().card)))) == []
    assert differences(told["models"][name]["beside"], make.beside(run)) == []


@pytest.mark.parametrize("name", make.RUNS)
def test_an_unfinished_run_goes_on_to_the_same_end(name, old):
    run, whole = (Run(old / kind / name) for kind in ("unfinished", "finished"))
    assert not run.model_file.exists()
    nearkin.fit(old / "photos", run.recipe_file, out=run.path, resume=True, progress=False)
    assert differences(whole.history(), run.history()) == []
    before, after = (load_file(one.model_file) for one in (whole, run))
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


@pytest.mark.parametrize("name", [*make.RUNS, "short"])
def test_a_model_file_gives_the_same_embeddings(name, old, told):
    model = nearkin.load(old / "models" / f"{name}.safetensors")
    before = told["models"][name]
    assert model.fingerprint() == before["print"]
    np.testing.assert_allclose(model.encode(make.picture_queries(old), progress=False), before["embeddings"], atol=1e-6)


def test_an_audit_reads_and_measures_the_same(old, told):
    run = Run(old / "finished" / "proxies")
    before = told["models"]["audit"]
    assert differences(before, run.audit()["values"]) == []
    result = nearkin.audit(run.path, old / "photos", progress=False)
    assert differences(before, {name: result[name] for name in result}) == []


def test_parts_of_embeddings_read_and_go_on(old):
    model = nearkin.load(old / "finished" / "proxies")
    dataset = nearkin.open_data(old / "photos", progress=False)
    whole = read_embeddings(old / "parts")
    states = shard_states(model, dataset, old / "half of the parts", shards=2)
    assert [one.state for one in states] == ["finished", "missing"]
    reports = embed_shards(model, dataset, old / "half of the parts", shards=2, workers=0, progress=False)
    assert [report.written for report in reports] == [False, True]
    completed = read_embeddings(old / "half of the parts")
    for part in ("vectors", "labels", "paths"):
        np.testing.assert_array_equal(getattr(completed, part), getattr(whole, part))


def _but_known(lines):
    """Differences, but for queries that count as known no more where the forecast of old did not allow that."""
    undecided = {line.partition(".known: ")[0] for line in lines if line.endswith(".known: True became None")}
    return [line for line in lines if line.partition(".known: ")[0].partition(".reason: ")[0] not in undecided]


@pytest.mark.parametrize("name", make.GALLERIES)
def test_a_gallery_of_vectors_answers_the_same(name, old, told, tmp_path):
    if name not in told["galleries"]:
        pytest.skip("a graph needs faiss")
    before = told["galleries"][name]
    with Gallery.open(old / "galleries" / name) as gallery:
        assert not gallery.calibration_due, "what was learned must not be learned again"
        assert _but_known(differences(before, make.asked(gallery, make.points(2, 2)[0]))) == []
        options = make.GALLERIES[name]
        with Gallery.create(tmp_path / "copy", dimension=8, name="drawn", **options) as copy:
            rows = copy.import_(old / "galleries" / f"{name}.parquet")
            assert rows == len(copy) == len(gallery)
            found = [[asdict(one) for one in near] for near in copy.search_many(make.points(2, 2)[0], 5)]
    assert differences(before["search"], found) == []


@pytest.mark.parametrize("name", ["pictures", "learned"])
def test_a_gallery_with_its_model_answers_the_same(name, old, told):
    before = told["galleries"][name]
    with Gallery.open(old / "galleries" / name) as gallery:
        assert not gallery.calibration_due
        answers = make.asked(gallery, make.picture_queries(old))
        answers["thumbnail"] = len(gallery.thumbnail(gallery.items(limit=1)[0].id))
    assert _but_known(differences(before, answers)) == []


def test_a_gallery_of_old_is_calibrated_as_it_was_then(old, told, monkeypatch):
    """But for the widening, which the test turns off: a new calibration is less sure of queries that lie far away."""
    monkeypatch.setattr(identification, "DEFAULT_WIDENING", 0.0)
    with Gallery.open(old / "galleries" / "never asked") as gallery:
        assert gallery.calibration is None
        gallery.recalibrate()
        found = _but_known(differences(told["galleries"]["never asked"], make.asked(gallery, make.points(2, 2)[0])))
        # The words of notes may change, and the key of a calibration is made from all it says.
        assert [one for one in found if ".key" not in one and "notes" not in one] == []


@pytest.mark.parametrize("name", ["plain", "bytes"])
def test_a_gallery_of_old_takes_new_items(name, old, tmp_path):
    shutil.copytree(old / "galleries" / name, tmp_path / name)
    vectors, _ = make.points(3, 2)
    with Gallery.open(tmp_path / name) as gallery:
        before = len(gallery)
        (added,) = gallery.enrol("new", vectors[:1])
        gallery.remove("item-004")
    with Gallery.open(tmp_path / name) as gallery:
        assert len(gallery) == before
        assert gallery.search(vectors[0], 1)[0].item.id == added
        assert "item-004" not in gallery


def _numbers(book: Path) -> dict:
    """The lines of a ledger by cell, without what differs between two machines."""
    rows = [json.loads(line) for line in Book(book).ledger_file.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row.pop("seconds")
    return {f"{row['recipe']} {row['kind']} {row['seed']} {row['fold']}": row for row in rows}


def test_a_benchmark_of_old_is_done(old, monkeypatch):
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("a model is trained again"))
    before, table = _numbers(old / "book"), (old / "book" / "table.md").read_text(encoding="utf-8")
    result = make.compare(old, "book", old / "triplet.yaml")
    assert not result.interrupted
    assert not result.failures
    assert _numbers(old / "book") == before
    new = _columns((old / "book" / "table.md").read_text(encoding="utf-8"))
    assert {heading: new.get(heading) for heading in _columns(table)} == _columns(table)


def _columns(table: str) -> dict[str, list[str]]:
    """The first table of a page, heading to its cells; later versions may have more."""
    lines = [line.strip("|").split(" | ") for line in table.partition("\n- ")[0].splitlines() if line.startswith("|")]
    return {heading.strip(): [line[place].strip() for line in lines[2:]] for place, heading in enumerate(lines[0])}


def test_a_benchmark_of_old_goes_on_to_the_same_numbers(old):
    before = len(_numbers(old / "half a book"))
    make.compare(old, "half a book", old / "triplet.yaml")
    whole, completed = _numbers(old / "book"), _numbers(old / "half a book")
    assert before < len(completed)
    assert differences(whole, completed) == []
