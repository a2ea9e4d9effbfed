"""Operations on one user over HTTP."""

from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from factorcell.service.http import problems
from factorcell.service.http.application import Site
from tests.service.http.sockets import wait_until


def accept(client: TestClient, user: str, *texts: str) -> None:
    for text in texts:
        assert client.post("/v1/accept", json={"user": user, "text": text}).status_code == 200


@pytest.mark.parametrize(
    ("user", "path"),
    [
        ("ann", "ann"),
        ("a/b?c#d%", "a%2Fb%3Fc%23d%25"),
        ("Zoë 😀", "Zo%C3%AB%20%F0%9F%98%80"),
        ("a+b", "a+b"),
        ("export", "export"),
    ],
)
def test_all_operations_on_a_user(client: TestClient, site: Site, user: str, path: str) -> None:
    accept(client, user, "abba", "cab", "abba", "acc")
    base = f"/v1/users/{path}"
    shown = client.get(base).json()
    assert [text["text"] for text in shown["texts"]] == ["abba", "cab", "abba", "acc"]
    assert (shown["user"], shown["accepted"], shown["learned"], shown["paused"]) == (user, 4, True, False)
    assert client.post(f"{base}/undo").json() == {"removed": 1}
    assert client.post(f"{base}/forget", json={"text": "abba"}).json() == {"removed": 2}
    assert client.post(f"{base}/pause").json() == {"paused": True}
    assert client.post("/v1/accept", json={"user": user, "text": "x"}).json()["outcome"] == "paused"
    assert client.post(f"{base}/resume").json() == {"paused": False}
    assert wait_until(lambda: client.get(base).json()["learned"])  # the remaining texts, in the background
    exported = client.get(base).json()
    assert exported == msgspec.to_builtins(site.service.show(user))
    assert [text["text"] for text in exported["texts"]] == ["cab"]
    conflict = client.post("/v1/users", json=exported)
    assert (conflict.status_code, conflict.json()["type"]) == (409, "/docs#conflict")
    assert client.delete(base).json() == {"deleted": True}
    assert client.delete(base).json() == {"deleted": False}
    assert client.post("/v1/users", json=exported).json()["user"] == user
    restored = client.get(base).json()
    assert all(restored[field] == exported[field] for field in ("user", "paused", "texts"))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_escaped_user_id_arrives_unchanged(user: str) -> None:
    scope = {"type": "http", "path_params": {"user": quote(user, safe="")}}
    assert problems.path_parameter(Request(scope), "user") == user


def test_import_omits_blank_texts(client: TestClient) -> None:
    texts = [{"text": text, "time": 1} for text in ("abba", " ", "cab")]
    exported = {"format": 1, "user": "ann", "paused": False, "texts": texts}
    answer = client.post("/v1/users", json=exported)
    saved: list[dict[str, object]] = [{**text, "context": {}} for text in (texts[0], texts[2])]
    assert (answer.status_code, answer.json()["texts"]) == (200, saved)


def test_unknown_user_is_not_found(client: TestClient) -> None:
    answer = client.get("/v1/users/nobody")
    assert (answer.status_code, answer.json()["type"]) == (404, "/docs#not-found")
    assert client.post("/v1/users/nobody/undo").json() == {"removed": 0}
