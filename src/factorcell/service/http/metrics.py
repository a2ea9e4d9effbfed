"""Metrics for Prometheus: counts and durations of operations. They contain no user id, no text and no query.

Labels have few values: names of operations and lanes, HTTP status codes, and outcomes. If
PROMETHEUS_MULTIPROC_DIR names a folder, the metrics are summed over all processes that share the folder.
"""

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
DURATION_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "factorcell_requests", "Requests by operation and status", ("operation", "status"), registry=registry
        )
        self.seconds = Histogram(
            "factorcell_request_seconds",
            "Seconds from the arrival of a request to its response",
            ("operation",),
            registry=registry,
            buckets=DURATION_BUCKETS,
        )
        self.degraded = Counter("factorcell_degraded", "Degraded completions by reason", ("why",), registry=registry)
        self.accepts = Counter("factorcell_accepts", "Accepted texts by outcome", ("outcome",), registry=registry)
        self.models = Counter("factorcell_models", "Reloaded models by outcome", ("outcome",), registry=registry)
        options: dict[str, Any] = {"registry": registry, "multiprocess_mode": "livesum"}
        self.waiting = Gauge("factorcell_waiting", "Requests that wait or run in a lane", ("lane",), **options)
        self.processes = Gauge("factorcell_processes", "Server processes", **options)

    def text(self) -> bytes:
        """Return the metrics of all processes in the text format of Prometheus."""
        if DIRECTORY_VARIABLE not in os.environ:
            return generate_latest(self.registry)
        combined = CollectorRegistry()
        MultiProcessCollector(combined)  # type: ignore[no-untyped-call]
        return generate_latest(combined)
