"""What is learned in the background, and a gallery that others change, rebuild or take away."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nearkin.errors import StorageError
from nearkin.gallery.calibration import calibration
from nearkin.gallery.gallery import Gallery
from nearkin.serve.metrics import Metrics
from nearkin.serve.service import BackgroundCalibration
from nearkin.serve.settings import ServeSettings
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
    monkeypatch.setattr(calibration, "_QUICK", 0)  # as if it were a large gallery
    gate = threading.Event()
    fit = calibration.fit_calibration
    monkeypatch.setattr(
        calibration, "fit_calibration", lambda *given, **named: (gate.wait(20), fit(*given, **named))[1]
    )
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
    monkeypatch.setattr(calibration, "_QUICK", 0)  # as if it were a large gallery
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
    monkeypatch.setattr(calibration, "_QUICK", 0)  # as if it were a large gallery
    vectors.auto_recalibrate = False
    workers = Workers(1, 4, "slow")
    learner = BackgroundCalibration(vectors, workers, Metrics())
    fit = calibration.fit_calibration

    def fail(*given, **named):
        raise StorageError("not now")

    monkeypatch.setattr(calibration, "fit_calibration", fail)
    learner._learn()
    assert vectors.calibration_due
    monkeypatch.setattr(calibration, "fit_calibration", fit)
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


LOAD_RED = (200, 30, 30)


def _wait(happened, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.002)


def test_concurrent_questions_share_batches_and_keep_their_answers(server, images, paint):
    asked = [paint((number * 37 % 256, number * 91 % 256, number * 53 % 256), number) for number in range(64)]
    expected = images.embed(asked)
    with server.client() as client, ThreadPoolExecutor(32) as pool:
        found = list(
            pool.map(lambda raw: client.post("/v1/search", files={"image": raw}, data={"k": "1"}).json(), asked)
        )
        text = client.get("/metrics").text
    direct = images.search_vectors(expected, 1)
    for one, other in zip(found, direct, strict=True):
        assert one["neighbours"][0]["distance"] == pytest.approx(other[0].distance, abs=1e-4)
    batches = float(text.split("nearkin_batch_size_count ")[1].split()[0])
    assert 1 <= batches < 64
    assert 'nearkin_requests_total{method="POST",route="/v1/search",status="200"} 64.0' in text
    assert "nearkin_items 36.0" in text


def test_a_full_queue_says_when_to_come_back_and_loses_nothing(images, start, paint, monkeypatch, problem):
    gate = threading.Event()
    run = images.encoder.run
    monkeypatch.setattr(images.encoder, "run", lambda samples: (gate.wait(20), run(samples))[1])
    with start(images, ServeSettings(rate=0, queue=4)) as server, server.client() as client:
        with ThreadPoolExecutor(16) as pool:
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint(LOAD_RED)}) for _ in range(16)]
            _wait(lambda: sum(task.done() for task in tasks) >= 12)
            gate.set()
        found = [task.result() for task in tasks]
    assert sorted(response.status_code for response in found) == [200] * 4 + [503] * 12
    for response in found:
        if response.status_code == 503:
            problem(response, 503, "busy")
            assert response.headers["retry-after"] == "1"


def test_an_answer_that_takes_too_long_is_given_up(images, start, paint, monkeypatch, problem):
    gate = threading.Event()
    ran = []
    run = images.encoder.run
    monkeypatch.setattr(
        images.encoder, "run", lambda samples: (ran.append(len(samples)), gate.wait(20), run(samples))[2]
    )
    with start(images, ServeSettings(rate=0, timeout=0.3, max_batch=1)) as server, server.client() as client:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda _: client.post("/v1/identify", files={"image": paint(LOAD_RED)}), range(2)))
        for response in found:
            problem(response, 503, "timed-out")
            assert response.headers["retry-after"]
        gate.set()
    assert ran == [1]  # the second was dropped before it began


def test_limits_on_bodies_pixels_and_images(images, start, paint, problem):
    settings = ServeSettings(rate=0, max_body=100_000, max_pixels=1000, max_images=2)
    with start(images, settings) as server, server.client() as client:
        problem(client.post("/v1/identify", files={"image": b"x" * 100_001}), 413, "body-too-large")
        pieces = (b"x" * 1000 for _ in range(200))
        response = client.post("/v1/identify", content=pieces, headers={"content-type": "application/json"})
        problem(response, 413, "body-too-large")
        problem(client.post("/v1/identify", files={"image": paint(LOAD_RED, size=32)}), 413, "item-too-large")
        problem(client.post("/v1/items", files={"image": paint(LOAD_RED, size=32)}), 413, "item-too-large")
        three = [("image", ("x", paint(LOAD_RED, seed))) for seed in range(3)]
        problem(client.post("/v1/enrol", files=three, data={"label": "x"}), 413, "too-many-items")
        problem(
            client.post("/v1/identify", content=b"{}", headers={"content-encoding": "gzip"}),
            415,
            "unsupported-media-type",
        )
        assert client.post("/v1/identify", files={"image": paint(LOAD_RED)}).status_code == 200
        assert server.service.gallery is images
        assert len(images) == 36


def test_stopping_finishes_what_was_accepted(images, start, paint, monkeypatch):
    gate, begun = threading.Event(), threading.Event()
    run = images.encoder.run

    def slow(samples):
        begun.set()
        gate.wait(20)
        return run(samples)

    monkeypatch.setattr(images.encoder, "run", slow)
    with ThreadPoolExecutor(6) as pool:
        with start(images) as server:
            client = server.client()
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint(LOAD_RED, n)}) for n in range(5)]
            _wait(lambda: server.service._encodes.waiting >= 5)
            server.server.should_exit = True
            gate.set()
        found = [task.result().status_code for task in tasks]
        client.close()
    assert found == [200] * 5


def test_stopping_does_not_wait_for_ever(images, start, paint, monkeypatch):
    monkeypatch.setattr("nearkin.serve.service._STOP_SECONDS", 0.3)
    gate = threading.Event()
    monkeypatch.setattr(images.encoder, "prepare", lambda raw: gate.wait(30))
    with start(images, ServeSettings(rate=0, timeout=0.2)) as server, server.client() as client:
        assert client.post("/v1/identify", files={"image": paint(LOAD_RED)}).status_code == 503
        began = time.monotonic()
    assert time.monotonic() - began < 10
    gate.set()


def test_expensive_work_is_bounded_and_not_done_for_nobody(images, start, problem, monkeypatch):
    monkeypatch.setattr("nearkin.serve.service._MOST_SLOW", 3)
    gate, made = threading.Event(), []
    monkeypatch.setattr(
        images, "find_duplicates", lambda distance, limit: (made.append(distance), gate.wait(30), [])[2]
    )
    monkeypatch.setattr("nearkin.serve.routes._usual_distance", lambda store: 1.0)
    with start(images, ServeSettings(rate=0, timeout=2)) as server, server.client() as client:
        server.learned()
        with ThreadPoolExecutor(8) as pool:
            asked = [f"/v1/duplicates?distance=0.{number}" for number in range(1, 9)]
            first = pool.submit(client.get, asked[0])
            _wait(lambda: made)  # begun, so it no longer takes one of the three places
            found = [*pool.map(client.get, asked[1:]), first.result()]
        kinds = [response.json()["type"].rpartition(":")[2] for response in found]
        assert sorted(kinds) == ["busy"] * 4 + ["timed-out"] * 4
        for response in found:
            assert response.headers["retry-after"] == "1"
        assert client.get("/v1/model").status_code == 200  # not behind the others
        gate.set()
        _wait(lambda: not server.service._slow._jobs)
        assert client.get(asked[0]).json() == {"duplicates": []}
    assert len(made) == 1  # what had begun was kept; what waited was dropped
