"""Keys: who may ask what and how often, and that the file of keys has none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from factorcell.choices import KEY_SCOPES
from factorcell.config import UserError
from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.http.application import application
from factorcell.service.http.keys import Allowance, KeyRing
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Settings, Site

ASKED = {
    "complete": ("POST", "/v1/complete", {"query": "a"}),
    "learn": ("POST", "/v1/accept", {"user": "ann", "text": "abba"}),
    "users": ("GET", "/v1/users/ann/export", None),
    "admin": ("GET", "/metrics", None),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def ring(file: Path) -> dict[str, str]:
    return {scope: keys.add_key(file, f"of {scope}", [scope]) for scope in KEY_SCOPES}


@pytest.fixture
def guarded(service: Service, file: Path, ring: dict[str, str]) -> Iterator[TestClient]:
    with TestClient(application(Site(service, Settings(deadline=5.0), KeyRing(file)))) as made:
        yield made


@pytest.mark.parametrize("needed", ASKED)
@pytest.mark.parametrize("held", KEY_SCOPES)
def test_each_scope_allows_its_own(guarded: TestClient, ring: dict[str, str], needed: str, held: str) -> None:
    method, path, body = ASKED[needed]
    answer = guarded.request(method, path, json=body, headers={"Authorization": f"Bearer {ring[held]}"})
    if needed == held:
        assert answer.status_code in (200, 404)
    else:
        assert (answer.status_code, answer.json()["type"]) == (403, "/docs#not-allowed")


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer fc_wrong", "Basic YTpi", "Bearer \xff"])
def test_all_but_health_needs_a_key(guarded: TestClient, given: str | None) -> None:
    headers = {} if given is None else {b"Authorization": given.encode("latin-1")}
    for one in OPERATIONS:
        answer = guarded.request(one.method, one.path.replace("{user}", "ann"), json={}, headers=headers)
        if one.scope:
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), one.path
            sent = given not in (None, "", "Bearer")
            assert answer.json()["detail"].startswith("the key that was sent" if sent else "no key was sent")
        else:
            assert answer.status_code == 200
    assert guarded.get("/metrics", headers=headers).status_code == 401
    assert guarded.get("/healthz", headers=headers).status_code == 200


def test_file_holds_no_key(file: Path, ring: dict[str, str]) -> None:
    content = file.read_text(encoding="utf-8")
    assert not [key for key in ring.values() if key in content]
    assert file.stat().st_mode & 0o077 == 0
    assert [one.scopes for one in keys.read_keys(file)] == [(scope,) for scope in KEY_SCOPES]


@pytest.mark.parametrize("name", ['a "b"', "Zoë \\ #", "a]b"])
def test_names_survive_the_file(file: Path, name: str) -> None:
    keys.add_key(file, name, ["complete", "learn"], 2.5)
    keys.add_key(file, "another", ["users"])
    assert [(one.name, one.scopes, one.rate) for one in keys.read_keys(file)] == [
        (name, ("complete", "learn"), 2.5),
        ("another", ("users",), None),
    ]
    with pytest.raises(UserError, match="already"):
        keys.add_key(file, name, ["complete"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[key]", "not a file of keys"),
        ("key = 1", "not a file of keys"),
        ('[[key]]\nname = "a"', "not a file of keys"),
        ('[[key]]\nname = "a"\nhash = "b"\nscopes = ["complete"]', "matching regex"),
        (f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = []', "length >= 1"),
        (f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = "complete"', "not a file of keys"),
        (f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = ["all"]', "unknown scope 'all'"),
        (f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = ["learn"]\nrate = 0', "float` > 0"),
        (f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = ["learn"]\ncolour = 0', "unknown field `colour`"),
        (2 * f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = ["learn"]\n', "two keys have one name"),
        ("", "has no key"),
    ],
)
def test_what_is_no_file_of_keys(file: Path, content: str, said: str) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        KeyRing(file)


def test_a_file_whose_last_key_is_deleted_refuses_everybody(file: Path) -> None:
    key = keys.add_key(file, "a", ["complete"])
    ring = KeyRing(file)
    file.write_text("[[key", encoding="utf-8")
    with pytest.raises(UserError, match="not a file of keys"):
        ring.refresh()
    assert ring.find(key)
    file.write_text("", encoding="utf-8")
    ring.refresh()
    assert ring.find(key) is None


def test_rate(service: Service, file: Path) -> None:
    key = keys.add_key(file, "slow", ["complete"], 0.5)
    with TestClient(application(Site(service, Settings(deadline=5.0), KeyRing(file)))) as client:
        headers = {"Authorization": f"Bearer {key}"}
        first, second = (client.post("/v1/complete", json={"query": "a"}, headers=headers) for _ in range(2))
        assert first.status_code == 200
        assert (second.status_code, second.json()["type"]) == (429, "/docs#too-many")
        assert 1 <= int(second.headers["retry-after"]) <= 2
        assert client.get("/healthz", headers=headers).status_code == 200


def test_allowance_is_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("factorcell.service.http.keys.time.monotonic", lambda: now)
    allowance = Allowance(10)
    granted = 0
    for _ in range(1000):  # ten seconds
        granted += not allowance.take()
        now += 0.01
    assert abs(granted - (10 * 10 + 10 * keys.BURST)) <= 1
