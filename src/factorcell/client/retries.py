"""Retries of failed calls within a deadline, after random pauses whose upper bound doubles with each attempt.

    pause ~ retry_after + uniform(0, min(max_pause, first_pause * 2^(attempts - 1)))

`attempts` is the number of attempts so far; `retry_after` is the pause that the service requires, in seconds, or 0.
"""

from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import Any

import httpx

from factorcell.client.calls import Call
from factorcell.client.errors import RefusedError, ServiceError, UnreachableError
from factorcell.options.limits import MAX_COUNT, Limits, make_plain

# Errors that occur before httpx sends a request.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client waits, and how often it retries.

    Attributes:
        deadline: Seconds from the start of a call during which attempts may begin; the last attempt may end later.
        timeout: Maximum seconds that an attempt waits for a connection or for data from the network.
        max_attempts: Maximum number of attempts.
        first_pause: Upper bound of the first pause, in seconds. This upper bound doubles with each attempt.
        max_pause: Largest value of this upper bound, in seconds.
    """

    deadline: float = 30.0
    timeout: float = 15.0
    max_attempts: int = 6
    first_pause: float = 0.2
    max_pause: float = 10.0

    def __post_init__(self) -> None:
        make_plain(self)
        for name in ("deadline", "timeout", "first_pause", "max_pause"):
            Limits(0, MAX_COUNT, whole=False, above=True).check(name, getattr(self, name))
        Limits(1).check("max_attempts", self.max_attempts)


class Attempts:
    """The attempts of one call. Setting `is_final` forbids further attempts, for example after a partial response."""

    def __init__(self, call: Call[Any], policy: RetryPolicy) -> None:
        self.call, self.policy, self.count, self.is_final = call, policy, 0, False
        self._deadline = monotonic() + policy.deadline

    def start_attempt(self) -> float:
        """Count an attempt; return its timeout in seconds."""
        self.count += 1
        seconds_left = self._deadline - monotonic()
        return max(1e-3, min(self.policy.timeout, seconds_left))

    def pause_or_raise(self, error: httpx.RequestError | ServiceError) -> float:
        """Return the seconds until the next attempt; raise the error as a `ServiceError` if no attempt may follow."""
        if isinstance(error, httpx.RequestError):
            message = f"no response ({str(error) or type(error).__name__})"
            error = UnreachableError(self.call.name, message, may_have_run=not isinstance(error, UNSENT))
        max_pause = min(self.policy.max_pause, self.policy.first_pause * 2 ** (self.count - 1))
        pause = uniform(0, max_pause)
        if isinstance(error, RefusedError):
            pause += error.retry_after or 0.0
        is_harmless = self.call.repeat == "always" or (self.call.repeat == "if_no_effect" and not error.may_have_run)
        has_attempts_left = self.count < self.policy.max_attempts and pause < self._deadline - monotonic()
        if self.is_final or not (error.is_temporary and is_harmless and has_attempts_left):
            error.attempts = self.count
            raise error from None
        return pause
