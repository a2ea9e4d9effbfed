"""Context columns with their kinds, as objects that are equivalent to the texts on the command line.

    Number("nights")                     nights:number
    Number("price", notation="comma")    price:number=comma
    Cyclic("hour", 24)                   hour:cyclic=24

A plain text such as `nights` leaves the kind to the values of the column.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """Base class of the kinds of context columns, with the `name` of the column.

    The `notation` is that of numbers ("comma" or "point": the decimal mark) or of dates ("day-first" or "month-first").
    By default, cells must have one meaning only, such as 9.99 or 2026-01-31.
    """

    name: str
    notation: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        return f"{self.name}:{type(self).__name__.lower()}" + (f"={self.notation}" if self.notation else "")


class Category(Column):
    """A column of names, identifiers or ratings, with an embedding for each value."""


class Number(Column):
    """A column of numbers, which a small network reads."""


class Hour(Column):
    """A column of times, whose hours are points on a circle."""


class Weekday(Column):
    """A column of times, whose weekdays are points on a circle."""


class Yearday(Column):
    """A column of times, whose days of the year are points on a circle."""


class Longitude(Column):
    """A column of degrees, which are points on a circle: -180 and 180 are the same point."""


@dataclass(frozen=True)
class Cyclic(Column):
    """A column of numbers with a `period`, such as 24, which are points on a circle.

    The `name` and the `notation` are those of `Number`.
    """

    period: float

    def __str__(self) -> str:
        return f"{self.name}:cyclic={self.period}" + (f"={self.notation}" if self.notation else "")


class Text(Column):
    """A column of texts that are part of the context vector, as bags of words."""


class Prompt(Column):
    """A column of texts that are read before the text."""


class Vector(Column):
    """A column of lists of numbers of equal length."""


def column_texts(columns: Any) -> Any:
    """Return a tuple with the text of each `Column` in place of the object; other values stay as they are."""
    if not isinstance(columns, (list, tuple)):
        return columns
    return tuple(str(column) if isinstance(column, Column) else column for column in columns)
