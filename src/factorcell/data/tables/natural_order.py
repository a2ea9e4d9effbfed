"""The natural order of names: numbers and ranges by value, months and weekdays by the calendar."""

import calendar
import re
from collections.abc import Callable, Sequence
from functools import partial

# Names of the months and of the weekdays, full and abbreviated, each series in its natural order.
SERIES = [
    [name.casefold() for name in names if name]
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
# A number, or a range that begins with a number, such as 18 to 34 or 65+.
NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:to|-|–)\s*[-+\d].*|\+)?", re.IGNORECASE)


def natural_order(names: Sequence[str]) -> list[int] | None:
    """Return the indices of `names` in natural order if they are numbers, ranges, months or weekdays; None for others.

    The names of rare and missing values, which begin with "<" or "(", come last.
    """
    regular = [index for index, name in enumerate(names) if name and not name.startswith(("<", "("))]
    if len(regular) < 2:
        return None
    rank_functions: list[Callable[[str], float | None]] = [
        _leading_number,
        *(partial(_rank_in_series, series) for series in SERIES),
    ]
    for rank_function in rank_functions:
        ranks = {index: rank for index in regular if (rank := rank_function(names[index])) is not None}
        if len(ranks) == len(regular):
            special = [index for index in range(len(names)) if index not in ranks]
            return sorted(regular, key=lambda index: (ranks[index], names[index])) + special
    return None


def _leading_number(name: str) -> float | None:
    """Return the number with which a number or a range begins (4, 18 to 34, 18-34, 65+), or None for other names."""
    match = NUMBER.fullmatch(name.strip())
    return None if match is None else float(match[1])


def _rank_in_series(series: Sequence[str], name: str) -> float | None:
    return series.index(name.casefold()) if name.casefold() in series else None
