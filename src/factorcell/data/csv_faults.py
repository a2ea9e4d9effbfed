"""What is wrong with a CSV or TSV file: it is separated by other marks, or a quote opens that nothing closes."""

import csv as text_csv
import re
from collections.abc import Iterable, Iterator, Sequence

from factorcell.data.arrow import one_line
from factorcell.data.content import Content

ENDINGS = {",": ".csv", "\t": ".tsv"}
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
BREAK = re.compile(r"\r\n|\r|\n")
CLOSE = 'close it or take it out; a quote inside quotes is written ""'


def of_header(names: Sequence[str], delimiter: str) -> str:
    """What an error adds about a header that lacks a column; empty where nothing is wrong with it."""
    if any(map(BREAK.search, names)):
        return f"; {_not_closed(1)}"
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
    held: list[str] = []  # the lines of a row
    reader = text_csv.reader(_keeping(content.lines("utf-8", "", "replace"), held), delimiter=delimiter)
    number = begin = 1
    try:
        for row in reader:
            if row and len(row) != wanted:
                return begin, len(row), "" if _well_quoted(held, delimiter) else _of_row(row, begin)
            number, begin = number + bool(row), reader.line_num + 1
            held.clear()
    except text_csv.Error:  # a field beyond the limit of the csv module
        if counted[0] in (None, number) and reader.line_num > begin:
            return begin, counted[1], f" (perhaps since {_not_closed(begin)})"
    return *counted, ""


def _keeping(lines: Iterable[str], held: list[str]) -> Iterator[str]:
    """The lines, each of them `held` as well."""
    for line in lines:
        held.append(line)
        yield line


def _well_quoted(lines: Iterable[str], delimiter: str) -> bool:
    """Whether every quote that opens a field of a row closes it."""
    try:
        return bool(list(text_csv.reader(lines, delimiter=delimiter, strict=True)))
    except text_csv.Error:
        return False


def _of_row(row: Sequence[str], begin: int) -> str:
    """What an error adds of a row from line `begin` on: the field of the most lines is the one with the open quote."""
    breaks = [len(BREAK.findall(field)) for field in row]
    return f" (perhaps since {_not_closed(begin + sum(breaks[: breaks.index(max(breaks))]))})"


def _not_closed(line: int) -> str:
    return f"a quote that opens in line {line} is not closed where its text ends: {CLOSE}"


def open_at_the_end(content: Content, last: str) -> int | None:
    """The line in which the quote of the `last` field of a file opens, if it takes in the rest of the file."""
    breaks = BREAK.findall(last)
    if not breaks:
        return None
    count, end = 0, ""
    for line in content.lines("utf-8"):
        count, end = count + 1, line.strip() or end
    return None if end.endswith('"') else count - len(breaks) + last.endswith(("\n", "\r"))


def encoding(content: Content, error: str) -> str:
    """What is wrong with a text file that does not parse: the line that is not UTF-8, or the parser's own word."""
    for number, line in enumerate(content.lines("utf-8", "\n", "surrogateescape"), 1):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as fault:
            place = len(line[: fault.start].encode("utf-8")) + 1
            byte = f"byte 0x{ord(line[fault.start]) - 0xDC00:02x} at column {place}"
            return f"{content.path} line {number}: not UTF-8 ({byte}); convert it first"
    return f"{content.path}: {one_line(error)}"
