"""Requests as messages: the query of GET, the body of all else."""

import codecs
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from factorcell.service.http.lanes import GoneError
from factorcell.service.http.problems import ProblemError

M = TypeVar("M", bound=msgspec.Struct)


async def message(request: Request, kind: type[M], largest: int) -> M:
    """Return the message of a request. `ProblemError` for anything else."""
    try:
        if request.method in ("GET", "HEAD"):
            return _converted(_from_query(request.scope["query_string"]), kind)
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
        raise GoneError from None
    return bytes(content)


def _converted(fields: dict[str, Any], kind: type[M]) -> M:
    """Return the message of the fields of a query, whose values are texts."""
    made = msgspec.convert(fields, kind, strict=False)
    for name in fields:
        if getattr(made, name) is None:
            raise ProblemError("invalid", f"a query has no null; leave {name} out")
    return made


def _from_query(query: bytes) -> dict[str, Any]:
    """Return the fields of a query; those of the context are `context[NAME]`."""
    try:
        pairs = parse_qsl(_text(query, "query"), keep_blank_values=True, errors="strict", max_num_fields=200)
    except UnicodeDecodeError:
        raise ProblemError("malformed", "the query is not UTF-8 text") from None
    except ValueError:
        raise ProblemError("malformed", "the query has too many fields") from None
    fields: dict[str, Any] = {}
    context: dict[str, str] = {}
    for name, value in pairs:
        is_context = name.startswith("context[") and name.endswith("]")
        place, key = (context, name[8:-1]) if is_context else (fields, name)
        if key in place:
            raise ProblemError("invalid", "a field is given twice")
        place[key] = value
    if "context" in fields:
        raise ProblemError("invalid", "a context is given as context[NAME]=VALUE")
    return fields | ({"context": context} if context else {})


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError("malformed", f"the {where} is not UTF-8 text") from None
