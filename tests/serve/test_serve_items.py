"""Items over a real socket: enrolled, listed, changed, removed, and what the gallery says of itself."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor

from nearkin.serve.settings import ServeSettings

RED = (200, 30, 30)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


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
    response = client.post("/v1/items", json={"image": _text(paint(RED, 50)), "id": "my id?#é", "label": "red"})
    assert response.json() == {"id": "my id?#é"}
    assert client.get("/v1/items/my%20id%3F%23%C3%A9").json()["label"] == "red"
    assert client.post("/v1/items", files={"image": paint(RED, 51)}).status_code == 201
    problem(client.post("/v1/items", json={"image": _text(paint(RED, 52)), "id": "a/b"}), 422, "invalid-request")


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
    client.post("/v1/enrol", files={"image": paint(RED, 90)}, data={"label": "red"})
    client.get("/v1/map", params={"limit": 10})
    assert made == [2000, 2000]


def test_duplicates_are_shown_in_part_and_only_near_ones(images, start, paint, problem, monkeypatch):
    monkeypatch.setattr("nearkin.serve.copies._MOST_SHOWN", 3)
    same = paint(RED, 77)
    images.add([same] * 5, "red", ids=[f"copy-{number}" for number in range(5)], progress=False)
    with start(images) as server, server.client() as client:
        (group,) = client.get("/v1/duplicates", params={"distance": 0}).json()["duplicates"]
        assert ([item["id"] for item in group["items"]], group["count"]) == (["copy-0", "copy-1", "copy-2"], 5)
        problem(client.get("/v1/duplicates", params={"distance": 1e9, "limit": 1}), 422, "invalid-request")
        detail = client.get("/v1/duplicates", params={"distance": 1e9}).json()["detail"]
        usual = float(re.search(r"\d\S*\d", detail)[0])
        near = client.get("/v1/duplicates", params={"distance": 0.9 * usual}).json()["duplicates"]
        assert all(group["distance"] <= 0.95 * usual for group in near)
        monkeypatch.setattr("nearkin.serve.copies._MOST_ITEMS", 2)
        images.relabel("copy-0", "blue")
        assert client.get("/v1/duplicates", params={"distance": 0}).json()["duplicates"] == []


def test_distances_are_told_apart_to_two_digits():
    from nearkin.serve.copies import rounded

    assert [rounded(one) for one in (None, 0.0, 0.1234, 0.1251, 1234.0)] == [None, 0.0, 0.12, 0.13, 1200.0]


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
