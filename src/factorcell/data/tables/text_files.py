"""Read CSV, TSV and JSON Lines files as tables."""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from factorcell.data.tables import chunks
from factorcell.data.tables.chunks import Chunk, Content, Table, format_names
from factorcell.errors import UserError
from factorcell.io.findings import Finding, report
from factorcell.io.output import escape_hidden

DELIMITERS = ",;\t|"
FIRST_LINE = re.compile(r"\"?sep=([^\"\w])\"?\r?\n?")  # the delimiter, as Excel reads and writes it
QUOTING_HELP = 'put the whole field in quotes and write each quote inside it as ""'

# `CsvRows` limits the length of rows, so the module csv must not set a lower limit for fields.
csv.field_size_limit(max(csv.field_size_limit(), chunks.MAX_ROW_LENGTH))
LONE_RETURN = re.compile(r"\r(?!\n)")


def to_chunks(rows: Iterable[tuple[int, Sequence[Any]]], columns: Sequence[str]) -> Iterator[Chunk]:
    """Collect rows, each with its length in characters, into chunks.

    A chunk has at most `CHUNK_ROWS` rows, and ends after the row with which it exceeds `MAX_ROW_LENGTH` characters.
    """
    chunk_rows, chunk_length = list[Sequence[Any]](), 0
    for length, row in rows:
        chunk_rows.append(row)
        chunk_length += length
        if len(chunk_rows) == chunks.CHUNK_ROWS or chunk_length > chunks.MAX_ROW_LENGTH:
            yield dict(zip(columns, map(list, zip(*chunk_rows, strict=True)), strict=True))
            chunk_rows, chunk_length = [], 0
    if chunk_rows:
        yield dict(zip(columns, map(list, zip(*chunk_rows, strict=True)), strict=True))


class CsvRows:
    """Iterates over the rows of a CSV file (RFC 4180), or of a TSV file, whose quotes are ordinary characters.

    Attributes:
        lines: The lines of the current row.
        first_line_number: The number of the first of these lines in the file.
        length: The number of characters of these lines.
    """

    def __init__(self, file: Content, delimiter: str, is_quoted: bool) -> None:
        self.file, self.delimiter, self.is_quoted = file, delimiter, is_quoted
        self.lines, self.first_line_number, self.length = list[str](), 1, 0

    def _read_lines(self) -> Iterator[str]:
        """Yield the lines of the file, after adding each to the lines of the current row."""
        # Where lines end with a line feed, a lone carriage return is part of a text, which pandas may write unquoted.
        first_line, second_line, *_ = *islice(self.file.lines(""), 2), "", ""
        has_line_feeds = first_line.endswith("\n")
        # Python's `csv` writes such ends of lines on Windows into a file that was opened without newline="".
        has_two_returns = first_line.endswith("\r") and second_line == "\r\n"
        previous = ""
        for read_line in self.file.lines("\n" if has_line_feeds else ""):
            is_second_end = has_two_returns and read_line == "\r\n" and previous.endswith("\r")
            previous = read_line
            if is_second_end:
                continue
            line = LONE_RETURN.sub(" ", read_line) if has_line_feeds and "\r" in read_line else read_line
            self.lines.append(line)
            self.length += len(line)
            if self.length > chunks.MAX_ROW_LENGTH:
                cause = f"a quote that opens a field may not be closed: {QUOTING_HELP}"
                raise self.error(f"a row is longer than {chunks.MAX_ROW_LENGTH:,} characters; {cause}")
            yield line

    def __iter__(self) -> Iterator[list[str]]:
        quoting: Any = csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE
        reader = csv.reader(self._read_lines(), delimiter=self.delimiter, quoting=quoting, strict=True)
        try:
            for row in reader:
                yield row
                self.first_line_number += len(self.lines)
                self.lines.clear()
                self.length = 0
        except csv.Error as error:
            # The module csv has two errors about quotes: "expected after" for text after a closing quote, and another
            # for a file that ends within quotes.
            problem, last_line = "the quote that opens a field of this row is not closed", self.first_line_number
            if "expected after" in str(error):
                last_line += len(self.lines) - 1
                row_start = f" of a row that begins in line {self.first_line_number}" if len(self.lines) > 1 else ""
                text = escape_hidden(self.lines[-1].strip())
                problem = f"text follows the closing quote of a field{row_start} ({text:.40})"
            raise UserError(f"{self.file.path} line {last_line}: {problem}; {QUOTING_HELP}") from None

    def error(self, message: str) -> UserError:
        """Return an error about the current row."""
        return UserError(f"{self.file.path} line {self.first_line_number}: {message}")

    def has_lines_like_rows(self, column_count: int) -> bool:
        """Return whether the current row has one quoted field, and each line would be a row without the quotes."""
        quote_count = sum(line.count('"') for line in self.lines)
        delimiter_counts = {line.count(self.delimiter) for line in self.lines if line.strip()}
        return quote_count == 2 and delimiter_counts <= {column_count - 1}


def open_csv(file: Content) -> Table:
    """Open a CSV or TSV file."""
    path = file.path
    is_tsv = path.name.lower().removesuffix(file.compression).endswith(".tsv")
    delimiter, header_row = _find_delimiter(file, "\t" if is_tsv else ",")
    is_quoted = not (is_tsv and delimiter == "\t")
    header = CsvRows(file, delimiter, is_quoted)
    if not (names := tuple(next(islice(header, header_row, None), ()))):
        raise header.error("expected the names of the columns, got an empty line")
    index_by_name = {name: index for index, name in enumerate(names)}

    def data_rows(csv_rows: CsvRows) -> Iterator[list[str]]:
        """Yield the rows after the header; in a file with one column, an empty line is a row with an empty text."""
        return (row for row in islice(csv_rows, header_row + 1, None) if row or len(names) == 1)

    def line_of(row: int) -> int:
        csv_rows = CsvRows(file, delimiter, is_quoted)
        next(islice(data_rows(csv_rows), row - 1, None))
        return csv_rows.first_line_number

    def read_rows(columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the length of each row and its values in `columns`."""
        csv_rows = CsvRows(file, delimiter, is_quoted)
        indices = [index_by_name[name] for name in columns]
        suspicious_line, has_multiline_texts = 0, False  # the first line of a row that may contain other rows
        for row in data_rows(csv_rows):
            if len(row or [""]) != len(names):
                last_line_number = csv_rows.first_line_number + len(csv_rows.lines) - 1
                problem = f"expected {len(names)} columns ({format_names(names)}), got {len(row)}"
                if last_line_number > csv_rows.first_line_number:
                    problem += f"; the row ends in line {last_line_number}"
                    problem += f"; if its quotes are part of a text, {QUOTING_HELP}"
                raise csv_rows.error(problem)
            if len(csv_rows.lines) > 1 and not has_multiline_texts:
                suspicious_line = suspicious_line or csv_rows.first_line_number
                has_multiline_texts = not csv_rows.has_lines_like_rows(len(names))
            yield csv_rows.length, [row[index] for index in indices] if row else [""]
        if suspicious_line and not has_multiline_texts and len(names) > 1:
            problem = f"a quoted field spans lines that look like rows; if its quotes are text, {QUOTING_HELP}"
            report(Finding("quotes", f"{path} line {suspicious_line}: {problem}"))

    return Table(str(path), names, lambda columns: to_chunks(read_rows(columns), columns), file=file, line_of=line_of)


def _find_delimiter(file: Content, expected: str) -> tuple[str, int]:
    """Return the delimiter of a file, and the number of rows before its header.

    Excel may write the delimiter into a first line such as `sep=;`. Otherwise, it is the `expected` one, or if the
    header lacks this, the most frequent of other delimiters: Excel writes semicolons where a comma is the decimal mark.
    """
    line = next(file.lines(""), "")
    if match := FIRST_LINE.fullmatch(line):
        return match[1], 1
    others = [mark for mark in DELIMITERS if mark in line]
    return expected if expected in line or not others else max(others, key=line.count), 0


def open_json_lines(file: Content) -> Table:
    """Open a JSON Lines file; if a line lacks a key, the value is missing."""

    def rows() -> Iterator[tuple[int, str]]:
        """Yield the number of each line that is not empty, and the line."""
        return ((number, line) for number, line in enumerate(file.lines(), 1) if line.strip())

    def read_rows() -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the length of each row and the row."""
        return ((len(line), _parse_json_row(line, f"{file.path} line {number}")) for number, line in rows())

    def line_of(row: int) -> int:
        return next(islice(rows(), row - 1, None))[0]

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        selected_values = ((length, [row.get(name) for name in columns]) for length, row in read_rows())
        return to_chunks(selected_values, columns)

    columns = tuple(dict.fromkeys(key for _, row in read_rows() for key in row))
    return Table(str(file.path), columns, read, file=file, line_of=line_of)


def _parse_json_row(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a line; error messages begin with `where`."""
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair, such as \\ud83d; remove it)") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # a `JSONDecodeError` has its message without the position in `msg`
        raise UserError(f"{where}: not valid JSON ({reason})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row
