"""The objects that request handlers use: the service, settings, keys, metrics and thread pools, and the operations."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from factorcell.errors import UserError
from factorcell.io.memory import usable_cores
from factorcell.service.engine import Service
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.lanes import Lane, TimeLimit
from factorcell.service.http.metrics import Metrics

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # RFC 6454
MIN_SEARCH_SECONDS = 0.001  # minimum number of seconds that a search may use, even if many requests wait


@dataclass(frozen=True)
class Settings:
    """The settings of a site.

    Attributes:
        deadline: Seconds for a completion, unless the request sets its own deadline.
        timeout: Seconds for every other request.
        host_names: Host names by which clients may address the server; if empty, any name.
        origins: Origins of other sites whose pages may send requests, such as https://shop.example.
        pad: Responses with completions are padded to a multiple of this number of bytes; 0 for no padding.
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


def new_lanes(threads: int = 0) -> dict[str, Lane]:
    """Return thread pools by name; completions and changes each have as many `threads`, 0: one per core."""
    threads = threads or usable_cores()
    return {
        "search": Lane("search", threads, max_waiting=256, min_seconds=MIN_SEARCH_SECONDS),
        "change": Lane("change", threads, max_waiting=256),
        "batch": Lane("batch", threads=1, max_waiting=16),
    }


@dataclass(frozen=True)
class Site:
    """A service with the settings, keys, metrics and thread pools of its HTTP interface."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    keys: KeyRing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    lanes: dict[str, Lane] = field(default_factory=new_lanes)

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
        scope: The scope that the key of a request must have; empty if the operation needs no key.
        lane: The name of the thread pool that runs the handler.
        request_type: The type of the message in a request, or None if the request has no body.
        response_type: The type of the message in the response, or in each event of a stream.
        handler: Computes the response.
        is_streaming: Whether the response is a stream of server-sent events.
        max_body_bytes: Maximum size of the body of a request.
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
