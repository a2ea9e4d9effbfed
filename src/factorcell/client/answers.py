"""Answers as they come from a service, made into what they mean: values, errors, pieces of a stream."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import msgspec

from factorcell.client.calls import Call
from factorcell.client.errors import RefusedError, UnexpectedAnswerError, UnreachableError, refused
from factorcell.service.http.messages import Piece, Problem

T = TypeVar("T")

UNREADABLE = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
)  # raised for bytes that are not the expected message


def answer(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    """What a call gives back. `RefusedError` where it is a problem, `UnexpectedAnswerError` where it is neither."""
    if status != HTTPStatus.OK:
        raise refusal(call.name, status, headers, content)
    return _read(call, content)


def refusal(name: str, status: int, headers: Mapping[str, str], content: bytes) -> RefusedError:
    """The error of an answer that is none; what is no problem of RFC 9457 is one of the status alone."""
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except UNREADABLE:
        known = status in HTTPStatus.__members__.values()
        title = HTTPStatus(status).phrase if known else "this is no answer of HTTP"
        problem = Problem(type="about:blank", title=title, status=status, detail="")
    return refused(name, problem, retry_after(headers.get("retry-after", "")))


def retry_after(value: str) -> float | None:
    """The seconds that a header Retry-After asks to wait, which has them or a date; None if it has neither."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())


class Pieces:
    """The server-sent events of a call, read as their bytes come.

    Lines end in a line feed alone, as JSON has none: what else a text may have that ends lines elsewhere stays.
    """

    def __init__(self, call: Call[Piece]) -> None:
        self.call, self._rest, self._done = call, b"", False

    def feed(self, content: bytes) -> Iterator[Piece]:
        """The pieces that are whole now."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                piece = _read(self.call, line.removeprefix(b"data:"))
                self._done = piece.done
                yield piece

    def end(self) -> None:
        """`UnreachableError` if no piece was the last."""
        if not self._done:
            raise UnreachableError(self.call.name, "the text broke off")


def _read(call: Call[T], content: bytes) -> T:
    try:
        return call.read(content)
    except UNREADABLE as error:
        raise UnexpectedAnswerError(call.name, f"this is no answer of a service ({error})") from None
