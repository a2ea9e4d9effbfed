"""Around all answers: what is too long or comes from elsewhere is refused, headers are added, requests are counted."""

import time
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorcell.service import faults
from factorcell.service.http import problems, reading
from factorcell.service.http.lanes import BUSY
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Site

OPERATION = "factorcell.operation"  # where a scope has the name of what was asked
LATE = "factorcell.late"  # where a scope has the seconds that its answer will wait for the loop, by what it has done
TURNS = 12  # of the loop until then, each as long as the first; fewer where fewer requests are there
OTHER = "other"
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
SAFE = ("GET", "HEAD", "OPTIONS")


class Guard:
    """The outermost layer. The path is matched as it was sent, so that an id may have any character, escaped.

    `hurried`: paths that are answered by the deadline of the site, or refused where the loop has too much to do.
    """

    def __init__(self, app: ASGIApp, site: Site, hurried: Collection[str] = ()) -> None:
        self.app, self.site, self.hurried = app, site, hurried
        self.inside = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 0
        self.inside += 1

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            await send(message)

        scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace"), OPERATION: OTHER}
        try:
            scope[LATE] = late = reading.age(scope) * min(TURNS, self.inside)
            if scope["path"] in self.hurried and late > self.site.settings.deadline:
                raise ProblemError("overloaded", BUSY, retry=late)
            reading.check_head(scope)
            check_place(Headers(scope=scope), scope["method"], self.site)
            await self.app(scope, receive, sent)
        except Exception as error:
            response = failed(error, self.site)
            if not status:
                await response(scope, receive, sent)
        finally:
            self.inside -= 1
            metrics = self.site.metrics
            metrics.requests.labels(scope[OPERATION], status).inc()
            metrics.seconds.labels(scope[OPERATION]).observe(time.perf_counter() - began)
        return None


def check_place(headers: Headers, method: str, site: Site) -> None:
    """`ProblemError` for a name that is not the server's, and for a page of another server that wants a change.

    A browser sends both, whatever the page wants: so no page can ask a server that only its machine may ask.
    """
    host = headers.get("host", "").lower()
    if site.settings.names and _name(host) not in site.settings.names:
        raise ProblemError("wrong-host", "without keys this server is asked by the names of this machine alone")
    origin = headers.get("origin")
    if origin is None or method in SAFE or origin in site.settings.origins:
        return
    if origin.lower().partition("://")[2] != host:
        raise ProblemError("not-allowed", "pages of this origin may not ask; the server can be told to let them")


def failed(error: Exception, site: Site) -> Response:
    """The problem that an error is; faults of ours are logged, without what was asked."""
    problem = problems.of(error, str(site.service.model.run.folder))
    if problem.kind == "failed":
        faults.log(error)
    return problem.response()


def _name(host: str) -> str:
    """The name in a header Host, which may have a port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.removeprefix("[").removesuffix("]")
