"""Read CSV, TSV and JSON Lines files as tables."""

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

# `CsvRows` limits the length of rows, so the module csv must not set a lower limit for fields.
csv.field_size_limit(max(csv.field_size_limit(), content.MAX_ROW_LENGTH))


def to_chunks(rows: Iterable[tuple[int, Sequence[Any]]], columns: Sequence[str]) -> Iterator[Chunk]:
    """Collect rows, each with its length in characters, into chunks.

    A chunk has at most `CHUNK_ROWS` rows, and ends after the row with which it exceeds `MAX_ROW_LENGTH` characters.
    """
    chunk_rows, total = list[Sequence[Any]](), 0
    for length, row in rows:
        chunk_rows.append(row)
        total += length
        if len(chunk_rows) == chunks.CHUNK_ROWS or total > content.MAX_ROW_LENGTH:
            yield dict(zip(columns, map(list, zip(*chunk_rows, strict=True)), strict=True))
            chunk_rows, total = [], 0
    if chunk_rows:
        yield dict(zip(columns, map(list, zip(*chunk_rows, strict=True)), strict=True))


class CsvRows:
    """Iterates over the rows of a CSV file (RFC 4180), or of a TSV file, whose quotes are ordinary characters.

    Attributes:
        lines: The lines of the current row.
        first_line: The number of the first of these lines.
        length: The number of characters of these lines.
    """

    def __init__(self, file: Content, delimiter: str) -> None:
        self.file, self.delimiter = file, delimiter
        self.lines, self.first_line, self.length = list[str](), 1, 0

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the file, after adding each to the lines of the current row."""
        for line in self.file.lines(""):
            self.lines.append(line)
            self.length += len(line)
            if self.length > content.MAX_ROW_LENGTH:
                cause = f"a quote that opens a field may not be closed: {QUOTING_HELP}"
                raise self.error(f"a row is longer than {content.MAX_ROW_LENGTH:,} characters; {cause}")
            yield line

    def __iter__(self) -> Iterator[list[str]]:
        quoting: Any = csv.QUOTE_MINIMAL if self.delimiter == "," else csv.QUOTE_NONE
        reader = csv.reader(self._lines(), delimiter=self.delimiter, quoting=quoting, strict=True)
        try:
            for row in reader:
                yield row
                self.first_line += len(self.lines)
                self.lines.clear()
                self.length = 0
        except csv.Error as error:
            if "expected after" not in str(error):
                raise self.error(f"the quote that opens a field of this row is not closed; {QUOTING_HELP}") from None
            where = f" of a row that begins in line {self.first_line}" if len(self.lines) > 1 else ""
            self.first_line += len(self.lines) - 1
            text = escape_hidden(self.lines[-1].strip())
            raise self.error(f"text follows the closing quote of a field{where} ({text:.40}); {QUOTING_HELP}") from None

    def error(self, message: str) -> UserError:
        """Return an error about the current row."""
        return UserError(f"{self.file.path} line {self.first_line}: {message}")

    def has_lines_like_rows(self, columns: int) -> bool:
        """Return whether the current row has one quoted field, and its lines would be separate rows without quotes."""
        quotes = sum(line.count('"') for line in self.lines)
        return quotes == 2 and all(line.count(self.delimiter) == columns - 1 for line in self.lines if line.strip())


def csv_table(file: Content) -> Table:
    """Open a CSV or TSV file."""
    path = file.path
    delimiter = "\t" if path.name.lower().removesuffix(file.compression).endswith(".tsv") else ","
    names = _header(file, delimiter)
    indices = {name: index for index, name in enumerate(names)}
    notices = set[str]()

    def rows(columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        source = CsvRows(file, delimiter)
        selected = [indices[name] for name in columns]
        suspicious_lines, has_multiline_texts = list[int](), False  # lines of rows that may contain other rows
        for number, row in enumerate(source):
            if not number:  # the header
                continue
            if not row and len(names) > 1:
                continue  # in a file with one column, an empty line is a row with an empty text
            if len(row or [""]) != len(names):
                last_line = source.first_line + len(source.lines) - 1
                problem = f"expected {len(names)} columns ({format_names(names)}), got {len(row)}"
                if last_line > source.first_line:
                    problem += f"; the row ends in line {last_line}; if its quotes are part of a text, {QUOTING_HELP}"
                raise source.error(problem)
            if len(source.lines) > 1 and not has_multiline_texts:
                suspicious_lines.append(source.first_line)
                has_multiline_texts = not source.has_lines_like_rows(len(names))
            yield source.length, [row[index] for index in selected] if row else [""]
        # A table is read several times, but the notice is emitted once.
        if suspicious_lines and not has_multiline_texts and len(names) > 1 and not notices:
            more = f", like {len(suspicious_lines) - 1:,} other fields" if len(suspicious_lines) > 1 else ""
            notice = f"a quoted field spans lines that look like rows{more}; if its quotes are text, {QUOTING_HELP}"
            notices.add(notice)
            warnings.warn(Notice(f"{path} line {suspicious_lines[0]}: {notice}"), stacklevel=2)

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        return to_chunks(rows(columns), columns)

    hint = _separator_hint(names, delimiter)
    return Table(str(path), names, read, file.digest, header_hint=hint, estimate_rows=file.line_count)


def _header(file: Content, delimiter: str) -> tuple[str, ...]:
    """Return the names of the columns from the first row."""
    source = CsvRows(file, delimiter)
    try:
        names = next(iter(source), [])
    except UserError:
        names = next(csv.reader(source.lines[:1], delimiter=delimiter), [])
        if not _separator_hint(names, delimiter):  # another separator explains the error about quotes
            raise
    if not names:
        raise UserError(f"{file.path} line 1: expected the names of the columns, got an empty line")
    return tuple(names)


def _separator_hint(names: Sequence[str], delimiter: str) -> str:
    """Return a hint for messages about a header that seems to use another separator; empty otherwise."""
    separator = max((mark for mark in SEPARATORS if mark != delimiter), key=names[0].count if names else len)
    if len(names) != 1 or separator not in names[0]:
        return ""
    expected = SEPARATORS[delimiter]
    remedy = f"name the file {ENDINGS[separator]}" if separator in ENDINGS else f"save it with {expected}"
    return f"; expected {expected} in a {ENDINGS[delimiter]} file, got {SEPARATORS[separator]}; {remedy}"


def json_table(file: Content) -> Table:
    """Open a JSON Lines file; if a line lacks a key, the value is missing."""

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(file.lines(), 1):
            if line.strip():
                yield len(line), _json_row(line, f"{file.path} line {number}")

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        return to_chunks(((length, [row.get(name) for name in columns]) for length, row in rows()), columns)

    columns = tuple(dict.fromkeys(key for _, row in rows() for key in row))
    return Table(str(file.path), columns, read, file.digest, estimate_rows=file.line_count)


def _json_row(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a line; error messages begin with `where`."""
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row
