"""Names, origins, keys, roles and rates, without a server."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.serve.problems import Problem, list_problems, presentable
from nearkin.serve.security import (
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
