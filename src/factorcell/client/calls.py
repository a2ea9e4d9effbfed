"""Calls of the service: for each operation, a function that returns a `Call` and sends nothing.

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
DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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

    def parse(self, content: bytes) -> T:
        """Parse the body of a response; raise an `UnexpectedAnswerError` if it is not a valid response."""
        try:
            if self.response_type is str:
                return content.decode()  # type: ignore[return-value]
            return msgspec.json.decode(content, type=self.response_type)
        except DECODING_ERRORS as error:
            raise UnexpectedAnswerError(
                self.name, f"expected a response of the service, got other data ({error})"
            ) from None

    def result_of(self, response: httpx.Response) -> T:
        """Return the result of the call, parsed from a response; raise a `RefusedError` if the status is not 200."""
        if response.status_code != HTTPStatus.OK:
            raise self.error_of(response)
        return self.parse(response.content)

    def error_of(self, response: httpx.Response) -> RefusedError:
        """Return the error that a response reports with a status other than 200."""
        status = response.status_code
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except DECODING_ERRORS:
            problem = Problem(type="about:blank", title=response.reason_phrase, status=status, detail="")
        header = response.headers.get("retry-after", "")
        retry_after = float(header) if header.isascii() and header.isdigit() else None  # the header may contain a date
        default_type = InvalidRequestError if 400 <= status < 500 else FailedError
        error_type = ERRORS_BY_STATUS.get(status, default_type)
        return error_type(self.name, problem, retry_after)


class ChunkReader:
    """A parser of the server-sent events of a call, which accepts their bytes as they arrive.

    Only line feeds end a line. Other line separators, such as U+2028, are part of the JSON.
    """

    def __init__(self, call: Call[TextChunk]) -> None:
        self.call, self._incomplete_line, self._has_last_chunk = call, b"", False

    def feed(self, content: bytes) -> Iterator[TextChunk]:
        """Yield the chunks that are complete after the bytes `content` have arrived."""
        *lines, self._incomplete_line = (self._incomplete_line + content).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                chunk = self.call.parse(line.removeprefix(b"data:"))
                self._has_last_chunk = chunk.done
                yield chunk

    def check_complete(self) -> None:
        """Raise an `UnreachableError` unless the last chunk has arrived."""
        if not self._has_last_chunk:
            raise UnreachableError(self.call.name, "the generated text was cut off")


def _post_operation(
    name: str, create_message: Callable[P, msgspec.Struct], response_type: type[T], doc: str
) -> Callable[P, Call[T]]:
    """Return a function that creates calls of a POST operation from the fields of their message."""

    def create_call(*args: P.args, **fields: P.kwargs) -> Call[T]:
        return Call(name, "POST", f"v1/{name}", response_type, encode(name, create_message(*args, **fields)))

    parameters = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in inspect.signature(create_message).parameters.values()
    ]
    signature = inspect.Signature(parameters, return_annotation=Call[response_type])  # type: ignore[valid-type]
    create_call.__name__, create_call.__doc__ = name, doc
    create_call.__signature__ = signature  # type: ignore[attr-defined]
    return create_call


def _user_operation(
    name: str, method: str, suffix: str, response_type: type[T], doc: str, repeat: Repeat = "always"
) -> Callable[[str], Call[T]]:
    """Return a function that creates calls of an operation on a user; the requests have no body."""

    def create_call(user: str) -> Call[T]:
        return Call(name, method, _user_path(name, user, suffix), response_type, repeat=repeat)

    create_call.__name__, create_call.__doc__ = name, doc
    return create_call


def _user_path(operation: str, user: str, suffix: str) -> str:
    """Return the path of an operation on a user, with escaped special characters, including dots.

    Dots are escaped because HTTP clients would replace a user called `..` by the parent of the path.
    """
    try:
        return f"v1/users/{quote(str.__str__(user), safe='').replace('.', '%2E')}{suffix}"
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgumentError(operation, f"user: expected Unicode text, got {type(user).__name__}") from None


def _accept_request(
    *,
    user: str,
    text: str,
    idempotency_key: str | None = None,
    context: Context | None = None,
    unknown: messages.Unknown = "error",
) -> messages.AcceptRequest:
    """Return a message of the operation `accept`, with a new idempotency key if the caller passes none.

    Because of the key, the text counts once even if the client retries the call.
    """
    key = secrets.token_urlsafe(16) if idempotency_key is None else idempotency_key
    values = {} if context is None else context
    return messages.AcceptRequest(user=user, text=text, idempotency_key=key, context=values, unknown=unknown)


complete = _post_operation(
    "complete",
    messages.CompleteRequest,
    messages.CompleteAnswer,
    "Suggest texts that continue the text before the cursor.",
)
accept = _post_operation(
    "accept",
    _accept_request,
    messages.AcceptAnswer,
    "Save and learn an accepted text. If the client retries the call, the text still counts once.",
)
score = _post_operation(
    "score", messages.ScoreRequest, messages.ScoreAnswer, "Return how well the model predicts each text."
)
classify = _post_operation(
    "classify",
    messages.ClassifyRequest,
    messages.ClassifyAnswer,
    "Return the most probable value of a context column for each text.",
)
rescore = _post_operation(
    "rescore",
    messages.RescoreRequest,
    messages.RescoreAnswer,
    "Choose the best hypothesis of each n-best list, given the context of the list.",
)
generate = _post_operation(
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
    """Delete all texts of a user that the service suggests as `text`."""
    body = encode("forget", messages.ForgetRequest(text=text))
    return Call("forget", "POST", _user_path("forget", user, "/forget"), messages.RemovedAnswer, body)


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
