"""Where the quoted fields and the rows of a block of CSV begin and end, by RFC 4180.

A quote opens a field only at its start; elsewhere in an unquoted field it is an ordinary character. In a quoted field
"" is one quote, and a single quote closes the field: a delimiter, a line break or the end must follow. Each run of
adjacent quotes changes the state (0 outside, 1 inside a quoted field) depending on its length and on whether it is at
the start of a field:

    odd length, at the start of a field    0 -> 1, 1 -> 0
    odd length, elsewhere                  0 -> 0, 1 -> 0
    even length                            0 -> 0, 1 -> 1

So the state after a run is the parity of the runs of the first kind since the last run of the second kind. Most files
have quotes only around and inside quoted fields. Then quotes open and close in turn, where "" closes a part of a field
and opens the next; this is checked first, since it takes a third of the time.

Shapes: N bytes of a block, Q runs of quotes, F quoted fields.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

QUOTE = ord('"')
BREAK = re.compile(rb"\r\n|\r|\n")

Positions = NDArray[np.int64]


class QuotedFields(NamedTuple):
    """Quoted fields, or their parts between pairs of quotes, in a block that begins with a row.

    `opens` (F): positions of their first quotes; `closes` (F, or F - 1 if the last one is open): of their last quotes;
    `fault`: index of the first field whose closing quote is followed by text, or -1.
    """

    opens: Positions
    closes: Positions
    fault: int = -1

    @property
    def is_open(self) -> bool:
        """Whether the last field is not closed within the block."""
        return len(self.opens) > len(self.closes)

    @property
    def last_open(self) -> int:
        """Position of the quote that opens the last field."""
        part = len(self.opens) - 1
        while part and self.closes[part - 1] == self.opens[part] - 1:
            part -= 1
        return int(self.opens[part])

    def before(self, position: int) -> "QuotedFields":
        """Return the fields that are closed before `position`, where a row begins."""
        count = int(np.searchsorted(self.closes, position))
        return QuotedFields(self.opens[:count], self.closes[:count])


NONE = QuotedFields(np.zeros(0, np.int64), np.zeros(0, np.int64))


def quoted_fields(block: bytearray, delimiter: str) -> QuotedFields:
    """Find the quoted fields of a `block` that begins with a row."""
    if QUOTE not in block:
        return NONE
    array = np.frombuffer(block, np.uint8)
    ends_field = np.zeros(256, np.bool_)
    ends_field[[ord(delimiter), ord("\n"), ord("\r")]] = True
    quotes = np.flatnonzero(array == QUOTE)

    ends_part = ends_field.copy()
    ends_part[QUOTE] = True
    opens, closes = quotes[::2], quotes[1::2]
    before, after = array[opens[opens > 0] - 1], array[closes[closes + 1 < len(array)] + 1]
    if ends_part[before].all() and ends_part[after].all():
        return QuotedFields(opens, closes)
    return _of_runs(array, quotes, ends_field)


def _of_runs(array: NDArray[np.uint8], quotes: Positions, ends_field: NDArray[np.bool_]) -> QuotedFields:
    """Find quoted fields by the table of runs; `ends_field` (256) has the bytes that end a field."""
    run_begins = np.concatenate([[0], np.flatnonzero(np.diff(quotes) != 1) + 1])
    lengths = np.diff(run_begins, append=len(quotes))
    first = quotes[run_begins]
    last = first + lengths - 1  # (Q,)

    at_start = ends_field[array[first - 1]]
    at_start[0] |= first[0] == 0
    odd = (lengths & 1).astype(np.bool_)
    toggles = np.cumsum(at_start & odd)
    since_reset = toggles - np.maximum.accumulate(np.where(odd & ~at_start, toggles, 0))
    after = (since_reset & 1).astype(np.bool_)
    before = np.concatenate([[False], after[:-1]])

    opening = at_start & ~before
    closes = last[np.where(before, odd, opening & ~odd)]
    text_follows = ~ends_field[array[np.minimum(closes + 1, len(array) - 1)]] & (closes + 1 < len(array))
    faults = np.flatnonzero(text_follows)
    return QuotedFields(first[opening], closes, int(faults[0]) if len(faults) else -1)


def first_row_end(block: bytearray, fields: QuotedFields) -> int:
    """Return the position after the line break of the first row, or 0 if it has none."""
    begin = 0
    for start, end in zip(fields.opens, fields.closes, strict=False):
        if found := BREAK.search(block, begin, int(start)):
            return found.end()
        begin = int(end) + 1
    end = int(fields.opens[-1]) if fields.is_open else len(block)
    found = BREAK.search(block, begin, end)
    return found.end() if found else 0


def last_row_end(block: bytearray, fields: QuotedFields) -> int:
    """Return the position after the last line break between rows, or 0; a block may end within a line break."""
    end = len(block) - block.endswith(b"\r")
    if fields.is_open:
        end = int(fields.opens[-1])
    for begin, before in zip(fields.closes[::-1], fields.opens[: len(fields.closes)][::-1], strict=True):
        if found := _after_break(block, int(begin) + 1, end):
            return found
        end = int(before)
    return _after_break(block, 0, end)


def _after_break(block: bytearray, begin: int, end: int) -> int:
    """Return the position after the last line break in [begin, end), or 0."""
    return max(block.rfind(b"\n", begin, end), block.rfind(b"\r", begin, end)) + 1


def line_feeds(block: bytearray, end: int) -> int:
    """Return the number of line feeds before `end`."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8, end) == ord("\n")))


class Row(NamedTuple):
    """A row of a block: the position where it begins, its columns, and the indices of its quoted fields."""

    begin: int
    columns: int
    fields: range


def first_ragged_row(block: bytes, fields: QuotedFields, delimiter: str, columns: int) -> Row | None:
    """Return the first row, other than an empty one, that has not as many `columns`; the block holds whole rows."""
    array = np.frombuffer(block, np.uint8)
    change = np.zeros(len(block) + 1, np.int8)
    change[fields.opens] += 1
    change[fields.closes + 1] -= 1
    unquoted = np.cumsum(change[:-1], dtype=np.int8) == 0
    delimiters = np.flatnonzero((array == ord(delimiter)) & unquoted)
    ends = np.flatnonzero(((array == ord("\n")) | (array == ord("\r"))) & unquoted)
    ends = np.append(ends, len(block))
    begins = np.concatenate([[0], ends[:-1] + 1])
    counts = np.diff(np.searchsorted(delimiters, ends), prepend=0) + 1
    ragged = np.flatnonzero((counts != columns) & (ends > begins))
    if not len(ragged):
        return None
    row = ragged[0]
    inside = np.searchsorted(fields.opens, [begins[row], ends[row]])
    return Row(int(begins[row]), int(counts[row]), range(*map(int, inside)))


def has_lines_like_rows(block: bytes, fields: QuotedFields, delimiter: str, columns: int) -> Iterator[tuple[int, bool]]:
    """Yield, for each quoted field of several lines, its position and whether each line has as many `columns`.

    Lines are split at every line break and columns at every delimiter, as if quotes were ordinary characters. Lines
    with other quotes than those around the field are not like rows.
    """
    array = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero((array == ord("\n")) | (array == ord("\r")))
    before, after = np.searchsorted(breaks, fields.opens), np.searchsorted(breaks, fields.closes)
    for field in np.flatnonzero(before < after):
        begin = int(breaks[before[field] - 1]) + 1 if before[field] else 0
        end = int(breaks[after[field]]) if after[field] < len(breaks) else len(block)
        text, mark = block[begin:end], delimiter.encode()
        like_rows = all(line.count(mark) == columns - 1 for line in BREAK.split(text) if line)
        yield int(fields.opens[field]), like_rows and text.count(b'"') == 2
