"""The operations of the API: their handlers, and the table that defines routes, scopes and the OpenAPI description."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from factorcell.service import messages
from factorcell.service.engine import Service
from factorcell.service.http.lanes import TimeLimit
from factorcell.service.http.problems import ProblemError

MAX_EXPORT_BYTES = 4 << 20  # maximum size of an imported export


@dataclass(frozen=True)
class Call:
    """A request for the service: its `message`, the `user` in its path, and its time limit."""

    service: Service
    message: Any
    user: str
    time_limit: TimeLimit


@dataclass(frozen=True)
class Operation:
    """An operation of the API."""

    name: str  # in metrics and in the OpenAPI description
    method: str
    path: str  # with `{user}` for the id of a user
    scope: str  # that the key of a request must have; empty if the operation needs no key
    lane: str  # the name of the thread pool that runs the handler
    request_type: type[msgspec.Struct] | None  # None if the request has no body
    response_type: type[msgspec.Struct]
    handler: Callable[[Call], Any]
    max_body_bytes: int = 1 << 20


def complete(call: Call) -> messages.Completions:
    """Suggest texts that continue the query."""
    return call.service.complete(call.message, call.time_limit.deadline, call.time_limit.stop)


def accept(call: Call) -> messages.AcceptResult:
    """Save and learn a text that a user accepted. A saved text is on disk before the response is sent."""
    request: messages.AcceptRequest = call.message
    return call.service.accept(
        request.user, request.text, context=request.context, key=request.idempotency_key, unknown=request.unknown
    )


def ready(call: Call) -> messages.Health:
    """Check that requests can be answered: the model is loaded, and the store can be written."""
    call.service.check()
    return messages.Health()


def show(call: Call) -> messages.Profile:
    """Return all saved data of a user; `POST /v1/users` imports it."""
    if (profile := call.service.show(call.user)) is None:
        raise ProblemError("not-found", "no data is saved for this user")
    return profile


def restore(call: Call) -> messages.Profile:
    """Import a user and return the data that was saved. The model learns the texts in the background."""
    return show(replace(call, user=call.service.restore(call.message)))


def delete(call: Call) -> messages.DeletedAnswer:
    """Delete all data of a user."""
    return messages.DeletedAnswer(deleted=call.service.delete(call.user))


def forget(call: Call) -> messages.RemovedAnswer:
    """Delete all texts of a user that are suggested as this text, and everything that was learned from them."""
    return messages.RemovedAnswer(removed=call.service.forget(call.user, call.message.text))


def undo(call: Call) -> messages.RemovedAnswer:
    """Delete the newest text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=call.service.undo(call.user))


def pause(call: Call) -> messages.PausedAnswer:
    """Pause learning: no text of the user is saved or learned until learning is resumed."""
    call.service.pause(call.user)
    return messages.PausedAnswer(paused=True)


def resume(call: Call) -> messages.PausedAnswer:
    """Resume learning: texts that the user accepts are saved and learned again."""
    call.service.pause(call.user, paused=False)
    return messages.PausedAnswer(paused=False)


# Routes, scopes, metrics and the OpenAPI description follow from this table.
# fmt: off
OPERATIONS = (
    Operation("complete", "POST", "/v1/complete", "complete", "search",
              messages.CompletionRequest, messages.Completions, complete),
    Operation("accept", "POST", "/v1/accept", "learn", "change", messages.AcceptRequest, messages.AcceptResult, accept),
    Operation("show", "GET", "/v1/users/{user}", "users", "change", None, messages.Profile, show),
    Operation("delete", "DELETE", "/v1/users/{user}", "users", "change", None, messages.DeletedAnswer, delete),
    Operation("forget", "POST", "/v1/users/{user}/forget", "users", "change",
              messages.ForgetRequest, messages.RemovedAnswer, forget),
    Operation("undo", "POST", "/v1/users/{user}/undo", "users", "change", None, messages.RemovedAnswer, undo),
    Operation("pause", "POST", "/v1/users/{user}/pause", "users", "change", None, messages.PausedAnswer, pause),
    Operation("resume", "POST", "/v1/users/{user}/resume", "users", "change", None, messages.PausedAnswer, resume),
    Operation("import", "POST", "/v1/users", "admin", "change", messages.Export, messages.Profile, restore,
              max_body_bytes=MAX_EXPORT_BYTES),
    Operation("ready", "GET", "/readyz", "", "change", None, messages.Health, ready),
)
# fmt: on
