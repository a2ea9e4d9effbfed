"""Parses HTTP requests into messages."""

import codecs
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from factorcell.service.http.lanes import DisconnectedError
from factorcell.service.http.problems import ProblemError

M = TypeVar("M", bound=msgspec.Struct)


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
