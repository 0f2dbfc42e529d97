"""`nearkin shorten` and `nearkin audit --suite size` on a folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nearkin as nk


@pytest.fixture(scope="module")
def run(photos, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    nk.fit(photos, "triplet", out=path, overrides=[*tiny, "training.max_steps=4"], progress=False)
    return path


def test_a_run_is_audited_by_size_and_cut(nearkin, run, photos, tmp_path):
    code, out, err = nearkin("audit", run, "--suite", "size", "--set", "audit.resamples=20", "-q")
    assert code == 0, err
    assert "MAP@R, first 8" in out
    assert "trained" in " ".join(out.split())
    assert json.loads((run / "audit-size.json").read_text())["details"]["size"]["first"]["sizes"] == [4, 8, 16]
    short = tmp_path / "new" / "short.safetensors"
    code, out, err = nearkin("shorten", run, "--dimension", 4, "--out", short, "-q")
    assert code == 0, err
    assert "4 of 16" in out
    assert "variance" in out
    model = nk.load(short)
    assert model.encode(photos, progress=False).shape == (48, 4)
    code, _, err = nearkin("shorten", run, "--dimension", 3, "--method", "prefix", "--out", tmp_path / "p.safetensors")
    assert code == 0, err
    full, first = (nk.load(path).encode(photos, progress=False) for path in (run, tmp_path / "p.safetensors"))
    cut = full[:, :3] / np.linalg.norm(full[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(first, cut, atol=1e-4)
    code, out, err = nearkin("embed", short, photos, "--out", tmp_path / "v.npy", "-q")
    assert code == 0, err
    code, out, err = nearkin(
        "audit", short, "--data", photos, "--suite", "retrieval", "--set", "audit.resamples=20", "-q"
    )
    assert code == 0, err
    assert "MAP@R" in out
    assert "MAP@R" in json.loads((short.parent / "short-report.json").read_text())["values"]
    assert (short.parent / "short-report.html").stat().st_size > 1000


def test_prefixes_that_were_not_trained_are_told(nearkin, run, tmp_path):
    out = tmp_path / "p.safetensors"
    code, told, _ = nearkin("shorten", run, "--dimension", 3, "--method", "prefix", "--out", out)
    assert code == 0
    assert "trained" in " ".join(told.split())


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("a.safetensors", [], "--data"),
        ("a.onnx", ["--data", "x"], "a.onnx"),
    ],
)
def test_files_that_cannot_be_audited_are_told(nearkin, tmp_path, name, more, message):
    (tmp_path / name).write_bytes(b"anything")
    code, _, err = nearkin("audit", tmp_path / name, "--suite", "retrieval", *more, "-q")
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dimension", "16", "--out", "a.safetensors"], "15"),
        (["--dimension", "0", "--out", "a.safetensors"], "15"),
        (["--dimension", "4", "--out", "a.onnx"], ".onnx"),
        (["--dimension", "4", "--out", "{run}/model.safetensors"], "model.safetensors"),
        (["--dimension", "4", "--method", "svd", "--out", "a.safetensors"], "prefix"),
        (["--dimension", "4", "--data", "nowhere", "--out", "a.safetensors"], "nowhere"),
        (["--dimension", "4", "--method", "prefix", "--data", "x", "--out", "a.safetensors"], "--data"),
    ],
)
def test_what_cannot_be_shortened_is_one_sentence(nearkin, run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = nearkin("shorten", run, *[part.format(run=run) for part in arguments], "-q")
    assert code == 2
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir())
