"""All that answering needs: the service, how much it may do at once, who may ask, and how it is set."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from factorcell.config import UserError
from factorcell.memory import usable_cores
from factorcell.service.engine import Service
from factorcell.service.http.keys import KeyRing
from factorcell.service.http.lanes import Lane, Turn
from factorcell.service.http.metrics import Metrics
from factorcell.service.http.readiness import Readiness
from factorcell.service.recent import Recent

SEARCHES, CHANGES, BATCHES = 256, 256, 16  # requests that wait at most
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # of RFC 6454
SHORTEST = 0.003  # seconds that a search gets however many wait: with fewer it finds less that people mean
SESSIONS = 10_000  # input boxes whose newest keystroke is known


@dataclass(frozen=True)
class Settings:
    """How a site answers: the seconds of a completion that asks for none, and of all else.

    `names`: those that the server is asked by (any if empty), `origins`: pages of other servers that may ask it,
    `UserError` for what no browser would ever send as one.
    `hint`: what the empty box of the page says, if not the page's own words.
    `pad`: the bytes of a completion are a multiple of it, so that lengths tell less of what is typed; 0 adds nothing.
    """

    deadline: float = 0.1
    patience: float = 10.0
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    pad: int = 0
    hint: str = ""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                valid = "https://NAME or https://NAME:PORT as browsers send it: in lower case, and no path"
                raise UserError(f"origin {origin!r:.60}: valid is {valid}")


@dataclass(frozen=True)
class Site:
    """What answers: completions, changes of people and batches, each in a lane, so that none starves another."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    keys: KeyRing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    readiness: Readiness = field(default_factory=Readiness)
    search: Lane = field(default_factory=lambda: Lane("search", usable_cores(), SEARCHES, SHORTEST))
    change: Lane = field(default_factory=lambda: Lane("change", usable_cores(), CHANGES))
    batch: Lane = field(default_factory=lambda: Lane("batch", 1, BATCHES))
    newest: Recent[tuple[str, str], int] = field(default_factory=lambda: Recent(SESSIONS))

    def lane(self, name: str) -> Lane:
        """One by its name."""
        return {"search": self.search, "change": self.change, "batch": self.batch}[name]

    def close(self) -> None:
        """Finish what has begun, then close the store."""
        for lane in (self.search, self.change, self.batch):
            lane.close()
        self.service.close()


@dataclass(frozen=True)
class Call:
    """One request: what is `asked`, about which person (in the path), with which `key`, and what it may take."""

    asked: Any
    user: str
    key: str
    turn: Turn


@dataclass(frozen=True)
class Operation:
    """What is asked of `path` by a method: a message that it `takes`, if any, and one that it `gives`.

    `scope`: what a key must allow, nothing where it is empty. `lane`: whose threads do it. What gives many messages
    `streams` them. `largest`: bytes of the body.
    """

    name: str
    method: str
    path: str
    scope: str
    lane: str
    takes: type[Struct] | None
    gives: type[Struct]
    answer: Callable[[Site, Call], Struct] | Callable[[Site, Call], Iterator[Struct]]
    streams: bool = False
    largest: int = 1 << 20

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().split("\n")[0]
