"""What HTTP costs: a completion over a connection that is kept, less the same call of the engine in Python.

Both are made one after the other, in turns, of the same person at the same prefix; the figure is the median of the
differences. The server is another process, as always; its run and its store are opened here once more.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.service.client import Connection
from benchmarks.service.report import Row, quantile
from factorcell.model.run import Run
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from factorcell.service.stores.opening import open_store

USER = "somebody"
HOW = {"user": USER, "limit": 8, "deadline_ms": 10_000}  # which the service keeps a fifth of
COLUMNS = {
    "requests": "requests",
    "http_p50": "over HTTP, p50, ms",
    "python_p50": "in Python, p50, ms",
    "cost_p50": "difference, p50, ms",
    "cost_p95": "p95",
}


def measure(run: Path, store: str, port: int, texts: Sequence[str], requests: int = 1000) -> Row:
    """The row of a server at `port` that serves `run` with `store`."""
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
            (over, partial(connection.ask, "POST", "/v1/complete", {"query": query, **HOW})),
            (within, partial(service.complete, CompletionRequest(query, USER, limit=8, seconds=8.0))),
        ]
        for times, once in draw.sample(ways, 2):
            began = time.perf_counter()
            once()
            if number >= 100:  # the first are slower for both
                times.append(time.perf_counter() - began)
    connection.close()
    service.close()
    costs = [1000 * (one - other) for one, other in zip(over, within, strict=True)]
    return {
        "what": "cost of HTTP",
        "requests": requests,
        "http_p50": 1000 * statistics.median(over),
        "python_p50": 1000 * statistics.median(within),
        "cost_p50": statistics.median(costs),
        "cost_p95": quantile(costs, 0.95),
    }
