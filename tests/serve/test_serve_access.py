"""Keys, roles, names, origins and headers over a real socket."""

from __future__ import annotations

from nearkin.serve.settings import ServeSettings

RED = (200, 30, 30)


def test_keys_and_roles(guarded, paint, problem):
    form = {"files": {"image": paint(RED)}, "data": {"label": "red"}}
    with guarded.client() as client:
        refused = client.get("/v1/items")
        problem(refused, 401, "key-required")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        problem(client.get("/v1/items", headers={"x-api-key": "wrong"}), 401, "key-required")
        problem(client.get("/metrics"), 401, "key-required")
        for open_to_all in ("/healthz", "/readyz", "/openapi.json"):
            assert client.get(open_to_all).status_code == 200
        reader, writer = {"authorization": "Bearer reader"}, {"x-api-key": "writer"}
        assert client.get("/v1/items", headers=reader).status_code == 200
        assert client.post("/v1/identify", files=form["files"], headers=reader).status_code == 200
        problem(client.post("/v1/enrol", **form, headers=reader), 403, "role-required")
        problem(client.patch("/v1/items/item-00", json={"label": "x"}, headers=reader), 403, "role-required")
        problem(client.delete("/v1/items/item-00", headers=reader), 403, "role-required")
        assert client.post("/v1/enrol", **form, headers=writer).status_code == 201


def test_read_only_refuses_every_write(images, start, paint, problem):
    with start(images, ServeSettings(rate=0, read_only=True)) as server, server.client() as client:
        problem(client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": "x"}), 403, "read-only")
        problem(client.delete("/v1/items/item-00"), 403, "read-only")
        assert client.post("/v1/identify", files={"image": paint(RED)}).status_code == 200


def test_hosts_and_origins_are_checked_even_on_loopback(server, client, problem):
    problem(client.get("/v1/items", headers={"host": f"evil.example:{server.port}"}), 421, "host-refused")
    problem(client.get("/v1/items", headers={"origin": "https://evil.example"}), 403, "origin-refused")
    assert client.get("/v1/items", headers={"origin": server.url}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/v1/items", headers={"origin": server.url}).headers


def test_cross_origin_use_only_where_configured(images, start, problem):
    friend = "https://friend.example"
    with start(images, ServeSettings(rate=0, origins=(friend,))) as server, server.client() as client:
        asked = {"origin": friend, "access-control-request-method": "POST"}
        allowed = client.options("/v1/identify", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == friend
        assert client.get("/v1/items", headers={"origin": friend}).headers["access-control-allow-origin"] == friend
        problem(client.get("/v1/items", headers={"origin": "https://evil.example"}), 403, "origin-refused")


def test_too_many_requests_are_slowed_down(images, start, problem):
    with start(images, ServeSettings(rate=0.5, burst=3)) as server, server.client() as client:
        found = [client.get("/v1/items") for _ in range(6)]
        assert [response.status_code for response in found[:3]] == [200] * 3
        problem(found[-1], 429, "rate-limited")
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


def test_the_page_is_served_from_a_fixed_table(client, problem):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    for path in ("/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/app.py", "/static/"):
        problem(client.get(path), 404, "not-found")


def test_methods(client, problem):
    head = client.head("/v1/items/item-00")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(client.get("/v1/items/item-00").content)
    refused = client.put("/v1/items/item-00")
    problem(refused, 405, "method-not-allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "PATCH", "DELETE", "OPTIONS"}
    assert client.options("/v1/enrol").headers["allow"] == "POST, OPTIONS"


def test_failures_leak_nothing(images, start, monkeypatch, caplog, problem):
    def fail(*_, **__):
        raise RuntimeError("secret of /srv/nearkin/shop.gallery")

    monkeypatch.setattr(images, "items", fail)
    with start(images) as server, server.client() as client:
        response = client.get("/v1/items")
        assert "detail" not in problem(response, 500, "internal")
        assert "secret" not in response.text
        assert client.get("/healthz").status_code == 200
    assert "secret of" in caplog.text
