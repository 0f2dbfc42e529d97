"""Questions over a real socket, on real galleries: the same answers as the gallery itself gives."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

RED, GREEN = (200, 30, 30), (30, 180, 40)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


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


def test_conditions_cannot_feel_for_the_paths_of_the_server(client, paint, problem):
    for where in ("source like '/%'", "not (number = 1 or source is null)", "source in ('a')"):
        problem(client.get("/v1/items", params={"where": where}), 422, "invalid-request")
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


def test_a_gallery_of_vectors_takes_vectors_only(vectors, start, paint, problem):
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
            problem(client.post("/v1/identify", json=wrong), 422, "invalid-request")
        problem(client.post("/v1/identify", files={"image": paint(RED)}), 422, "invalid-request")
        problem(client.post("/v1/enrol", json={"label": "x", "image": _text(paint(RED))}), 422, "invalid-request")


def test_a_gallery_with_a_model_refuses_vectors(client, problem):
    problem(client.post("/v1/identify", json={"vector": [0.1] * 16}), 422, "invalid-request")


def test_vectors_agree_with_numpy(vectors, start):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 8))
    with start(vectors) as server, server.client() as client:
        for row in rows:
            found = client.post("/v1/search", json={"vector": row.tolist(), "k": 1}).json()["neighbours"][0]
            assert found["id"] == vectors.search(row, 1)[0].item.id


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats_go_by_content(client, paint, kind):
    response = client.post("/v1/identify", files={"image": ("evil.exe", paint(RED, kind=kind), "text/html")})
    assert response.json()["label"] == "red"


def test_truncated_images_are_told_so(client, paint, problem):
    raw = paint(RED, size=64, kind="JPEG")
    problem(client.post("/v1/identify", files={"image": raw[: len(raw) // 2]}), 422, "unreadable-item")
    problem(
        client.post("/v1/enrol", files={"image": raw[: len(raw) // 2]}, data={"label": "x"}), 422, "unreadable-item"
    )


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b'{"image": "AAAA"', 400, "malformed-body"),
        (b"", 400, "malformed-body"),
        (b"[" * 10_000, 400, "malformed-body"),
        (b"[" * 200_000, 413, "too-many-items"),
        (b"[]", 422, "invalid-request"),
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
def test_bodies_that_make_no_sense_are_told_so(client, body, status, slug, problem):
    response = client.post("/v1/identify", content=body, headers={"content-type": "application/json"})
    assert len(response.content) < 2000
    problem(response, status, slug)
