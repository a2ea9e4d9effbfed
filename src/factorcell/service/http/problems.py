"""Why a request is not answered, as a problem of RFC 9457; none names a path, or a user or text of somebody else."""

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from factorcell.config import UserError
from factorcell.service.http.messages import Problem
from factorcell.service.record import StoreError

MEDIA_TYPE = "application/problem+json"

# Status and title of each kind; its type is the heading of that name in the documentation.
KINDS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request cannot be read"),
    "no-key": (401, "A valid key is needed"),
    "not-allowed": (403, "This is not allowed"),
    "not-found": (404, "There is nothing here"),
    "wrong-method": (405, "This is not asked by that method"),
    "conflict": (409, "It is there already"),
    "too-large": (413, "The body is too large"),
    "wrong-type": (415, "The body is not plain JSON"),
    "wrong-host": (421, "This server is not asked by that name"),
    "invalid": (422, "What was asked is not valid"),
    "too-many": (429, "Too many requests with this key"),
    "failed": (500, "The server failed"),
    "overloaded": (503, "There is too much to do"),
    "no-store": (503, "The store does not answer"),
}


class ProblemError(Exception):
    """A request that is refused: one of `KINDS`, a detail, and the seconds after which to try again."""

    def __init__(self, kind: str, detail: str, retry: float | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(kind)
        self.kind, self.detail, self.headers = kind, detail, dict(headers or {})
        if retry is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry)))

    def response(self) -> Response:
        status, title = KINDS[self.kind]
        problem = Problem(type=f"/docs#{self.kind}", title=title, status=status, detail=self.detail)
        return Response(msgspec.json.encode(problem), status, self.headers, MEDIA_TYPE)


def problem_from(error: Exception, folder: str = "") -> ProblemError:
    """Return the problem of an error of the service; `folder` is that of the run, which is not shown."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, UserError):
        return ProblemError("invalid", str(error).replace(folder, "the model") if folder else str(error))
    if isinstance(error, StoreError):
        return ProblemError("no-store", "what is kept of people cannot be read or written now", retry=1)
    return ProblemError("failed", "this is a fault of the server, which has logged it")
