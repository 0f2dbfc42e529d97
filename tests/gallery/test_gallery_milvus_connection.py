"""Addresses of Milvus, and a connection that tries again."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from nearkin.errors import DataError, StorageError
from nearkin.gallery.milvus import MilvusStore
from nearkin.gallery.milvus import connection as connection_module
from nearkin.gallery.milvus.connection import TRIES, Connection, MissingCollectionError, parse_address
from nearkin.gallery.values import Settings

grpc = pytest.importorskip("grpc", exc_type=ImportError)
pymilvus = pytest.importorskip("pymilvus", exc_type=ImportError)

ADDRESS = "milvus://ann:s3cret@127.0.0.1:19999/shop"


class StandIn:
    """A client whose calls fail in a given order, then succeed."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.calls: list[dict[str, Any]] = []

    def query(self, *_: Any, **kwargs: Any) -> str:
        self.calls.append(kwargs)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def close(self) -> None: ...


class CutOffError(grpc.RpcError):
    """What grpc raises itself."""

    def __init__(self, code: Any) -> None:
        self._code = code

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return "too late"


def unavailable() -> Exception:
    return pymilvus.MilvusException(grpc.StatusCode.UNAVAILABLE, "no route\nTraceback: many lines")


def connected(monkeypatch, failures: list[Exception]) -> tuple[Connection, StandIn, list[float]]:
    stand_in, pauses = StandIn(failures), []
    monkeypatch.setattr(pymilvus, "MilvusClient", lambda *_, **__: stand_in)
    return Connection(parse_address(ADDRESS), sleep=pauses.append), stand_in, pauses


@pytest.mark.parametrize(
    ("text", "uri", "database", "collection", "token", "shown"),
    [
        ("milvus://host/shop", "http://host:19530", "", "shop", "", "milvus://host/shop"),
        ("milvus://host:99/base/shop", "http://host:99", "base", "shop", "", "milvus://host:99/base/shop"),
        ("milvus+tls://h/shop", "https://h:19530", "", "shop", "", "milvus+tls://h/shop"),
        ("milvus://ann:p%40ss@h/shop", "http://h:19530", "", "shop", "ann:p@ss", "milvus://h/shop"),
        ("milvus://ann:p@ss@h/shop", "http://h:19530", "", "shop", "ann:p@ss", "milvus://h/shop"),
        ("milvus://[::1]:7/shop", "http://[::1]:7", "", "shop", "", "milvus://[::1]:7/shop"),
        ("here/some.db", "here/some.db", "", "gallery", "", "here/some.db"),
        ("some.db#birds_2", "some.db", "", "birds_2", "", "some.db#birds_2"),
    ],
)
def test_addresses_are_read(text, uri, database, collection, token, shown):
    made = parse_address(text)
    assert (made.uri, made.database, made.collection, made.token, made.shown) == (
        uri,
        database,
        collection,
        token,
        shown,
    )
    assert (made.path is not None) == uri.endswith(".db")


def test_a_given_token_goes_before_the_one_of_the_address_and_neither_is_printed():
    made = parse_address(ADDRESS, "key")
    assert made.token == "key"
    assert "key" not in repr(made)
    assert "s3cret" not in repr(parse_address(ADDRESS))


@pytest.mark.parametrize(
    "text",
    [
        "milvus://ann:s3cret@host",
        "milvus:///shop",
        "milvus://ann:s3cret@host:port/shop",
        "milvus://ann:s3cret@host/a/b/c",
        "milvus://ann:s3cret@host/a?b=c",
        "milvus://ann:s3cret@host/2shop",
        "milvus://ann:s3cret@host/shop__notes",
        "milvus://ann:s3cret@host/shop%3B",
        "http://ann:s3cret@host/shop",
        "shop.gallery",
        "some.db#a-b",
        "some.db#" + "a" * 151,
    ],
)
def test_other_addresses_are_refused_without_telling_the_password(text):
    with pytest.raises(DataError) as caught:
        parse_address(text)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "failure",
    [
        unavailable,
        lambda: CutOffError(grpc.StatusCode.UNAVAILABLE),
        lambda: CutOffError(grpc.StatusCode.DEADLINE_EXCEEDED),
        lambda: pymilvus.MilvusException(8, "rate limit exceeded"),
    ],
)
def test_what_fails_for_a_moment_is_tried_again_after_growing_pauses(monkeypatch, failure):
    connection, client, pauses = connected(monkeypatch, [failure() for _ in range(TRIES - 1)])
    assert connection.call("query", "x") == "answer"
    assert len(client.calls) == TRIES
    assert len(pauses) == TRIES - 1
    assert pauses == sorted(set(pauses))
    assert sum(pauses) < 5
    assert all(0 < kwargs["timeout"] < 60 for kwargs in client.calls)


def test_tries_are_bounded_and_the_error_is_one_sentence_without_password(monkeypatch):
    connection, client, _ = connected(monkeypatch, [unavailable() for _ in range(99)])
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:19999/shop") as caught:
        connection.call("query", "x")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(client.calls) == TRIES


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (lambda: pymilvus.MilvusException(100, "collection not found"), MissingCollectionError),
        (lambda: pymilvus.MilvusException(65535, "what else"), StorageError),
        (lambda: CutOffError(grpc.StatusCode.UNAUTHENTICATED), StorageError),
    ],
)
def test_what_fails_for_good_is_not_tried_again(monkeypatch, failure, kind):
    connection, client, pauses = connected(monkeypatch, [failure()])
    with pytest.raises(kind) as caught:
        connection.call("query", "x")
    assert "s3cret" not in str(caught.value)
    assert (len(client.calls), pauses) == (1, [])


def test_a_closed_connection_says_so(monkeypatch):
    connection, _, _ = connected(monkeypatch, [])
    connection.close()
    connection.close()
    with pytest.raises(StorageError, match="closed"):
        connection.call("query")


def test_connecting_is_tried_again_too(monkeypatch):
    failures = [unavailable()]

    def client(*_: Any, **__: Any) -> StandIn:
        if failures:
            raise failures.pop()
        return StandIn([])

    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    assert Connection(parse_address(ADDRESS), sleep=lambda _: None).call("query") == "answer"


@pytest.mark.parametrize(
    "start",
    [
        lambda address: MilvusStore.create(address, Settings("mine", 4, {"name": "euclidean"}), sleep=lambda _: None),
        lambda address: MilvusStore.open(address, sleep=lambda _: None),
    ],
    ids=["create", "open"],
)
def test_a_server_that_is_not_there_is_told_soon(start, capfd):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(StorageError, match=f"milvus://127.0.0.1:{port}/shop") as caught:
        start(f"milvus://ann:s3cret@127.0.0.1:{port}/shop")
    assert time.monotonic() - began < 10
    assert "s3cret" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_a_listener_that_never_answers_is_given_up_on(monkeypatch):
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"milvus://127.0.0.1:{silent.getsockname()[1]}/shop"
        began = time.monotonic()
        with pytest.raises(StorageError, match=address):
            MilvusStore.open(address, sleep=lambda _: None)
        assert time.monotonic() - began < 5
