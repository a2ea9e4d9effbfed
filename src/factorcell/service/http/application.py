"""The ASGI application: it answers each request with a result or a problem, which is an error response of RFC 9457.

Each request has one deadline, an absolute `time.monotonic()` computed from the time of its arrival.
"""

import math
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.errors import UserError
from factorcell.io.memory import usable_cores
from factorcell.service.engine import Service
from factorcell.service.http import pages, problems
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.lanes import Lane, TimeLimit
from factorcell.service.http.operations import OPERATIONS, Call, Operation
from factorcell.service.http.problems import DisconnectedError, ProblemError
from factorcell.service.messages import AcceptResult, CompletionRequest, Completions

# Keys of the ASGI scope: the time of arrival, and the operation name for the metrics.
ARRIVED, OPERATION = "factorcell.arrived", "factorcell.operation"
OTHER = "other"  # operation name of requests to unknown paths
# The part of the time for a completion that the computation may take. Reading and sending messages takes the rest.
COMPUTING_SHARE = 0.8
MIN_SEARCH_SECONDS = 0.001  # minimum number of seconds that a search may use, even if many requests wait
CLIENT_DISCONNECTED = 499  # status in the metrics if the client has disconnected
CORS_SECONDS = 600  # seconds for which a browser caches the response to a preflight request
TIMEOUT = 10.0  # seconds for a request other than a completion
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # RFC 6454
METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # variable with the folder in which several processes share metrics
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DURATION_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds


@dataclass(frozen=True)
class Settings:
    """The settings of a site."""

    deadline: float = 0.1  # seconds for a completion, unless the request sets its own deadline
    host_names: tuple[str, ...] = ()  # host names by which clients may address the server; if empty, any name
    origins: tuple[str, ...] = ()  # origins of other sites whose pages may send requests, such as https://shop.example
    pad: int = 0  # responses with completions are padded to a multiple of this number of bytes; 0 for no padding
    device: Path | None = None  # folder of an exported model, with which the demo page completes on a device

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                expected = "https://NAME or https://NAME:PORT in lower case, without a path"
                raise UserError(f"origin {origin!r:.60}: expected {expected}")


class Metrics:
    """Metrics for Prometheus: counts and durations of operations, without user ids and texts."""

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
        """Return the metrics in the text format of Prometheus, summed over all processes that share a folder."""
        if METRICS_DIRECTORY not in os.environ:
            return generate_latest(self.registry)
        combined = CollectorRegistry()
        MultiProcessCollector(combined)  # type: ignore[no-untyped-call]
        return generate_latest(combined)


def new_lanes(threads: int = 0) -> dict[str, Lane]:
    """Return pools of `threads` threads, 0: one per core; completions and changes cannot hinder each other."""
    threads = threads or usable_cores()
    return {
        "search": Lane("search", threads, max_waiting=256, min_seconds=MIN_SEARCH_SECONDS),
        "change": Lane("change", threads, max_waiting=256),
    }


@dataclass(frozen=True)
class Site:
    """A service with the settings, keys, metrics and thread pools of its HTTP interface."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    keys: KeyRing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    lanes: dict[str, Lane] = field(default_factory=new_lanes)

    def close(self) -> None:
        """Finish running requests, then close the store."""
        for lane in self.lanes.values():
            lane.close()
        self.service.close()


def application(site: Site, watcher: AbstractContextManager[object] | None = None) -> ASGIApp:
    """Return an application that serves a site; its startup enters `watcher`, and its shutdown also closes the site."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        with watcher or nullcontext():
            yield
        site.close()

    routes = [Route("/metrics", partial(_respond_with_metrics, site))]
    routes += pages.routes(needs_keys=site.keys is not None, device=site.settings.device)
    for path in dict.fromkeys(operation.path for operation in OPERATIONS):
        operations = {operation.method: operation for operation in OPERATIONS if operation.path == path}
        routes.append(Route(path, partial(_respond, site, operations), methods=list(operations)))
    guard = Guard(Router(routes, redirect_slashes=False, lifespan=lifespan), site)
    if not site.settings.origins:
        return guard
    return CORSMiddleware(
        guard,
        allow_origins=site.settings.origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type"),
        expose_headers=("Retry-After",),
        max_age=CORS_SECONDS,
    )


class Guard:
    """Middleware that checks and adds headers, turns errors into problems, and records metrics.

    Routes match the escaped path, so that a user id may contain any character, even a slash.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        arrived, status = time.monotonic(), 0  # the status is 0 until the response starts

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        path = scope["raw_path"].decode("ascii", "replace")
        scope = {**scope, "app": self, "path": path, ARRIVED: arrived, OPERATION: OTHER}
        try:
            _check_headers(Headers(scope=scope), scope["method"], self.site.settings)
            await self.app(scope, receive, send_with_headers)
        except DisconnectedError:
            status = CLIENT_DISCONNECTED
        except Exception as error:
            problem = problems.problem_from(error, str(self.site.service.model.run.folder))
            if not status:
                await problem.response()(scope, receive, send_with_headers)
        finally:
            self.site.metrics.requests.labels(scope[OPERATION], status).inc()
            self.site.metrics.seconds.labels(scope[OPERATION]).observe(time.monotonic() - arrived)
        return None


def _check_headers(headers: Headers, method: str, settings: Settings) -> None:
    """Raise a `ProblemError` for an ambiguous body, a foreign host name, or a change by a page of another origin.

    Browsers always send the headers Host and Origin. Therefore no foreign web page can use a server that accepts only
    requests from its own machine.
    """
    if "transfer-encoding" in headers and "content-length" in headers:  # a proxy could see another end of the body
        raise ProblemError("malformed", "expected one length of the body", headers={"Connection": "close"})
    host = headers.get("host", "").lower()
    host_without_port, _, port = host.rpartition(":")
    host_name = (host_without_port if port.isdigit() else host).removeprefix("[").removesuffix("]")
    if settings.host_names and host_name not in settings.host_names:
        raise ProblemError(
            "wrong-host",
            "a server without keys accepts only requests to localhost; use http://localhost or start the server "
            "with --keys",
        )
    origin = headers.get("origin")
    if origin is None or method in SAFE_METHODS or origin in settings.origins:
        return
    if origin.lower().partition("://")[2] != host:
        raise ProblemError(
            "not-allowed", "pages of this origin may not send requests; start the server with --origin to allow them"
        )


def _authorize(keys: KeyRing | None, scope: str, request: Request) -> None:
    """Raise a `ProblemError` if the request has no key with the required scope, or uses its key too often."""
    if keys is None or not scope:
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    entry = keys.find(key.strip()) if scheme.lower() == "bearer" else None
    if entry is None:
        reason = "unknown key" if key else "no key"
        detail = f"{reason}; send the header Authorization: Bearer KEY with a key of this service"
        raise ProblemError("no-key", detail, headers={"WWW-Authenticate": "Bearer"})
    if wait_seconds := keys.count_request(entry):
        detail = f"this key allows {entry.rate:g} requests per second; wait and retry"
        raise ProblemError("too-many", detail, retry_after=wait_seconds)
    if scope not in entry.scopes:
        raise ProblemError("not-allowed", f"this request needs a key with the scope {scope}")


async def _respond_with_metrics(site: Site, request: Request) -> Response:
    _authorize(site.keys, "admin", request)
    return Response(site.metrics.text(), media_type=METRICS_TYPE)


async def _respond(site: Site, operations: dict[str, Operation], request: Request) -> Response:
    """Answer a request with the operation of its method."""
    operation = operations["GET" if request.method == "HEAD" else request.method]
    request.scope[OPERATION] = operation.name
    _authorize(site.keys, operation.scope, request)
    message = None
    if operation.request_type is not None:
        message = await problems.read_message(request, operation.request_type, operation.max_body_bytes)
    user = problems.path_parameter(request, "user") if "user" in request.path_params else ""
    seconds = TIMEOUT
    if isinstance(message, CompletionRequest):
        milliseconds = message.deadline_ms
        seconds = COMPUTING_SHARE * (site.settings.deadline if milliseconds is None else milliseconds / 1000)
    deadline, lane = request.scope[ARRIVED] + seconds, site.lanes[operation.lane]

    async def until_disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def work(time_limit: TimeLimit) -> Any:
        return operation.handler(Call(site.service, message, user, time_limit))

    with site.metrics.waiting.labels(operation.lane).track_inprogress():
        result = await lane.run(work, deadline, until_disconnected)
    if isinstance(result, Completions) and result.degraded:
        site.metrics.degraded.labels(result.degraded).inc()
    elif isinstance(result, AcceptResult):
        site.metrics.accepts.labels(result.outcome).inc()
    content = msgspec.json.encode(result)
    if site.settings.pad and isinstance(result, Completions):
        padded_size = math.ceil(len(content) / site.settings.pad) * site.settings.pad
        content = content.ljust(padded_size)  # spaces after the JSON value
    return Response(content, media_type="application/json")
