"""The application: from a request to a response or a problem.

Each request has one deadline, an absolute `time.monotonic()`, which is made from the time of its arrival.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.service import error_log
from factorcell.service.http import metrics, pages, problems, reading
from factorcell.service.http.lanes import DisconnectedError, TimeLimit
from factorcell.service.http.messages import CompleteRequest
from factorcell.service.http.openapi import EVENTS, openapi
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Call, Operation, Site
from factorcell.service.http.watching import Watcher

ARRIVED, OPERATION = "factorcell.arrived", "factorcell.operation"  # in a scope: monotonic time; name for the metrics
OTHER = "other"  # the operation of requests to all other paths
COMPUTING = 0.8  # share of the time of a completion for computing; the rest is for reading and sending
GONE = 499  # the status in the metrics if the client has disconnected
CORS_SECONDS = 600  # for which a browser remembers the answer to a preflight request
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def application(site: Site, watcher: Watcher | None = None) -> Starlette:
    """Return the application of a site; its end closes the site and the `watcher`, which its start starts."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if watcher is not None:
            watcher.start()
        yield
        if watcher is not None:
            watcher.close()
        site.close()

    by_path: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        by_path.setdefault(one.path, {})[one.method] = one
    routes: list[BaseRoute] = [
        Route(path, _endpoint(site, by_method), methods=list(by_method)) for path, by_method in by_path.items()
    ]
    description = msgspec.json.encode(openapi(keys=site.keys is not None))
    routes += [
        Route("/healthz", _constant(b'{"status":"ok"}')),
        Route("/openapi.json", _constant(description)),
        Route("/metrics", _figures(site)),
        *pages.routes(site.settings.hint),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=site.settings.origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type"),
        expose_headers=("Retry-After",),
        max_age=CORS_SECONDS,
    )
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[*([cors] if site.settings.origins else []), Middleware(Guard, site=site)],
        exception_handlers={HTTPException: _unrouted},
    )
    app.router.redirect_slashes = False
    return app


class Guard:
    """Middleware that stamps the arrival, checks host and origin, adds headers, turns errors to problems, and counts.

    The path is matched as it was sent, so that an id may have any character, escaped.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        arrived, status = time.monotonic(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            await send(message)

        scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace"), ARRIVED: arrived, OPERATION: OTHER}
        try:
            _check_origin(Headers(scope=scope), scope["method"], self.site)
            await self.app(scope, receive, sent)
        except DisconnectedError:
            status = GONE
        except Exception as error:
            problem = problems.problem_from(error, str(self.site.service.model.run.folder))
            if problem.kind == "failed":
                error_log.log_unexpected_error(error)
            if not status:
                await problem.response()(scope, receive, sent)
        finally:
            self.site.metrics.requests.labels(scope[OPERATION], status).inc()
            self.site.metrics.seconds.labels(scope[OPERATION]).observe(time.monotonic() - arrived)
        return None


def _check_origin(headers: Headers, method: str, site: Site) -> None:
    """Raise a `ProblemError` for another host name, and for a page of another server that sends a change.

    Browsers send both headers, so no page can reach a server that is meant for its machine alone.
    """
    host = headers.get("host", "").lower()
    name, _, port = host.rpartition(":")
    bare = (name if port.isdigit() else host).removeprefix("[").removesuffix("]")
    if site.settings.names and bare not in site.settings.names:
        raise ProblemError("wrong-host", "without keys this server is asked by the names of this machine alone")
    origin = headers.get("origin")
    if origin is None or method in SAFE or origin in site.settings.origins:
        return
    if origin.lower().partition("://")[2] != host:
        raise ProblemError(
            "not-allowed", "pages of this origin may not send requests; --origin of the server allows it"
        )


def _endpoint(site: Site, by_method: dict[str, Operation]) -> Endpoint:
    async def answer(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        request.scope[OPERATION] = operation.name
        _authorize(site, operation.scope, request)
        message = None
        if operation.request_type is not None:
            message = await reading.message(request, operation.request_type, operation.largest)
        user = reading.part(request, "user") if "user" in request.path_params else ""
        deadline = request.scope[ARRIVED] + site.settings.patience
        if isinstance(message, CompleteRequest):
            milliseconds = message.deadline_ms
            seconds = site.settings.deadline if milliseconds is None else milliseconds / 1000
            deadline = request.scope[ARRIVED] + COMPUTING * seconds

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        def work(turn: TimeLimit) -> Any:
            return operation.answer(site, Call(message, user, turn))

        lane = site.lanes[operation.lane]
        with site.metrics.waiting.labels(operation.lane).track_inprogress():
            if operation.streams:
                results = await lane.stream(
                    cast("Callable[[TimeLimit], Iterator[msgspec.Struct]]", work), deadline, gone
                )
                events = (b"data: " + msgspec.json.encode(one) + b"\n\n" async for one in results)
                return StreamingResponse(events, media_type=EVENTS)
            content = msgspec.json.encode(await lane.run(work, deadline, gone))
        step = site.settings.pad
        if step and isinstance(message, CompleteRequest):
            content = content.ljust(-(-len(content) // step) * step)
        return Response(content, media_type="application/json")

    return answer


def _authorize(site: Site, scope: str, request: Request) -> None:
    """Raise a `ProblemError` unless the request has a key that allows `scope`, or needs none."""
    if site.keys is None or not scope:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    key = site.keys.find(given.strip()) if kind.lower() == "bearer" else None
    if key is None:
        sent = "the key that was sent is none of this service" if given else "no key was sent"
        detail = f"{sent}; valid is a header Authorization: Bearer KEY"
        raise ProblemError("no-key", detail, headers={"WWW-Authenticate": "Bearer"})
    if wait := site.keys.wait(key):
        raise ProblemError("too-many", f"this key may ask {key.rate:g} times a second", retry=wait)
    if scope not in key.scopes:
        raise ProblemError("not-allowed", f"this needs a key of the scope {scope}")


def _constant(content: bytes) -> Endpoint:
    async def answer(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return answer


def _figures(site: Site) -> Endpoint:
    async def answer(request: Request) -> Response:
        _authorize(site, "admin", request)
        return Response(site.metrics.text(), media_type=metrics.MEDIA_TYPE)

    return answer


async def _unrouted(_: Request, error: Exception) -> Response:
    """Return the problem of a request that no route matches."""
    assert isinstance(error, HTTPException)
    known = {
        404: ("not-found", "there is no such address; /openapi.json has all"),
        405: ("wrong-method", "see the header Allow"),
    }
    return ProblemError(*known.get(error.status_code, ("malformed", "see /docs")), headers=error.headers).response()
