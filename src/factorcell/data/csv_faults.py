"""What is wrong with a CSV or TSV file: it is separated by other marks, or a quote opens that nothing closes."""

import csv as text_csv
import re
from collections.abc import Sequence

from factorcell.data.content import Content

ENDINGS = {",": ".csv", "\t": ".tsv"}
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
BREAK = re.compile(r"\r\n|\r|\n")
CLOSE = 'close it or take it out; a quote inside quotes is written ""'


def of_header(names: Sequence[str], delimiter: str) -> str:
    """What an error adds about a header that lacks a column; empty where nothing is wrong with it."""
    if any(map(BREAK.search, names)):
        return f"; a quote that opens in line 1 is not closed there: {CLOSE}"
    mark = max((mark for mark in SEPARATORS if mark != delimiter), key=names[0].count)
    if len(names) > 1 or mark not in names[0]:
        return ""
    own = f"{ENDINGS[delimiter]} is separated by {SEPARATORS[delimiter]}"
    (other,) = (known for known in ENDINGS if known != delimiter)
    save = f"save it with {SEPARATORS[delimiter]}, or with {SEPARATORS[other]} as a {ENDINGS[other]}"
    advice = f"name the file {ENDINGS[mark]}" if mark in ENDINGS else save
    return f"; a {own}, this header seems to be by {SEPARATORS[mark]}: {advice}"


def ragged(
    content: Content, delimiter: str, wanted: int, counted: tuple[int | None, int]
) -> tuple[int | None, int, str]:
    """Line and columns of the first row that has not as many as `wanted`, and what an error adds about its quotes.

    `counted`: its number, if known, and its columns by Arrow, which counts rows, and not the empty ones.
    """
    reader = text_csv.reader(content.lines("utf-8", "", "replace"), delimiter=delimiter)
    number = begin = 1
    try:
        for row in reader:
            if row and len(row) != wanted:
                return begin, len(row), _of_row(row, begin)
            number, begin = number + bool(row), reader.line_num + 1
    except text_csv.Error:  # a field beyond the limit of the csv module
        if counted[0] in (None, number) and reader.line_num > begin:
            return begin, counted[1], _not_closed(begin)
    return *counted, ""


def _of_row(row: Sequence[str], begin: int) -> str:
    """That the longest of the fields of several lines, in a row from line `begin` on, may have an open quote."""
    breaks = [len(BREAK.findall(field)) for field in row]
    return _not_closed(begin + sum(breaks[: breaks.index(max(breaks))])) if any(breaks) else ""


def _not_closed(line: int) -> str:
    return f" (perhaps since a quote that opens in line {line} is not closed there: {CLOSE})"


def open_at_the_end(content: Content, last: str) -> int | None:
    """The line in which the quote of the `last` field of a file opens, if it takes in the rest of the file."""
    breaks = BREAK.findall(last)
    if not breaks:
        return None
    count, end = 0, ""
    for line in content.lines("utf-8"):
        count, end = count + 1, line.strip() or end
    return None if end.endswith('"') else count - len(breaks) + last.endswith(("\n", "\r"))
