"""The range of every number that somebody can give, and the error that says what is wrong with one.

A field of the config has its `Limits` beside its help text. `NUMBERS` has those of the options that are no fields:
the command line holds what it parses against them, and the functions that take these numbers call `check`.
"""

import difflib
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_COUNT = 1_000_000_000  # rows, tokens, values: more than any table here has, and 32 bits hold it
MAX_FLOAT = 1e38  # which 32-bit floats hold
SHORT = 100  # a range up to here is shown whole
MAX_SEED = 1 << 43  # training multiplies a seed by a million, and 63 bits hold that
CONTINUE_ANYWAY = "to continue anyway"


class UserError(ValueError):
    """A mistake in what the user gave: one line that says what was got, where, and what is valid.

    `remedies` are options, name and value, spelled as in Python, where a flag is True; `outcome` is what they are for.
    """

    def __init__(
        self, message: str = "", remedies: Iterable[tuple[str, str | bool]] = (), outcome: str = CONTINUE_ANYWAY
    ) -> None:
        super().__init__(message)
        self.message, self.remedies, self.outcome = message, tuple(remedies), outcome

    def __str__(self) -> str:
        named = [(name, value if value is True else f'"{value}"') for name, value in self.remedies]
        return self._with([f"{name}={value}" for name, value in named])

    def as_command(self) -> str:
        """The same line with the remedies as flags of the command line."""
        named = [(f"--{name.replace('_', '-')}", value) for name, value in self.remedies]
        return self._with([flag if value is True else f"{flag} {value}" for flag, value in named])

    def with_message(self, message: str) -> "UserError":
        """An error of another message with the same remedies."""
        return UserError(message, self.remedies, self.outcome)

    def _with(self, remedies: list[str]) -> str:
        return f"{self.message}; {' or '.join(remedies)} {self.outcome}" if remedies else self.message


def choose(kind: str, name: str, valid: Iterable[str]) -> str:
    """`name`, if it is one of `valid`; otherwise a `UserError` that lists them and names the nearest."""
    names = list(valid)
    if name in names:
        return name
    known = ", ".join(names) or "nothing: there are none"
    raise UserError(f"unknown {kind} {name!r}{nearest_hint(name, names)}; choose from {known}")


def nearest_hint(name: str, valid: Iterable[str]) -> str:
    """What an error adds about a `name` that is not there: the nearest of those that are, if one is near."""
    near = difflib.get_close_matches(name, list(valid), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_format(number: Any, newest: int, what: object) -> None:
    """`UserError` unless this code reads format `number` of `what`: it reads all from 1 to `newest`."""
    if type(number) is not int or number < 1:
        raise UserError(f"{what}: damaged (its format is {number!r:.40}; it must be a whole number from 1 on)")
    if number > newest:
        raise UserError(
            f"{what}: its format is {number}, this factorcell reads up to {newest}; "
            "upgrade factorcell (pip install --upgrade factorcell)"
        )


@dataclass(frozen=True)
class Limits:
    """The numbers from `low` to `high`, both included unless `above` (not `low`) or `below` (not `high`) is set.

    `whole`: no fractions.
    """

    low: float
    high: float = MAX_COUNT
    whole: bool = True
    above: bool = False
    below: bool = False

    def check(self, name: str, value: Any) -> None:
        """`UserError` unless `value`, which the message calls `name`, is such a number."""
        kind: Any = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            raise UserError(f"{name} is {value!r:.60}; it must be {'a whole number' if self.whole else 'a number'}")
        enough = value > self.low if self.above else value >= self.low
        little = value < self.high if self.below else value <= self.high
        if not (enough and little):  # not a number is neither
            shown = f"{value:g}" if isinstance(value, float) else f"{value!s:.40}"
            raise UserError(f"{name} is {shown}; it must be {self._wanted(enough)}")

    def _wanted(self, enough: bool) -> str:
        """What is valid: all of a short range, of a long one the bound that was missed."""
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        high = f"below {self.high:g}" if self.below else f"at most {self.high:{'g' if not self.whole else ''}}"
        if self.high > SHORT:
            return high if enough else low
        return f"{low} and {high}" if self.above or self.below else f"from {self.low:g} to {self.high:g}"


# The options that are no fields of the config, by the name that the command line and Python share.
NUMBER_LIMITS = {
    "alternatives": Limits(1000, 1_000_000),  # fewer tell no exposure
    "cached": Limits(1),
    "count": Limits(1, 100_000),
    "deadline_ms": Limits(1, 10_000),
    "epochs": Limits(0, 1_000_000, whole=False),
    "every": Limits(1),
    "examples": Limits(0),
    "frequent": Limits(1),
    "groups": Limits(1),
    "grow": Limits(1, 1_000_000),
    "l1": Limits(0, MAX_FLOAT, whole=False),
    "length_penalty": Limits(0, 10, whole=False),
    "max_memory": Limits(0, 1_000_000, whole=False, above=True),
    "max_tokens": Limits(1, 1_000_000),
    "min_tokens": Limits(0, 1_000_000),
    "minutes": Limits(0, 1_000_000, whole=False, above=True),
    "no_repeat_ngram": Limits(0, 1_000_000),
    "number": Limits(1, 10_000_000),
    "order": Limits(1, 12),
    "pad": Limits(0, 1 << 20),
    "port": Limits(0, 65_535),
    "rate": Limits(0, 1_000_000, whole=False, above=True),
    "reach": Limits(0, MAX_COUNT, whole=False),
    "repeats": Limits(1, 1_000_000),
    "rows": Limits(20),  # fewer say nothing of a column
    "rows_per_user": Limits(1),
    "samples": Limits(0),
    "seconds": Limits(0, MAX_COUNT, whole=False),
    "seed": Limits(0, (1 << 63) - 1),
    "seeds": Limits(1, 1000),
    "share": Limits(0, 1, whole=False),
    "typos": Limits(0, 2),
    "temperature": Limits(0, MAX_FLOAT, whole=False, above=True),
    "threads": Limits(0, 1024),
    "top_k": Limits(0),
    "top_p": Limits(0, 1, whole=False, above=True),
    "trials": Limits(1, 1_000_000),
    "width": Limits(1, 1_000_000),
    "window": Limits(1),
    "workers": Limits(1, 1024),
    "within": Limits(0, math.inf, whole=False),
}


def check(**given: float | None) -> None:
    """`UserError` unless each of the numbers `given`, by its name in `NUMBERS`, is valid; None is not given."""
    for name, value in given.items():
        if value is not None:
            NUMBER_LIMITS[name].check(name, value)
