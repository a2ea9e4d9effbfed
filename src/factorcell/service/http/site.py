"""Everything that answering needs: the service, its settings, the keys, the threads, and the type of an operation."""

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

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # of RFC 6454
SHORTEST = 0.003  # seconds that a search gets however many wait


@dataclass(frozen=True)
class Settings:
    """How a site answers."""

    deadline: float = 0.1  # seconds of a completion, unless the request says so itself
    patience: float = 10.0  # seconds of all else
    names: tuple[str, ...] = ()  # host names of the server; any if empty
    origins: tuple[str, ...] = ()  # other servers whose pages may send requests
    pad: int = 0  # the length of a completion is a multiple of so many bytes
    hint: str = ""  # in the empty box of the page

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                valid = "https://NAME or https://NAME:PORT as browsers send it: in lower case, and no path"
                raise UserError(f"origin {origin!r:.60}: valid is {valid}")


def _lanes() -> dict[str, Lane]:
    threads = usable_cores()
    return {
        "search": Lane("search", threads, 256, SHORTEST),
        "change": Lane("change", threads, 256),
        "batch": Lane("batch", 1, 16),
    }


@dataclass(frozen=True)
class Site:
    """A service with what HTTP adds to it."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    keys: KeyRing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    lanes: dict[str, Lane] = field(default_factory=_lanes)

    def close(self) -> None:
        """Finish what has begun, then close the store."""
        for lane in self.lanes.values():
            lane.close()
        self.service.close()


@dataclass(frozen=True)
class Call:
    """One request: its `message`, the `user` in its path, and what it may take."""

    message: Any
    user: str
    time_limit: TimeLimit


@dataclass(frozen=True)
class Operation:
    """What a method does at a path."""

    name: str
    method: str
    path: str
    scope: str  # that a key needs; empty: no key is needed
    lane: str  # whose threads run it
    request_type: type[Struct] | None
    response_type: type[Struct]
    answer: Callable[[Site, Call], Struct] | Callable[[Site, Call], Iterator[Struct]]
    streams: bool = False
    largest: int = 1 << 20  # bytes of a body
