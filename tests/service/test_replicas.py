"""Two servers with one store behind nginx: users may change servers, and servers may die, restart and change models."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service.client import Answer, Connection, until_answered
from benchmarks.service.kills import write_texts
from benchmarks.service.people import Book, distribute, finish, many_people, one_person, working
from benchmarks.service.processes import RestartableServer, restartable_server
from benchmarks.service.replicas import Nginx, nginx
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings
from factorcell.service.http.server import ServerOptions
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import CHECK_INTERVAL
from tests.ports import free_port
from tests.service.oracle import random_texts
from tests.service.runs import make_run
from tests.service.stores.servers import SERVERS, Server, clear

pytestmark = pytest.mark.slow

DEADLINE_MS = 5000
PAUSE = 2.5  # seconds; nginx counts whole seconds, and uses a server again less than two seconds after a failure
WRITERS = 8


@dataclass(frozen=True)
class Replicas:
    """Two servers, their ports, and nginx before them; `current` is the link to the served run."""

    servers: list[RestartableServer]
    proxy: Nginx
    store: Server
    current: Path

    @property
    def ports(self) -> list[int]:
        return [server.options.port for server in self.servers]

    def service(self) -> Service:
        """Open a service with the same run and store in this process."""
        return Service(ServedModel(Run.open(self.current)), self.store.open())


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def replicas(started: Server, tmp_path: Path) -> Iterator[Replicas]:
    for seed in (0, 1):
        make_run(tmp_path / str(seed), seed)
    current = tmp_path / "current"
    current.symlink_to("0")
    store = clear(started)
    with ExitStack() as stack:
        servers: list[RestartableServer] = []
        for number in (1, 2):
            port = free_port()
            options = ServerOptions(current, store.url, port=port, settings=Settings(DEADLINE_MS / 1000))
            servers.append(stack.enter_context(restartable_server(options, tmp_path / f"replica-{number}.log")))
        try:
            proxy = stack.enter_context(nginx(tmp_path / "nginx", [server.options.port for server in servers]))
        except UserError as error:
            pytest.skip(str(error))
        yield Replicas(servers, proxy, store, current)


def completed(connection: Connection, user: str, query: str) -> dict[str, Any]:
    body = {"query": query, "user": user, "limit": 20, "deadline_ms": DEADLINE_MS}
    answer: dict[str, Any] = connection.ask("POST", "/v1/complete", body).json
    return answer


def texts_of(answer: dict[str, Any]) -> list[str]:
    """Return the suggested texts that the user accepted."""
    return [result["text"] for result in answer["results"] if "history" in result["source"]]


def test_a_user_who_changes_replicas_sees_every_change(replicas: Replicas) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(closing(Connection(port))) for port in replicas.ports)
        texts = list(dict.fromkeys(text for text in random_texts(0, 60) if len(text) > 4))
        for number, text in enumerate(texts, 1):
            saving, completing = (first, second) if number % 2 else (second, first)
            accepted = saving.ask("POST", "/v1/accept", {"user": "ann", "text": text}).json
            answer = completed(completing, "ann", text[:-1])
            assert (accepted["outcome"], accepted["number"]) == ("learned", number)
            assert (answer["user_version"], answer["degraded"]) == (accepted["user_version"], None)
            assert text in texts_of(answer)
        forgotten = texts[-1]
        assert first.ask("POST", "/v1/users/ann/forget", {"text": forgotten}).json == {"removed": 1}
        assert forgotten not in texts_of(completed(second, "ann", forgotten[:-1]))
        assert second.ask("DELETE", "/v1/users/ann").json == {"deleted": True}
        assert first.ask("GET", "/v1/users/ann").status == 404
        answer = completed(first, "ann", texts[0][:-1])
        assert (answer["user_version"], texts_of(answer)) == (None, [])


def test_users_on_both_replicas_do_not_affect_each_other(replicas: Replicas) -> None:
    texts = list(dict.fromkeys(random_texts(3, 400)))
    with closing(replicas.service()) as service:
        assert one_person(replicas.proxy.port, service, texts[:16])["faults"] == []
        users = distribute(texts[16:], 10)
        assert many_people(replicas.proxy.port, service, users, requests=300, threads=8)["faults"] == []


def test_a_killed_replica_loses_nothing_and_the_other_serves(replicas: Replicas) -> None:
    port, book, over, statuses = replicas.proxy.port, Book(), threading.Event(), list[int]()

    def complete() -> None:
        connection = Connection(port)
        while not over.is_set():
            body = {"query": "a", "user": "user-0", "deadline_ms": DEADLINE_MS}
            statuses.append(connection.ask("POST", "/v1/complete", body).status)
        connection.close()

    threads = [
        threading.Thread(target=write_texts, args=(port, book, f"user-{number % 4}", number, over))
        for number in range(WRITERS)
    ]
    with closing(Connection(port)) as connection:
        with working([*threads, threading.Thread(target=complete)], over):
            for number in range(4):
                time.sleep(PAUSE)
                killed = replicas.servers[number % 2]
                killed.kill()
                accept_count, completion_count = book.count, len(statuses)
                time.sleep(PAUSE)
                assert book.count > accept_count + WRITERS, "the other replica does not save texts"
                assert len(statuses) > completion_count + 1, "the other replica does not complete"
                killed.start()
                book.check(connection, whole=False)
        with closing(replicas.service()) as service:
            finish(port, service, book)
    assert book.faults == []
    assert set(statuses) == {200}


def test_models_and_servers_are_replaced_without_a_failed_request(replicas: Replicas, tmp_path: Path) -> None:
    port, over, failures, counts = replicas.proxy.port, threading.Event(), list[Answer | str](), [0] * WRITERS

    def send(number: int) -> None:
        """Send each request over a new connection, because nginx closes idle connections when it is configured anew."""
        while not over.is_set():
            user = f"user-{number}"
            accept = ("accept", {"user": user, "text": "abba", "idempotency_key": str(counts[number])})
            for operation, body in (accept, ("complete", {"user": user, "query": "a"})):
                with closing(Connection(port)) as connection:
                    try:
                        answer: Answer | str = connection.ask("POST", f"/v1/{operation}", body)
                    except ConnectionError as error:
                        answer = str(error)
                if not isinstance(answer, Answer) or answer.status != 200 or b'"degraded":"store"' in answer.body:
                    failures.append(answer)
            counts[number] += 1

    with working([threading.Thread(target=send, args=(number,)) for number in range(WRITERS)], over):
        (tmp_path / "next").symlink_to("1")
        (tmp_path / "next").replace(replicas.current)
        for server in replicas.servers:
            wait_for_model(server.options.port)
        served_counts = list(counts)
        for server in replicas.servers:  # as Kubernetes replaces them: out of the proxy, stopped, started, back
            replicas.proxy.use([other for other in replicas.ports if other != server.options.port])
            server.close()
            server.options = replace(server.options, run=tmp_path / "0")
            server.start()
            replicas.proxy.use(replicas.ports)
            time.sleep(PAUSE)
    assert failures == []
    assert all(after > before > 0 for before, after in zip(served_counts, counts, strict=True))
    with closing(Connection(port)) as connection:
        for number, count in enumerate(counts):
            shown = connection.ask("GET", f"/v1/users/user-{number}").json
            assert (shown["accepted"], len(shown["texts"])) == (count, count)


def wait_for_model(port: int) -> None:
    """Wait until a server has changed its model once."""
    deadline = time.monotonic() + 60
    with closing(Connection(port)) as connection:
        while (
            b'factorcell_models_total{outcome="served"} 1.0' not in until_answered(connection, "GET", "/metrics").body
        ):
            assert time.monotonic() < deadline, "the new model is not served"
            time.sleep(0.1)


def test_completions_continue_while_the_store_is_down(replicas: Replicas) -> None:
    assert replicas.store.program is not None
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(port))) for port in replicas.ports]
        for connection in connections:
            connection.ask("POST", "/v1/accept", {"user": "ann", "text": "abba"})
        replicas.store.program.kill()
        time.sleep(CHECK_INTERVAL)  # until then, a server is ready because of an earlier check
        try:
            for connection in connections:
                assert completed(connection, "ann", "a")["degraded"] == "store"
                statuses = [connection.ask("GET", path).status for path in ("/healthz", "/readyz")]
                assert statuses == [200, 503]
        finally:
            replicas.store.program.start()
        deadline = time.monotonic() + 60
        while any(completed(connection, "ann", "a")["degraded"] for connection in connections):
            assert time.monotonic() < deadline, "the replicas do not find the store again"
            time.sleep(0.1)
