"""Tables in Markdown, and pages that hold them between marks: what is written around a table stays as it is."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from factorcell.config import UserError

NUMBER = re.compile(r"(\*\*)?[-+]?\d")  # what a cell with a figure begins with, be it in bold type


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column and those of words to the left, numbers to the right."""
    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    numbers = [all(not cell or NUMBER.match(cell) for cell in column) for column in columns]
    lines = [header, [":--", *("--:" if right else ":--" for right in numbers[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


NO_ROW = "No row yet.\n"


def with_none(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, and that there is no row yet where it is empty."""
    return markdown(header, rows) + ("" if rows else f"\n{NO_ROW}")


def shown(value: float | None, form: str = ".2f") -> str:
    """A figure, or nothing."""
    return "" if value is None or np.isnan(value) else f"{value:{form}}"


def spread(values: Sequence[float], form: str = ".2f", scale: float = 1.0) -> str:
    """The mean of a figure of several trainings with their standard deviation; of none nothing."""
    if not len(values):
        return ""
    mean = f"{scale * float(np.mean(values)):{form}}"
    return f"{mean} ± {scale * float(np.std(values, ddof=1)):{form}}" if len(values) > 1 else mean


def filled(text: str, tables: Mapping[str, str]) -> str:
    """`text` with each table between its marks; `UserError` where a mark is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text.split(begin, 1)[1]:
            raise UserError(f"no place for {name}: it stands between the lines {begin.strip()} and {end}")
        before, after = text.split(begin, 1)
        text = before + begin + "\n" + table + "\n" + end + after.split(end, 1)[1]
    return text


def empty(tables: Mapping[str, str]) -> str:
    """A page with a heading and a place for each table."""
    return "".join(f"## {name}\n\n<!-- {name} -->\n<!-- end of {name} -->\n\n" for name in tables)
