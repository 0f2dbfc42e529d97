"""What is learned in the background, and a gallery that others change, rebuild or take away."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from nearkin.errors import StorageError
from nearkin.gallery import answers
from nearkin.gallery.gallery import Gallery
from nearkin.serve.learning import Learner
from nearkin.serve.metrics import Metrics
from nearkin.serve.workers import Workers

RED, GREEN = (200, 30, 30), (30, 180, 40)


def test_learning_anew_happens_in_the_background(server, client, images, paint):
    before = images.calibration.key
    for seed in range(8):
        client.post("/v1/enrol", files={"image": paint(GREEN, 200 + seed)}, data={"label": "green"})
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200
    server.learned()
    assert images.calibration.key != before
    assert not images.auto_recalibrate
    assert client.get("/v1/model").json()["calibration"]["key"] == images.calibration.key
    images.recalibrate(accept=0.8)
    assert client.get("/v1/model").json()["calibration"]["accept"] == 0.8


def test_questions_do_not_wait_until_something_was_learned(vectors, start, monkeypatch):
    monkeypatch.setattr(answers, "_QUICK", 0)  # as if it were a large gallery
    gate = threading.Event()
    fit = answers.fit_calibration
    monkeypatch.setattr(answers, "fit_calibration", lambda *given, **named: (gate.wait(20), fit(*given, **named))[1])
    row = [1.0, 0.1, 0, 0, 0, 0, 0, 0]
    with start(vectors) as server, server.client() as client:
        found = client.post("/v1/identify", json={"vector": row}).json()
        assert (found["label"], found["probability"]) == ("class 0", None)
        assert found["reason"]
        assert client.get("/v1/model").json()["stats"]["items"] == 60
        gate.set()
        server.learned()
        assert client.post("/v1/identify", json={"vector": row}).json()["probability"] is not None


def test_a_gallery_that_another_process_rebuilds_is_followed(vectors, start, monkeypatch):
    monkeypatch.setattr(answers, "_QUICK", 0)  # as if it were a large gallery
    ids = [item.id for item in vectors.items(limit=100)]
    rows = np.eye(5)[[int(vectors.get(id).label[-1]) for id in ids]] + 0.01
    with start(vectors) as server, server.client() as client, Gallery.open(vectors.path) as other:
        server.learned()
        assert client.post("/v1/identify", json={"vector": [1.0] + [0.0] * 7}).status_code == 200
        other.replace_vectors(ids, rows)
        found = client.post("/v1/identify", json={"vector": [0.0, 1.0, 0.0, 0.0, 0.0]}).json()
        assert found["label"] == "class 1"
        assert client.post("/v1/identify", json={"vector": [1.0] + [0.0] * 7}).status_code == 422
        server.learned()  # woken by the question, not by the clock
        assert client.post("/v1/enrol", json={"label": "x", "vectors": [[1.0] * 5]}).status_code == 201
        assert client.get("/v1/model").json()["dimension"] == 5


def test_a_gallery_that_is_moved_away_is_told_as_such(images, start, paint, problem, monkeypatch):
    monkeypatch.setattr("nearkin.serve.service._LOOK_SECONDS", -1.0)
    with start(images) as server, server.client() as client:
        server.learned()
        assert client.get("/readyz").status_code == 200
        place = Path(images.path)
        place.rename(place.with_name("elsewhere"))
        try:
            problem(client.get("/readyz"), 503, "storage")
            problem(client.get("/v1/model"), 503, "storage")
            told = client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": "x"})
            assert "files" in problem(told, 503, "storage")["detail"]
            assert client.get("/healthz").status_code == 200
        finally:
            place.with_name("elsewhere").rename(place)
        assert client.get("/readyz").status_code == 200


def test_learning_is_tried_again_after_it_failed(vectors, monkeypatch):
    monkeypatch.setattr(answers, "_QUICK", 0)  # as if it were a large gallery
    vectors.auto_recalibrate = False
    workers = Workers(1, 4, "slow")
    learner = Learner(vectors, workers, Metrics())
    fit = answers.fit_calibration

    def fail(*given, **named):
        raise StorageError("not now")

    monkeypatch.setattr(answers, "fit_calibration", fail)
    learner._learn()
    assert vectors.calibration_due
    monkeypatch.setattr(answers, "fit_calibration", fit)
    learner._learn()
    assert not vectors.calibration_due


def test_what_cannot_be_written_down_is_gone_by_all_the_same(vectors, monkeypatch):
    def refuse(name, value):
        raise StorageError("read-only")

    vectors.add(np.eye(8)[:7])
    monkeypatch.setattr(vectors.store, "set_note", refuse)
    with pytest.raises(StorageError):
        vectors.recalibrate()
    assert not vectors.calibration_due
    assert vectors.identify(np.eye(8)[0]).probability is not None
    with pytest.raises(StorageError):
        vectors.recalibrate(accept=0.8)
    assert vectors.calibration.accept == 0.8
    with Gallery.open(vectors.path) as other:
        other.recalibrate(accept=0.7)
    assert vectors.calibration.accept == 0.7
