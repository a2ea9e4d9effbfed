"""Everything that the request handlers need: the service, settings, keys, metrics, thread pools, and operations."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from factorcell.config import UserError
from factorcell.memory import usable_cores
from factorcell.service.engine import Service
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.lanes import Lane, TimeLimit
from factorcell.service.http.metrics import Metrics

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # RFC 6454
MIN_SEARCH_SECONDS = 0.003  # minimum time of a search, regardless of how many requests wait


@dataclass(frozen=True)
class Settings:
    """How a site answers.

    Attributes:
        deadline: Seconds for a completion, unless the request sets its own deadline.
        timeout: Seconds for every other request.
        host_names: Accepted host names of the server; any if empty.
        origins: Origins of other sites whose pages may send requests.
        pad: The length of a completion is a multiple of this number of bytes; 0 for no padding.
        hint: Placeholder of the empty search box.
    """

    deadline: float = 0.1
    timeout: float = 10.0
    host_names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    pad: int = 0
    hint: str = ""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                expected = "https://NAME or https://NAME:PORT in lower case, without a path"
                raise UserError(f"origin {origin!r:.60}: expected {expected}")


def _lanes() -> dict[str, Lane]:
    threads = usable_cores()
    return {
        "search": Lane("search", threads, 256, MIN_SEARCH_SECONDS),
        "change": Lane("change", threads, 256),
        "batch": Lane("batch", 1, 16),
    }


@dataclass(frozen=True)
class Site:
    """A service with everything that HTTP needs."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    keys: KeyRing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    lanes: dict[str, Lane] = field(default_factory=_lanes)

    def close(self) -> None:
        """Finish running requests, then close the store."""
        for lane in self.lanes.values():
            lane.close()
        self.service.close()


@dataclass(frozen=True)
class Call:
    """A request: its `message`, the `user` in its path, and its time limit."""

    message: Any
    user: str
    time_limit: TimeLimit


@dataclass(frozen=True)
class Operation:
    """An operation of the API.

    Attributes:
        name: The name in metrics and in the OpenAPI description.
        method: The HTTP method.
        path: The path, with `{user}` for the id of a user.
        scope: The scope that a key needs; empty if no key is needed.
        lane: The thread pool that runs it.
        request_type: The message of the request, or None if it has no body.
        response_type: The message of the response, or of each event.
        handler: Computes the response.
        is_streaming: Whether the response is a stream of server-sent events.
        max_body_bytes: Maximum size of the body.
    """

    name: str
    method: str
    path: str
    scope: str
    lane: str
    request_type: type[Struct] | None
    response_type: type[Struct]
    handler: Callable[[Site, Call], Struct] | Callable[[Site, Call], Iterator[Struct]]
    is_streaming: bool = False
    max_body_bytes: int = 1 << 20
