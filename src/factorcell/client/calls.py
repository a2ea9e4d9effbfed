"""Requests and responses as values: for each operation, a function that returns a `Call` and sends nothing.

The keyword arguments of the function are the fields of the message of the operation, with the same types and defaults.
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
    ERRORS_BY_STATUS,
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

# When a failed call may be repeated. "always": a repetition does no harm. "if_no_effect": no earlier attempt had an
# effect. "never": the caller asks for the current state of the server, which the failure shows.
Repeat = Literal["always", "if_no_effect", "never"]
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to the service, and the type of its response.

    Attributes:
        name: The name of the operation.
        method: The HTTP method.
        path: The path below the address of the service.
        response_type: The type of the response; `str` for plain text.
        body: The JSON body, or None.
        repeat: When the call may be repeated after a failure.
    """

    name: str
    method: str
    path: str
    response_type: type[T]
    body: bytes | None = None
    repeat: Repeat = "always"

    def read(self, content: bytes) -> T:
        """Return the parsed response; raise an `UnexpectedAnswerError` if the bytes are not a valid response."""
        try:
            result = (
                content.decode() if self.response_type is str else msgspec.json.decode(content, type=self.response_type)
            )
            return result  # type: ignore[return-value]
        except UNREADABLE as error:
            raise UnexpectedAnswerError(
                self.name, f"expected a response of the service, got other data ({error})"
            ) from None

    def answer(self, response: httpx.Response) -> T:
        """Return the result in a response; raise a `RefusedError` if the status is not 200."""
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
        retry_after = float(seconds) if seconds.isascii() and seconds.isdigit() else None
        default_type = InvalidRequestError if 400 <= status < 500 else FailedError
        error_type = ERRORS_BY_STATUS.get(status, default_type)
        return error_type(self.name, problem, retry_after)


class ChunkReader:
    """Parses the server-sent events of a call as their bytes arrive.

    Only line feeds end a line. Other line separators, such as U+2028, are part of the JSON.
    """

    def __init__(self, call: Call[TextChunk]) -> None:
        self.call, self._rest, self._done = call, b"", False

    def feed(self, content: bytes) -> Iterator[TextChunk]:
        """Yield the chunks that are complete after the bytes `content` have arrived."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                chunk = self.call.read(line.removeprefix(b"data:"))
                self._done = chunk.done
                yield chunk

    def end(self) -> None:
        """Raise an `UnreachableError` unless the last chunk has arrived."""
        if not self._done:
            raise UnreachableError(self.call.name, "the generated text was cut off")


def _post(
    name: str, request_type: Callable[P, msgspec.Struct], response_type: type[T], doc: str
) -> Callable[P, Call[T]]:
    """Return the function that makes the calls of a POST operation; `request_type` makes their messages."""

    def make(*args: P.args, **fields: P.kwargs) -> Call[T]:
        return Call(name, "POST", f"v1/{name}", response_type, encode(name, request_type(*args, **fields)))

    parameters = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in inspect.signature(request_type).parameters.values()
    ]
    make.__name__, make.__doc__ = name, doc
    make.__signature__ = inspect.Signature(parameters, return_annotation=Call[response_type])  # type: ignore[attr-defined, valid-type]
    return make


def _user_operation(
    name: str, method: str, suffix: str, response_type: type[T], doc: str, repeat: Repeat = "always"
) -> Callable[[str], Call[T]]:
    """Return the function that makes the calls of an operation on a user; their requests have no body."""

    def make(user: str) -> Call[T]:
        return Call(name, method, _path(name, user, suffix), response_type, repeat=repeat)

    make.__name__, make.__doc__ = name, doc
    return make


def _path(name: str, user: str, suffix: str = "") -> str:
    """Return the path of a user. Special characters are escaped, including dots, because `..` would change the path."""
    try:
        return f"v1/users/{quote(str.__str__(user), safe='').replace('.', '%2E')}{suffix}"
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgumentError(name, f"user: expected Unicode text, got {type(user).__name__}") from None


def _accept_request(
    *, user: str, text: str, idempotency_key: str | None = None, context: Context | None = None
) -> messages.AcceptRequest:
    """Return a message with an idempotency key, so that the text counts once even if the client retries the call."""
    key = secrets.token_urlsafe(16) if idempotency_key is None else idempotency_key
    return messages.AcceptRequest(user=user, text=text, idempotency_key=key, context={} if context is None else context)


complete = _post(
    "complete",
    messages.CompleteRequest,
    messages.CompleteAnswer,
    "Suggest texts that continue the text before the cursor.",
)
accept = _post(
    "accept",
    _accept_request,
    messages.AcceptAnswer,
    "Save and learn an accepted text. If the client retries the call, the text still counts once.",
)
score = _post("score", messages.ScoreRequest, messages.ScoreAnswer, "Return how well the model predicts each text.")
classify = _post(
    "classify",
    messages.ClassifyRequest,
    messages.ClassifyAnswer,
    "Return the most probable value of a context column for each text.",
)
rescore = _post(
    "rescore",
    messages.RescoreRequest,
    messages.RescoreAnswer,
    "Choose the best hypothesis of each n-best list, given the context of the list.",
)
generate = _post(
    "generate",
    messages.GenerateRequest,
    TextChunk,
    "Generate a text and stream it in chunks; `done` is set in the last chunk.",
)


show = _user_operation("show", "GET", "", messages.ProfileAnswer, "Return all saved data of a user.")
export = _user_operation(
    "export", "GET", "/export", Export, "Return the texts and settings of a user, which `restore` imports."
)
delete = _user_operation("delete", "DELETE", "", messages.DeletedAnswer, "Delete all data of a user.")
undo = _user_operation(
    "undo", "POST", "/undo", messages.RemovedAnswer, "Delete the newest text of a user.", "if_no_effect"
)
pause = _user_operation("pause", "POST", "/pause", messages.PausedAnswer, "Pause learning for a user until `resume`.")
resume = _user_operation("resume", "POST", "/resume", messages.PausedAnswer, "Resume learning for a user.")


def forget(user: str, text: str) -> Call[messages.RemovedAnswer]:
    """Delete all copies of a text of a user."""
    body = encode("forget", messages.ForgetRequest(text=text))
    return Call("forget", "POST", _path("forget", user, "/forget"), messages.RemovedAnswer, body)


def restore(exported: Export) -> Call[messages.UserAnswer]:
    """Import an exported user. The call raises a `ConflictError` if the user exists already."""
    return Call("restore", "POST", "v1/users", messages.UserAnswer, encode("restore", exported), "if_no_effect")


def health() -> Call[messages.Health]:
    """Check that the server process answers."""
    return Call("health", "GET", "healthz", messages.Health, repeat="never")


def ready() -> Call[messages.Health]:
    """Check that the model and the store can answer. The call raises a `BusyError` if they cannot."""
    return Call("ready", "GET", "readyz", messages.Health, repeat="never")


def metrics() -> Call[str]:
    """Return the metrics in the text format of Prometheus."""
    return Call("metrics", "GET", "metrics", str, repeat="never")
