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
from factorcell.limits import MAX_COUNT, Limits

UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client waits, and how often it tries.

    Attributes:
        deadline: Seconds after which no try begins; one that has begun may take longer.
        timeout: Seconds of each wait for the network.
        max_attempts: How often a call is sent at most.
        first_pause: Upper bound of the first pause in seconds, which doubles at each try.
        max_pause: Upper bound of every pause in seconds.
    """

    deadline: float = 30.0
    timeout: float = 15.0
    max_attempts: int = 6
    first_pause: float = 0.2
    max_pause: float = 10.0

    def __post_init__(self) -> None:
        for name in ("deadline", "timeout", "first_pause", "max_pause"):
            Limits(0, MAX_COUNT, whole=False, above=True).check(name, getattr(self, name))
        Limits(1).check("max_attempts", self.max_attempts)


class Attempts:
    """The tries of one call, from now on; `is_final`: a part of the answer has been returned, so there is no other."""

    def __init__(self, call: Call[Any], patience: RetryPolicy) -> None:
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
            error = UnreachableError(self.call.name, message, may_have_run=not isinstance(error, UNSENT))
        pause = uniform(0, min(self.patience.max_pause, self.patience.first_pause * 2 ** (self.tried - 1)))
        if isinstance(error, RefusedError):
            pause += error.retry_after or 0.0
        repeats = error.is_temporary and (
            self.call.repeat == "always" or (self.call.repeat == "unbegun" and not error.may_have_run)
        )
        if (
            not repeats
            or self.is_final
            or self.tried >= self.patience.max_attempts
            or pause >= self._stop - monotonic()
        ):
            error.attempts = self.tried
            raise error from None
        return pause
