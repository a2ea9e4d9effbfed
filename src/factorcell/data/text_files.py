"""Readers of CSV, TSV and JSON lines."""

import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from factorcell.config import Notice, UserError
from factorcell.data import chunks, content
from factorcell.data.chunks import Chunk, Table, format_names
from factorcell.data.content import Content
from factorcell.escapes import escape_hidden

ENDINGS = {",": ".csv", "\t": ".tsv"}
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
QUOTING_HELP = 'put the whole field in quotes and write each quote inside it as ""'

csv.field_size_limit(max(csv.field_size_limit(), content.MAX_ROW_LENGTH))  # `CsvRows` limits rows, and so their fields


def chunked(rows: Iterable[tuple[int, Sequence[Any]]], columns: Sequence[str]) -> Iterator[Chunk]:
    """Join rows, each with its length in characters, to chunks of at most `CHUNK` rows and about `ROW` characters."""
    part, total = list[Sequence[Any]](), 0
    for length, row in rows:
        part.append(row)
        total += length
        if len(part) == chunks.CHUNK_ROWS or total > content.MAX_ROW_LENGTH:
            yield dict(zip(columns, map(list, zip(*part, strict=True)), strict=True))
            part, total = [], 0
    if part:
        yield dict(zip(columns, map(list, zip(*part, strict=True)), strict=True))


class CsvRows:
    """The rows of a CSV or TSV file by RFC 4180, the header among them; in a TSV file quotes are ordinary characters.

    `lines`: those of the row that was read last; `first`: the number of the first of them; `length`: their characters.
    """

    def __init__(self, file: Content, delimiter: str) -> None:
        self.file, self.delimiter = file, delimiter
        self.lines, self.first, self.length = list[str](), 1, 0

    def _lines(self) -> Iterator[str]:
        for line in self.file.lines(""):
            self.lines.append(line)
            self.length += len(line)
            if self.length > content.MAX_ROW_LENGTH:
                why = f"a quote that opens a field may not be closed: {QUOTING_HELP}"
                raise self.error(f"a row is longer than {content.MAX_ROW_LENGTH:,} characters; {why}")
            yield line

    def __iter__(self) -> Iterator[list[str]]:
        quoting: Any = csv.QUOTE_MINIMAL if self.delimiter == "," else csv.QUOTE_NONE
        reader = csv.reader(self._lines(), delimiter=self.delimiter, quoting=quoting, strict=True)
        try:
            for row in reader:
                yield row
                self.first += len(self.lines)
                self.lines.clear()
                self.length = 0
        except csv.Error as error:
            if "expected after" not in str(error):
                raise self.error(f"the quote that opens a field of this row is not closed; {QUOTING_HELP}") from None
            where = f" of a row that begins in line {self.first}" if len(self.lines) > 1 else ""
            self.first += len(self.lines) - 1
            text = escape_hidden(self.lines[-1].strip())
            raise self.error(f"text follows the closing quote of a field{where} ({text:.40}); {QUOTING_HELP}") from None

    def error(self, message: str) -> UserError:
        """Return an error about the row that was read last."""
        return UserError(f"{self.file.path} line {self.first}: {message}")

    def has_lines_like_rows(self, columns: int) -> bool:
        """Return whether the last row has one quoted field, whose lines would each be a row if quotes were text."""
        quotes = sum(line.count('"') for line in self.lines)
        return quotes == 2 and all(line.count(self.delimiter) == columns - 1 for line in self.lines if line.strip())


def csv_table(file: Content) -> Table:
    """Open a CSV or TSV file."""
    path = file.path
    delimiter = "\t" if path.name.lower().removesuffix(file.compression).endswith(".tsv") else ","
    names = _header(file, delimiter)
    places = {name: place for place, name in enumerate(names)}
    notices = set[str]()

    def rows(columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        source = CsvRows(file, delimiter)
        wanted = [places[name] for name in columns]
        swallowed, texts = list[int](), False  # first lines of rows that may have swallowed others
        for number, row in enumerate(source):
            if not number:
                continue
            if not row and len(names) > 1:
                continue  # an empty line is a text without a token only where a row is nothing but its text
            if len(row or [""]) != len(names):
                last = source.first + len(source.lines) - 1
                why = f"; the row ends in line {last}: are its quotes part of a text? {QUOTING_HELP}"
                what = f"expected {len(names)} columns ({format_names(names)}), got {len(row)}"
                raise source.error(what + why * (last > source.first))
            if len(source.lines) > 1 and not texts:
                swallowed.append(source.first)
                texts = not source.has_lines_like_rows(len(names))
            yield source.length, [row[place] for place in wanted] if row else [""]
        if swallowed and not texts and len(names) > 1 and not notices:  # a table is read several times
            more = f", like {len(swallowed) - 1:,} other fields" if len(swallowed) > 1 else ""
            what = f"a quoted field spans lines that look like rows{more}; if its quotes are text, {QUOTING_HELP}"
            notices.add(what)
            warnings.warn(Notice(f"{path} line {swallowed[0]}: {what}"), stacklevel=2)

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        return chunked(rows(columns), columns)

    return Table(
        str(path), names, read, file.digest, header_hint=_fault(names, delimiter), estimate_rows=file.line_count
    )


def _header(file: Content, delimiter: str) -> tuple[str, ...]:
    """Return the names of the columns, which the first row gives."""
    source = CsvRows(file, delimiter)
    try:
        names = next(iter(source), [])
    except UserError:
        names = next(csv.reader(source.lines[:1], delimiter=delimiter), [])
        if not _fault(names, delimiter):  # otherwise the quotes are right, and the separator is not
            raise
    if not names:
        raise UserError(f"{file.path} line 1: empty; it must name the columns")
    return tuple(names)


def _fault(names: Sequence[str], delimiter: str) -> str:
    """Return what an error adds about a header that seems to have another separator; empty otherwise."""
    mark = max((mark for mark in SEPARATORS if mark != delimiter), key=names[0].count if names else len)
    if len(names) != 1 or mark not in names[0]:
        return ""
    remedy = f"name the file {ENDINGS[mark]}" if mark in ENDINGS else f"save it with {SEPARATORS[delimiter]}"
    expected = f"a {ENDINGS[delimiter]} is separated by {SEPARATORS[delimiter]}"
    return f"; {expected}, this header seems to be by {SEPARATORS[mark]}: {remedy}"


def json_table(file: Content) -> Table:
    """Open a file of JSON lines; a key that a line lacks is a missing value."""

    def lines() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(file.lines(), 1):
            if line.strip():
                yield len(line), _json_row(line, f"{file.path} line {number}")

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        return chunked(((length, [row.get(name) for name in columns]) for length, row in lines()), columns)

    columns = tuple(dict.fromkeys(key for _, row in lines() for key in row))
    return Table(str(file.path), columns, read, file.digest, estimate_rows=file.line_count)


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is not valid Unicode
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not an object; each line is one JSON object")
    return row
