"""Read single values of context columns as names of categories, as missing, as numbers or as times.

All code that uses a value as a key (a category, a user, a group of a report) calls `category_name` and `is_missing`.
Therefore 5, 5.0 and "5" are the same value everywhere. The hour and the day of a time are those of the time zone in
which the time is written. Without a notation, a number or a time is read only if it has one meaning.
"""

import calendar
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import regex

from factorcell.errors import UserError

MAX_FLOAT32 = float(np.finfo(np.float32).max)
INTEGER_WITH_POINT = re.compile(r"(-?\d+)\.0+")  # such as 5.0
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}  # as pandas and R write them
# The ranks of the names of months and of weekdays, full and abbreviated
SERIES = [
    {name.casefold(): rank for rank, name in enumerate(names)}
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
TIME_KINDS = ("hour", "weekday", "yearday")  # one column of times may have a variable of each of these kinds
NUMBER_NOTATIONS = {"point": ".", "comma": ","}  # with their decimal marks
TIME_NOTATIONS = ("day-first", "month-first")
MAX_AMOUNT_LENGTH = 100  # maximum number of characters of a number with a notation
UNIT = r"(?:\p{Sc}|[A-Z]{3}|%|‰)?"  # a currency or a per cent sign
AMOUNT = regex.compile(rf"([-+]?)\s*{UNIT}\s*([-+]?)((?:\d[\d,.'’\s]*)?\d|[,.]\d+)([eE][-+]?\d+)?\s*{UNIT}")
# The digits before the decimal mark, with or without marks between thousands or, as in India, lakhs
WHOLE_NUMBER = re.compile(r"\d*|[1-9]\d{0,2}([,.'’\s])\d{3}(?:\1\d{3})*|[1-9]\d?(?:,\d\d)+,\d{3}")
DATE = r"(?:(\d{1,4}|[a-z]+)\.?[-./ ] ?(\d{1,2}|[a-z]+)\.?[-./, ] ?(\d{4}|\d{1,2}))?"
CLOCK = r"(?:[t, ] ?|^)(\d{1,2})[:.](\d\d)(?:[:.](\d\d)(?:[.,]\d+)?)?(?: ?([ap])\.?m\.?)?"
DATE_AND_CLOCK = re.compile(f"{DATE}(?:{CLOCK})?", re.IGNORECASE)
DATE_WITH_DOTS = re.compile(r"\d{1,2}\.\d{1,2}\.\d")
END_OF_DAY = re.compile(r"(^|[T ])24((?::?00){1,2}(?:[.,]0+)?(?:Z|[-+][\d:]+)?)$")  # ISO 8601 for 0:00 of the next day
MONTHS = {name[:length]: rank for name, rank in SERIES[0].items() for length in range(3, len(name) + 1)}
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


def to_number(value: Any, notation: str = "") -> float | None:
    """Convert a value to a number in the range of 32-bit floats; return None if this is not possible.

    With one of `NUMBER_NOTATIONS`, the decimal mark of a text is that of the notation, and the text may have marks
    between thousands and a currency or a per cent sign. Times are not converted, because the number would depend on
    their unit, nor is text such as 3_12.
    """
    if isinstance(value, np.datetime64):
        return None
    if isinstance(value, str):
        text = value.replace("\u2212", "-")  # the minus sign
        value = _without_marks(text.strip(), NUMBER_NOTATIONS[notation]) if notation else text
        if "_" in value:
            return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= MAX_FLOAT32 else None


def _without_marks(text: str, decimal_mark: str) -> str:
    """Return a number with a decimal point, and without marks between thousands and units; empty for other texts."""
    amount = AMOUNT.fullmatch(text) if len(text) <= MAX_AMOUNT_LENGTH else None  # matching takes quadratic time
    if amount is None or (amount[1] and amount[2]):
        return ""
    whole, _, fraction = amount[3].partition(decimal_mark)
    if not WHOLE_NUMBER.fullmatch(whole) or not (fraction or "0").isdigit():
        return ""
    digits = "".join(filter(str.isdigit, whole))
    return f"{amount[1]}{amount[2]}{digits}.{fraction or 0}{amount[4] or ''}"


def to_time(value: Any, notation: str = "") -> date | time | None:
    """Return the date, the time of day, or both (`datetime`) of a text or of a date or time; None without it.

    Texts are in ISO 8601, or in a notation that begins with the year or names the month; with one of `TIME_NOTATIONS`,
    also such as 31/1/2026 14.30. Dates with dots, such as 31.1.2026, have the day first in every country.
    """
    if isinstance(value, np.datetime64):
        # `item` returns an integer for units finer than microseconds, and for dates after the year 9999.
        unit, _ = np.datetime_data(value.dtype)
        value = (value.astype("datetime64[us]") if unit in ("ns", "ps", "fs", "as") else value).item()
    if isinstance(value, (date, time)):
        return None if is_missing(value) else value
    if not isinstance(value, str):
        return None
    text = value.strip()
    if END_OF_DAY.search(text):
        moment = _iso_time(END_OF_DAY.sub(r"\g<1>00\2", text))
        try:
            return moment + timedelta(days=1) if isinstance(moment, datetime) else moment
        except OverflowError:
            return None
    if moment := _iso_time(text):
        return moment
    notations = (notation,) if notation else TIME_NOTATIONS[: 1 if DATE_WITH_DOTS.match(text) else None]
    readings = {_written_time(text, name) for name in notations}
    return readings.pop() if len(readings) == 1 else None


def _iso_time(text: str) -> date | time | None:
    for time_type in (date, datetime, time):
        try:
            if time_type is not time or ":" in text:  # `time` would read 2026 as 20:26
                return time_type.fromisoformat(text)
        except ValueError:
            continue
    return None


def _written_time(text: str, notation: str) -> date | time | None:
    """Return the date, the time of day, or both of a text that is not in ISO 8601."""
    match = DATE_AND_CLOCK.fullmatch(text)
    if match is None:
        return None
    first, second, third, hour, minute, seconds, half = match.groups()
    if (first is None and not half) or (half and not 1 <= int(hour) <= 12):  # 12.30 may be a number
        return None
    try:
        hours = int(hour or 0) if not half else int(hour) % 12 + 12 * (half in "pP")
        clock = time(hours, int(minute or 0), int(seconds or 0))
        day = None if first is None else _written_date(first, second, third, notation)
    except (ValueError, KeyError):
        return None
    return clock if day is None else datetime.combine(day, clock) if hour else day


def _written_date(first: str, second: str, third: str, notation: str) -> date:
    """Return the date of three parts; a year of four digits or the name of a month may determine their order.

    Raises:
        ValueError, KeyError: The parts are not a date.
    """
    is_month_first = first.isalpha() or (notation == "month-first" and second.isdigit())
    order = "ymd" if len(first) == 4 and first.isdigit() else "mdy" if is_month_first else "dmy"
    parts = dict(zip(order, (first, second, third), strict=True))
    year, month = parts["y"], parts["m"].casefold()
    century = "" if len(year) == 4 else "20" if year < "69" else "19"  # as in POSIX
    if len(century + year) != 4:
        raise ValueError("not a year")
    return date(int(century + year), int(month) if month.isdigit() else MONTHS[month], int(parts["d"]))


def to_seconds(value: Any, notation: str = "") -> float | None:
    """Return a number unchanged, and a date or time in a notation as Unix seconds, in UTC if it has no time zone.

    Return None for other values, and for times that are in UTC before the year 1 or after the year 9999.
    """
    number, moment = to_number(value), to_time(value, notation)
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


def read_times(times: Sequence[Any], place: Callable[[int], str], missing: float | None = None) -> list[float]:
    """Return the times of a column as `to_seconds`, and `missing` for missing ones; `place` names a row, from 1 on.

    Dates such as 31/1/2026 are read in the notation that reads most of them; otherwise, they are an error.
    """
    unread = [value for value in times if not is_missing(value) and to_seconds(value) is None]
    counts = {name: sum(to_seconds(value, name) is not None for value in unread) for name in TIME_NOTATIONS}
    notation = max(counts, key=counts.__getitem__) if len({*counts.values()}) > 1 else ""
    results = list[float]()
    for row, value in enumerate(times, 1):
        seconds = missing if is_missing(value) else to_seconds(value, notation)
        if seconds is None:
            expected = "expected a number or a time such as 2026-11-21T18:30 or 21.11.2026, from the year 1 to 9999"
            hint = "dates such as 21/11/2026 are read if a day above 12 shows their order in the column"
            raise UserError(f"{place(row)} is {short_repr(value)}; {expected}; {hint}")
        results.append(seconds)
    return results


def read_cell(kind: str, value: Any, notation: str = "") -> float | date | time | None:
    """Return the number or the time in a cell of a kind that is read as a number, or None without it."""
    if kind not in TIME_KINDS:
        return to_number(value, notation)
    moment = to_time(value, notation)
    return moment if isinstance(moment, (datetime, time) if kind == "hour" else date) else None


def cell_number(kind: str, value: Any, notation: str = "") -> float | None:
    """Return the number in a cell, or of a time: hours since midnight, days since Monday or days since January 1."""
    content = read_cell(kind, value, notation)
    if kind == "hour" and isinstance(content, (datetime, time)):
        seconds = content.second + content.microsecond / 1e6
        return content.hour + content.minute / 60 + seconds / 3600
    if isinstance(content, date):
        return float(content.weekday()) if kind == "weekday" else content.timetuple().tm_yday - 1.0
    return content if isinstance(content, float) else None


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
