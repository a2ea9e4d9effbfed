"""Requests as messages."""

import codecs
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from factorcell.service.http.lanes import DisconnectedError
from factorcell.service.http.problems import ProblemError

M = TypeVar("M", bound=msgspec.Struct)


async def message(request: Request, kind: type[M], largest: int) -> M:
    """Return the message in the body of a request. `ProblemError` for anything else."""
    try:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" or "content-encoding" in request.headers:
            raise ProblemError("wrong-type", "the body must be application/json, and not compressed")
        content = (await _body(request, largest)).removeprefix(codecs.BOM_UTF8)  # which some editors write
        return msgspec.json.decode(_text(content, "body"), type=kind)
    except msgspec.ValidationError as error:
        raise ProblemError("invalid", str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise ProblemError("malformed", "the body is not JSON") from None


def part(request: Request, name: str) -> str:
    """Return a part of the path, unescaped."""
    return _text(unquote_to_bytes(request.path_params[name]), "path")


async def _body(request: Request, largest: int) -> bytes:
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > largest:
                closing = {"Connection": "close"}  # the rest of the body is not read
                raise ProblemError("too-large", f"the body takes at most {largest} bytes", headers=closing)
    except ClientDisconnect:
        raise DisconnectedError from None
    return bytes(content)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError("malformed", f"the {where} is not UTF-8 text") from None
