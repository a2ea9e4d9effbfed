"""Every route, asked by both clients of a server on the loopback: what is given back is what the service says."""

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
from factorcell.config import UserError
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.http import keys
from factorcell.service.http.application import application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.site import Settings, Site
from tests.client.both import ask
from tests.client.conftest import Make
from tests.service.listening import listening

TEXTS = [ContextText(text="abba", context={"city": "Oslo"}), ContextText(text="", context={"city": "Nice"})]
STRANGE = ["a/b?c#d%", "..", "Zoë 😀", "~!*'();:@&=$,[]"]


def test_completions_are_those_of_the_service(client: Any, site: Site) -> None:
    site.service.accept("ann", "abba")
    asked = CompletionRequest("abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3)
    found = site.service.complete(asked)
    answer = client.complete(query="abx", user="ann", cursor=2, context={"city": "Oslo"}, limit=3, explain=True)
    assert [(one.text, one.score) for one in answer.results] == [
        (one.text, one.log_probability) for one in found.results
    ]
    assert (answer.user_version, answer.degraded) == (found.user_version, None)
    assert all(one.parts for one in answer.results)
    assert client.complete(query="ab", user="ann", learn=False).user_version is None


@pytest.mark.parametrize("user", STRANGE)
def test_life_of_a_person(client: Any, user: str) -> None:
    outcomes = [client.accept(user=user, text=text).outcome for text in ("abba", "cab", "abba", "acc")]
    assert outcomes == ["learned"] * 4
    shown = client.show(user)
    assert [one.text for one in shown.texts] == ["abba", "cab", "abba", "acc"]
    assert (shown.user, shown.accepted, shown.paused) == (user, 4, False)
    assert client.undo(user).removed == 1
    assert client.forget(user, "abba").removed == 2
    assert client.pause(user).paused
    assert client.accept(user=user, text="x").outcome == "paused"
    assert not client.resume(user).paused
    exported = client.export(user)
    assert [one.text for one in exported.texts] == ["cab"]
    with pytest.raises(ConflictError) as conflict:
        client.restore(exported)
    assert (conflict.value.status, conflict.value.kind) == (409, "conflict")
    assert client.delete(user).deleted
    assert not client.delete(user).deleted
    with pytest.raises(NotFoundError):
        client.show(user)
    assert client.restore(exported).user == user
    assert client.export(user) == exported


def test_text_is_streamed(client: Any, site: Site) -> None:
    pieces = list(client.generate(prompt="ab", context={"city": "Oslo"}, seed=4, max_tokens=10, temperature=0.8))
    options = GenerationOptions(temperature=0.8, max_tokens=10, seed=4)
    written = list(stream(site.service.model.run, {"city": "Oslo"}, options=options, prompt="ab", unknown="group"))
    assert [one.text for one in pieces] == [*written, ""]
    assert [one.done for one in pieces] == [False] * len(written) + [True]


def test_stream_that_is_left_frees_its_connection(make: Make, url: str) -> None:
    client = make(url, connections=1, patience=RetryPolicy(timeout=10, max_attempts=1))
    for _ in range(3):
        pieces = client.generate(prompt="a", max_tokens=1000)
        assert next(pieces).text
        pieces.close()
    assert client.health().status == "ok"


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("complete", {"query": "a", "cursor": 2}, "cursor"),
        ("complete", {"query": "a", "limit": 0}, "limit"),
        ("accept", {"user": "\n", "text": "a"}, "user"),
        ("score", {"texts": []}, "texts"),
        ("generate", {"context": {"planet": "x"}}, "planet"),
    ],
)
def test_what_is_wrong_is_said(client: Any, name: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as raised:
        ask(client, name, **fields)
    error = raised.value
    assert (error.status, error.kind, error.attempts) == (422, "invalid", 1)
    assert error.type == "/docs#invalid"
    assert said in error.detail
    assert error.title in str(error)


def test_keys(make: Make, service: Service, tmp_path: Path) -> None:
    key = keys.add_key(tmp_path / "keys.toml", "shop", ["complete"])
    site = Site(service, Settings(deadline=5.0), KeyRing(tmp_path / "keys.toml"))
    with listening(application(site)) as url:
        assert make(url, key).complete(query="a").results
        for given, asked, status in ((None, "complete", 401), ("fc_wrong", "complete", 401), (key, "accept", 403)):
            fields = {"query": "a"} if asked == "complete" else {"user": "ann", "text": "a"}
            with pytest.raises(KeyRefusedError) as raised:
                ask(make(url, given), asked, **fields)
            assert raised.value.status == status
            assert key not in str(raised.value)


def test_own_connections_are_closed(url: str) -> None:
    with httpx.Client() as http:
        with Client(url, http=http) as client:
            client.health()
        assert not http.is_closed
    with Client(url) as client:
        client.health()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()

    async def ask() -> None:
        async with AsyncClient(url) as client:
            await client.health()
        with pytest.raises(RuntimeError, match="closed"):
            await client.health()

    asyncio.run(ask())


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://h", "http://", "http://u:p@h", "http://h/?a=b", "http://h#x"]
)
def test_what_is_no_address(make: Make, url: str) -> None:
    with pytest.raises(UserError, match=r"not the address of a service; valid is such as http://127\.0\.0\.1:8000"):
        make(url)


@pytest.mark.parametrize("key", ["fc_\n", "fc_é", "fc_\x00"])
def test_what_is_no_key(make: Make, key: str) -> None:
    with pytest.raises(UserError, match="key") as raised:
        make("http://h", key)
    assert key not in str(raised.value)
