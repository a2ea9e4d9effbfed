"""The OpenAPI description is complete, and the API page needs nothing from other servers."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from factorcell.io.extras import __version__
from factorcell.service.http.application import Site, application
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.pages import openapi
from factorcell.service.http.problems import PROBLEM_KINDS


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        direct = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return direct.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_description_is_complete(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    assert description == openapi()
    assert (description["openapi"], description["info"]["version"]) == ("3.1.0", __version__)
    requests = {(path, method.upper()) for path, methods in description["paths"].items() for method in methods}
    assert requests == {(operation.path, operation.method) for operation in OPERATIONS}
    names = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert references(description) <= names
    summaries = [operation["summary"] for methods in description["paths"].values() for operation in methods.values()]
    assert all(summaries)
    assert "security" not in str(description)


def test_description_names_the_scope_of_each_operation() -> None:
    description = openapi(needs_keys=True)
    for operation in OPERATIONS:
        security = description["paths"][operation.path][operation.method.lower()].get("security")
        assert security == ([{"key": [operation.scope]}] if operation.scope else None)
    assert description["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


@pytest.mark.parametrize("path", ["/docs", "/docs.css"])
def test_page_loads_nothing_from_other_servers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"https?://", answer.text)
    assert not re.search(r"<script|\sstyle=|\son[a-z]+=", answer.text)


def test_the_page_describes_all_operations_messages_and_problems(client: TestClient) -> None:
    description, page = client.get("/openapi.json").json(), client.get("/docs").text
    for operation in OPERATIONS:
        assert f"<h3>{operation.method} <code>{operation.path}</code></h3>" in page
    for name, schema in description["components"]["schemas"].items():
        assert f'<h3 id="{name}">' in page
        assert all(f"<td><code>{field}</code></td>" in page for field in schema["properties"])
    assert set(re.findall('href="#([^"]*)"', page)) <= set(re.findall('id="([^"]*)"', page))
    assert all(f'<tr id="{kind}">' in page for kind in PROBLEM_KINDS)


def test_documentation_works_behind_a_proxy_that_strips_a_prefix(site: Site) -> None:
    inner, prefix = application(site), "/tools/complete"

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith(f"{prefix}/")
            path = scope["path"].removeprefix(prefix)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await inner(scope, receive, send)

    with TestClient(proxy, base_url=f"http://127.0.0.1{prefix}") as client:
        for page in ("/", "/docs"):
            answer = client.get(f"http://127.0.0.1{prefix}{page}")
            addresses = set(re.findall(r'(?:href|src)="([^"#]+)"', answer.text))
            assert len(addresses) >= 3
            assert {client.get(str(answer.url.join(address))).status_code for address in addresses} == {200}
        answer = client.get(str(answer.url.join("openapi.json")))
        (server,) = answer.json()["servers"]
        (query,) = (path for path in answer.json()["paths"] if path.endswith("complete"))
        address = str(answer.url.join(server["url"])).rstrip("/") + query
        assert address == f"http://127.0.0.1{prefix}/v1/complete"
        assert client.post(address, json={"query": "a"}).status_code == 200


def test_every_problem_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["x-problems"]
    assert {kind: problem["status"] for kind, problem in described.items()} == {
        kind: status for kind, (status, _) in PROBLEM_KINDS.items()
    }
