"""Categories and numbers: what a single value means, and columns of such values as ids or numbers.

`category_name` gives every value of a category its name, and `is_missing` says which values are missing. All code that
uses a value as a key (a category, a user, a group of a report) calls these two functions, so that a rating read from a
file and one given in Python agree. A missing category (null or an empty field) has the expected value; a missing number
is an error unless the caller chose `unknown="expected"`. Times are numbers too: the hour, the weekday (Monday is 0) or
the day of the year (January 1 is 0), as the time is written, in its own zone.
"""

import difflib
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import UserError
from factorcell.data.rare_values import bloom_filter, holds
from factorcell.data.schema import MISSING, RARE, Variable, waves

LARGEST = float(np.finfo(np.float32).max)


WHOLE = re.compile(r"(-?\d+)\.0+")  # a whole number written with a point
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}  # as pandas and R write them


def category_name(value: Any) -> str:
    """Return the name by which a value of a category is compared and stored.

    | value | name |
    |---|---|
    | 5, 5.0, "5", "5.0", Decimal("5.00") | 5 |
    | 4.7, in 16, 32 or 64 bits | 4.7: the shortest text that reads back as the same number |
    | True, "true", "True", "TRUE" | true |
    | bytes | their text, which must be UTF-8 |
    | a date or a time, of Python, NumPy or pandas | ISO 8601: 2026-11-21T15:55:00 |
    | any other text | itself, in Unicode normalization form NFC |
    | any other value | str(value) |

    Args:
        value: A value that is not missing (`is_missing`).

    Raises:
        UserError: The value is bytes that are not UTF-8, or a list or another collection.
    """
    text = value if isinstance(value, str) else _text(value)
    if not text.isascii():
        return unicodedata.normalize("NFC", text)
    if found := WHOLE.fullmatch(text):
        text = found[1]
    return "0" if text == "-0" else BOOLEANS.get(text, text)


def _text(value: Any) -> str:
    """The text of a value that is not a string."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UserError(f"expected text, got bytes that are not UTF-8: {quoted(value)}") from None
    if isinstance(value, (float, np.floating)):
        # NumPy writes the shortest text of its own precision
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, Decimal) and value.is_finite():
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, (list, tuple, dict, set, np.ndarray)):
        raise UserError(f"expected a single value, got {quoted(value)}")
    moment = to_time(value)
    return str(value) if moment is None else moment.isoformat()


def widened(value: np.floating[Any]) -> float:
    """Return the number of 64 bits that a narrower one is written as: 4.7 for 4.7 in 32 bits, not 4.699999809265137.

    Whole numbers, which may be identifiers, stay exactly what they are.
    """
    exact = float(value)
    return exact if exact.is_integer() else float(str(value))


def is_missing(value: Any) -> bool:
    """Return whether a value is null, an empty field, or not a number (a date, too, may be none)."""
    if isinstance(value, (str, int)):
        return value == ""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, bytes) and not value


def name_or_none(value: Any) -> str | None:
    """Return the name of a category, or None for a missing value."""
    return None if is_missing(value) else category_name(value)


def quoted(value: Any) -> str:
    """A value as an error shows it: in one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def to_number(value: Any) -> float | None:
    """A number that 32 bits hold, or None. A time is none: its number would have a unit of its own.

    Nor is text such as 3_12, a code, of which Python makes the number 312.
    """
    if isinstance(value, np.datetime64) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None


def to_time(value: Any) -> date | time | None:
    """A date, a time of day, or both (a `datetime` is a `date`), from ISO 8601 text or as Python or NumPy has it."""
    if isinstance(value, np.datetime64):
        fine = np.datetime_data(value.dtype)[0] in ("ns", "ps", "fs", "as")  # of which Python knows only the number
        value = (value.astype("datetime64[us]") if fine else value).item()  # a number too beyond the year 9999
    if isinstance(value, (date, time)):
        return None if is_missing(value) else value
    if not isinstance(value, str):
        return None
    kinds = (date, datetime, time) if ":" in value else (date, datetime)  # 2026 is no time of day
    for kind in kinds:
        try:
            return kind.fromisoformat(value.strip())
        except ValueError:
            continue
    return None


def to_hour(value: Any) -> float | None:
    """Hours since midnight; None of a date without a time of day."""
    moment = to_time(value)
    if not isinstance(moment, (datetime, time)):
        return None
    return moment.hour + moment.minute / 60 + (moment.second + moment.microsecond / 1e6) / 3600


def to_weekday(value: Any) -> float | None:
    """Whole days since Monday."""
    moment = to_time(value)
    return float(moment.weekday()) if isinstance(moment, date) else None


def to_yearday(value: Any) -> float | None:
    """Whole days since January 1."""
    moment = to_time(value)
    return moment.timetuple().tm_yday - 1.0 if isinstance(moment, date) else None


def deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Standard deviation of each column of `values` (rows, n); 1 where its values are the same, but for rounding."""
    spread: NDArray[np.float64] = values.std(0, dtype=np.float64)
    return np.where(spread > 1e-12 * np.abs(values).max(0), spread, 1.0)


class _ValueIds(dict[Any, int]):
    """Provisional ids of the values of one type; those of all types share the `names` of a column.

    Values of different types have a dict each, because Python takes True, 1 and 1.0 for one key.
    """

    def __init__(self, names: dict[str, int]) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, value: Any) -> int:
        if is_missing(value):
            return 0
        self[value] = index = self.names.setdefault(category_name(value), len(self.names) + 1)
        return index


class NameIds:
    """Provisional ids of category values, 1 upwards in the order in which their names appear; 0 is a missing value."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.types: defaultdict[type, _ValueIds] = defaultdict(lambda: _ValueIds(self.names))

    def of(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Return the ids (len(values),); `TypeError` where a value is not hashable."""
        types = set(map(type, values))
        if len(types) == 1:
            of_one_type = self.types[types.pop()]
            return np.fromiter(map(of_one_type.__getitem__, values), dtype=np.int32, count=len(values))
        return np.fromiter((self.types[type(v)][v] for v in values), dtype=np.int32, count=len(values))


class CategoryColumn:
    """A categorical column as it is read; messages name no values of one that is `private`."""

    def __init__(
        self, name: str, column: str, where: str, known: Variable | None, unknown: str, private: bool = False
    ) -> None:
        self.name, self.column, self.where, self.known, self.unknown = name, column, where, known, unknown
        self.private = private
        self.ids = NameIds()
        self.rows: list[NDArray[np.int32]] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        try:
            self.rows.append(self.ids.of(values))
        except (TypeError, UserError):
            raise self._nameless(values, before) from None

    def _nameless(self, values: list[Any], before: int) -> UserError:
        """The error about the first of `values` that has no name: it is not hashable, or bytes that are not UTF-8."""
        for row, value in enumerate(values, before + 1):
            where = f"{self.where} row {row}: {self.column}"
            try:
                hash(value)
                name_or_none(value)
            except UserError as error:
                return UserError(f"{where}: {error.message}")
            except TypeError:
                hint = f" (a vector? say {self.column}:vector)" if isinstance(value, (list, tuple, np.ndarray)) else ""
                return UserError(f"{where} is a {type(value).__name__}, not the name of a category{hint}")
        raise AssertionError("every value has a name")

    def _never_seen(self, names: list[str], rows: NDArray[np.int32], variable: Variable) -> UserError:
        """The error about `names` that training never saw, with the row of the first."""
        ids = [self.ids.names[name] for name in names]
        row, count = int(np.flatnonzero(rows == ids[0])[0]) + 1, int(np.isin(rows, ids).sum())
        what = f"{len(names):,} such values" if len(names) > 1 else "this value"
        more = f" ({what} in {count:,} of {len(rows):,} rows)" if count > 1 else ""
        rare = " or is a rare one" if variable.rare and not variable.grouped else ""
        values = variable.values[1:]
        near = difflib.get_close_matches(names[0], values, n=3) or values[:5]
        listed = (
            f" ({', '.join(near)}{', ...' if len(values) > len(near) else ''})" if near and not self.private else ""
        )
        said = f"{self.column} {names[0]!r} was never seen in training{rare}{more}; it knows {len(values):,} values"
        return UserError(f"{self.where} row {row}: {said}{listed}", (("unknown", "group"), ("unknown", "expected")))

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes: frequent values by falling count, rare ones grouped."""
        counts = np.bincount(np.concatenate(self.rows), minlength=len(self.ids.names) + 1)[1:].tolist()
        named = sorted(zip(self.ids.names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
        kept = [(name, count) for name, count in named if count >= min_count and name != RARE]
        names = {name for name, _ in kept}
        grouped = sum(counts) - sum(count for _, count in kept)
        return Variable(
            self.name,
            "category",
            values=(RARE, *(name for name, _ in kept)),
            counts=(grouped, *(count for _, count in kept)),
            rare=len(named) - len(kept),
            least=min_count,
            grouped=bloom_filter([name for name in self.ids.names if name not in names]),
        )

    def provisional(self) -> NDArray[np.int32]:
        """The ids of all rows as their values appeared, 1 upwards, those of rare values too; 0 where missing."""
        return np.concatenate(self.rows)

    def array(self, variable: Variable) -> NDArray[np.int32]:
        """The ids of all rows in `variable`; `UserError` of values never seen, if they are one."""
        rows, valid = np.concatenate(self.rows), set(variable.values[1:])
        if self.known and self.unknown == "error":
            grouped = bytes.fromhex(variable.grouped)
            if never := [name for name in self.ids.names if name not in valid and not holds(grouped, name)]:
                raise self._never_seen(never, rows, variable)
        index = {name: row for row, name in enumerate(variable.values)}
        other = MISSING if self.unknown == "expected" else 0
        final = [MISSING, *(index.get(name, other) for name in self.ids.names)]
        return np.array(final, dtype=np.int32)[rows]


def empty(wrong: str) -> str:
    """What an error says of an empty field, which is `wrong`."""
    return f"empty, {wrong}; fill it in or leave the row out"


TIME = "not a {} (ISO 8601, such as 2026-11-21T15:55)"
# Per kind, how a value is read, and what an error says of one that cannot be read.
READ: dict[str, tuple[Callable[[Any], float | None], str]] = {
    "number": (to_number, "not a number"),
    "longitude": (to_number, "not a number of degrees"),
    "cyclic": (to_number, "not a number"),
    "hour": (to_hour, TIME.format("time of day")),
    "weekday": (to_weekday, TIME.format("date")),
    "yearday": (to_yearday, TIME.format("date")),
}


class NumberColumn:
    """A numeric column as it is read, of the kind and period that the variable has; it may be a new one.

    With a period its values lie in [0, period).
    """

    def __init__(self, variable: Variable, where: str, unknown: str, *, new: bool) -> None:
        self.name, self.column, self.where, self.unknown = variable.name, variable.source, where, unknown
        self.kind, self.period = variable.kind, variable.period
        self.hint = f" (a category? say {self.column}:category)" if new and self.kind == "number" else ""
        self.rows: list[NDArray[np.float64]] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        read, wrong = READ[self.kind]
        numbers = [read(value) for value in values]
        for row, (value, number) in enumerate(zip(values, numbers, strict=True), before + 1):
            if number is None and not (self.unknown == "expected" and is_missing(value)):
                said = f"{quoted(value)}, {wrong}{self.hint}"
                if is_missing(value):  # its kind is no mistake
                    said = empty(wrong.partition(" (")[0])
                raise UserError(f"{self.where} row {row}: {self.column} is {said}")
        array = np.array([math.nan if number is None else number for number in numbers])
        self.rows.append(array % self.period if self.period else array)

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes, with its moments and range."""
        rows = np.concatenate(self.rows)
        if self.period:
            return self._periodic(rows)
        mean, deviation, low, high = map(float, (rows.mean(), deviations(rows), rows.min(), rows.max()))
        return Variable(self.name, self.kind, mean=mean, deviation=deviation, low=low, high=high)

    def _periodic(self, rows: NDArray[np.float64]) -> Variable:
        """With the moments of its waves; its mean is the direction of the mean of all points of the circle."""
        turns, phases = map(np.array, waves(self.period))
        waved = np.sin(rows[:, None] * turns + phases)
        means = waved.mean(0)
        mean = math.atan2(means[0], means[1]) * self.period / (2 * math.pi) % self.period
        around = (rows - mean + self.period / 2) % self.period - self.period / 2
        return Variable(
            self.name,
            self.kind,
            mean=mean,
            deviation=float(deviations(mean + around)),
            period=self.period,
            means=tuple(means.tolist()),
            deviations=tuple(deviations(waved).tolist()),
        )

    def array(self, variable: Variable) -> NDArray[np.float64]:
        """The values of all rows."""
        return np.concatenate(self.rows)
