"""The gallery at the prompt: the whole way with a model and with vectors of one's own, then what can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import nearkin as nk
from nearkin.cli import main
from nearkin.models import ModelSection, build_embedder

CLASSES, EACH, WIDTH = 40, 12, 24
STRANGE = "[bold]Ära[/bold] 'x'; \"y\" 50 % \\ :smile: /"


@pytest.fixture
def done(nearkin):
    """Run a command that must succeed with --json; return the document."""

    def run(*arguments):
        code, out, err = nearkin(*arguments, "--json")
        assert code == 0, err
        assert err == ""
        return json.loads(out)

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small network nobody trained, as a file."""
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    build_embedder(ModelSection(backbone="conv4", channels=3, size=16, dimension=16)).save(file)
    return file


def _points(seed, classes=CLASSES, each=EACH):
    """Vectors of well separated classes and their labels; the centres are always the same."""
    centres = np.random.default_rng(0).normal(size=(classes, WIDTH))
    noise = np.random.default_rng(seed).normal(scale=0.25, size=(classes * each, WIDTH))
    labels = [f"part {number:02d}" for number in range(classes) for _ in range(each)]
    return (np.repeat(centres, each, axis=0) + noise).astype(np.float32), labels


@pytest.fixture(scope="module")
def _parts(tmp_path_factory):
    from nearkin.gallery import Gallery

    vectors, labels = _points(1)
    path = tmp_path_factory.mktemp("parts") / "parts.gallery"
    metadata = [{"number": n, "even": n % 2 == 0} for n in range(len(vectors))]
    ids = [f"i{n:04d}" for n in range(len(vectors))]
    with Gallery.create(path, dimension=WIDTH, name="made-up") as gallery:
        gallery.add(vectors, labels, metadata, ids=ids)
        gallery.recalibrate()
    return path


@pytest.fixture
def parts(_parts, tmp_path):
    """A gallery of vectors that a test may change."""
    return shutil.copytree(_parts, tmp_path / "parts.gallery")


def _npy(path, rows):
    np.save(path, rows)
    return path


def test_the_whole_way_with_a_model(nearkin, done, photos, model, tmp_path):
    shop = tmp_path / "shop.gallery"
    code, out, err = nearkin("gallery", "create", shop, photos, "--model", model, "-q")
    assert code == 0, err
    assert re.search(r"\b48\b.*\b8\b", out)
    query = photos / "class03" / "02.png"
    found = done("search", shop, query, "-k", "3")["neighbours"]
    assert len(found) == 3
    assert found[0]["distance"] == pytest.approx(0, abs=1e-3)
    assert found[0]["label"] == "class03"
    assert found[0]["source"].endswith("class03/02.png")
    code, out, err = nearkin("search", shop, query, "-k", "3")
    assert code == 0, err
    assert found[0]["id"] in out
    new = done("gallery", "enrol", shop, STRANGE, query, photos / "class04" / "01.png", "--metadata", "price=3.5")
    assert len(new["ids"]) == 2
    assert new["items"] == 50
    listed = done("gallery", "items", shop, "--where", "price > :least", "--param", "least=3")["items"]
    assert [item["id"] for item in listed] == new["ids"]
    assert {item["label"] for item in listed} == {STRANGE}
    code, out, _ = nearkin("gallery", "items", shop, "--where", "label = :label", "--param", f"label={STRANGE}")
    assert code == 0
    assert STRANGE in out
    twins = done("gallery", "duplicates", shop, "--distance", "0.001")["duplicates"]
    assert {new["ids"][0], found[0]["id"]} in [{item["id"] for item in group["items"]} for group in twins]
    code, out, _ = nearkin("gallery", "duplicates", shop, "--distance", "0.001")
    assert code == 0
    assert new["ids"][0] in out
    assert done("gallery", "relabel", shop, "class05", *new["ids"])["relabelled"] == 2
    assert done("gallery", "info", shop)["classes"]["class05"] == 8
    assert done("gallery", "remove", shop, *new["ids"]) == {"removed": 2, "items": 48}
    answer = nearkin("identify", shop, query, "--json")
    assert answer[0] in (0, 3)
    assert json.loads(answer[1])["matches"][0]["query"] == str(query)


def test_a_gallery_can_be_rebuilt_with_another_model(nearkin, done, photos, model, tmp_path):
    other = tmp_path / "other.safetensors"
    build_embedder(ModelSection(backbone="conv4", channels=3, size=16, dimension=8), seed=1).save(other)
    copy = shutil.copytree(photos, tmp_path / "photos")
    shop = tmp_path / "shop.gallery"
    assert done("gallery", "create", shop, copy, "--model", model)["items"] == 48
    before = done("gallery", "info", shop)["settings"]
    (copy / "class00" / "00.png").unlink()
    code, out, err = nearkin("gallery", "rebuild", shop, "--model", other, "-q")
    assert (code, out) == (1, "")
    assert "1 of 48" in err
    assert done("gallery", "info", shop)["settings"] == before
    assert done("gallery", "rebuild", shop, "--model", other, "--missing", "drop") == {"dropped": 1, "items": 47}
    after = done("gallery", "info", shop)["settings"]
    assert (after["dimension"], after["fingerprint"] != before["fingerprint"]) == (8, True)


def test_the_whole_way_with_vectors_of_ones_own(nearkin, done, tmp_path):
    vectors, labels = _points(1)
    _npy(tmp_path / "v.npy", vectors)
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    own = tmp_path / "own.gallery"
    start = ("gallery", "create", own, "--dimension", WIDTH, "--name", "clip-vit-b32")
    assert done(*start, "--vectors", tmp_path / "v.npy", "--labels", tmp_path / "labels.txt")["items"] == len(labels)
    info = done("gallery", "info", own)
    assert info["settings"]["name"] == "clip-vit-b32"
    assert len(info["classes"]) == CLASSES
    known = _npy(tmp_path / "known.npy", _points(2, each=1)[0][:5])
    answer = done("identify", own, known, "-n", "2")["matches"]
    assert [match["label"] for match in answer] == labels[: 5 * EACH : EACH]
    assert all(match["known"] and match["probability"] > 0.5 for match in answer)
    assert {len(match["neighbours"]) for match in answer} == {2}
    assert answer[0]["query"] == f"{known}[0]"
    table = pa.table({"label": ["late"] * 2, "embedding": vectors[:2].tolist(), "shelf": [1, 2]})
    parquet.write_table(table, tmp_path / "more.parquet")
    assert done("gallery", "add", own, tmp_path / "more.parquet")["items"] == len(labels) + 2
    one = _npy(tmp_path / "one.npy", vectors[0])
    near = done("search", own, one, "-k", "1", "--where", "shelf in :shelves", "--param", "shelves=[1, 3]")
    assert near["neighbours"][0]["metadata"] == {"shelf": 1}


def test_exit_codes_say_known_or_unknown(nearkin, parts, tmp_path):
    vectors, labels = _points(2, each=1)
    known = _npy(tmp_path / "known.npy", vectors[3])
    far = np.random.default_rng(9).normal(size=WIDTH)
    unknown = _npy(tmp_path / "unknown.npy", far)
    code, out, err = nearkin("identify", parts, known)
    assert code == 0, err
    assert labels[3] in out
    code, out, err = nearkin("identify", parts, known, unknown, "-n", "1")
    assert (code, err) == (3, "")
    assert "unknown" in out
    assert str(known) in out
    code, out, _ = nearkin("identify", parts, unknown, "--json")
    assert code == 3
    assert json.loads(out)["matches"][0]["known"] is False


def test_what_cannot_be_told_is_said_with_the_forecast(nearkin, done, tmp_path):
    centres, rng = np.random.default_rng(3).normal(size=(20, 16)), np.random.default_rng(4)
    vectors = (np.repeat(centres, 6, axis=0) + 0.9 * rng.normal(size=(120, 16))).astype(np.float32)
    _npy(tmp_path / "v.npy", vectors)
    (tmp_path / "labels.txt").write_text("\n".join(f"c{label}" for label in np.repeat(np.arange(20), 6)))
    mixed = tmp_path / "mixed.gallery"
    start = ("gallery", "create", mixed, "--dimension", 16, "--name", "mixed")
    done(*start, "--vectors", tmp_path / "v.npy", "--labels", tmp_path / "labels.txt")
    queries = _npy(tmp_path / "queries.npy", np.repeat(centres, 2, axis=0) + 0.9 * rng.normal(size=(40, 16)))
    code, out, _ = nearkin("identify", mixed, queries, "--json")
    answer = json.loads(out)["matches"]
    assert code == 3
    assert {match["known"] for match in answer} >= {None, True}
    assert all(bool(match["reason"]) is (match["known"] is None) for match in answer)
    learned = done("gallery", "info", mixed)["calibration"]["horizon"]
    assert all(match["forecast"] == learned["forecast"] for match in answer)
    assert learned["strangers"] == 0.1
    out = nearkin("identify", mixed, queries)[1]
    assert "cannot tell" in out
    assert f"{100 * learned['forecast']['strangers_known']:.1f} %" in out
    assert done("gallery", "recalibrate", mixed, "--strangers", "1")["horizon"]["strangers"] == 1
    answer = json.loads(nearkin("identify", mixed, queries, "--json")[1])["matches"]
    assert None not in {match["known"] for match in answer}
    assert nearkin("gallery", "recalibrate", mixed, "--strangers", "0")[0] == 2


def test_the_probability_of_a_pair_states_its_prior(nearkin, parts, tmp_path):
    vectors, _ = _points(2, each=2)
    a, b = (_npy(tmp_path / f"{row}.npy", vectors[row]) for row in (0, 1))
    found = [
        json.loads(nearkin("verify", parts, a, b, "--far", "0.01", "--prior", prior, "--json")[1])
        for prior in ("0.5", "0.001")
    ]
    assert [one["prior"] for one in found] == [0.5, 0.001]
    assert found[0]["probability"] > found[1]["probability"]
    assert found[0]["needed"] > found[1]["needed"]
    assert found[0]["same"] is found[1]["same"] is True
    out = nearkin("verify", parts, a, b, "--far", "0.01", "--prior", "0.001")[1]
    assert re.search(r"prior +0\.1 %", out)
    assert f"{100 * found[1]['needed']:.1f} %" in out
    assert nearkin("verify", parts, a, b, "--prior", "1")[0] == 2


def test_exit_codes_say_same_or_not(nearkin, parts, tmp_path):
    vectors, _ = _points(2, each=2)
    a, b, c = (_npy(tmp_path / f"{name}.npy", vectors[row]) for name, row in (("a", 0), ("b", 1), ("c", 2)))
    code, out, err = nearkin("verify", parts, a, b, "--far", "0.01")
    assert code == 0, err
    assert "yes" in out.splitlines()[0]
    code, out, _ = nearkin("verify", parts, a, c, "--far", "0.01", "--json")
    found = json.loads(out)
    assert (code, found["same"], found["false_accept_rate"]) == (3, False, 0.01)
    assert found["distance"] > found["threshold"]
    code, out, _ = nearkin("verify", parts, a, b, "--far", "1e-12")
    assert code == 3
    assert not re.search(r"\b(yes|no)\b", out.splitlines()[0])
    assert nearkin("verify", parts, a, b, "--far", "2")[0] == 2


def test_a_gallery_that_cannot_tell_says_why(nearkin, tmp_path):
    few = tmp_path / "few.gallery"
    one = _npy(tmp_path / "one.npy", np.eye(3)[0])
    code, _, err = nearkin("gallery", "create", few, "--dimension", "3", "--name", "x", "--vectors", one)
    assert code == 0, err
    code, out, err = nearkin("identify", few, one)
    assert (code, err) == (3, "")
    assert "Note" in out
    code, out, _ = nearkin("verify", few, one, one)
    assert code == 3
    assert not re.search(r"\b(yes|no)\b", out.splitlines()[0])


def test_removing_by_label_and_condition(done, parts):
    assert done("gallery", "remove", parts, "--label", "part 00", "--where", "even = true")["removed"] == EACH // 2
    assert done("gallery", "remove", parts, "--label", "part 00")["removed"] == EACH // 2
    left = CLASSES * EACH - EACH
    assert done("gallery", "remove", parts, "i0479", "nobody") == {"removed": 1, "items": left - 1}


def test_items_come_in_pages(nearkin, done, parts):
    first = done("gallery", "items", parts, "--limit", "300")
    rest = done("gallery", "items", parts, "--limit", "300", "--after", first["next"])
    assert rest["next"] is None
    assert [item["id"] for item in first["items"] + rest["items"]] == [f"i{n:04d}" for n in range(480)]
    code, out, _ = nearkin("gallery", "items", parts, "--limit", "2")
    assert code == 0
    assert "--after i0001" in out
    assert "number=0, even=True" in out


def test_a_wrong_label_is_suspected_and_put_right(nearkin, done, parts):
    done("gallery", "relabel", parts, "part 07", "i0000")
    found = done("gallery", "suspects", parts)["suspects"]
    assert (found[0]["item"]["id"], found[0]["suggested"]) == ("i0000", "part 00")
    code, out, _ = nearkin("gallery", "suspects", parts, "--limit", "1")
    assert code == 0
    assert "i0000" in out
    done("gallery", "relabel", parts, found[0]["suggested"], "i0000")
    assert "i0000" not in {one["item"]["id"] for one in done("gallery", "suspects", parts)["suspects"]}


def test_an_export_can_be_imported(nearkin, done, parts, tmp_path):
    file = tmp_path / "all.parquet"
    assert done("gallery", "export", parts, file) == {"exported": 480, "path": str(file)}
    copy = tmp_path / "copy.gallery"
    assert done("gallery", "create", copy, "--dimension", WIDTH, "--name", "made-up")["items"] == 0
    expected = {"imported": 480, "resumed": 0, "replaced": 0, "items": 480}
    assert done("gallery", "import", copy, file) == expected
    assert done("gallery", "items", copy, "--limit", "5") == done("gallery", "items", parts, "--limit", "5")
    other = tmp_path / "other.gallery"
    done("gallery", "create", other, "--dimension", WIDTH, "--name", "another")
    code, _, err = nearkin("gallery", "import", other, file)
    assert code == 1
    assert "made-up" in err


def test_recalibrate_and_info_say_what_was_learned(nearkin, done, parts):
    learned = done("gallery", "recalibrate", parts, "--accept", "0.9")
    assert learned["accept"] == 0.9
    assert done("gallery", "info", parts)["calibration"] == learned
    for command in ("info", "recalibrate"):
        code, out, err = nearkin("gallery", command, parts)
        assert code == 0, err
        assert "90 %" in out
    code, out, _ = nearkin("gallery", "info", parts)
    assert re.search(r"\b480\b.*\b40\b", out)
    assert re.search(r"\b30\b", out)


def _wrong(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").write_text("x")
    vector = _npy(tmp_path / "one.npy", np.ones(3))
    nan = _npy(tmp_path / "nan.npy", np.full(WIDTH, np.nan))
    return {
        "nowhere": tmp_path / "nowhere.gallery",
        "there": there,
        "vector": vector,
        "nan": nan,
        "empty": tmp_path / "empty.gallery",
    }


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("gallery info {nowhere}", "nowhere.gallery"),
        ("gallery info {there}", "there"),
        ("gallery info {vector}", "one.npy"),
        ("identify {nowhere} {vector}", "nowhere.gallery"),
        ("identify {parts} missing.npy", "missing.npy"),
        ("identify {parts} {vector}", "24"),
        ("identify {parts} {nan}", r"nan\.npy"),
        ("search {parts} {vector}", "24"),
        ("verify {parts} {vector} missing.npy", "missing.npy"),
        ("gallery create {parts} --dimension 3 --name x", r"parts\.gallery"),
        ("gallery create {there} --dimension 3 --name x", r"/there\b"),
        ("gallery create {empty} --dimension 3", "name"),
        ("gallery create {empty} --model nothing-like-it", "nothing-like-it"),
        ("gallery create {empty} {there} --dimension 3 --name x", "embedding"),
        ("gallery create {empty} nowhere/at/all --model {model}", "nowhere"),
        ("gallery create {empty} --dimension 3 --name x --vectors missing.npy", "missing.npy"),
        ("gallery create {empty} --dimension 4 --name x --vectors {vector}", "4"),
        ("gallery create {empty} --dimension 3 --name x --space moon", "moon"),
        ("gallery add {parts} {vector}", "embedding"),
        ("gallery enrol {parts} x {vector}", "24"),
        ("gallery enrol {parts} '' {vector}", "label"),
        ("gallery items {parts} --where price=", "character"),
        ("gallery items {parts} --where price=:p", ":p"),
        ("gallery remove {parts} --where 'price ~ 3'", "character"),
        ("gallery relabel {parts} x nobody", "nobody"),
        ("gallery rebuild {parts} --model {model}", "vectors"),
        ("gallery import {parts} missing.parquet", "missing.parquet"),
        ("gallery export {parts} {vector}/out.parquet", "out.parquet"),
        ("serve {parts} --host 0.0.0.0 --port 0", "NEARKIN_API_KEYS"),
        ("serve {nowhere} --port 0", "nowhere.gallery"),
        ("serve {parts} --cors '*' --port 0", "origin"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(nearkin, parts, model, tmp_path, monkeypatch, command, word):
    monkeypatch.delenv("NEARKIN_API_KEYS", raising=False)
    monkeypatch.chdir(tmp_path)
    given = _wrong(tmp_path)
    arguments = [part.format(parts=parts, model=model, **given) for part in shlex.split(command)]
    code, out, err = nearkin(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("nearkin: ")
    assert err.count("\n") == 1
    assert re.search(word, err), err
    assert not given["empty"].exists()


@pytest.mark.parametrize(
    "command",
    [
        "gallery create x.gallery",
        "gallery create x.gallery --model m --dimension 3",
        "gallery create x.gallery --model m --vectors v.npy",
        "gallery create x.gallery --dimension 0 --name x",
        "gallery create x.gallery --dimension 3 --dtype int4",
        "gallery create x.gallery --dimension 3 --index tree",
        "gallery add x.gallery",
        "gallery remove x.gallery",
        "gallery items x.gallery --param p",
        "gallery items x.gallery --limit 0",
        "gallery recalibrate x.gallery --accept 2",
        "gallery rebuild x.gallery",
        "gallery enrol x.gallery label",
        "gallery nothing",
        "identify x.gallery",
        "verify x.gallery a",
        "search x.gallery a -k 0",
        "serve x.gallery --port 99999",
        "key --role admin",
    ],
)
def test_wrong_usage_has_its_own_exit_code(nearkin, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearkin(*command.split())
    assert (code, out) == (2, "")
    assert "Usage" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["gallery create", "gallery info", "gallery remove", "identify", "verify", "search", "serve", "key"]
)
def test_help_tells_the_exit_codes(nearkin, command):
    code, out, _ = nearkin(*command.split(), "--help")
    assert code == 0
    assert "Exit codes" in out
    assert (" 3 " in " ".join(out.split())) == (command in ("identify", "verify"))


def test_a_key_is_told_once_and_kept_as_its_hash(nearkin, done):
    from nearkin.serve.settings import parse_keys

    made = done("key", "--role", "write")
    assert made["entry"] == f"write:{hashlib.sha256(made['key'].encode()).hexdigest()}"
    assert parse_keys(made["entry"])[0].role == "write"
    assert done("key")["key"] != made["key"]
    code, out, _ = nearkin("key")
    assert code == 0
    key, entry = (line.strip() for line in out.splitlines()[1::2])
    assert entry == f"read:{hashlib.sha256(key.encode()).hexdigest()}"


def test_serve_answers_until_it_is_interrupted(parts, programs):
    httpx, _ = pytest.importorskip("httpx"), pytest.importorskip("fastapi")
    (process,) = programs.start("from nearkin.cli import main; main()", "serve", parts, "--port", "0", "--read-only")
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"(http://[\d.:]+)/", programs.output)):
            assert time.monotonic() < until, programs.errors
            time.sleep(0.01)
        vector = _points(2, each=1)[0][3].tolist()
        answer = httpx.post(f"{found[1]}/v1/identify", json={"vector": vector}, timeout=30)
        assert answer.json()["label"] == "part 03"
        refused = httpx.post(f"{found[1]}/v1/enrol", json={"label": "x", "vector": vector}, timeout=30)
        assert refused.status_code == 403
    finally:
        os.kill(process, signal.SIGINT)
    assert programs.ended() == [0]


def test_a_gallery_in_milvus_lite(nearkin, done, tmp_path):
    pytest.importorskip("milvus_lite")
    vectors, labels = _points(1, classes=5)
    file = _npy(tmp_path / "v.npy", vectors)
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    lite = tmp_path / "lite.db"
    start = ("gallery", "create", lite, "--dimension", WIDTH, "--name", "x")
    done(*start, "--vectors", file, "--labels", tmp_path / "labels.txt")
    assert done("gallery", "info", lite)["index"] == "remote"
    one = _npy(tmp_path / "one.npy", vectors[0])
    assert done("search", lite, one, "-k", "1")["neighbours"][0]["label"] == labels[0]
    code, _, err = nearkin(*start)
    assert code == 1
    assert "lite.db" in err


def test_the_command_line_starts_without_heavy_packages():
    code = (
        "import sys, nearkin.cli.app; print([m for m in ('torch', 'numpy', 'fastapi', 'sqlite3') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


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
