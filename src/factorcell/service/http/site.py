"""All that answering needs: the service, how much it may do at once, and how it is set."""

import os
from dataclasses import dataclass, field

from factorcell.service.engine import Service
from factorcell.service.http.lanes import Lane

SEARCHES, ACCEPTS, OTHERS = 256, 256, 64  # requests that wait at most


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Settings:
    """How a site answers: the seconds of a completion that asks for none, and of all else."""

    deadline: float = 0.1
    patience: float = 10.0


@dataclass(frozen=True)
class Lanes:
    """Completions, changes of people, and what takes longer than both."""

    search: Lane = field(default_factory=lambda: Lane("search", cores(), SEARCHES))
    change: Lane = field(default_factory=lambda: Lane("change", cores(), ACCEPTS))
    batch: Lane = field(default_factory=lambda: Lane("batch", 1, OTHERS))

    def of(self, name: str) -> Lane:
        """One by its name."""
        return {"search": self.search, "change": self.change, "batch": self.batch}[name]

    def close(self) -> None:
        """Wait for what has begun."""
        for lane in (self.search, self.change, self.batch):
            lane.close()


@dataclass(frozen=True)
class Site:
    """What answers."""

    service: Service
    settings: Settings = field(default_factory=Settings)
    lanes: Lanes = field(default_factory=Lanes)

    def close(self) -> None:
        """Finish what has begun, then close the store."""
        self.lanes.close()
        self.service.close()
