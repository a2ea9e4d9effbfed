"""The cost of HTTP: the latency of a completion over a persistent connection minus that of the same Python call.

Both calls alternate, for the same user and prefix; the figure is the median of the differences. The server is another
process; its run and its store are opened here a second time.

No server can avoid some of that cost, such as waking processes and threads. So `bare` is the overhead of a minimal TCP
server in which a thread computes for the same time.
"""

import asyncio
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.service.client import HOST, Connection
from benchmarks.service.report import Row, quantile
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.stores.store import open_store
from tests.ports import free_port

USER = "somebody"
OPTIONS = {"user": USER, "limit": 8, "deadline_ms": 10_000}
COLUMNS = {
    "requests": "requests",
    "http_p50": "over HTTP, p50, ms",
    "python_p50": "in Python, p50, ms",
    "cost_p50": "difference, p50, ms",
    "cost_p95": "p95",
    "bare_p50": "a bare server, p50, ms",
}


def measure(run: Path, store: str, port: int, texts: Sequence[str], requests: int = 1000) -> Row:
    """Return the row of a server at `port` that serves `run` with `store`."""
    service = Service(ServedModel(Run.open(run)), open_store(store))
    connection, draw = Connection(port), random.Random(0)
    for text in texts[:20]:
        connection.ask("POST", "/v1/accept", {"user": USER, "text": text})
    over: list[float] = []
    within: list[float] = []
    for number in range(requests + 100):
        text = draw.choice(texts)
        query = text[: draw.randint(1, len(text))]
        ways: list[tuple[list[float], Callable[[], object]]] = [
            (over, partial(connection.ask, "POST", "/v1/complete", {"query": query, **OPTIONS})),
            (within, partial(service.complete, CompletionRequest(query, USER, limit=8))),
        ]
        for times, once in draw.sample(ways, 2):
            began = time.perf_counter()
            once()
            if number >= 100:  # both are slower at first
                times.append(time.perf_counter() - began)
    connection.close()
    service.close()
    costs = [1000 * (total - other) for total, other in zip(over, within, strict=True)]
    return {
        "what": "cost of HTTP",
        "requests": requests,
        "http_p50": 1000 * statistics.median(over),
        "python_p50": 1000 * statistics.median(within),
        "cost_p50": statistics.median(costs),
        "cost_p95": quantile(costs, 0.95),
        "bare_p50": 1000 * bare(statistics.median(within), 500),
    }


def bare(seconds: float, requests: int) -> float:
    """Return the median overhead, in seconds, of a minimal server whose thread computes for `seconds`."""
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, seconds), daemon=True)
    server.start()
    try:
        connection = _connect(port)
        took = []
        for _ in range(requests):
            began = time.perf_counter()
            connection.sendall(b"?")
            computed = float(connection.recv(100))
            took.append(time.perf_counter() - began - computed)
        connection.close()
    finally:
        server.kill()
    return statistics.median(took)


def _connect(port: int) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection((HOST, port))
        except ConnectionError:
            time.sleep(0.01)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def _serve(port: int, seconds: float) -> None:
    """Answer each byte with the seconds that a thread computed for."""
    threads = ThreadPoolExecutor(1)

    def compute() -> float:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            sum(range(1000))
        return time.perf_counter() - began

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            took = await asyncio.get_running_loop().run_in_executor(threads, compute)
            writer.write(repr(took).encode())

    async def serve() -> None:
        await (await asyncio.start_server(answer, HOST, port)).serve_forever()

    asyncio.run(serve())
