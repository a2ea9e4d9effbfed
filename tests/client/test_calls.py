"""The calls cover all operations with the fields of their messages, without PyTorch or the server."""

import inspect
import re
import subprocess
import sys
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from factorcell.client import Client, InvalidRequestError, calls
from factorcell.service.http import messages, reading
from factorcell.service.http.openapi import openapi
from factorcell.service.http.operations import OPERATIONS
from tests.client.both import call
from tests.client.conftest import MakeClient

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "complete": ((), {"query": "a"}),
    "accept": ((), {"user": "ann", "text": "a"}),
    "show": (("ann",), {}),
    "export": (("ann",), {}),
    "delete": (("ann",), {}),
    "forget": (("ann", "a"), {}),
    "undo": (("ann",), {}),
    "pause": (("ann",), {}),
    "resume": (("ann",), {}),
    "restore": ((messages.Export(format=1, user="ann", paused=False, texts=[]),), {}),
    "score": ((), {"texts": [messages.ContextText(text="a")]}),
    "classify": ((), {"target": "city", "texts": [messages.ContextText(text="a")]}),
    "rescore": ((), {"lists": [messages.HypothesisList(hypotheses=[messages.Hypothesis(text="a")])]}),
    "generate": ((), {}),
    "health": ((), {}),
    "ready": ((), {}),
    "metrics": ((), {}),
}
UNDESCRIBED = {("GET", "/healthz"), ("GET", "/metrics")}  # documented only in docs/service.md
REQUEST_TYPES = {operation.name: operation.request_type for operation in OPERATIONS}


def test_every_route_has_a_method(make_client: MakeClient) -> None:
    sent: list[httpx.Request] = []

    def record(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(418)

    client = make_client("http://h", handler=record)
    for name, (args, fields) in ARGUMENTS.items():
        with pytest.raises(InvalidRequestError, match=f"{name}: 418 I'm a teapot"):
            call(client, name, *args, **fields)
    requests = {
        (operation.method, re.sub("/v1/users/[^/]+", "/v1/users/{user}", operation.url.path)): operation
        for operation in sent
    }
    paths = openapi()["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert set(requests) == documented | UNDESCRIBED
    for operation in OPERATIONS:
        if operation.request_type is not None and operation.method == "POST":
            msgspec.json.decode(requests[operation.method, operation.path].content, type=operation.request_type)


@pytest.mark.parametrize("name", ["complete", "accept", "score", "classify", "rescore"])
def test_keywords_equal_the_fields_of_the_message(name: str) -> None:
    request_type = REQUEST_TYPES[name]
    assert request_type is not None
    fields = {field.name: field.required for field in msgspec.structs.fields(request_type)}
    parameters = inspect.signature(getattr(Client, name)).parameters
    assert {key: parameter.default is parameter.empty for key, parameter in parameters.items()} == fields


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_user_id_arrives_unchanged(user: str) -> None:
    export_call = calls.export(user)
    path = httpx.URL("http://h/" + export_call.path).raw_path
    before, part, after = path.rpartition(b"/")[0].partition(b"/v1/users/")
    assert (before, b"/" in after) == (b"", False)
    assert part
    scope = {"type": "http", "path_params": {"user": after.decode("ascii")}}
    assert reading.path_parameter(Request(scope), "user") == user


def test_each_accept_has_its_own_key() -> None:
    bodies = [msgspec.json.decode(calls.accept(user="ann", text="a").body or b"") for _ in range(100)]
    assert len({fields["idempotency_key"] for fields in bodies}) == 100
    body = calls.accept(user="ann", text="a", idempotency_key="mine").body
    assert msgspec.json.decode(body or b"")["idempotency_key"] == "mine"


def test_client_loads_neither_torch_nor_the_server() -> None:
    code = (
        "import sys; from factorcell.client import AsyncClient, Client, ContextText; Client().close();"
        "print(*sorted(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    others = {name.partition(".")[0] for name in loaded} & {
        "torch",
        "numpy",
        "pyarrow",
        "starlette",
        "uvicorn",
        "redis",
    }
    assert others == set()
    service_modules = {name for name in loaded if name.startswith("factorcell.service.")}
    assert service_modules == {
        "factorcell.service.http",
        "factorcell.service.http.messages",
        "factorcell.service.record",
    }
