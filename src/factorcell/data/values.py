"""What a single value of a context column means.

`category_name` gives every value of a category its name, and `is_missing` says which values are missing. All code that
uses a value as a key (a category, a user, a group of a report) calls these two functions, so that a rating read from a
file and one given in Python agree. A missing category (null or an empty field) has the expected value; a missing number
is an error unless the caller chose `unknown="expected"`. Times are numbers too: the hour, the weekday (Monday is 0) or
the day of the year (January 1 is 0), as the time is written, in its own zone.
"""

import math
import re
import unicodedata
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from factorcell.config import UserError

MAX_FLOAT32 = float(np.finfo(np.float32).max)
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
            raise UserError(f"expected text, got bytes that are not UTF-8: {short_repr(value)}") from None
    if isinstance(value, (float, np.floating)):
        # NumPy writes the shortest text of its own precision
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, Decimal) and value.is_finite():
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, (list, tuple, dict, set, np.ndarray)):
        raise UserError(f"expected a single value, got {short_repr(value)}")
    moment = to_time(value)
    return str(value) if moment is None else moment.isoformat()


def to_float64(value: np.floating[Any]) -> float:
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


def category_name_or_none(value: Any) -> str | None:
    """Return the name of a category, or None for a missing value."""
    return None if is_missing(value) else category_name(value)


def short_repr(value: Any) -> str:
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
    return number if abs(number) <= MAX_FLOAT32 else None


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
