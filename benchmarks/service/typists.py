"""Users who type: a completion for each key at a fixed rate, and an accept at the end of each text.

Keys are sent when they are due, whether or not the previous one was answered, and latency counts from then, so a
stalled server is charged for all waiting users. Deadlines count from when the request was sent, because the service
cannot know of a key earlier. With `given_up`, a request is cancelled at the next key, as web pages do.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.service.client import AsyncConnection, Connection
from benchmarks.service.processes import processor_seconds
from benchmarks.service.report import Row, quantile
from factorcell.data.tables.tables import open_table

COLUMNS = {
    "people": "users",
    "asked_a_second": "requests a second",
    "answered_a_second": "answered in time a second",
    "complete_p50": "complete p50, ms",
    "complete_p95": "p95",
    "complete_p99": "p99",
    "accept_p50": "accept p50, ms",
    "accept_p95": "p95",
    "accept_p99": "p99",
    "errors": "errors",
    "shed": "shed",
    "in_time": "answered in time",
    "cut": "search cut short",
    "retry_after": "Retry-After, s",
    "server": "cores, server",
    "generator": "cores, generator",
    "lateness_p99": "keys sent late, p99, ms",
}

Processes = Mapping[str, Sequence[int]]  # kind of processes, a column of the table -> their ids


@dataclass
class Responses:
    """Responses of one kind: latencies of those answered, and counts of all others."""

    answered: list[float] = field(default_factory=list)
    late: int = 0
    shed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    cancelled: int = 0
    retries: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.answered) + self.shed + self.errors.total() + self.cancelled


@dataclass
class Load:
    """Users who type at a server for `seconds`, all starting at the same time."""

    port: int
    people: int
    seconds: float
    keys: float = 5.0
    deadline_ms: int = 100
    given_up: bool = False
    counts: dict[str, Responses] = field(default_factory=lambda: {"complete": Responses(), "accept": Responses()})
    lateness: list[float] = field(default_factory=list)


class Typist:
    """One user, with a pool of connections that grows on demand."""

    def __init__(self, load: Load, number: int, texts: Sequence[str]) -> None:
        self.load, self.user, self.texts = load, f"typist {number}", texts
        self.draw = random.Random(number)
        self.free: list[AsyncConnection] = []
        self.pending: set[asyncio.Task[None]] = set()

    async def type(self, begin: float) -> None:
        """Type texts until the time is over."""
        due = begin + self.draw.uniform(0, 1 / self.load.keys)
        end = begin + self.load.seconds
        number = self.draw.randrange(len(self.texts))
        while due < end:
            text = self.texts[number % len(self.texts)]
            for place in range(1, len(text) + 1):
                if due < end:
                    limits = {"deadline_ms": self.load.deadline_ms, "limit": 8}
                    await self._press(due, "complete", {"query": text[:place], "user": self.user, **limits})
                    due += 1 / self.load.keys
            if due < end:
                key = f"{self.user} {number} {begin}"
                await self._press(due, "accept", {"user": self.user, "text": text, "idempotency_key": key})
                due += 1 / self.load.keys
            number += 1
        await asyncio.gather(*self.pending, return_exceptions=True)
        for connection in self.free:
            connection.close()

    async def _press(self, due: float, kind: str, body: object) -> None:
        """Wait until a key is due, and send its request."""
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        self.load.lateness.append(time.perf_counter() - due)
        if self.load.given_up:
            for task in self.pending:
                if task.get_name() == "complete":
                    task.cancel()
        task = asyncio.create_task(self._ask(due, kind, body), name=kind)
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)

    async def _ask(self, due: float, kind: str, body: object) -> None:
        counts, connection = self.load.counts[kind], self.free.pop() if self.free else AsyncConnection(self.load.port)
        sent = time.perf_counter()
        try:
            answer = await connection.ask("POST", f"/v1/{kind}", body)
        except ConnectionError:
            counts.errors["connection"] += 1
            return
        except asyncio.CancelledError:
            counts.cancelled += 1
            raise
        self.free.append(connection)
        if answer.status == 200:
            now = time.perf_counter()
            counts.answered.append(now - due)
            counts.late += now - sent > self.load.deadline_ms / 1000
            counts.cut += b'"degraded":"time"' in answer.body
        elif answer.status == 503:
            counts.shed += 1
            counts.retries[answer.retry or 0] += 1
        else:
            counts.errors[str(answer.status)] += 1


async def type_all(load: Load, texts: Sequence[str]) -> None:
    """Let all users type."""
    begin = time.perf_counter() + 0.2
    typists = [Typist(load, number, texts) for number in range(load.people)]
    await asyncio.gather(*(typist.type(begin) for typist in typists))


def measure(load: Load, texts: Sequence[str], processes: Processes) -> Row:
    """Return what the users observed, and the cores that this process and each kind of `processes` used."""
    began, client_seconds, seconds_before = time.perf_counter(), time.process_time(), _seconds(processes)
    asyncio.run(type_all(load, texts))
    took = time.perf_counter() - began
    complete, accept = load.counts["complete"], load.counts["accept"]
    row: Row = {"what": "typists", "people": load.people, "seconds": load.seconds, "keys": load.keys}
    row |= {"deadline_ms": load.deadline_ms, "given_up": load.given_up}
    row["asked_a_second"] = round((complete.count + accept.count) / load.seconds, 1)
    in_time = len(complete.answered) - complete.late + len(accept.answered)
    row["answered_a_second"] = round(in_time / load.seconds, 1)
    for kind, counts in load.counts.items():
        row |= {f"{kind}_p{p}": 1000 * quantile(counts.answered, p / 100) for p in (50, 95, 99)}
        row |= {f"{kind}_asked": counts.count, f"{kind}_cancelled": counts.cancelled}
    retries = complete.retries + accept.retries
    return row | {
        "errors": complete.errors.total() + accept.errors.total(),
        "which_errors": dict(complete.errors + accept.errors),
        "shed": _share(complete.shed, complete.count),
        "shed_share": complete.shed / max(1, complete.count),
        "accepts_shed": accept.shed,
        "in_time": _share(len(complete.answered) - complete.late, len(complete.answered)),
        "cut": _share(complete.cut, len(complete.answered)),
        "retry_after": f"{min(retries)} to {max(retries)}" if retries else None,
        "lateness_p99": 1000 * quantile(load.lateness, 0.99),
        "generator": round((time.process_time() - client_seconds) / took, 2),
        **{kind: round((used - seconds_before[kind]) / took, 2) for kind, used in _seconds(processes).items()},
    }


def measure_doubling(
    load: Load, texts: Sequence[str], processes: Processes, most: int, shed: float = 0.05
) -> list[Row]:
    """Measure a load, doubled until the share of refused requests is `shed` or more, or up to `most` users."""
    rows = [measure(load, texts, processes)]
    while load.people < most and rows[-1]["shed_share"] < shed:
        load = Load(load.port, 2 * load.people, load.seconds, load.keys, load.deadline_ms, load.given_up)
        rows.append(measure(load, texts, processes))
    return rows


def texts_of(table: Path, count: int, column: str = "text") -> list[str]:
    """Return random texts of a table, the same at every call."""
    texts = [text for chunk in open_table(table).chunks([column]) for text in chunk[column] if text]
    return random.Random(0).sample(texts, min(count, len(texts)))


def warm(port: int, texts: Sequence[str], seconds: float = 2.0) -> None:
    """Send requests for a while, so that caches are warm."""
    connection, stop = Connection(port), time.monotonic() + seconds
    while time.monotonic() < stop:
        for text in texts[:20]:
            connection.ask("POST", "/v1/complete", {"query": text[:8], "user": "warm"})
    connection.close()


def _seconds(processes: Processes) -> dict[str, float]:
    """Return the processor time of each kind of processes."""
    return {kind: sum(map(processor_seconds, members)) for kind, members in processes.items()}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "0%"
