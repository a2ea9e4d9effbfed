"""What can be asked: a table, from which routes, rights and the OpenAPI are made, with a function for each line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from factorcell.service.engine import CompletionRequest
from factorcell.service.http.messages import (
    AcceptAnswer,
    AcceptRequest,
    CompleteAnswer,
    CompleteRequest,
    Health,
    Result,
)
from factorcell.service.http.site import Site

SPARE = 0.9  # share of the time that is left which a search takes; the rest is for sending its answer


@dataclass(frozen=True)
class Call:
    """One request: what is asked, of which person (in the path), and the seconds left for it."""

    asked: Any
    user: str
    left: float


@dataclass(frozen=True)
class Operation:
    """What is asked of `path` by `methods`: a message that it `takes`, if any, and one that it `gives`.

    `scope`: what a key must allow; none is needed where it is empty. `lane`: whose threads do it.
    """

    name: str
    methods: tuple[str, ...]
    path: str
    scope: str
    lane: str
    takes: type[Struct] | None
    gives: type[Struct]
    answer: Callable[[Site, Call], Struct]

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().split("\n")[0]


def complete(site: Site, call: Call) -> CompleteAnswer:
    """Suggest texts that go on from what is typed."""
    asked: CompleteRequest = call.asked
    found = site.service.complete(
        CompletionRequest(
            asked.query,
            user=asked.user,
            cursor=asked.cursor,
            context=asked.context,
            limit=asked.limit,
            seconds=call.left * SPARE,
            private=not asked.learn,
        )
    )
    results = [
        Result(
            text=one.text,
            source=one.source,
            score=one.log_probability,
            slips=one.slips,
            parts=dict(one.parts) if asked.explain else None,
        )
        for one in found.results
    ]
    return CompleteAnswer(results=results, degraded=found.degraded, user_version=found.user_version, seq=asked.seq)


def accept(site: Site, call: Call) -> AcceptAnswer:
    """Learn and keep a text that somebody accepted; once it is answered, it is on disk."""
    asked: AcceptRequest = call.asked
    done = site.service.accept(asked.user, asked.text, context=asked.context, key=asked.idempotency_key)
    return AcceptAnswer(outcome=done.outcome, number=done.number, user_version=done.user_version, why=done.why)


def ready(site: Site, call: Call) -> Health:
    """Whether requests can be answered: the model is proven, and the store can be written."""
    site.service.check()
    return Health()


OPERATIONS = (
    Operation(
        "complete", ("GET", "POST"), "/v1/complete", "complete", "search", CompleteRequest, CompleteAnswer, complete
    ),
    Operation("accept", ("POST",), "/v1/accept", "learn", "change", AcceptRequest, AcceptAnswer, accept),
    Operation("ready", ("GET",), "/readyz", "", "change", None, Health, ready),
)


def seconds(operation: Operation, asked: Any, site: Site) -> float:
    """Within which a request must be answered."""
    if isinstance(asked, CompleteRequest):
        return site.settings.deadline if asked.deadline_ms is None else asked.deadline_ms / 1000
    return site.settings.patience
