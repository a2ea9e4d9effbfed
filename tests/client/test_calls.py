"""What can be asked: all that the service answers, by the names of its messages, without PyTorch or the server."""

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
from tests.client.both import ask
from tests.client.conftest import Make

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
UNDESCRIBED = {("GET", "/healthz"), ("GET", "/metrics")}  # which docs/service.md has
TAKEN = {one.name: one.request_type for one in OPERATIONS}


def test_every_route_has_a_method(make: Make) -> None:
    sent: list[httpx.Request] = []

    def note(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(418)

    client = make("http://h", handler=note)
    for name, (args, fields) in ARGUMENTS.items():
        with pytest.raises(InvalidRequestError, match=f"{name}: 418 I'm a teapot"):
            ask(client, name, *args, **fields)
    found = {(one.method, re.sub("/v1/users/[^/]+", "/v1/users/{user}", one.url.path)): one for one in sent}
    described = openapi()["paths"]
    wanted = {(method.upper(), path) for path, methods in described.items() for method in methods}
    assert set(found) == wanted | UNDESCRIBED
    for one in OPERATIONS:
        if one.request_type is not None and one.method == "POST":
            msgspec.json.decode(found[one.method, one.path].content, type=one.request_type)


@pytest.mark.parametrize("name", ["complete", "accept", "score", "classify", "rescore"])
def test_keywords_are_the_fields_of_the_message(name: str) -> None:
    taken = TAKEN[name]
    assert taken is not None
    fields = {field.name: field.required for field in msgspec.structs.fields(taken)}
    given = inspect.signature(getattr(Client, name)).parameters
    assert {key: one.default is one.empty for key, one in given.items()} == fields


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_id_arrives_as_it_is(user: str) -> None:
    call = calls.export(user)
    path = httpx.URL("http://h/" + call.path).raw_path
    before, part, after = path.rpartition(b"/")[0].partition(b"/v1/users/")
    assert (before, b"/" in after) == (b"", False)
    assert part
    scope = {"type": "http", "path_params": {"user": after.decode("ascii")}}
    assert reading.part(Request(scope), "user") == user


def test_each_accept_has_a_key_of_its_own() -> None:
    bodies = [msgspec.json.decode(calls.accept(user="ann", text="a").body or b"") for _ in range(100)]
    assert len({one["idempotency_key"] for one in bodies}) == 100
    own = calls.accept(user="ann", text="a", idempotency_key="mine").body
    assert msgspec.json.decode(own or b"")["idempotency_key"] == "mine"


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
    ours = {name for name in loaded if name.startswith("factorcell.service.")}
    assert ours == {"factorcell.service.http", "factorcell.service.http.messages", "factorcell.service.record"}
