"""Metrics for Prometheus: counts and times by operation; never a user, a text or a query.

Labels take few values: names of operations, codes of HTTP, names of lanes. Several processes add up where
PROMETHEUS_MULTIPROC_DIR names a folder for them.
"""

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("factorcell_requests", "Requests", ("operation", "status"), registry=registry)
        self.seconds = Histogram(
            "factorcell_request_seconds", "From head to answer", ("operation",), registry=registry, buckets=SECONDS
        )
        self.degraded = Counter("factorcell_degraded", "Degraded completions", ("why",), registry=registry)
        self.accepts = Counter("factorcell_accepts", "Accepted texts by outcome", ("outcome",), registry=registry)
        self.models = Counter("factorcell_models", "New models by outcome", ("outcome",), registry=registry)
        gauges: dict[str, Any] = {"registry": registry, "multiprocess_mode": "livesum"}
        self.waiting = Gauge("factorcell_waiting", "Requests that wait for a thread or have one", ("lane",), **gauges)
        self.processes = Gauge("factorcell_processes", "Processes that serve", **gauges)

    def text(self) -> bytes:
        """Return the metrics of all processes as Prometheus reads them."""
        if VARIABLE not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
