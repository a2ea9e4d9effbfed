"""The server process: it starts, stops on request, loses nothing when killed, and loads a new run."""

import asyncio
import errno
import gc
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from factorcell.errors import UserError
from factorcell.io import files
from factorcell.service.http import keys, problems, server
from factorcell.service.http.application import METRICS_DIRECTORY, application
from factorcell.service.http.server import ServerOptions, is_loopback, serve
from factorcell.service.stores.store import open_store
from tests.findings import logged_progress, no_findings
from tests.service import runs
from tests.service.http.server_process import serving


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "run"
    runs.make_run(folder)
    return folder


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.0.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_hosts_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", ""])
def test_server_without_keys_refuses_other_hosts(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match="add --keys FILE"):
        serve(ServerOptions(tmp_path, f"sqlite:///{tmp_path / 'users.db'}", host=host))


def test_invalid_run_is_reported_before_the_port_opens(tmp_path: Path) -> None:
    options = ServerOptions(tmp_path, f"sqlite:///{tmp_path / 'users.db'}", port=0)
    with pytest.raises(UserError, match="expected a run folder"):
        serve(options)


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="in use; choose another --port"),
    ):
        server.bind_socket("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["no such host.invalid", "\udcff", "a" * 300])
def test_invalid_host_is_an_error(host: str) -> None:
    with pytest.raises(UserError, match="not a name or address of this machine"):
        server.bind_socket(host, 0)


def test_errors_do_not_contain_the_path_of_the_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    options = ServerOptions(Path("."), f"sqlite:///{tmp_path / 'users.db'}")
    site = options.open_site()
    with TestClient(application(site)) as client:
        detail = client.post("/v1/complete", json={"query": "a", "context": {"planet": "x.y"}}).json()["detail"]
    assert "the model" not in detail
    folder = site.service.model.run.folder
    assert problems.problem_from(UserError(f"{folder}: no. 1"), str(folder)).detail == "the model: no. 1"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_line_of_the_server_names_the_quality_of_the_run(
    workers: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    perplexity = {"neural": 9.0, "ngram": 8.0}
    files.write_json(folder / "training.json", {"texts": 9, "targets": 90, "ngram": {"perplexity": perplexity}})
    monkeypatch.setattr(server, "uvicorn_server", lambda app: SimpleNamespace(run=lambda listeners: None))
    monkeypatch.setattr(server, "supervise", lambda options, listener: None)
    monkeypatch.setenv(METRICS_DIRECTORY, str(tmp_path))  # is restored after the test
    with logged_progress() as lines, no_findings():
        serve(ServerOptions(folder, f"sqlite:///{tmp_path / 'users.db'}", port=0, workers=workers))
    assert lines[-1].startswith(f"serving {folder} (undertrained) at http://127.0.0.1:")


def test_objects_of_the_start_are_excluded_from_garbage_collection(run: Path, tmp_path: Path) -> None:
    gc.unfreeze()
    options = ServerOptions(run, f"sqlite:///{tmp_path / 'users.db'}")
    site = options.open_site()
    assert gc.get_freeze_count() > 10_000
    assert not any(value is site.service.model for value in gc.get_objects())
    site.close()


def test_responses_are_sent_without_delay() -> None:

    async def delays() -> bool:
        undelayed: list[bool] = []

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                connection = transport.get_extra_info("socket")
                undelayed.append(bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

        with server.bind_socket("127.0.0.1", 0) as port:
            listener = await asyncio.get_running_loop().create_server(Protocol, sock=port)
            _, writer = await asyncio.open_connection(*port.getsockname())
            while not undelayed:
                await asyncio.sleep(0.01)
            writer.close()
            listener.close()
        return undelayed[0]

    assert asyncio.run(delays())


@pytest.mark.slow
def test_server_finishes_requests_before_it_stops(run: Path, tmp_path: Path) -> None:
    with serving(run, tmp_path / "users.db") as (process, client):
        accepted, stop = [], threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/accept", json={"user": "ann", "text": "abba"})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                accepted.append(answer.json()["number"])

        thread = threading.Thread(target=accept)
        thread.start()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        stop.set()
        thread.join()
    store = open_store(f"sqlite:///{tmp_path / 'users.db'}")
    record = store.read("ann")
    store.close()
    assert record is not None
    assert accepted
    assert record.last_number in (len(accepted), len(accepted) + 1)  # the last response may have been lost


def test_stopping_server_closes_connections() -> None:
    stopping = server.uvicorn_server(PlainTextResponse("answer"))
    client = TestClient(cast(ASGIApp, stopping.config.app))
    assert "connection" not in client.get("/").headers
    stopping.should_exit = True
    assert client.get("/").headers["connection"] == "close"


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_stopping_server_refuses_new_connections(workers: str, run: Path, tmp_path: Path) -> None:
    with serving(run, tmp_path / "users.db", "--workers", workers) as (process, client):
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address) as unfinished:  # a worker waits for the rest of the request
            unfinished.sendall(b"POST /v1/accept HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n")
            unfinished.sendall(b"Content-Type: application/json\r\n\r\n{")
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            while not is_refused(address):
                time.sleep(0.1)
            assert process.poll() is None, "the worker has not finished"


def is_refused(address: tuple[str, int | None]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == errno.ECONNREFUSED


@pytest.mark.slow
def test_workers_share_users_and_metrics(run: Path, tmp_path: Path) -> None:
    key = keys.add_key(tmp_path / "keys.toml", "all", ["complete", "learn", "users", "admin"])
    folder = shutil.copytree(run, tmp_path / "run")
    arguments = ["--workers", "2", "--keys", str(tmp_path / "keys.toml")]
    with serving(folder, tmp_path / "users.db", *arguments) as (process, client):
        client.headers["Authorization"] = f"Bearer {key}"
        base = client.base_url
        for number in range(1, 21):
            # Each client opens a new connection, possibly to the other worker.
            with httpx.Client(base_url=base, headers=client.headers, timeout=30) as other:
                accepted = other.post("/v1/accept", json={"user": "ann", "text": f"ab{number}"}).json()
                assert accepted["number"] == number
            with httpx.Client(base_url=base, headers=client.headers, timeout=30) as other:
                completion = other.post("/v1/complete", json={"query": "ab", "user": "ann"}).json()
                assert completion["user_version"] == accepted["user_version"]
        assert 'factorcell_accepts_total{outcome="learned"} 20.0' in client.get("/metrics").text
        wait_for_metric(client, "factorcell_processes 2.0")
        (folder / "weights.safetensors").touch()
        wait_for_metric(client, 'factorcell_models_total{outcome="served"} 2.0')
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


def wait_for_metric(client: httpx.Client, line: str) -> None:
    for _ in range(300):
        if line in client.get("/metrics").text.splitlines():
            return
        time.sleep(0.1)
    pytest.fail(f"missing metric: {line}")


@pytest.mark.slow
def test_new_run_is_loaded(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    runs.make_run(tmp_path / "new", seed=1)
    with serving(folder, tmp_path / "users.db") as (process, client):
        before = client.post("/v1/complete", json={"query": "a"}).json()
        folder.rename(tmp_path / "old")
        (tmp_path / "new").rename(folder)
        for _ in range(100):
            if client.post("/v1/complete", json={"query": "a"}).json() != before:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the new run was not noticed")
        assert process.poll() is None
