"""Every operation through both clients of a server on the loopback interface: results equal those of the service."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from factorcell.client import (
    AsyncClient,
    Client,
    ConflictError,
    ContextText,
    InvalidRequestError,
    KeyRefusedError,
    NotFoundError,
    RetryPolicy,
)
from factorcell.errors import UserError
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.http import keys
from factorcell.service.http.application import application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.site import Settings, Site
from tests.client.both import call
from tests.client.conftest import MakeClient
from tests.service.listening import listening

TEXTS = [ContextText(text="abba", context={"city": "Oslo"}), ContextText(text="", context={"city": "Nice"})]
UNUSUAL_IDS = ["a/b?c#d%", "..", "Zoë 😀", "~!*'();:@&=$,[]"]


def test_completions_equal_those_of_the_service(client: Any, site: Site) -> None:
    site.service.accept("ann", "abba")
    request = CompletionRequest("abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3)
    completions = site.service.complete(request)
    answer = client.complete(query="abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3, explain=True)
    assert [(result.text, result.score) for result in answer.results] == [
        (result.text, result.log_probability) for result in completions.results
    ]
    assert (answer.user_version, answer.degraded) == (completions.user_version, None)
    assert all(result.parts for result in answer.results)
    assert client.complete(query="ab", user="ann", learn=False).user_version is None


@pytest.mark.parametrize("user", UNUSUAL_IDS)
def test_all_operations_on_a_user(client: Any, user: str) -> None:
    outcomes = [client.accept(user=user, text=text).outcome for text in ("abba", "cab", "abba", "acc")]
    assert outcomes == ["learned"] * 4
    shown = client.show(user)
    assert [item.text for item in shown.texts] == ["abba", "cab", "abba", "acc"]
    assert (shown.user, shown.accepted, shown.paused) == (user, 4, False)
    assert client.undo(user).removed == 1
    assert client.forget(user, "abba").removed == 2
    assert client.pause(user).paused
    assert client.accept(user=user, text="x").outcome == "paused"
    assert not client.resume(user).paused
    exported = client.export(user)
    assert [item.text for item in exported.texts] == ["cab"]
    with pytest.raises(ConflictError) as conflict:
        client.restore(exported)
    assert (conflict.value.status, conflict.value.kind) == (409, "conflict")
    assert client.delete(user).deleted
    assert not client.delete(user).deleted
    with pytest.raises(NotFoundError):
        client.show(user)
    assert client.restore(exported).user == user
    assert client.export(user) == exported


def test_generated_text_is_streamed(client: Any, site: Site) -> None:
    chunks = list(client.generate(prompt="ab", context={"city": "Oslo"}, seed=4, max_tokens=10, temperature=0.8))
    options = GenerationOptions(temperature=0.8, max_tokens=10, seed=4)
    expected = list(stream(site.service.model.run, {"city": "Oslo"}, options=options, prompt="ab", unknown="group"))
    assert [chunk.text for chunk in chunks] == [*expected, ""]
    assert [chunk.done for chunk in chunks] == [False] * len(expected) + [True]


def test_abandoned_stream_frees_its_connection(make_client: MakeClient, url: str) -> None:
    client = make_client(url, connections=1, retry_policy=RetryPolicy(timeout=10, max_attempts=1))
    for _ in range(3):
        chunks = client.generate(prompt="a", max_tokens=1000)
        assert next(chunks).text
        chunks.close()
    assert client.health().status == "ok"


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("complete", {"query": "a", "cursor": 2}, "cursor"),
        ("complete", {"query": "a", "limit": 0}, "limit"),
        ("accept", {"user": "\n", "text": "a"}, "user"),
        ("score", {"texts": []}, "texts"),
        ("generate", {"context": {"planet": "x"}}, "planet"),
    ],
)
def test_invalid_request_is_explained(client: Any, name: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field) as raised:
        call(client, name, **fields)
    error = raised.value
    assert (error.status, error.kind, error.attempts) == (422, "invalid", 1)
    assert error.type == "/docs#invalid"
    assert field in error.detail
    assert error.title in str(error)


def test_keys_are_checked(make_client: MakeClient, service: Service, tmp_path: Path) -> None:
    key = keys.add_key(tmp_path / "keys.toml", "shop", ["complete"])
    site = Site(service, Settings(deadline=5.0), KeyRing(tmp_path / "keys.toml"))
    with listening(application(site)) as url:
        assert make_client(url, key).complete(query="a").results
        for sent, operation, status in ((None, "complete", 401), ("fc_wrong", "complete", 401), (key, "accept", 403)):
            fields = {"query": "a"} if operation == "complete" else {"user": "ann", "text": "a"}
            with pytest.raises(KeyRefusedError) as raised:
                call(make_client(url, sent), operation, **fields)
            assert raised.value.status == status
            assert key not in str(raised.value)


def test_only_the_clients_own_connections_are_closed(url: str) -> None:
    with httpx.Client() as http:
        with Client(url, http=http) as client:
            client.health()
        assert not http.is_closed
    with Client(url) as client:
        client.health()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()

    async def use_own_http() -> None:
        async with AsyncClient(url) as client:
            await client.health()
        with pytest.raises(RuntimeError, match="closed"):
            await client.health()

    asyncio.run(use_own_http())


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://h", "http://", "http://u:p@h", "http://h/?a=b", "http://h#x"]
)
def test_invalid_addresses_are_refused(make_client: MakeClient, url: str) -> None:
    with pytest.raises(UserError, match=r"expected the address of a service, such as http://127\.0\.0\.1:8000"):
        make_client(url)


@pytest.mark.parametrize("key", ["fc_\n", "fc_é", "fc_\x00"])
def test_invalid_keys_are_refused(make_client: MakeClient, key: str) -> None:
    with pytest.raises(UserError, match="key") as raised:
        make_client("http://h", key)
    assert key not in str(raised.value)
