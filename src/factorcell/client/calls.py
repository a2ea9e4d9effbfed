"""Requests and answers as values: one function per operation, which makes a `Call` and sends nothing.

The keywords of a function are the fields of the message, with the same names, types and defaults.
"""

import inspect
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from factorcell.client.encoding import encode
from factorcell.client.errors import (
    CLASSES,
    FailedError,
    InvalidArgumentError,
    InvalidRequestError,
    RefusedError,
    UnexpectedAnswerError,
    UnreachableError,
)
from factorcell.service.http import messages
from factorcell.service.http.messages import Context, Export, Problem, TextChunk

P = ParamSpec("P")
T = TypeVar("T")

# always: repeating it changes nothing more. unbegun: only if it was surely not done. never: it asks for the present.
Repeat = Literal["always", "unbegun", "never"]
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request: its `path` below the address of the service, its JSON, the type of its answer, and when to repeat."""

    name: str
    method: str
    path: str
    gives: type[T]
    body: bytes | None = None
    repeat: Repeat = "always"

    def read(self, content: bytes) -> T:
        """Return the answer that its bytes hold. `UnexpectedAnswerError` for other bytes."""
        try:
            return content.decode() if self.gives is str else msgspec.json.decode(content, type=self.gives)  # type: ignore[return-value]
        except UNREADABLE as error:
            raise UnexpectedAnswerError(self.name, f"this is no answer of a service ({error})") from None

    def answer(self, response: httpx.Response) -> T:
        """Return the answer of a response. `RefusedError` if it is a problem."""
        if response.status_code != HTTPStatus.OK:
            raise self.refusal(response)
        return self.read(response.content)

    def refusal(self, response: httpx.Response) -> RefusedError:
        """Return the error of a response whose status is not 200."""
        status = response.status_code
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except UNREADABLE:
            problem = Problem(type="about:blank", title=response.reason_phrase, status=status, detail="")
        seconds = response.headers.get("retry-after", "")
        kind = CLASSES.get(status, InvalidRequestError if status // 100 == 4 else FailedError)
        return kind(self.name, problem, float(seconds) if seconds.isascii() and seconds.isdigit() else None)


class Pieces:
    """Reads the server-sent events of a call as their bytes come.

    Only line feeds end lines: other separators of lines, such as U+2028, are part of the JSON.
    """

    def __init__(self, call: Call[TextChunk]) -> None:
        self.call, self._rest, self._done = call, b"", False

    def feed(self, content: bytes) -> Iterator[TextChunk]:
        """Yield the pieces that are complete now."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                piece = self.call.read(line.removeprefix(b"data:"))
                self._done = piece.done
                yield piece

    def end(self) -> None:
        """Raise an `UnreachableError` if no piece was the last."""
        if not self._done:
            raise UnreachableError(self.call.name, "the text broke off")


def _posts(name: str, takes: Callable[P, msgspec.Struct], gives: type[T], doc: str) -> Callable[P, Call[T]]:
    """Return the function of an operation whose body `takes` makes."""

    def make(*args: P.args, **fields: P.kwargs) -> Call[T]:
        return Call(name, "POST", f"v1/{name}", gives, encode(name, takes(*args, **fields)))

    fields = inspect.signature(takes).parameters.values()
    parameters = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default) for one in fields]
    make.__name__, make.__doc__ = name, doc
    make.__signature__ = inspect.Signature(parameters, return_annotation=Call[gives])  # type: ignore[attr-defined, valid-type]
    return make


def _about(
    name: str, method: str, below: str, gives: type[T], doc: str, repeat: Repeat = "always"
) -> Callable[[str], Call[T]]:
    """Return the function of an operation about one user, without a body."""

    def make(user: str) -> Call[T]:
        return Call(name, method, _path(name, user, below), gives, repeat=repeat)

    make.__name__, make.__doc__ = name, doc
    return make


def _path(name: str, user: str, below: str = "") -> str:
    """Return the path of a user, whose id may have any character; dots are escaped, as `..` would lead elsewhere."""
    try:
        return f"v1/users/{quote(str.__str__(user), safe='').replace('.', '%2E')}{below}"
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgumentError(name, f"user: expected Unicode text, got {type(user).__name__}") from None


def _accepted(
    *, user: str, text: str, idempotency_key: str | None = None, context: Context | None = None
) -> messages.AcceptRequest:
    """Return an accept with an idempotency key, so that it counts once, however often it is sent."""
    key = secrets.token_urlsafe(16) if idempotency_key is None else idempotency_key
    return messages.AcceptRequest(user=user, text=text, idempotency_key=key, context={} if context is None else context)


complete = _posts(
    "complete", messages.CompleteRequest, messages.CompleteAnswer, "Suggest texts that continue what is typed."
)
accept = _posts(
    "accept", _accepted, messages.AcceptAnswer, "Learn and keep a text; it counts once, however often it is sent."
)
score = _posts("score", messages.ScoreRequest, messages.ScoreAnswer, "Return how well the model predicts each text.")
classify = _posts(
    "classify", messages.ClassifyRequest, messages.ClassifyAnswer, "Return the value of a column of each text."
)
rescore = _posts(
    "rescore", messages.RescoreRequest, messages.RescoreAnswer, "Choose from the lists of a recogniser, in context."
)
generate = _posts(
    "generate", messages.GenerateRequest, TextChunk, "Write a text piece by piece; the last piece is `done`."
)


show = _about("show", "GET", "", messages.ProfileAnswer, "Return everything that is kept of a user.")
export = _about("export", "GET", "/export", Export, "Return everything that a user gave, which `restore` takes back.")
delete = _about("delete", "DELETE", "", messages.DeletedAnswer, "Delete everything of a user.")
undo = _about("undo", "POST", "/undo", messages.RemovedAnswer, "Delete the newest text of a user.", "unbegun")
pause = _about("pause", "POST", "/pause", messages.PausedAnswer, "Keep and learn nothing of a user until `resume`.")
resume = _about("resume", "POST", "/resume", messages.PausedAnswer, "Keep and learn what a user accepts, again.")


def forget(user: str, text: str) -> Call[messages.RemovedAnswer]:
    """Delete every copy of a text of a user."""
    body = encode("forget", messages.ForgetRequest(text=text))
    return Call("forget", "POST", _path("forget", user, "/forget"), messages.RemovedAnswer, body)


def restore(exported: Export) -> Call[messages.UserAnswer]:
    """Keep a user as exported; a `ConflictError` if the user is there already."""
    return Call("restore", "POST", "v1/users", messages.UserAnswer, encode("restore", exported), "unbegun")


def health() -> Call[messages.Health]:
    """Return whether the process answers."""
    return Call("health", "GET", "healthz", messages.Health, repeat="never")


def ready() -> Call[messages.Health]:
    """Return whether model and store can answer; a `BusyError` if not."""
    return Call("ready", "GET", "readyz", messages.Health, repeat="never")


def metrics() -> Call[str]:
    """Return the metrics for Prometheus as text."""
    return Call("metrics", "GET", "metrics", str, repeat="never")
