"""The application: from a request to an answer or a problem."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.service.http import operations, problems, reading
from factorcell.service.http.lanes import GoneError
from factorcell.service.http.operations import OPERATIONS, Call, Operation
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Site

LOG = logging.getLogger("factorcell.service")
NOBODY = 499  # the status of an answer that nobody waits for
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def application(site: Site) -> Starlette:
    """The application that serves a site, and closes it at the end."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        site.close()

    routes = [Route("/healthz", healthy, methods=["GET"], name="health")]
    routes += [Route(one.path, endpoint(site, one), methods=list(one.methods), name=one.name) for one in OPERATIONS]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused})
    app.add_middleware(Guard)
    return app


async def healthy(_: Request) -> Response:
    """The process is there."""
    return Response(b'{"status":"ok"}', media_type="application/json")


def endpoint(site: Site, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """What answers a route."""
    lane = site.lanes.of(operation.lane)

    async def answer(request: Request) -> Response:
        try:
            asked = None if operation.takes is None else await reading.message(request, operation.takes)
            user = reading.part(request, "user") if "user" in request.path_params else ""
            given = await lane.run(
                lambda left: operation.answer(site, Call(asked, user, left)),
                operations.seconds(operation, asked, site),
                _gone(request),
            )
            return Response(msgspec.json.encode(given), media_type="application/json")
        except GoneError:
            return Response(status_code=NOBODY)
        except Exception as error:
            return failed(error, site)

    return answer


def failed(error: Exception, site: Site) -> Response:
    """The problem that an error is; faults of ours are logged, without what was asked."""
    problem = problems.of(error, str(site.service.model.run.folder))
    if problem.kind == "failed":
        LOG.error("%s at %s", type(error).__name__, _place(error))
    return problem.response()


def _place(error: BaseException) -> str:
    """The lines of our code that an error came through; its message may have what was asked."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(frames[-4:])


def _gone(request: Request) -> Callable[[], Awaitable[None]]:
    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def _refused(_: Request, error: Exception) -> Response:
    """What routing refuses."""
    assert isinstance(error, HTTPException)
    kind = problems.BY_STATUS.get(error.status_code, "malformed")
    details = {"not-found": "there is no such address; /openapi.json has all", "wrong-method": "see the header Allow"}
    return ProblemError(kind, details.get(kind, "see the documentation"), headers=error.headers).response()


class Guard:
    """Around all else: what is too long is refused, the path is matched as it was sent, and headers are added."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = ((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] += [(name, value) for name, value in more if name not in given]
            await send(message)

        try:
            reading.check_head(scope)
        except ProblemError as problem:
            return await problem.response()(scope, receive, sent)
        scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        return await self.app(scope, receive, sent)
