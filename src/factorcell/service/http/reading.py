"""A request read and checked: its body or its query as a message."""

import asyncio
import codecs
import time
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from factorcell.service.http.lanes import GoneError
from factorcell.service.http.problems import ProblemError

M = TypeVar("M", bound=msgspec.Struct)

LONGEST_ADDRESS = 16 << 10  # bytes of path and query
LARGEST_HEADERS = 16 << 10  # bytes of all names and values
ARRIVED = "factorcell.arrived"  # in the state of a scope: when the last piece of the request was read
ARRIVING = 10.0  # seconds within which a body is here
CLOSING = {"Connection": "close"}  # what follows on the connection is not to be read


def check_head(scope: Any) -> None:
    """`ProblemError` for an address or headers that are too long, or for two lengths of one body.

    A proxy that takes the other length would take the rest of the body for a request of somebody else.
    """
    if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
        raise ProblemError("too-long", f"path and query take at most {LONGEST_ADDRESS} bytes; POST takes more")
    if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > LARGEST_HEADERS:
        raise ProblemError("large-headers", f"all headers take at most {LARGEST_HEADERS} bytes")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise ProblemError("malformed", "a body has a length or comes in chunks, not both", headers=CLOSING)


async def message(request: Request, kind: type[M], largest: int) -> M:
    """What is asked: the query of GET, the body of all else. `ProblemError` for what is no such message."""
    try:
        if request.method in ("GET", "HEAD"):
            return _converted(_from_query(request.scope["query_string"]), kind)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" or "content-encoding" in request.headers:
            raise ProblemError("wrong-type", "the body must be application/json, and not compressed")
        content = (await body(request, largest)).removeprefix(codecs.BOM_UTF8)  # of a file that an editor wrote
        return msgspec.json.decode(_text(content, "body"), type=kind)
    except msgspec.ValidationError as error:
        raise ProblemError("invalid", str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise ProblemError("malformed", "the body is not JSON") from None


def age(scope: Any) -> float:
    """Seconds that a request has waited until now, since it was read, for a loop that does much else."""
    arrived = (scope.get("state") or {}).get(ARRIVED)
    return 0.0 if arrived is None else time.monotonic() - arrived


async def body(request: Request, largest: int) -> bytes:
    """All of the body, if it is no larger and comes in time."""
    large = ProblemError("too-large", f"the body takes at most {largest} bytes", headers=CLOSING)
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > largest:
        raise large
    parts, size = [], 0
    try:
        async with asyncio.timeout(ARRIVING):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > largest:
                    raise large
    except TimeoutError:
        detail = f"the body must be here within {ARRIVING:g} seconds"
        raise ProblemError("too-slow", detail, headers=CLOSING) from None
    except ClientDisconnect:
        raise GoneError from None
    return b"".join(parts)


def part(request: Request, name: str) -> str:
    """A part of the path as it was meant, any sign of it escaped or not."""
    return _text(unquote_to_bytes(request.path_params[name]), "path")


def _converted(fields: dict[str, Any], kind: type[M]) -> M:
    """The message of the fields of a query, all of which are texts: what is left out has no value, none is null."""
    made = msgspec.convert(fields, kind, strict=False)
    for name in fields:
        if getattr(made, name) is None:
            raise ProblemError("invalid", f"a query has no null; leave {name} out")
    return made


def _from_query(query: bytes) -> dict[str, Any]:
    """The fields of a query; those of the context are `context[NAME]`."""
    try:
        pairs = parse_qsl(_text(query, "query"), keep_blank_values=True, errors="strict", max_num_fields=200)
    except UnicodeDecodeError:
        raise _not_utf8("query") from None
    except ValueError:
        raise ProblemError("malformed", "the query has too many fields") from None
    fields: dict[str, Any] = {}
    context = _unique((name[8:-1], value) for name, value in pairs if _of_context(name))
    fields = _unique((name, value) for name, value in pairs if not _of_context(name))
    if "context" in fields:
        raise ProblemError("invalid", "a context is given as context[NAME]=VALUE")
    return {**fields, "context": context} if context else fields


def _of_context(name: str) -> bool:
    return name.startswith("context[") and name.endswith("]")


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ProblemError("invalid", "a field is given twice")
        found[name] = value
    return found


def _text(content: bytes, where: str) -> str:
    """Decode UTF-8. `ProblemError` that names `where` (body, path or query) for bytes that are not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _not_utf8(where) from None


def _not_utf8(where: str) -> ProblemError:
    return ProblemError("malformed", f"the {where} is not UTF-8 text")
