"""The service with ONNX Runtime: the engine reaches the gallery, and answers stay what they are."""

from __future__ import annotations

import pytest

import nearkin.serve.run as serving
from nearkin.errors import UnknownNameError
from nearkin.serve.settings import ServeSettings

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)


def test_it_answers_alike_with_either_engine(images, start, paint, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answers = {}

    def ask(gallery, settings, listener):
        with start(gallery) as server, server.client() as client:
            server.learned()
            found = client.post("/v1/search", files={"image": paint((200, 30, 30), seed=77)}, data={"k": "5"})
            answers[gallery.encoder.engine] = found.json()["neighbours"]

    monkeypatch.setattr(serving, "_serve", ask)
    images.close()
    for engine in ("torch", "onnx"):
        serving.serve(images.path, ServeSettings(port=0), engine=engine)
    ours, theirs = answers["torch"], answers["onnx"]
    assert len(ours) == 5
    assert [neighbour["id"] for neighbour in ours] == [neighbour["id"] for neighbour in theirs]
    distances = [[neighbour["distance"] for neighbour in found] for found in (ours, theirs)]
    assert distances[0] == pytest.approx(distances[1], abs=1e-4)


def test_a_wrong_engine_is_told_before_it_listens_for_long(images):
    images.close()
    with pytest.raises(UnknownNameError, match="onnx"):
        serving.serve(images.path, ServeSettings(port=0), engine="onyx")
