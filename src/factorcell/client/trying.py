"""When a call that failed is sent again: after a pause that doubles, drawn at random, and in time.

    pause ~ retry_after + uniform(0, min(longest, first * 2^(tries - 1)))

Nothing here sends or sleeps.
"""

from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import Any

from factorcell.client.calls import Call
from factorcell.client.errors import RefusedError, ServiceError, UnreachableError
from factorcell.limits import MANY, Limits

LEAST = 1e-3  # seconds that a try has: no time at all is no limit where some ask


@dataclass(frozen=True)
class Patience:
    """The seconds of a call in all (`deadline`) and of one try (`timeout`); how many `tries`, and the pauses between.

    A pause is drawn between zero and `first` seconds, doubled at each try up to `longest`.
    """

    deadline: float = 30.0
    timeout: float = 15.0
    tries: int = 6
    first: float = 0.2
    longest: float = 10.0

    def __post_init__(self) -> None:
        for name in ("deadline", "timeout", "first", "longest"):
            Limits(0, MANY, whole=False, above=True).check(name, getattr(self, name))
        Limits(1).check("tries", self.tries)


class Attempts:
    """The tries of one call, from now on."""

    def __init__(self, call: Call[Any], patience: Patience) -> None:
        self.call, self.patience, self.tried = call, patience, 0
        self._stop, self._final = monotonic() + patience.deadline, False

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._stop - monotonic()

    def begin(self) -> float:
        """Count a try; the seconds that it may take."""
        self.tried += 1
        return max(LEAST, min(self.patience.timeout, self.left))

    def check(self) -> None:
        """`UnreachableError` once the deadline has passed."""
        if self.left <= 0:
            raise UnreachableError(self.call.name, f"no whole answer within {self.patience.deadline:g} seconds")

    def settle(self) -> None:
        """No other try: a part of the answer is given out already."""
        self._final = True

    def pause(self, error: ServiceError) -> float:
        """Seconds to wait before the next try. Raises `error` if there is none."""
        pause = uniform(0, min(self.patience.longest, self.patience.first * 2 ** (self.tried - 1)))
        if isinstance(error, RefusedError):
            pause += error.retry_after or 0.0
        if self._final or self.tried >= self.patience.tries or not self._repeats(error) or pause >= self.left:
            error.tries = self.tried
            raise error
        return pause

    def _repeats(self, error: ServiceError) -> bool:
        """Whether the call may be sent again after `error`."""
        if not error.passing or self.call.repeat == "never":
            return False
        return self.call.repeat == "always" or not error.begun
