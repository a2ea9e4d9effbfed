"""Readers of CSV and TSV files."""

import csv as text_csv
import lzma
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import csv

from factorcell.config import UserError
from factorcell.data import chunks, csv_faults
from factorcell.data.arrow import one_line, plain
from factorcell.data.chunks import Chunk, Table, listed
from factorcell.data.content import ROW, Content

PARSED = ROW  # bytes of a CSV file that are parsed at once, and so those of the longest row


def csv_table(content: Content) -> Table:
    path = content.path
    delimiter = "\t" if path.name.lower().removesuffix(content.compression).endswith(".tsv") else ","
    names = _header(content, delimiter)

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        ragged: list[tuple[int, int]] = []

        def refuse(row: Any) -> str:
            ragged.append((row.number, row.actual_columns))
            return "error"

        try:
            with content.unpacked() as stream:
                # A line without a mark is a text without a token only where a row is nothing but its text.
                wanted = tuple(dict.fromkeys((*columns, names[-1])))
                parsed = _csv_batches(stream, wanted, delimiter, refuse, len(names) > 1)
                whole = _closed(parsed, content, names[-1])
                yield from plain((batch.select(list(columns)) for batch in whole), str(path))
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            if ragged:
                number, found, why = csv_faults.ragged(content, delimiter, len(names), ragged[0])
                has = f"{found} columns, the header has {len(names)} ({listed(names)}){why}"
                raise UserError(f"{path} line {number}: {has}") from None
            said = str(error)
            if "straddling" in said:
                *_, why = csv_faults.ragged(content, delimiter, len(names), (None, 0))
                said = f"a row is longer than {PARSED:,} bytes{why or ' (a quote that is not closed?)'}"
            raise UserError(csv_faults.encoding(content, said)) from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    return Table(str(path), names, read, content, fault=csv_faults.of_header(names, delimiter))


def _csv_batches(
    stream: Any, columns: Sequence[str], delimiter: str, refuse: Callable[[Any], str], skip_empty: bool
) -> Iterator[pa.RecordBatch]:
    ahead = _ReadAhead(stream)
    reader = csv.open_csv(
        ahead,
        read_options=csv.ReadOptions(use_threads=False, block_size=PARSED),
        parse_options=csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse, ignore_empty_lines=skip_empty
        ),
        convert_options=csv.ConvertOptions(
            include_columns=list(columns),
            column_types={name: pa.string() for name in columns},
            strings_can_be_null=False,
        ),
    )
    try:
        for batch in reader:
            for begin in range(0, batch.num_rows, chunks.CHUNK):
                yield batch.slice(begin, chunks.CHUNK)
    finally:
        ahead.over = True
        with suppress(Exception):  # what was read ahead is wanted no more, whatever is wrong with it
            for _ in reader:
                pass


class _ReadAhead:
    """A stream of which Arrow's own thread reads the next blocks, until it is `over`.

    A thread that still reads while Python ends would abort the process, or wait forever.
    """

    mode, closed = "rb", False

    def __init__(self, stream: Any) -> None:
        self.stream, self.over = stream, False

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as of a file; none once it is over."""
        found: bytes = b"" if self.over else self.stream.read(size)
        return found


def _closed(parsed: Iterator[pa.RecordBatch], content: Content, column: str) -> Iterator[pa.RecordBatch]:
    """The batches; `UserError` where a quote opens in the last `column` and takes in the rest of the file."""
    last = ""
    for batch in parsed:
        yield batch
        last = batch[column][-1].as_py()
    if line := csv_faults.open_at_the_end(content, last):
        opens = f"{column} begins with a quote that is not closed: {csv_faults.CLOSE}"
        raise UserError(f"{content.path} line {line}: {opens}")


def _header(content: Content, delimiter: str) -> tuple[str, ...]:
    """The names of the columns of a CSV file, which its first line gives."""
    reader = text_csv.reader(content.lines("utf-8-sig", ""), delimiter=delimiter)
    try:
        names = tuple(next(reader, ()))
    except UnicodeDecodeError:
        raise UserError(csv_faults.encoding(content, "not UTF-8")) from None
    except (OSError, EOFError, lzma.LZMAError, text_csv.Error) as error:
        if isinstance(error, text_csv.Error) and reader.line_num > 1:
            opens = f"a quote opens here that is not closed: {csv_faults.CLOSE}"
            raise UserError(f"{content.path} line 1: {opens}") from None
        raise UserError(f"{content.path}: damaged ({one_line(error)})") from None
    if not names:
        raise UserError(f"{content.path} line 1: empty; it must name the columns")
    return names
