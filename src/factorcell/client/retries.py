"""When a call that failed is sent again: after a random pause whose bound doubles, and in time.

pause ~ retry_after + uniform(0, min(longest, first * 2^(tries - 1)))
"""

from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import Any

import httpx

from factorcell.client.calls import Call
from factorcell.client.errors import RefusedError, ServiceError, UnreachableError
from factorcell.limits import MANY, Limits

UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)


@dataclass(frozen=True)
class Patience:
    """How long a client waits, and how often it tries.

    Attributes:
        deadline: Seconds after which no try begins; one that has begun may take longer.
        timeout: Seconds of each wait for the network.
        tries: How often a call is sent at most.
        first: Upper bound of the first pause in seconds, which doubles at each try.
        longest: Upper bound of every pause in seconds.
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
    """The tries of one call, from now on; `is_final`: a part of the answer has been returned, so there is no other."""

    def __init__(self, call: Call[Any], patience: Patience) -> None:
        self.call, self.patience, self.tried, self.is_final = call, patience, 0, False
        self._stop = monotonic() + patience.deadline

    def begin(self) -> float:
        """Count a try; return its timeout in seconds."""
        self.tried += 1
        return max(1e-3, min(self.patience.timeout, self._stop - monotonic()))

    def pause(self, error: httpx.RequestError | ServiceError) -> float:
        """Return the seconds until the next try. Raise the `ServiceError` if there is none."""
        if isinstance(error, httpx.RequestError):
            message = f"no answer came ({str(error) or type(error).__name__})"
            error = UnreachableError(self.call.name, message, begun=not isinstance(error, UNSENT))
        pause = uniform(0, min(self.patience.longest, self.patience.first * 2 ** (self.tried - 1)))
        if isinstance(error, RefusedError):
            pause += error.retry_after or 0.0
        repeats = error.passing and (
            self.call.repeat == "always" or (self.call.repeat == "unbegun" and not error.begun)
        )
        if not repeats or self.is_final or self.tried >= self.patience.tries or pause >= self._stop - monotonic():
            error.tries = self.tried
            raise error from None
        return pause
