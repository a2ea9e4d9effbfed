"""The ASGI application: it answers each request with a result or a problem, which is an error response of RFC 9457.

Each request has one deadline, an absolute `time.monotonic()` computed from the time of its arrival.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.service import error_log
from factorcell.service.http import metrics, pages, problems, reading
from factorcell.service.http.lanes import DisconnectedError, TimeLimit
from factorcell.service.http.messages import CompleteRequest
from factorcell.service.http.openapi import EVENT_STREAM, openapi
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Call, Operation, Site
from factorcell.service.http.watching import Watcher
from factorcell.service.record import DamagedRecordError

# Keys of the ASGI scope: the time of arrival, and the operation name for the metrics.
ARRIVED, OPERATION = "factorcell.arrived", "factorcell.operation"
OTHER = "other"  # operation name of requests to unknown paths
# The part of the time for a completion that the computation may take. Reading and sending messages takes the rest.
COMPUTING_SHARE = 0.8
CLIENT_DISCONNECTED = 499  # status in the metrics if the client has disconnected
CORS_SECONDS = 600  # seconds for which a browser caches the response to a preflight request
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

Endpoint = Callable[[Request], Awaitable[Response]]


def application(site: Site, watcher: Watcher | None = None) -> ASGIApp:
    """Return an application that serves a site.

    The startup of the application starts the `watcher`; the shutdown closes the watcher and the site.
    """

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        if watcher is not None:
            watcher.start()
        yield
        if watcher is not None:
            watcher.close()
        site.close()

    operations_by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        operations_by_path.setdefault(operation.path, {})[operation.method] = operation
    routes: list[BaseRoute] = [
        Route(path, _operation_endpoint(site, operations_by_method), methods=list(operations_by_method))
        for path, operations_by_method in operations_by_path.items()
    ]
    openapi_json = msgspec.json.encode(openapi(needs_keys=site.keys is not None))
    routes += [
        Route("/healthz", _constant_endpoint(b'{"status":"ok"}')),
        Route("/openapi.json", _constant_endpoint(openapi_json)),
        Route("/metrics", _metrics_endpoint(site)),
        *pages.routes(site.settings.hint),
    ]
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
    """Middleware that checks host and origin, adds headers, turns errors into problems, and records metrics.

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
                present_names = {name.lower() for name, _ in message["headers"]}
                missing = [header for header in DEFAULT_HEADERS if header[0] not in present_names]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        # Servers may omit optional keys or set them to None.
        scope = {name: value for name, value in scope.items() if value is not None}
        scope |= {"app": self, ARRIVED: arrived, OPERATION: OTHER}
        try:
            scope["path"] = _escaped_path(scope)
            _check_host_and_origin(Headers(scope=scope), scope["method"], self.site)
            await self.app(scope, receive, send_with_headers)
        except DisconnectedError:
            status = CLIENT_DISCONNECTED
        except Exception as error:
            if isinstance(error, HTTPException):
                error = _problem_without_route(error)
            problem = problems.problem_from(error, str(self.site.service.model.run.folder))
            if problem.kind == "failed":
                error_log.log_unexpected_error(error)
            elif isinstance(error, DamagedRecordError):
                error_log.log_damaged_record()
            if not status:
                respond = problem.response()
                await respond(scope, receive, send_with_headers)
        finally:
            self.site.metrics.requests.labels(scope[OPERATION], status).inc()
            self.site.metrics.seconds.labels(scope[OPERATION]).observe(time.monotonic() - arrived)
        return None


def _escaped_path(scope: Scope) -> str:
    """Return the escaped path of a request; without the optional key `raw_path`, a slash in a user id is lost."""
    raw_path: bytes | None = scope.get("raw_path")
    return quote(scope["path"], errors="replace") if raw_path is None else raw_path.decode("ascii", "replace")


def _check_host_and_origin(headers: Headers, method: str, site: Site) -> None:
    """Raise a `ProblemError` for a foreign host name, and for a change sent by a page of another origin.

    Browsers always send the headers Host and Origin. Therefore no foreign web page can use a server that accepts only
    requests from its own machine.
    """
    host = headers.get("host", "").lower()
    host_without_port, _, port = host.rpartition(":")
    host_name = (host_without_port if port.isdigit() else host).removeprefix("[").removesuffix("]")
    if site.settings.host_names and host_name not in site.settings.host_names:
        raise ProblemError(
            "wrong-host",
            "a server without keys accepts only requests to localhost; use http://localhost or start the server "
            "with --keys",
        )
    origin = headers.get("origin")
    if origin is None or method in SAFE_METHODS or origin in site.settings.origins:
        return
    _, _, origin_host = origin.lower().partition("://")
    if origin_host != host:
        raise ProblemError(
            "not-allowed", "pages of this origin may not send requests; start the server with --origin to allow them"
        )


def _operation_endpoint(site: Site, operations_by_method: dict[str, Operation]) -> Endpoint:
    async def respond(request: Request) -> Response:
        operation = operations_by_method["GET" if request.method == "HEAD" else request.method]
        request.scope[OPERATION] = operation.name
        _authorize(site, operation.scope, request)
        message = None
        if operation.request_type is not None:
            message = await reading.read_message(request, operation.request_type, operation.max_body_bytes)
        user = reading.path_parameter(request, "user") if "user" in request.path_params else ""
        seconds = site.settings.timeout
        if isinstance(message, CompleteRequest):
            milliseconds = message.deadline_ms
            seconds = COMPUTING_SHARE * (site.settings.deadline if milliseconds is None else milliseconds / 1000)
        deadline = request.scope[ARRIVED] + seconds

        async def until_disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        def work(time_limit: TimeLimit) -> Any:
            return operation.handler(site, Call(message, user, time_limit))

        lane = site.lanes[operation.lane]
        with site.metrics.waiting.labels(operation.lane).track_inprogress():
            if operation.is_streaming:
                results = await lane.stream(
                    cast("Callable[[TimeLimit], Iterator[msgspec.Struct]]", work), deadline, until_disconnected
                )
                events = (b"data: " + msgspec.json.encode(result) + b"\n\n" async for result in results)
                return StreamingResponse(events, media_type=EVENT_STREAM)
            content = msgspec.json.encode(await lane.run(work, deadline, until_disconnected))
        if site.settings.pad and isinstance(message, CompleteRequest):
            padded_size = math.ceil(len(content) / site.settings.pad) * site.settings.pad
            content = content.ljust(padded_size)  # spaces after the JSON value
        return Response(content, media_type="application/json")

    return respond


def _authorize(site: Site, scope: str, request: Request) -> None:
    """Raise a `ProblemError` if the request has no key with the required scope, or uses its key too often."""
    if site.keys is None or not scope:
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    entry = site.keys.find(key.strip()) if scheme.lower() == "bearer" else None
    if entry is None:
        reason = "unknown key" if key else "no key"
        detail = f"{reason}; send the header Authorization: Bearer KEY with a key of this service"
        raise ProblemError("no-key", detail, headers={"WWW-Authenticate": "Bearer"})
    if wait_seconds := site.keys.count_request(entry):
        detail = f"this key allows {entry.rate:g} requests per second; wait and retry"
        raise ProblemError("too-many", detail, retry_after=wait_seconds)
    if scope not in entry.scopes:
        raise ProblemError("not-allowed", f"this request needs a key with the scope {scope}")


def _constant_endpoint(content: bytes) -> Endpoint:
    async def respond(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return respond


def _metrics_endpoint(site: Site) -> Endpoint:
    async def respond(request: Request) -> Response:
        _authorize(site, "admin", request)
        return Response(site.metrics.text(), media_type=metrics.MEDIA_TYPE)

    return respond


def _problem_without_route(error: HTTPException) -> ProblemError:
    """Return the problem of a request that matches no route."""
    problems_by_status = {
        404: ("not-found", "unknown path; /openapi.json lists all paths"),
        405: ("wrong-method", "this path does not support this method; the header Allow lists the supported methods"),
    }
    kind, detail = problems_by_status.get(error.status_code, ("malformed", "/docs describes valid requests"))
    return ProblemError(kind, detail, headers=error.headers)
