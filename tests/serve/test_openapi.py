"""The OpenAPI document: complete, with examples that are true."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings

from nearkin.serve.settings import ServeSettings

_LEAKS = re.compile(r"Traceback|/home/|/tmp/|/usr/|/root/|site-packages|nearkin[./](serve|gallery)|sqlite3?\.|\.py\b")


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
    from nearkin.serve.openapi import _ANSWERED, _ASKED

    for model, example in _ASKED.items():
        model.model_validate_json(json.dumps(example), strict=True)
    for answer, example in _ANSWERED.items():
        answer.model_validate(example, strict=True, extra="forbid")


@pytest.fixture(scope="module")
def lasting(fill, start, tmp_path_factory):
    limits = ServeSettings(rate=0, max_body=2_000_000, timeout=10)
    with fill(tmp_path_factory.mktemp("allowed") / "colours.gallery") as gallery, start(gallery, limits) as running:
        yield running


def test_what_the_openapi_document_allows_is_answered_as_it_says(lasting):
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{lasting.url}/openapi.json")
    rules = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 17
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
        def answered(case):
            response = case.call_and_validate(checks=rules)
            assert not _LEAKS.search(response.text or ""), response.text

        answered()
