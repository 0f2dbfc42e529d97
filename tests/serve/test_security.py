"""Names, origins, keys, roles and rates, without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import DataError, StorageError
from nearkin.serve.problems import Problem, list_problems, presentable
from nearkin.serve.security import (
    ANONYMOUS,
    AuditLog,
    Identity,
    RateLimit,
    allowed_names,
    authenticate,
    check_host,
    check_origin,
    is_write,
)
from nearkin.serve.settings import Key, ServeSettings, is_loopback, parse_keys


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _scope(**headers) -> dict:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": "/v1/items", "headers": pairs}


def test_keys_are_read_from_roles_and_digests():
    keys = parse_keys(f" read:{_digest('one')}, write:{_digest('two').upper()},")
    assert keys == (Key("read", _digest("one")), Key("write", _digest("two")))
    assert parse_keys("") == ()
    assert keys[0].name == _digest("one")[:8]


@pytest.mark.parametrize("text", ["secret", "admin:" + "0" * 64, "read:" + "0" * 63, "read:" + "g" * 64, "read"])
def test_other_entries_are_refused_and_not_repeated(text):
    with pytest.raises(DataError, match=r"\b1\b") as refused:
        parse_keys(text)
    assert text == "read" or text not in str(refused.value)


@pytest.mark.parametrize("role", ["read", "write"])
def test_an_empty_key_opens_nothing(role):
    with pytest.raises(DataError, match="empty"):
        parse_keys(f"read:{_digest('one')},{role}:{_digest('').upper()}")
    assert authenticate(_scope(x_api_key=""), (Key(role, _digest("")),)) is None
    assert authenticate(_scope(authorization="Bearer "), (Key(role, _digest("")),)) is None


@pytest.mark.parametrize("text", [",", " ", " , ,"])
def test_keys_without_an_entry_are_refused(text):
    with pytest.raises(DataError, match="keys"):
        parse_keys(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_off_loopback_needs_keys(host, loopback):
    assert is_loopback(host) == loopback
    settings = ServeSettings(host=host)
    if loopback:
        settings.check_safe()
    else:
        with pytest.raises(DataError, match="NEARKIN_API_KEYS"):
            settings.check_safe()
    ServeSettings(host=host, keys=parse_keys(f"read:{_digest('x')}")).check_safe()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"queue": 0},
        {"max_body": 0},
        {"timeout": 0},
        {"memory": 10},
        {"connections": 0},
        {"max_call_pixels": 10},
        {"burst": 0},
        {"origins": ("*",)},
        {"origins": ("https://a.example/path",)},
        {"origins": ("a.example",)},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(DataError):
        ServeSettings(**wrong)


@pytest.mark.parametrize("key", ["one", "two", "three", "", "One"])
@pytest.mark.parametrize("way", ["authorization", "x_api_key"])
def test_a_key_gives_its_role(key, way):
    keys = parse_keys(f"read:{_digest('one')},write:{_digest('two')}")
    found = authenticate(_scope(**{way: f"Bearer {key}" if way == "authorization" else key}), keys)
    expected = {"one": Identity("read", _digest("one")[:8]), "two": Identity("write", _digest("two")[:8])}
    assert found == expected.get(key)


@pytest.mark.parametrize("sent", [{}, {"authorization": "Basic two"}, {"authorization": "two"}, {"cookie": "two"}])
def test_anything_else_is_no_key(sent):
    assert authenticate(_scope(**sent), parse_keys(f"write:{_digest('two')}")) is None


def test_two_keys_at_once_are_none():
    sent = _scope(authorization="Bearer two", x_api_key="two")
    assert authenticate(sent, parse_keys(f"write:{_digest('two')}")) is None


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765", "LOCALHOST:8765"])
def test_own_names_are_answered(host):
    assert check_host(_scope(host=host), allowed_names(ServeSettings())) == host.lower()


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost", "127.0.0.1", "127.0.0.1:80", "localhost:8765.evil.example", "", "a,b"),
        *("localhost:8765:1", "localhost:8765:", "[::1]:8765:1", "127.0.0.1:876543", "localhost:²"),
    ],
)
def test_other_names_are_not(host):
    with pytest.raises(Problem, match="host-refused"):
        check_host(_scope(host=host), allowed_names(ServeSettings()))


def test_configured_names_and_the_address_itself_are_answered():
    names = allowed_names(ServeSettings(host="192.168.1.4", hosts=("Shop.example", "other.example:99")))
    for host in ("shop.example", "shop.example:8765", "shop.example:443", "other.example:99", "192.168.1.4:8765"):
        check_host(_scope(host=host), names)
    for host in ("other.example:98", "shop.example:", "shop.example:1:2", "shop.example:x", "shop.example:123456"):
        with pytest.raises(Problem, match="host-refused"):
            check_host(_scope(host=host), names)
    with pytest.raises(Problem, match="host-refused"):
        check_host({"headers": [(b"host", "shop.example:²".encode("latin-1"))]}, names)


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, True),
        ({"origin": "http://localhost:8765"}, True),
        ({"origin": "https://localhost:8765"}, True),
        ({"origin": "https://friend.example"}, True),
        ({"origin": "http://localhost:9999"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "https://friend.example.evil.example"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, False),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, False),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "navigate"}, False),
        ({"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}, True),
        ({"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}, True),
    ],
)
def test_only_the_own_and_befriended_origins_may_use_it(headers, fine):
    if fine:
        check_origin(_scope(**headers), "localhost:8765", ("https://friend.example",))
        return
    with pytest.raises(Problem, match="origin-refused"):
        check_origin(_scope(**headers), "localhost:8765", ("https://friend.example",))


@pytest.mark.parametrize(("path", "fine"), [("/", True), ("/static/a.js", True), ("/metrics", False), ("/v1/x", False)])
def test_links_of_other_sites_lead_to_the_page_and_no_further(path, fine):
    sent = _scope(sec_fetch_site="cross-site", sec_fetch_mode="navigate") | {"path": path}
    if fine:
        check_origin(sent, "localhost:8765", ())
        return
    with pytest.raises(Problem, match="origin-refused"):
        check_origin(sent, "localhost:8765", ())


@pytest.mark.parametrize(
    ("method", "path", "write"),
    [
        ("GET", "/v1/items", False),
        ("HEAD", "/v1/items", False),
        ("POST", "/v1/identify", False),
        ("POST", "/v1/search", False),
        ("POST", "/v1/verify", False),
        ("POST", "/v1/enrol", True),
        ("POST", "/v1/items", True),
        ("PATCH", "/v1/items/1", True),
        ("DELETE", "/v1/items/1", True),
        ("POST", "/v1/identify/", True),
        ("BREW", "/v1/anything", True),
    ],
)
def test_what_counts_as_a_write(method, path, write):
    assert is_write({"method": method, "path": path}) == write


@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0.5, 50), st.integers(1, 20))
def test_nobody_gets_more_than_burst_plus_rate_times_time(gaps, rate, burst):
    now = [0.0]
    limit = RateLimit(rate, burst, lambda: now[0])
    taken = 0
    for gap in gaps:
        now[0] += gap
        wait = limit.take("somebody")
        taken += wait == 0
        assert taken <= burst + rate * now[0] + 1e-6
        if wait:
            now[0] += wait + 1e-9
            assert limit.take("somebody") == 0
            taken += 1


def test_callers_have_buckets_of_their_own_and_the_oldest_are_forgotten():
    limit = RateLimit(1.0, 1, lambda: 0.0)
    assert [limit.take("a"), limit.take("b")] == [0.0, 0.0]
    assert limit.take("a") > 0
    for number in range(20_000):
        limit.take(str(number))
    assert len(limit._buckets) == 10_000


@pytest.mark.parametrize(
    "detail", ["/home/somebody/shop.gallery is gone", "in '/srv/x/y'", "C:\\x", "<BytesIO at 0x7f00aa112233>", "a.py"]
)
def test_details_that_name_something_of_the_server_are_not_shown(detail):
    assert presentable(detail) == ""


@given(st.text(alphabet=st.characters(exclude_characters="/\\~.x"), max_size=2000))
def test_other_details_are_shown_and_cut(detail):
    shown = presentable(detail)
    assert len(shown) <= 500
    assert shown == "" or detail.startswith(shown[:499])


def test_every_busy_answer_says_when_to_come_back():
    for slug, (status, _) in list_problems().items():
        assert 400 <= status < 600
        assert ("retry-after" in Problem(slug).headers) == (status == 503)


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


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_writes_are_logged_without_the_key(guarded, tmp_path, paint, caplog):
    caplog.set_level(logging.INFO, "nearkin.audit")
    with guarded.client(headers={"x-api-key": "writer"}) as client:
        ids = client.post("/v1/enrol", files={"image": paint(RED)}, data={"label": 'a"b'}).json()["ids"]
        for asked in ({"label": "c"}, {"label": None}, {"metadata": {"n": 1}}):
            client.patch("/v1/items/item-00", json=asked)
        for _ in range(2):
            client.post("/v1/items", files={"image": paint(RED)}, data={"id": "mine", "metadata": '{"b": 1, "a": 2}'})
        client.delete("/v1/items/item-01")
        client.delete("/v1/items/nothing")
    lines = _lines(tmp_path / "audit.jsonl")
    assert [(line["action"], line["ids"], line["changed"]) for line in lines] == [
        ("enrol", ids, {"label": 'a"b', "metadata": []}),
        ("change", ["item-00"], {"label": "c"}),
        ("change", ["item-00"], {"label": None}),
        ("change", ["item-00"], {"metadata": ["n"]}),
        ("add", ["mine"], {"label": None, "metadata": ["a", "b"]}),
        ("replace", ["mine"], {"label": None, "metadata": ["a", "b"]}),
        ("remove", ["item-01"], {}),
    ]
    assert {(line["role"], len(line["key"])) for line in lines} == {("write", 8)}
    assert "writer" not in (tmp_path / "audit.jsonl").read_text()
    assert len(caplog.records) == 7


def test_refused_writes_are_logged(guarded, tmp_path):
    with guarded.client(headers={"x-api-key": "reader"}) as client:
        client.delete("/v1/items/item-01")
        client.get("/v1/items")
    (line,) = _lines(tmp_path / "audit.jsonl")
    assert (line["action"], line["problem"], line["role"]) == ("refused", "role-required", "read")
    assert line["request"] == "DELETE /v1/items/item-01"


def test_a_log_that_is_rotated_goes_on(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write(ANONYMOUS, "remove", ["a"])
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
    log.write(ANONYMOUS, "remove", ["b"])
    log.close()
    assert [line["ids"] for line in _lines(tmp_path / "audit.1")] == [["a"]]
    assert [line["ids"] for line in _lines(tmp_path / "audit.jsonl")] == [["b"]]


def test_a_full_disk_does_not_swallow_lines(caplog):
    log = AuditLog(Path("/dev/full"))
    log.write(ANONYMOUS, "remove", ["a"])
    assert log.failures == 1
    assert "No space left" in caplog.text
    assert '"ids": ["a"]' in caplog.text


def test_a_log_that_cannot_be_written_is_told_at_once(tmp_path):
    with pytest.raises(StorageError, match="audit"):
        AuditLog(tmp_path / "none" / "audit.jsonl")
