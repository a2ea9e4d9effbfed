"""Requests as messages, and errors as problem details (RFC 9457).

No problem contains a path of the server, or data of another user.
"""

import codecs
import math
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from factorcell.errors import UserError
from factorcell.service.engine import UserExistsError
from factorcell.service.messages import Problem
from factorcell.service.record import DAMAGED, LOG, DamagedRecordError, StoreError, log_unexpected_error

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
# Status of a request that matches no route -> kind and detail of the problem.
PROBLEMS_BY_STATUS = {
    404: ("not-found", "unknown path; /openapi.json lists all paths"),
    405: ("wrong-method", "this path does not support this method; the header Allow lists the supported methods"),
}

M = TypeVar("M", bound=msgspec.Struct)


class ProblemError(Exception):
    """A request fails for a reason that the response states.

    The `kind` is a key of `PROBLEM_KINDS`, and `detail` says what is wrong with this request, and what to do. The
    client may try again after `retry_after` seconds, if that is not None.
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


class DisconnectedError(Exception):
    """The client has disconnected."""


def problem_from(error: Exception, folder: str = "") -> ProblemError:
    """Return the problem that describes an error, in which "the model" replaces the path `folder`; log a failure."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HTTPException):  # no route
        kind, detail = PROBLEMS_BY_STATUS.get(error.status_code, ("malformed", "/docs describes valid requests"))
        return ProblemError(kind, detail, headers=error.headers)
    if isinstance(error, UserError):
        kind = "conflict" if isinstance(error, UserExistsError) else "invalid"
        return ProblemError(kind, str(error).replace(folder, "the model") if folder else str(error))
    if isinstance(error, StoreError):
        if isinstance(error, DamagedRecordError):
            LOG.error("%s; %s", *DAMAGED)
        return ProblemError("no-store", "user data cannot be read or written now; try again later", retry_after=1)
    log_unexpected_error(error)
    return ProblemError("failed", "unexpected error; it was logged")


async def read_message(request: Request, message_type: type[M], max_bytes: int) -> M:
    """Return the message in the body of a request; raise a `ProblemError` if the body is invalid."""
    try:
        media_type, _, _ = request.headers.get("content-type", "").partition(";")
        if media_type.strip().lower() != "application/json" or "content-encoding" in request.headers:
            raise ProblemError("wrong-type", "expected an uncompressed body with Content-Type: application/json")
        # Some editors write a byte order mark.
        content = (await _read_body(request, max_bytes)).removeprefix(codecs.BOM_UTF8)
        return msgspec.json.decode(_decode_text(content, "body"), type=message_type)
    except msgspec.ValidationError as error:
        raise ProblemError("invalid", str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise ProblemError("malformed", "expected a body in JSON") from None


def path_parameter(request: Request, name: str) -> str:
    """Return the unescaped value of a parameter in the path of a request."""
    return _decode_text(unquote_to_bytes(request.path_params[name]), "path")


async def _read_body(request: Request, max_bytes: int) -> bytes:
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                headers = {"Connection": "close"}  # the rest of the body is not read
                raise ProblemError("too-large", f"expected a body of at most {max_bytes} bytes", headers=headers)
    except ClientDisconnect:
        raise DisconnectedError from None
    return bytes(content)


def _decode_text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError("malformed", f"expected UTF-8 text in the {where}") from None
