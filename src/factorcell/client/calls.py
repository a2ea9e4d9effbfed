"""What a service can be asked, as values: one function a route, which makes a `Call` and sends nothing.

The fields of a message are the keywords of its function, so that both have the same names, types and defaults.
"""

import inspect
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args
from urllib.parse import quote

import msgspec

from factorcell.client.encoding import encode, plain_text
from factorcell.service.http.messages import (
    AcceptAnswer,
    AcceptRequest,
    ClassifyAnswer,
    ClassifyRequest,
    CompleteAnswer,
    CompleteRequest,
    Context,
    ContextText,
    DeletedAnswer,
    Export,
    ForgetRequest,
    GenerateRequest,
    GivenText,
    Health,
    Hypothesis,
    HypothesisList,
    PausedAnswer,
    Piece,
    ProfileAnswer,
    RemovedAnswer,
    RescoreAnswer,
    RescoreRequest,
    ScoreAnswer,
    ScoreRequest,
    UserAnswer,
)

__all__ = ["Call", "ContextText", "Export", "GivenText", "Hypothesis", "HypothesisList", "Piece"]

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=msgspec.Struct)

# always: done twice it is as if it were done once. unbegun: only where it was surely not done. never: it asks how
# things are at this moment.
Repeat = Literal["always", "unbegun", "never"]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that may be sent: its `path` below the address of the service, its JSON, when it may be sent again.

    `read` makes what is given back of the bytes of an answer.
    """

    name: str
    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    repeat: Repeat = "always"


def describe(function: Callable[..., Any], name: str, doc: str, signature: inspect.Signature) -> None:
    """What `help` tells of a function."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {"return": signature.return_annotation}


def describe_method(function: Callable[..., Any], make: Callable[..., Call[Any]], gives: Any = None) -> None:
    """Have a method that asks what `make` makes tell the same; what it gives is in the answer, unless it is said."""
    signature = inspect.signature(make)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    given = gives or get_args(signature.return_annotation)[0]
    signature = signature.replace(parameters=[own, *signature.parameters.values()], return_annotation=given)
    describe(function, make.__name__, make.__doc__ or "", signature)


def _asking(name: str, takes: Callable[P, msgspec.Struct], gives: type[M], doc: str) -> Callable[P, Call[M]]:
    """The function of a route whose body `takes` makes."""

    def make(*args: P.args, **fields: P.kwargs) -> Call[M]:
        return Call(name, "POST", f"v1/{name}", _reader(gives), encode(name, takes(*args, **fields)))

    kind, given = inspect.Parameter.KEYWORD_ONLY, inspect.signature(takes).parameters.values()
    parameters = [inspect.Parameter(one.name, kind, default=one.default) for one in given]
    describe(make, name, doc, inspect.Signature(parameters, return_annotation=Call[gives]))  # type: ignore[valid-type]
    return make


def _about(
    name: str, method: str, of: str, gives: type[M], doc: str, repeat: Repeat = "always"
) -> Callable[[str], Call[M]]:
    """The function of a route below that of a person."""

    def make(user: str) -> Call[M]:
        return Call(name, method, _path(name, user) + of, _reader(gives), repeat=repeat)

    user_id = inspect.Parameter("user", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    describe(make, name, doc, inspect.Signature([user_id], return_annotation=Call[gives]))  # type: ignore[valid-type]
    return make


def _reader(gives: type[M]) -> Callable[[bytes], M]:
    return lambda content: msgspec.json.decode(content, type=gives)


def _path(name: str, user: str) -> str:
    """The path of a person, whose id may have any character; dots are escaped, as `..` would lead elsewhere."""
    return f"v1/users/{quote(plain_text(name, user, 'user'), safe='').replace('.', '%2E')}"


def _accepted(
    *, user: str, text: str, idempotency_key: str | None = None, context: Context | None = None
) -> AcceptRequest:
    """An accept, with a key of its own unless it has one: however often it is sent, it counts once."""
    key = secrets.token_urlsafe(16) if idempotency_key is None else idempotency_key
    return AcceptRequest(user=user, text=text, idempotency_key=key, context={} if context is None else context)


complete = _asking("complete", CompleteRequest, CompleteAnswer, "Suggest texts that go on from what is typed.")
accept = _asking(
    "accept",
    _accepted,
    AcceptAnswer,
    "Learn and keep a text that somebody accepted: on disk once it is answered, and once however often it is sent.",
)
score = _asking("score", ScoreRequest, ScoreAnswer, "How well the model predicts each text.")
classify = _asking("classify", ClassifyRequest, ClassifyAnswer, "Which value of a column each text has.")
rescore = _asking("rescore", RescoreRequest, RescoreAnswer, "Choose anew from a recogniser's lists, in context.")
generate = _asking("generate", GenerateRequest, Piece, "Write a text, piece by piece; the last piece is `done`.")

show = _about("show", "GET", "", ProfileAnswer, "All that is kept of a person.")
export = _about("export", "GET", "/export", Export, "All that a person gave, to be taken along.")
delete = _about("delete", "DELETE", "", DeletedAnswer, "Delete all of a person.")
pause = _about("pause", "POST", "/pause", PausedAnswer, "Keep and learn nothing of a person until it is resumed.")
resume = _about("resume", "POST", "/resume", PausedAnswer, "Keep and learn what a person accepts, again.")
undo = _about("undo", "POST", "/undo", RemovedAnswer, "Delete the newest text of a person.", "unbegun")


def forget(user: str, text: str) -> Call[RemovedAnswer]:
    """Delete a text of a person, however often it was accepted."""
    body = encode("forget", ForgetRequest(text=text))
    return Call("forget", "POST", f"{_path('forget', user)}/forget", _reader(RemovedAnswer), body)


def restore(exported: Export) -> Call[UserAnswer]:
    """Keep a person as they were exported; whoever is there already is a `ConflictError`."""
    return Call("restore", "POST", "v1/users", _reader(UserAnswer), encode("restore", exported, "exported"), "unbegun")


def health() -> Call[Health]:
    """Whether the process is there."""
    return Call("health", "GET", "healthz", _reader(Health), repeat="never")


def ready() -> Call[Health]:
    """Whether model and store can answer; a `BusyError` if not."""
    return Call("ready", "GET", "readyz", _reader(Health), repeat="never")


def metrics() -> Call[str]:
    """The figures for Prometheus, as text."""
    return Call("metrics", "GET", "metrics", bytes.decode, repeat="never")
