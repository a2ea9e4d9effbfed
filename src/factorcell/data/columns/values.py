"""Read single values of context columns as names of categories, as missing, as numbers or as times.

All code that uses a value as a key (a category, a user, a group of a report) calls `category_name` and `is_missing`.
Therefore 5, 5.0 and "5" are the same value everywhere. The hour and the day of a time are those of the time zone in
which the time is written.
"""

import calendar
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from factorcell.errors import UserError

MAX_FLOAT32 = float(np.finfo(np.float32).max)
INTEGER_WITH_POINT = re.compile(r"(-?\d+)\.0+")  # such as 5.0
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}  # as pandas and R write them
# The ranks of the names of months and of weekdays, full and abbreviated
SERIES = [
    {name.casefold(): rank for rank, name in enumerate(names)}
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
# A number, or a range that begins with a number, such as 18 to 34 or 65+.
NUMBER_OR_RANGE = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:to|-|–)\s*[-+\d].*|\+)?", re.IGNORECASE)


def category_name(value: Any) -> str:
    """Return the name of a category value that is not missing; values are compared and stored by these names.

    | value | name |
    |---|---|
    | 5, 5.0, "5", "5.0", Decimal("5.00") | 5 |
    | 4.7, in 16, 32 or 64 bits | 4.7: the shortest text that reads back as the same number |
    | True, "true", "True", "TRUE" | true |
    | bytes | their text, which must be UTF-8 |
    | a date or a time, from Python, NumPy or pandas | ISO 8601: 2026-11-21T15:55:00 |
    | any other text | itself, in Unicode normalization form NFC |
    | any other value | str(value) |

    Bytes that are not UTF-8 and collections are errors.
    """
    text = value if isinstance(value, str) else _to_text(value)
    if not text.isascii():
        return unicodedata.normalize("NFC", text)
    if match := INTEGER_WITH_POINT.fullmatch(text):
        text = match[1]
    return "0" if text == "-0" else BOOLEANS.get(text, text)


def _to_text(value: Any) -> str:
    """Return the text of a value that is not a string."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UserError(f"expected text, got bytes that are not UTF-8: {short_repr(value)}") from None
    if isinstance(value, (float, np.floating)):
        # `str` writes the shortest text that reads back as the same number of this precision.
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, Decimal) and value.is_finite():
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, (list, tuple, dict, set, np.ndarray)):
        raise UserError(f"expected a single value, got {short_repr(value)}")
    date_or_time = to_time(value)
    return str(value) if date_or_time is None else date_or_time.isoformat()


def to_float64(value: np.floating[Any]) -> float:
    """Convert a 16- or 32-bit float through its shortest text, so that 4.7 does not become 4.699999809265137.

    Whole numbers, which may be identifiers, are converted exactly.
    """
    return float(value) if value.is_integer() else float(str(value))


def is_missing(value: Any) -> bool:
    """Return whether a value is None, empty text, empty bytes, not a number (NaN) or not a time (NaT)."""
    if isinstance(value, (str, int)):
        return value == ""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # types of pandas
        return True
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, bytes) and not value


def category_name_or_none(value: Any) -> str | None:
    """Return the category name of a value, or None for a missing value."""
    return None if is_missing(value) else category_name(value)


def short_repr(value: Any) -> str:
    """Return the `repr` of a value for a message: in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def to_number(value: Any) -> float | None:
    """Convert a value to a number in the range of 32-bit floats; return None if this is not possible.

    Times are not converted, because the number would depend on their unit, nor is text such as 3_12.
    """
    if isinstance(value, np.datetime64) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= MAX_FLOAT32 else None


def to_time(value: Any) -> date | time | None:
    """Return the date, the time of day, or both (`datetime`) of ISO 8601 text or of a date or time; None without it."""
    if isinstance(value, np.datetime64):
        # `item` returns an integer for units finer than microseconds, and for dates after the year 9999.
        unit, _ = np.datetime_data(value.dtype)
        value = (value.astype("datetime64[us]") if unit in ("ns", "ps", "fs", "as") else value).item()
    if isinstance(value, (date, time)):
        return None if is_missing(value) else value
    if not isinstance(value, str):
        return None
    for time_type in (date, datetime, time):
        try:
            if time_type is not time or ":" in value:  # `time` would read 2026 as 20:26
                return time_type.fromisoformat(value.strip())
        except ValueError:
            continue
    return None


def to_seconds(value: Any) -> float | None:
    """Return a number unchanged, and a date or time as Unix seconds, in UTC if it has no time zone.

    Return None for other values, and for times that are in UTC before the year 1 or after the year 9999.
    """
    number, moment = to_number(value), to_time(value)
    if number is not None:
        return number
    if not isinstance(moment, date):
        return None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None


def to_hour(value: Any) -> float | None:
    """Return the hours since midnight, with their fraction, or None for a value without a time of day."""
    clock_time = to_time(value)
    if not isinstance(clock_time, (datetime, time)):
        return None
    seconds = clock_time.second + clock_time.microsecond / 1e6
    return clock_time.hour + clock_time.minute / 60 + seconds / 3600


def to_weekday(value: Any) -> float | None:
    """Return the whole days since Monday, or None for a value without a date."""
    day = to_time(value)
    return float(day.weekday()) if isinstance(day, date) else None


def to_yearday(value: Any) -> float | None:
    """Return the whole days since January 1, or None for a value without a date."""
    day = to_time(value)
    return day.timetuple().tm_yday - 1.0 if isinstance(day, date) else None


def natural_order(names: Sequence[str]) -> list[int] | None:
    """Return the indices of `names` in natural order if they are numbers, ranges, months or weekdays; None for others.

    The names of rare and missing values, which begin with "<" or "(", come last.
    """
    regular = [index for index, name in enumerate(names) if name and not name.startswith(("<", "("))]
    if len(regular) < 2:
        return None
    for series in (None, *SERIES):
        ranks = {index: rank for index in regular if (rank := _rank(names[index], series)) is not None}
        if len(ranks) == len(regular):
            special = [index for index in range(len(names)) if index not in ranks]
            return sorted(regular, key=lambda index: (ranks[index], names[index])) + special
    return None


def _rank(name: str, series: Mapping[str, int] | None) -> float | None:
    """Return the rank of a name in a series, or the number with which a number or a range begins; None without it."""
    if series is not None:
        return series.get(name.casefold())
    match = NUMBER_OR_RANGE.fullmatch(name.strip())
    return None if match is None else float(match[1])
