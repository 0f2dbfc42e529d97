"""Many requests at once, slow ones, and the end: nothing accepted is lost, nothing is done for nobody."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nearkin.serve.settings import ServeSettings

RED = (200, 30, 30)


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
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint(RED)}) for _ in range(16)]
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
            found = list(pool.map(lambda _: client.post("/v1/identify", files={"image": paint(RED)}), range(2)))
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
        problem(client.post("/v1/identify", files={"image": paint(RED, size=32)}), 413, "item-too-large")
        problem(client.post("/v1/items", files={"image": paint(RED, size=32)}), 413, "item-too-large")
        three = [("image", ("x", paint(RED, seed))) for seed in range(3)]
        problem(client.post("/v1/enrol", files=three, data={"label": "x"}), 413, "too-many-items")
        problem(
            client.post("/v1/identify", content=b"{}", headers={"content-encoding": "gzip"}),
            415,
            "unsupported-media-type",
        )
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200
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
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint(RED, n)}) for n in range(5)]
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
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 503
        began = time.monotonic()
    assert time.monotonic() - began < 10
    gate.set()


def test_expensive_work_is_bounded_and_not_done_for_nobody(images, start, problem, monkeypatch):
    monkeypatch.setattr("nearkin.serve.service._MOST_SLOW", 3)
    gate, made = threading.Event(), []
    monkeypatch.setattr(
        images, "find_duplicates", lambda distance, limit: (made.append(distance), gate.wait(30), [])[2]
    )
    monkeypatch.setattr("nearkin.serve.copies._usual_distance", lambda store: 1.0)
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
