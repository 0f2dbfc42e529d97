"""The endpoints, over a real socket, on real galleries: the same answers as the gallery itself gives."""

from __future__ import annotations

import base64
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nearkin.serve.settings import ServeSettings, parse_keys

RED, GREEN = (200, 30, 30), (30, 180, 40)


@pytest.fixture
def server(images, start):
    with start(images) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as opened:
        yield opened


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _problem(response, status: int, slug: str) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"] == f"urn:nearkin:problem:{slug}"
    assert document["status"] == status
    return document


def test_identify_says_what_the_gallery_says(client, images, paint):
    raw = paint(RED, 100)
    expected = images.identify(raw, neighbours=3)
    for response in (
        client.post("/v1/identify", files={"image": ("any.name", raw)}, data={"neighbours": "3"}),
        client.post("/v1/identify", json={"image": _text(raw), "neighbours": 3}),
    ):
        assert response.status_code == 200
        found = response.json()
        assert (found["label"], found["known"], found["reason"]) == (expected.label, expected.known, expected.reason)
        assert [near["id"] for near in found["neighbours"]] == [near.item.id for near in expected.neighbours]
        assert found["probability"] == (expected.probability and pytest.approx(expected.probability, abs=1e-6))
        assert [near["distance"] for near in found["neighbours"]] == pytest.approx(
            [near.distance for near in expected.neighbours], abs=1e-4
        )
        assert found["place"] is None


def test_the_place_of_a_query_is_that_of_the_map(client, images, paint):
    found = client.post("/v1/identify", files={"image": paint(RED, 100)}, data={"place": "true"}).json()
    x, y = images.place(images.embed([paint(RED, 100)])[0])
    assert (found["place"]["x"], found["place"]["y"]) == pytest.approx((x, y), abs=1e-3)


def test_search_heeds_a_condition_with_bound_parameters(client, paint):
    asked = {
        "image": _text(paint(RED, 7)),
        "k": 5,
        "where": "even = :even and number < 20",
        "parameters": {"even": True},
    }
    found = client.post("/v1/search", json=asked).json()["neighbours"]
    assert len(found) == 5
    assert all(near["metadata"]["even"] is True and near["metadata"]["number"] < 20 for near in found)
    form = {"k": "5", "where": asked["where"], "parameters": json.dumps(asked["parameters"])}
    again = client.post("/v1/search", files={"image": paint(RED, 7)}, data=form).json()["neighbours"]
    assert [near["id"] for near in again] == [near["id"] for near in found]


def test_conditions_cannot_feel_for_the_paths_of_the_server(client, paint):
    for where in ("source like '/%'", "not (number = 1 or source is null)", "source in ('a')"):
        _problem(client.get("/v1/items", params={"where": where}), 422, "invalid-request")
    assert client.get("/v1/items", params={"where": "metadata.source is null"}).status_code == 200


def test_verify_is_the_gallerys(client, images, paint):
    a, b = paint(RED, 1), paint(GREEN, 2)
    expected = images.verify(a, b, false_accept_rate=0.01)
    for response in (
        client.post("/v1/verify", files={"a": a, "b": b}, data={"false_accept_rate": "0.01"}),
        client.post("/v1/verify", json={"a": _text(a), "b": _text(b), "false_accept_rate": 0.01}),
    ):
        found = response.json()
        assert found["same"] == expected.same
        assert found["false_accept_rate"] == 0.01
        assert found["distance"] == pytest.approx(expected.distance, abs=1e-4)


def test_a_class_is_enrolled_found_changed_and_removed(client, images, paint):
    label = 'black/white <b>"x"</b> ü'
    black = [paint((5, 5, 5), seed) for seed in range(3)]
    response = client.post(
        "/v1/enrol", files=[("image", ("a", raw)) for raw in black], data={"label": label, "metadata": '{"new": true}'}
    )
    assert response.status_code == 201
    ids = response.json()["ids"]
    assert [images.get(id).label for id in ids] == [label] * 3
    assert images.get(ids[0]).metadata == {"new": True}
    item = client.get(f"/v1/items/{ids[0]}").json()
    assert (item["label"], item["metadata"]) == (label, {"new": True})
    assert "source" not in item
    picture = client.get(item["thumbnail"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content == images.thumbnail(ids[0])
    changed = client.patch(f"/v1/items/{ids[0]}", json={"label": None, "metadata": {"n": 1}}).json()
    assert (changed["label"], changed["metadata"]) == (None, {"n": 1})
    assert client.patch(f"/v1/items/{ids[1]}", json={"label": "grey"}).json()["metadata"] == {"new": True}
    assert client.delete(f"/v1/items/{ids[2]}").status_code == 204
    _problem(client.delete(f"/v1/items/{ids[2]}"), 404, "not-found")
    _problem(client.get(f"/v1/items/{ids[2]}"), 404, "not-found")
    _problem(client.patch(f"/v1/items/{ids[2]}", json={"label": "x"}), 404, "not-found")
    _problem(client.get(f"/v1/items/{ids[2]}/thumbnail"), 404, "not-found")


def test_an_item_may_bring_its_id(client, images, paint):
    response = client.post("/v1/items", json={"image": _text(paint(RED, 50)), "id": "my id?#é", "label": "red"})
    assert response.json() == {"id": "my id?#é"}
    assert client.get("/v1/items/my%20id%3F%23%C3%A9").json()["label"] == "red"
    assert client.post("/v1/items", files={"image": paint(RED, 51)}).status_code == 201
    _problem(client.post("/v1/items", json={"image": _text(paint(RED, 52)), "id": "a/b"}), 422, "invalid-request")


def test_pages_of_items_hold_each_once(client, images):
    seen, after = [], None
    for _ in range(20):
        page = client.get("/v1/items", params={"limit": 7} | ({} if after is None else {"after": after})).json()
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(seen) == sorted(item.id for item in images.items(limit=1000))
    assert len(seen) == 36


def test_what_the_gallery_says_of_itself(client, images):
    points = client.get("/v1/map", params={"limit": 20}).json()["points"]
    assert len(points) == 20
    assert all(0 <= point["x"] <= 1 and 0 <= point["y"] <= 1 for point in points)
    assert client.get("/v1/suspects").json()["suspects"] is not None
    assert client.get("/v1/duplicates", params={"distance": 0}).json()["duplicates"] == []
    about = client.get("/v1/model").json()
    assert (about["kind"], about["dimension"], about["stats"]["items"]) == ("image", 16, 36)
    assert about["fingerprint"] == images.settings.fingerprint
    assert about["stats"]["classes"]["blue"] == 12
    assert images.path not in json.dumps(about)


def test_expensive_answers_are_made_once_for_each_state(server, client, images, paint, monkeypatch):
    made = []
    original = images.map
    monkeypatch.setattr(images, "map", lambda limit: made.append(limit) or original(limit))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.get("/v1/map", params={"limit": 10}).content, range(8)))
    assert made == [10]
    assert len(set(found)) == 1
    client.post("/v1/enrol", files={"image": paint(RED, 90)}, data={"label": "red"})
    client.get("/v1/map", params={"limit": 10})
    assert made == [10, 10]


def test_a_gallery_of_vectors_takes_vectors_only(vectors, start, paint):
    row = [1.0, 0.1, 0, 0, 0, 0, 0, 0.0]
    with start(vectors) as server, server.client() as client:
        found = client.post("/v1/identify", json={"vector": row}).json()
        assert found["label"] == "class 0"
        assert found["neighbours"][0]["thumbnail"] is None
        near = client.post("/v1/search", json={"vector": row, "k": 60}).json()["neighbours"]
        assert [one["id"] for one in near] == [one.item.id for one in vectors.search(row, 60)]
        other = [0, 1.0, 0, 0, 0, 0, 0, 0]
        found = client.post("/v1/verify", json={"vector_a": row, "vector_b": other}).json()
        assert found["distance"] == pytest.approx(vectors.verify(row, other).distance, abs=1e-5)
        ids = client.post("/v1/enrol", json={"label": "new", "vectors": [row, other]}).json()["ids"]
        assert [vectors.get(id).label for id in ids] == ["new", "new"]
        assert client.post("/v1/items", json={"vector": row, "id": "one"}).json() == {"id": "one"}
        for wrong in ({"vector": row[:-1]}, {"vector": [*row[:-1], 1e300]}, {"vector": [0.0] * 8}, {"vector": []}):
            _problem(client.post("/v1/identify", json=wrong), 422, "invalid-request")
        _problem(client.post("/v1/identify", files={"image": paint(RED)}), 422, "invalid-request")
        _problem(client.post("/v1/enrol", json={"label": "x", "image": _text(paint(RED))}), 422, "invalid-request")


def test_a_gallery_with_a_model_refuses_vectors(client):
    _problem(client.post("/v1/identify", json={"vector": [0.1] * 16}), 422, "invalid-request")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b'{"image": "AAAA"', 400, "malformed-body"),
        (b"", 400, "malformed-body"),
        (b"[" * 200_000, 400, "malformed-body"),
        (b'{"image": "\xff"}', 400, "malformed-body"),
        (b'{"image": "\\ud800"}', 400, "malformed-body"),
        (b'{"vector": [NaN]}', 422, "invalid-request"),
        (b'{"vector": [1e999]}', 422, "invalid-request"),
        (b'{"image": "AAAA", "extra": 1}', 422, "invalid-request"),
        (b'{"image": "not base64!"}', 422, "invalid-request"),
        (b'{"image": ""}', 422, "invalid-request"),
        (b'{"image": "AAAA", "neighbours": 1.5}', 422, "invalid-request"),
        (b'{"image": "AAAA", "neighbours": true}', 422, "invalid-request"),
        (b'{"image": "AAAA", "neighbours": 100000}', 422, "invalid-request"),
        (b"{}", 422, "invalid-request"),
        (b'{"image": "AAAA"}', 422, "unreadable-item"),
    ],
)
def test_bodies_that_make_no_sense_are_told_so(client, body, status, slug):
    response = client.post("/v1/identify", content=body, headers={"content-type": "application/json"})
    assert len(response.content) < 2000
    _problem(response, status, slug)


def test_limits_on_bodies_pixels_and_images(images, start, paint):
    settings = ServeSettings(rate=0, max_body=100_000, max_pixels=1000, max_images=2)
    with start(images, settings) as server, server.client() as client:
        _problem(client.post("/v1/identify", files={"image": b"x" * 100_001}), 413, "body-too-large")
        pieces = (b"x" * 1000 for _ in range(200))
        response = client.post("/v1/identify", content=pieces, headers={"content-type": "application/json"})
        _problem(response, 413, "body-too-large")
        _problem(client.post("/v1/identify", files={"image": paint(RED, size=32)}), 413, "item-too-large")
        _problem(client.post("/v1/items", files={"image": paint(RED, size=32)}), 413, "item-too-large")
        three = [("image", ("x", paint(RED, seed))) for seed in range(3)]
        _problem(client.post("/v1/enrol", files=three, data={"label": "x"}), 413, "too-many-items")
        _problem(
            client.post("/v1/identify", content=b"{}", headers={"content-encoding": "gzip"}),
            415,
            "unsupported-media-type",
        )
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200
        assert server.service.gallery is images
        assert len(images) == 36


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats_go_by_content(client, paint, kind):
    response = client.post("/v1/identify", files={"image": ("evil.exe", paint(RED, kind=kind), "text/html")})
    assert response.json()["label"] == "red"


def test_truncated_images_are_told_so(client, paint):
    raw = paint(RED, size=64, kind="JPEG")
    _problem(client.post("/v1/identify", files={"image": raw[: len(raw) // 2]}), 422, "unreadable-item")
    _problem(
        client.post("/v1/enrol", files={"image": raw[: len(raw) // 2]}, data={"label": "x"}), 422, "unreadable-item"
    )


@pytest.fixture
def guarded(images, start, tmp_path):
    import hashlib

    digests = [hashlib.sha256(key.encode()).hexdigest() for key in ("reader", "writer")]
    keys = parse_keys(f"read:{digests[0]},write:{digests[1]}")
    with start(images, ServeSettings(keys=keys, rate=0, audit_log=tmp_path / "audit.jsonl")) as running:
        yield running


def test_keys_and_roles(guarded, paint):
    form = {"files": {"image": paint(RED)}, "data": {"label": "red"}}
    with guarded.client() as client:
        refused = client.get("/v1/items")
        _problem(refused, 401, "key-required")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        _problem(client.get("/v1/items", headers={"x-api-key": "wrong"}), 401, "key-required")
        _problem(client.get("/metrics"), 401, "key-required")
        for open_to_all in ("/healthz", "/readyz", "/openapi.json"):
            assert client.get(open_to_all).status_code == 200
        reader, writer = {"authorization": "Bearer reader"}, {"x-api-key": "writer"}
        assert client.get("/v1/items", headers=reader).status_code == 200
        assert client.post("/v1/identify", files=form["files"], headers=reader).status_code == 200
        _problem(client.post("/v1/enrol", **form, headers=reader), 403, "role-required")
        _problem(client.patch("/v1/items/item-00", json={"label": "x"}, headers=reader), 403, "role-required")
        _problem(client.delete("/v1/items/item-00", headers=reader), 403, "role-required")
        assert client.post("/v1/enrol", **form, headers=writer).status_code == 201


def test_writes_are_logged_without_the_key(guarded, tmp_path, paint, caplog):
    caplog.set_level(logging.INFO, "nearkin.audit")
    with guarded.client(headers={"x-api-key": "writer"}) as client:
        ids = client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": 'a"b'}).json()["ids"]
        client.patch("/v1/items/item-00", json={"label": "c"})
        client.delete("/v1/items/item-01")
        client.delete("/v1/items/nothing")
    text = (tmp_path / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["action"], line["ids"], line["label"]) for line in lines] == [
        ("enrol", ids, 'a"b'),
        ("change", ["item-00"], "c"),
        ("remove", ["item-01"], None),
    ]
    assert {(line["role"], len(line["key"])) for line in lines} == {("write", 8)}
    assert "writer" not in text
    assert len(caplog.records) == 3


def test_read_only_refuses_every_write(images, start, paint):
    with start(images, ServeSettings(rate=0, read_only=True)) as server, server.client() as client:
        _problem(client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": "x"}), 403, "read-only")
        _problem(client.delete("/v1/items/item-00"), 403, "read-only")
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200


def test_hosts_and_origins_are_checked_even_on_loopback(server, client):
    _problem(client.get("/v1/items", headers={"host": f"evil.example:{server.port}"}), 421, "host-refused")
    _problem(client.get("/v1/items", headers={"origin": "https://evil.example"}), 403, "origin-refused")
    assert client.get("/v1/items", headers={"origin": server.url}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/v1/items", headers={"origin": server.url}).headers


def test_cross_origin_use_only_where_configured(images, start):
    friend = "https://friend.example"
    with start(images, ServeSettings(rate=0, origins=(friend,))) as server, server.client() as client:
        asked = {"origin": friend, "access-control-request-method": "POST"}
        allowed = client.options("/v1/identify", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == friend
        assert client.get("/v1/items", headers={"origin": friend}).headers["access-control-allow-origin"] == friend
        _problem(client.get("/v1/items", headers={"origin": "https://evil.example"}), 403, "origin-refused")


def test_too_many_requests_are_slowed_down(images, start):
    with start(images, ServeSettings(rate=0.5, burst=3)) as server, server.client() as client:
        found = [client.get("/v1/items") for _ in range(6)]
        assert [response.status_code for response in found[:3]] == [200] * 3
        _problem(found[-1], 429, "rate-limited")
        assert 1 <= int(found[-1].headers["retry-after"]) <= 2
        assert client.get("/healthz").status_code == 200


def test_headers_of_every_answer(client):
    for path in ("/v1/items", "/healthz", "/nothing", "/v1/items/none", "/"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
    assert client.get("/v1/items").headers["cache-control"] == "no-store"


def test_the_page_is_served_from_a_fixed_table(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    for path in ("/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/app.py", "/static/"):
        _problem(client.get(path), 404, "not-found")


def test_methods(client):
    head = client.head("/v1/items/item-00")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(client.get("/v1/items/item-00").content)
    refused = client.put("/v1/items/item-00")
    _problem(refused, 405, "method-not-allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "PATCH", "DELETE", "OPTIONS"}
    assert client.options("/v1/enrol").headers["allow"] == "POST, OPTIONS"


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


def test_a_full_queue_is_told_when_to_come_back_and_nothing_accepted_is_lost(images, start, paint, monkeypatch):
    gate = threading.Event()
    run = images.encoder.run
    monkeypatch.setattr(images.encoder, "run", lambda samples: (gate.wait(20), run(samples))[1])
    with start(images, ServeSettings(rate=0, queue=4)) as server, server.client() as client:
        with ThreadPoolExecutor(16) as pool:
            tasks = [pool.submit(client.post, "/v1/identify", files={"image": paint(RED)}) for _ in range(16)]
            while sum(task.done() for task in tasks) < 12:
                pass
            gate.set()
        found = [task.result() for task in tasks]
    assert sorted(response.status_code for response in found) == [200] * 4 + [503] * 12
    for response in found:
        if response.status_code == 503:
            _problem(response, 503, "busy")
            assert response.headers["retry-after"] == "1"


def test_an_answer_that_takes_too_long_is_given_up(images, start, paint, monkeypatch):
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
            _problem(response, 503, "timed-out")
            assert response.headers["retry-after"]
        gate.set()
    assert ran == [1]  # the second was dropped before it began


def test_failures_leak_nothing(images, start, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("secret of /srv/nearkin/shop.gallery")

    monkeypatch.setattr(images, "items", fail)
    with start(images) as server, server.client() as client:
        response = client.get("/v1/items")
        assert "detail" not in _problem(response, 500, "internal")
        assert "secret" not in response.text
        assert client.get("/healthz").status_code == 200
    assert "secret of" in caplog.text


def test_learning_anew_happens_in_the_background(images, start, paint):
    with start(images) as server, server.client() as client:
        before = _key_of(client, images)
        for seed in range(8):
            client.post("/v1/enrol", files={"image": paint(GREEN, 200 + seed)}, data={"label": "green"})
            assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200
        for _ in range(500):
            if not images.calibration_due:
                break
            threading.Event().wait(0.01)
        assert not images.calibration_due
        assert images.calibration.key != before
        assert not images.auto_recalibrate


def _key_of(client, images):
    for _ in range(500):
        if images.calibration is not None:
            return images.calibration.key
        threading.Event().wait(0.01)
    raise AssertionError("the gallery was not calibrated")


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
            while server.service._encodes.waiting < 5:
                pass
            server.server.should_exit = True
            gate.set()
        found = [task.result().status_code for task in tasks]
        client.close()
    assert found == [200] * 5


def test_the_openapi_document_shows_both_ways_to_ask(client):
    document = client.get("/openapi.json").json()
    for path in ("/v1/identify", "/v1/search", "/v1/verify", "/v1/enrol", "/v1/items"):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        assert set(content) == {"application/json", "multipart/form-data"}
        assert content["application/json"]["example"]
    assert document["components"]["schemas"]["ProblemAnswer"]
    examples = [
        response["content"]["application/json"]["example"]
        for path in document["paths"].values()
        for operation in path.values()
        for status, response in operation["responses"].items()
        if status.startswith("2") and "example" in response.get("content", {}).get("application/json", {})
    ]
    assert len(examples) >= 10


def test_the_examples_of_the_document_are_valid():
    from nearkin.serve.documentation import _ANSWERED, _ASKED

    for model, example in _ASKED.items():
        model.model_validate_json(json.dumps(example), strict=True)
    for answer, example in _ANSWERED.items():
        answer.model_validate(example, strict=True, extra="forbid")


def test_vectors_agree_with_numpy(vectors, start):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 8))
    with start(vectors) as server, server.client() as client:
        for row in rows:
            found = client.post("/v1/search", json={"vector": row.tolist(), "k": 1}).json()["neighbours"][0]
            assert found["id"] == vectors.search(row, 1)[0].item.id
