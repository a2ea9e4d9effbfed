"""New models and keys while the server runs: all are noticed, no request fails, and damaged ones change nothing."""

import gc
import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.server import Watcher, file_stamp
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.privacy import Privacy
from factorcell.service.stores.store import open_store
from tests.service import runs


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        runs.make_run(folder / str(seed), seed)
    return folder / "0", folder / "1"


@pytest.fixture
def watched(folders: tuple[Path, Path], tmp_path: Path) -> Iterator[Watcher]:
    folder = shutil.copytree(folders[0], tmp_path / "run")
    keys.add_key(tmp_path / "keys.toml", "one", ["complete"])

    def reopen() -> ServedModel:
        model = ServedModel(Run.open(folder))
        model.probe()
        return model

    files = [folder / "completion.json", folder / "weights.safetensors"]
    stamp = file_stamp(*files)
    service = Service(reopen(), open_store(f"sqlite:///{tmp_path / 'users.db'}"), privacy=Privacy(retention=100))
    site = Site(service, Settings(deadline=5.0), KeyRing(tmp_path / "keys.toml"))
    yield Watcher(site, files, stamp, reopen)
    site.close()


def replace(watcher: Watcher, folder: Path) -> None:
    served = watcher.files[0].parent
    old = served.rename(served.with_name("old"))
    shutil.copytree(folder, served)
    shutil.rmtree(old)


def test_new_run_replaces_the_served_one(
    watched: Watcher, folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    service = watched.site.service
    first = service.model
    watched.check_once()
    assert service.model is first
    replace(watched, folders[1])
    watched.check_once()
    assert service.model.run.fingerprint == Run.open(folders[1]).fingerprint
    assert caplog.messages == ["a new model is served from now on"]
    second = service.model
    watched.check_once()
    assert service.model is second


def test_the_replaced_model_is_freed_without_a_garbage_collection(watched: Watcher, folders: tuple[Path, Path]) -> None:
    service = watched.site.service
    service.complete(CompletionRequest("a", user="ann"))
    service.accept("ann", "abba")
    models = [weakref.ref(value) for value in (service.model, service.model.run, service.model.run.model)]
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        replace(watched, folders[1])
        watched.check_once()
        service.complete(CompletionRequest("a", user="ann"))
        assert [model() for model in models] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "vocabulary.txt"])
def test_damaged_run_changes_nothing(
    watched: Watcher, folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    first = watched.site.service.model
    replace(watched, folders[1])
    path = watched.files[0].parent / name
    path.write_bytes(path.read_bytes()[:-9])
    for _ in range(2):
        watched.check_once()
    assert watched.site.service.model is first
    assert len(caplog.messages) == 1
    assert "the previous run is still served" in caplog.text
    replace(watched, folders[1])
    watched.check_once()
    assert watched.site.service.model is not first


def test_no_request_fails_when_the_model_changes(watched: Watcher, folders: tuple[Path, Path]) -> None:
    site = Site(watched.site.service, Settings(deadline=5.0))
    statuses: list[int] = []
    stop = threading.Event()
    with TestClient(application(site)) as client:

        def send(number: int) -> None:
            while not stop.is_set():
                answer = client.post("/v1/complete", json={"query": "a", "user": f"u{number}"})
                statuses.append(answer.status_code)
                accepted = client.post("/v1/accept", json={"user": f"u{number}", "text": "abba"})
                statuses.append(accepted.status_code)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for folder in (folders[1], folders[0], folders[1]):
            replace(watched, folder)
            watched.check_once()
        stop.set()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}
        for number in range(3):
            shown = client.get(f"/v1/users/u{number}").json()
            assert shown["accepted"] == len(shown["texts"])


def test_new_keys_are_loaded(watched: Watcher, caplog: pytest.LogCaptureFixture) -> None:
    ring = watched.site.keys
    assert ring is not None
    key = keys.add_key(ring.path, "two", ["complete"])
    assert ring.find(key) is None
    watched.check_once()
    assert ring.find(key) is not None
    ring.path.write_text("nonsense", encoding="utf-8")
    for _ in range(2):
        watched.check_once()
    assert ring.find(key) is not None
    assert len(caplog.messages) == 1


def test_expired_texts_are_deleted(watched: Watcher) -> None:
    service = watched.site.service
    service.accept("ann", "abba")
    service.clock = lambda: 1e10
    watched.check_once()
    assert service.show("ann") is None


@pytest.mark.parametrize("error", [None, ValueError("ann")])
def test_watcher_thread_checks_by_itself(
    watched: Watcher, folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    first, expiry_called = watched.site.service.model, threading.Event()

    def expire(seconds: float = 0.0) -> int:
        expiry_called.set()
        if error is not None:
            raise error
        return 0

    watched.site.service.expire = expire  # type: ignore[method-assign]
    with watched:
        assert expiry_called.wait(10)
        replace(watched, folders[1])
        deadline = threading.Event()
        for _ in range(200):
            if watched.site.service.model is not first:
                break
            deadline.wait(0.05)
    assert watched.site.service.model is not first
    assert sum(f"{type(error).__name__} at factorcell.service" in line for line in caplog.messages) == bool(error)
    assert "ann" not in caplog.text
