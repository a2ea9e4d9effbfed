"""Errors as problem details (RFC 9457). No problem contains a path of the server, or data of another user."""

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from factorcell.errors import UserError
from factorcell.service.http.messages import Problem
from factorcell.service.record import StoreError

MEDIA_TYPE = "application/problem+json"

# Status and title of each kind. The type of a problem is /docs#KIND.
PROBLEM_KINDS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request cannot be parsed"),
    "no-key": (401, "A valid key is required"),
    "not-allowed": (403, "The request is not allowed"),
    "not-found": (404, "Not found"),
    "wrong-method": (405, "The method is not supported"),
    "conflict": (409, "The user exists already"),
    "too-large": (413, "The body is too large"),
    "wrong-type": (415, "The body is not uncompressed JSON"),
    "wrong-host": (421, "The host name is not allowed"),
    "invalid": (422, "The request is invalid"),
    "too-many": (429, "Too many requests with this key"),
    "failed": (500, "Internal server error"),
    "overloaded": (503, "The server is overloaded"),
    "no-store": (503, "The store does not answer"),
}


class ProblemError(Exception):
    """A request fails for a reason that the response states.

    Args:
        kind: A key of `PROBLEM_KINDS`.
        detail: What is wrong with this request, and what to do.
        retry_after: Seconds after which the client may try again, or None to omit the header Retry-After.
        headers: Further headers of the response.
    """

    def __init__(
        self, kind: str, detail: str, retry_after: float | None = None, headers: Mapping[str, str] | None = None
    ):
        super().__init__(kind)
        self.kind, self.detail, self.headers = kind, detail, dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def response(self) -> Response:
        """Return the response that describes the problem."""
        status, title = PROBLEM_KINDS[self.kind]
        problem = Problem(type=f"/docs#{self.kind}", title=title, status=status, detail=self.detail)
        return Response(msgspec.json.encode(problem), status, self.headers, MEDIA_TYPE)


def problem_from(error: Exception, folder: str = "") -> ProblemError:
    """Return the problem that describes an error.

    In the message of a `UserError`, "the model" replaces the path `folder` of the run, which clients must not see.
    """
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, UserError):
        return ProblemError("invalid", str(error).replace(folder, "the model") if folder else str(error))
    if isinstance(error, StoreError):
        return ProblemError("no-store", "user data cannot be read or written now; try again later", retry_after=1)
    return ProblemError("failed", "unexpected error; it was logged")
