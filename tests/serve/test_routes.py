"""Questions over a real socket, on real galleries: the same answers as the gallery itself gives."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nearkin.serve.settings import ServeSettings

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
        assert found["note"] == expected.note
        assert found["forecast"] == (expected.forecast and pytest.approx(vars(expected.forecast)))
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
    expected = images.verify(a, b, false_accept_rate=0.01, prior=0.2)
    rates = {"false_accept_rate": 0.01, "prior": 0.2}
    for response in (
        client.post("/v1/verify", files={"a": a, "b": b}, data={name: str(rate) for name, rate in rates.items()}),
        client.post("/v1/verify", json={"a": _text(a), "b": _text(b), **rates}),
    ):
        found = response.json()
        assert found["same"] == expected.same
        assert (found["false_accept_rate"], found["prior"]) == (0.01, 0.2)
        assert found["probability"] == (expected.probability and pytest.approx(expected.probability, abs=1e-3))
        assert found["needed"] == (expected.needed and pytest.approx(expected.needed))
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


ITEM_RED = (200, 30, 30)


def test_a_class_is_enrolled_found_changed_and_removed(client, images, paint, problem):
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
    problem(client.delete(f"/v1/items/{ids[2]}"), 404, "not-found")
    problem(client.get(f"/v1/items/{ids[2]}"), 404, "not-found")
    problem(client.patch(f"/v1/items/{ids[2]}", json={"label": "x"}), 404, "not-found")
    problem(client.get(f"/v1/items/{ids[2]}/thumbnail"), 404, "not-found")


def test_an_item_may_bring_its_id(client, images, paint, problem):
    response = client.post("/v1/items", json={"image": _text(paint(ITEM_RED, 50)), "id": "my id?#é", "label": "red"})
    assert response.json() == {"id": "my id?#é"}
    assert client.get("/v1/items/my%20id%3F%23%C3%A9").json()["label"] == "red"
    assert client.post("/v1/items", files={"image": paint(ITEM_RED, 51)}).status_code == 201
    problem(client.post("/v1/items", json={"image": _text(paint(ITEM_RED, 52)), "id": "a/b"}), 422, "invalid-request")


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
    assert client.get("/v1/suspects", params={"limit": 5}).json() == {
        "suspects": [
            {
                "item": client.get(f"/v1/items/{one.item.id}").json(),
                "suggested": one.suggested,
                "probability": one.probability,
                "own": one.own,
            }
            for one in images.suspicious_labels(limit=5)
        ]
    }
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
    assert made == [2000]
    assert len(set(found)) == 1
    whole = client.get("/v1/map").json()["points"]
    assert [point for point in whole if point in json.loads(found[0])["points"]] == json.loads(found[0])["points"]
    assert made == [2000]  # another limit is a part of the same map
    client.post("/v1/enrol", files={"image": paint(ITEM_RED, 90)}, data={"label": "red"})
    client.get("/v1/map", params={"limit": 10})
    assert made == [2000, 2000]


def test_duplicates_are_shown_in_part_and_only_near_ones(images, start, paint, problem, monkeypatch):
    monkeypatch.setattr("nearkin.serve.routes._MOST_SHOWN", 3)
    same = paint(ITEM_RED, 77)
    images.add([same] * 5, "red", ids=[f"copy-{number}" for number in range(5)], progress=False)
    with start(images) as server, server.client() as client:
        (group,) = client.get("/v1/duplicates", params={"distance": 0}).json()["duplicates"]
        assert ([item["id"] for item in group["items"]], group["count"]) == (["copy-0", "copy-1", "copy-2"], 5)
        problem(client.get("/v1/duplicates", params={"distance": 1e9, "limit": 1}), 422, "invalid-request")
        detail = client.get("/v1/duplicates", params={"distance": 1e9}).json()["detail"]
        usual = float(re.search(r"\d\S*\d", detail)[0])
        near = client.get("/v1/duplicates", params={"distance": 0.9 * usual}).json()["duplicates"]
        assert all(group["distance"] <= 0.95 * usual for group in near)
        monkeypatch.setattr("nearkin.serve.routes._MOST_ITEMS", 2)
        images.relabel("copy-0", "blue")
        assert client.get("/v1/duplicates", params={"distance": 0}).json()["duplicates"] == []


def test_distances_are_told_apart_to_two_digits():
    from nearkin.serve.routes import round_distance

    assert [round_distance(one) for one in (None, 0.0, 0.1234, 0.1251, 1234.0)] == [None, 0.0, 0.12, 0.13, 1200.0]


def test_a_change_happens_in_full_or_not_at_all(client, images, problem):
    before = images.get("item-00")
    asked = {"metadata": {"leaked": 1}, "label": "a\tb"}
    problem(client.patch("/v1/items/item-00", json=asked), 422, "invalid-request")
    assert images.get("item-00") == before
    problem(client.patch("/v1/items/item-00", json={"metadata": {"": 1}, "label": "c"}), 422, "invalid-request")
    assert images.get("item-00") == before


def test_the_model_says_what_the_caller_may_do(guarded, start, images):
    with guarded.client() as client:
        for key, writes in (("reader", False), ("writer", True)):
            assert client.get("/v1/model", headers={"x-api-key": key}).json()["may"] == {"read": True, "write": writes}
    for read_only in (False, True):
        with start(images, ServeSettings(rate=0, read_only=read_only)) as server, server.client() as client:
            assert client.get("/v1/model").json()["may"] == {"read": True, "write": not read_only}
