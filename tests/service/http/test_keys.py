"""Scopes and rates of keys; the file of keys contains no key."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from factorcell.errors import UserError
from factorcell.options.limits import KEY_SCOPES
from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.operations import OPERATIONS

REQUESTS = {
    "complete": ("POST", "/v1/complete", {"query": "a"}),
    "learn": ("POST", "/v1/accept", {"user": "ann", "text": "abba"}),
    "users": ("GET", "/v1/users/ann", None),
    "admin": ("GET", "/metrics", None),
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def key_by_scope(key_file: Path) -> dict[str, str]:
    return {scope: keys.add_key(key_file, f"of {scope}", [scope]) for scope in KEY_SCOPES}


@pytest.fixture
def guarded(service: Service, key_file: Path, key_by_scope: dict[str, str]) -> Iterator[TestClient]:
    with TestClient(application(Site(service, Settings(deadline=5.0), KeyRing(key_file)))) as client:
        yield client


@pytest.mark.parametrize("needed", REQUESTS)
@pytest.mark.parametrize("granted", KEY_SCOPES)
def test_each_scope_allows_only_its_operations(
    guarded: TestClient, key_by_scope: dict[str, str], needed: str, granted: str
) -> None:
    method, path, body = REQUESTS[needed]
    answer = guarded.request(method, path, json=body, headers={"Authorization": f"Bearer {key_by_scope[granted]}"})
    if needed == granted:
        assert answer.status_code in (200, 404)
    else:
        assert (answer.status_code, answer.json()["type"]) == (403, "/docs#not-allowed")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer fc_wrong", "Basic YTpi", "Bearer \xff"])
def test_all_requests_but_health_need_a_key(guarded: TestClient, header: str | None) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    for operation in OPERATIONS:
        answer = guarded.request(operation.method, operation.path.replace("{user}", "ann"), json={}, headers=headers)
        if operation.scope:
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), operation.path
            sent = header not in (None, "", "Bearer")
            assert answer.json()["detail"].startswith("unknown key" if sent else "no key")
        else:
            assert answer.status_code == 200
    assert guarded.get("/metrics", headers=headers).status_code == 401
    assert guarded.get("/healthz", headers=headers).status_code == 200


def test_file_contains_no_key(key_file: Path, key_by_scope: dict[str, str]) -> None:
    content = key_file.read_text(encoding="utf-8")
    assert not [key for key in key_by_scope.values() if key in content]
    assert key_file.stat().st_mode & 0o077 == 0
    assert [operation.scopes for operation in keys.read_keys(key_file)] == [(scope,) for scope in KEY_SCOPES]


@pytest.mark.parametrize("name", ['a "b"', "Zoë \\ #", "a]b", "𠮷野 😀"])
def test_names_are_restored_from_the_file(key_file: Path, name: str) -> None:
    keys.add_key(key_file, name, ["complete", "learn"], 2.5)
    keys.add_key(key_file, "another", ["users"])
    assert [(operation.name, operation.scopes, operation.rate) for operation in keys.read_keys(key_file)] == [
        (name, ("complete", "learn"), 2.5),
        ("another", ("users",), None),
    ]
    with pytest.raises(UserError, match="already"):
        keys.add_key(key_file, name, ["complete"])


@pytest.mark.parametrize(
    ("content", "message"),
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
        (2 * f'[[key]]\nname = "a"\nhash = "{"0" * 64}"\nscopes = ["learn"]\n', "two keys have the same name"),
        ("", "at least one key"),
    ],
)
def test_invalid_files_of_keys_are_refused(key_file: Path, content: str, message: str) -> None:
    key_file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        KeyRing(key_file)


def test_comments_of_other_keys_remain(key_file: Path) -> None:
    for name in ("a", "b", "c"):
        keys.add_key(key_file, name, ["complete"])
    head, *entries = key_file.read_text(encoding="utf-8").split("[[key]]")
    commented = [f"# of {name}\n# one\n[[key]]{entry}" for name, entry in zip("abc", entries, strict=True)]
    key_file.write_text("".join(["# our keys\n\n", head, *commented]), encoding="utf-8")
    keys.remove_key(key_file, "b")
    keys.add_key(key_file, "d", ["complete"])
    assert [entry.name for entry in keys.read_keys(key_file)] == ["a", "c", "d"]
    comments = [line for line in key_file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert comments == ["# our keys", "# of a", "# one", "# of c", "# one"]


def test_a_file_with_another_form_is_not_changed(key_file: Path) -> None:
    content = f'key = [{{name = "a", hash = "{"0" * 64}", scopes = ["learn"]}}]\n'
    key_file.write_text(content, encoding="utf-8")
    for change in (lambda: keys.remove_key(key_file, "a"), lambda: keys.add_key(key_file, "b", ["learn"])):
        with pytest.raises(UserError, match="change the file by hand"):
            change()
    assert key_file.read_text(encoding="utf-8") == content


def test_file_without_keys_refuses_every_request(key_file: Path) -> None:
    key = keys.add_key(key_file, "a", ["complete"])
    ring = KeyRing(key_file)
    key_file.write_text("[[key", encoding="utf-8")
    with pytest.raises(UserError, match="not a file of keys"):
        ring.refresh()
    assert ring.find(key)
    key_file.write_text("", encoding="utf-8")
    ring.refresh()
    assert ring.find(key) is None


def test_requests_above_the_rate_are_refused(service: Service, key_file: Path) -> None:
    key = keys.add_key(key_file, "slow", ["complete"], 0.5)
    with TestClient(application(Site(service, Settings(deadline=5.0), KeyRing(key_file)))) as client:
        headers = {"Authorization": f"Bearer {key}"}
        first, second = (client.post("/v1/complete", json={"query": "a"}, headers=headers) for _ in range(2))
        assert first.status_code == 200
        assert (second.status_code, second.json()["type"]) == (429, "/docs#too-many")
        assert 1 <= int(second.headers["retry-after"]) <= 2
        assert client.get("/healthz", headers=headers).status_code == 200


@pytest.mark.parametrize("rate", [10, 0.25])
def test_keys_grant_their_rate_and_short_bursts(key_file: Path, monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    now = 100.0
    monkeypatch.setattr("factorcell.service.http.keys.time.monotonic", lambda: now)
    keys.add_key(key_file, "all", ["complete"], rate)
    ring, (entry,) = KeyRing(key_file), keys.read_keys(key_file)
    count = 0
    for _ in range(1000):  # ten seconds
        count += not ring.count_request(entry)
        now += 0.01
    assert abs(count - (10 * rate + max(1, rate * keys.BURST_SECONDS))) <= 1
    ring = KeyRing(key_file, share=0.5)
    burst = sum(not ring.count_request(entry) for _ in range(1000))
    assert abs(burst - max(1, 0.5 * rate * keys.BURST_SECONDS)) <= 1


def test_reading_the_keys_again_does_not_grant_another_burst(key_file: Path) -> None:
    keys.add_key(key_file, "all", ["complete"], 0.01)
    ring, (entry,) = KeyRing(key_file), keys.read_keys(key_file)
    assert ring.count_request(entry) == 0
    ring.refresh()
    assert ring.count_request(entry) > 0


def test_each_replica_has_its_own_rates_and_metrics(
    open_service: Callable[..., Service], key_file: Path, key_by_scope: dict[str, str]
) -> None:
    pages = {"Authorization": f"Bearer {keys.add_key(key_file, 'pages', ['complete'], rate=1)}"}
    admin = {"Authorization": f"Bearer {key_by_scope['admin']}"}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                TestClient(application(Site(open_service(), Settings(deadline=5.0), KeyRing(key_file))))
            )
            for _ in range(2)
        )
        statuses = [first.post("/v1/complete", json={"query": "a"}, headers=pages).status_code for _ in range(4)]
        assert 429 in statuses
        assert second.post("/v1/complete", json={"query": "a"}, headers=pages).status_code == 200
        line = 'factorcell_requests_total{operation="complete",status="200"} '
        assert f"{line}{statuses.count(200)}.0" in first.get("/metrics", headers=admin).text
        assert f"{line}1.0" in second.get("/metrics", headers=admin).text
