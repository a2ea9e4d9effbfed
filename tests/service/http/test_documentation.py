"""The OpenAPI says what can be asked, and the page that tries it needs nothing from elsewhere."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from factorcell.service.http.openapi import openapi
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.problems import KINDS
from factorcell.version import __version__


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_description_is_whole(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described == openapi()
    assert (described["openapi"], described["info"]["version"]) == ("3.1.0", __version__)
    asked = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    assert asked == {(one.path, one.method) for one in OPERATIONS}
    names = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert references(described) <= names
    summaries = [one["summary"] for methods in described["paths"].values() for one in methods.values()]
    assert all(summaries)
    assert "security" not in str(described)


def test_description_names_the_scope_of_each_operation() -> None:
    described = openapi(keys=True)
    for one in OPERATIONS:
        said = described["paths"][one.path][one.method.lower()].get("security")
        assert said == ([{"key": [one.scope]}] if one.scope else None)
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


@pytest.mark.parametrize("path", ["/docs", "/docs.js", "/docs.css"])
def test_page_needs_nothing_from_elsewhere(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"https?://", answer.text)
    assert not re.search(r"<script>|\sstyle=|\son[a-z]+=", answer.text)


def test_each_problem_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["x-problems"]
    assert {kind: one["status"] for kind, one in described.items()} == {
        kind: status for kind, (status, _) in KINDS.items()
    }
