"""The application: from a request to an answer or a problem."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from factorcell.service.http import completing, metrics, page, problems, reading, streaming
from factorcell.service.http.documentation import documentation
from factorcell.service.http.guard import LATE, OPERATION, Guard, failed
from factorcell.service.http.lanes import GoneError, Turn
from factorcell.service.http.messages import CompleteRequest
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Call, Operation, Site
from factorcell.service.http.watching import Watcher

GONE = 499  # the status of an answer that nobody waits for
CORS_METHODS, CORS_HEADERS = ("GET", "POST", "DELETE"), ("Authorization", "Content-Type")
CORS_EXPOSED = ("Retry-After",)  # which scripts of other origins may read too
CORS_SECONDS = 600  # for which a browser remembers that it may ask

Endpoint = Callable[[Request], Awaitable[Response]]


def application(site: Site, watcher: Watcher | None = None) -> Starlette:
    """The application of a site, which a `watcher` looks after; at the end it closes both."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if watcher is not None:
            watcher.start()
        yield
        if watcher is not None:
            watcher.close()
        site.close()

    paths = dict.fromkeys(one.path for one in OPERATIONS)
    by_path = {path: {one.method: one for one in OPERATIONS if one.path == path} for path in paths}
    routes: list[BaseRoute] = [
        Route(path, endpoint(site, by_method), methods=list(by_method)) for path, by_method in by_path.items()
    ]
    routes += [
        Route("/healthz", _healthy),
        Route("/metrics", _figures(site)),
        *documentation(site),
        *page.routes(site.settings.hint),
    ]
    hurried = {one.path for one in OPERATIONS if one.lane == "search"}
    origins = list(site.settings.origins)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=CORS_METHODS,
        allow_headers=CORS_HEADERS,
        expose_headers=CORS_EXPOSED,
        max_age=CORS_SECONDS,
    )
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[*([cors] if origins else []), Middleware(Guard, site=site, hurried=hurried)],
        exception_handlers={HTTPException: _refused},
    )
    app.router.redirect_slashes = False
    return app


def endpoint(site: Site, by_method: dict[str, Operation]) -> Endpoint:
    """What answers one path."""

    async def answer(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        request.scope[OPERATION] = operation.name
        try:
            return await _answer(site, operation, request)
        except GoneError:
            return Response(status_code=GONE)
        except Exception as error:
            return failed(error, site)

    return answer


async def _answer(site: Site, operation: Operation, request: Request) -> Response:
    key = allowed(site, operation.scope, request)
    asked = None if operation.takes is None else await reading.message(request, operation.takes, operation.largest)
    user = reading.part(request, "user") if "user" in request.path_params else ""
    seconds = site.settings.patience
    if isinstance(asked, CompleteRequest):
        seconds = completing.arrive(site, asked, key)
    lane, seconds = site.lane(operation.lane), seconds - request.scope[LATE]

    def work(turn: Turn) -> Any:
        return operation.answer(site, Call(asked, user, key, turn))

    with site.metrics.waiting.labels(operation.lane).track_inprogress():
        if operation.streams:
            make = cast("Callable[[Turn], Iterator[msgspec.Struct]]", work)
            events = await streaming.begin(lane, make, seconds, _gone(request))
            return StreamingResponse(events, media_type=streaming.MEDIA_TYPE)
        given = await lane.run(work, seconds, _gone(request))
    content = msgspec.json.encode(given)
    if isinstance(asked, CompleteRequest):
        content = padded(content, site.settings.pad)
    return Response(content, media_type="application/json")


def padded(content: bytes, step: int) -> bytes:
    """JSON with spaces at its end, up to the next multiple of `step` bytes; as it is where that is 0."""
    return content.ljust(-(-len(content) // step) * step) if step else content


def allowed(site: Site, scope: str, request: Request) -> str:
    """The name of the key that allows `scope`, empty where none is needed. `ProblemError` where it is not allowed."""
    if site.keys is None or not scope:
        return ""
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
    return key.name


def _gone(request: Request) -> Callable[[], Awaitable[None]]:
    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def _healthy(_: Request) -> Response:
    """The process is there."""
    return Response(b'{"status":"ok"}', media_type="application/json")


def _figures(site: Site) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            allowed(site, "admin", request)
        except ProblemError as problem:
            return problem.response()
        return Response(site.metrics.text(), media_type=metrics.MEDIA_TYPE)

    return answer


async def _refused(_: Request, error: Exception) -> Response:
    """What routing refuses."""
    assert isinstance(error, HTTPException)
    kind = problems.BY_STATUS.get(error.status_code, "malformed")
    details = {"not-found": "there is no such address; /openapi.json has all", "wrong-method": "see the header Allow"}
    return ProblemError(kind, details.get(kind, "see /docs"), headers=error.headers).response()
