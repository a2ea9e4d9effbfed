"""Readers of CSV and TSV files.

A thread reads the file ahead and cuts it into blocks of whole rows; Arrow parses one block at a time. A block is
copied into memory of Arrow, so that no thread of Arrow ever holds a Python object: releasing one while Python shuts
down would abort the process.
"""

import csv as text_csv
import lzma
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
from pyarrow import csv

from factorcell.config import Notice, UserError
from factorcell.data import chunks, content, csv_faults
from factorcell.data.arrow import one_line, plain
from factorcell.data.chunks import Chunk, Table
from factorcell.data.content import Content
from factorcell.data.csv_rows import NONE, QuotedFields, first_row_end, last_row_end, line_feeds, quoted_fields

PARSED = 1 << 20  # bytes of a file that are parsed at once, if its rows are not longer
BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Whole rows of a file from the byte `position` on.

    `copy` holds them for Arrow after `header` bytes of the header, which the first block has among its rows; `lines`
    is the number of their line feeds if they have quoted `fields`.
    """

    position: int
    copy: pa.Buffer
    header: int
    fields: QuotedFields
    lines: int

    @property
    def rows(self) -> bytes:
        """The bytes of the rows."""
        rows: bytes = self.copy[self.header :].to_pybytes()
        return rows


def csv_table(file: Content) -> Table:
    """Open a CSV file, or a TSV file, in which quotes are ordinary characters."""
    path = file.path
    delimiter = "\t" if path.name.lower().removesuffix(file.compression).endswith(".tsv") else ","
    names = _header(file, delimiter)
    notices = set[str]()

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        try:
            swallowed = csv_faults.SwallowedRows(delimiter, len(names))
            yield from plain(_batches(file, delimiter, names, columns, swallowed), str(path))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None
        if (notice := swallowed.notice(file)) and notice not in notices:  # a table is read several times
            notices.add(notice)
            warnings.warn(Notice(notice), stacklevel=2)

    return Table(str(path), names, read, file, fault=csv_faults.of_header(names, delimiter))


def _header(file: Content, delimiter: str, *, strict: bool = True) -> tuple[str, ...]:
    """Return the names of the columns, which the first row gives; if not `strict`, text may follow a quoted name."""
    reader = text_csv.reader(
        file.lines("utf-8-sig", ""),
        delimiter=delimiter,
        quoting=text_csv.QUOTE_MINIMAL if delimiter == "," else text_csv.QUOTE_NONE,
        strict=strict,
    )
    try:
        names = tuple(next(reader, ()))
    except UnicodeDecodeError:
        raise UserError(csv_faults.encoding(file, "not UTF-8")) from None
    except text_csv.Error as error:
        what = "the quote that opens a field is not closed"
        if "field larger" in str(error) and reader.line_num == 1:
            raise UserError(f"{file.path} line 1: {error}") from None
        if "expected after" in str(error):
            what = "text follows the closing quote of a field"
            names = _header(file, delimiter, strict=False)
            if csv_faults.of_header(names, delimiter):  # the quotes are right, and the separator is not
                return names
        raise UserError(f"{file.path} line 1: {what}; {csv_faults.QUOTING}") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{file.path}: damaged ({one_line(error)})") from None
    if not names:
        raise UserError(f"{file.path} line 1: empty; it must name the columns")
    return names


def _batches(
    file: Content,
    delimiter: str,
    names: Sequence[str],
    columns: Sequence[str],
    swallowed: csv_faults.SwallowedRows,
) -> Iterator[pa.RecordBatch]:
    """Parse the named columns of a file, block by block."""
    quote = '"' if delimiter == "," else False
    # An empty line is a text without a token only where a row is nothing but its text.
    skip_empty = len(names) > 1
    parse = csv.ParseOptions(
        delimiter=delimiter, quote_char=quote, newlines_in_values=True, ignore_empty_lines=skip_empty
    )
    convert = csv.ConvertOptions(
        include_columns=list(columns),
        column_types={name: pa.string() for name in columns},
        strings_can_be_null=False,
    )
    for block in _ahead(_blocks(file, delimiter)):
        size = csv.ReadOptions(use_threads=False, block_size=block.copy.size)
        try:
            table = csv.read_csv(pa.BufferReader(block.copy), size, parse, convert)
        except pa.ArrowInvalid as error:
            fault = csv_faults.ragged(file, block.position, block.rows, block.fields, delimiter, names)
            raise fault or UserError(csv_faults.encoding(file, str(error))) from None
        if block.lines > table.num_rows + (not block.header):
            swallowed.add(block.position, block.rows, block.fields)
        yield from table.to_batches(max_chunksize=chunks.CHUNK)


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the blocks, of which a thread prepares the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = thread.submit(next, blocks, None)
            yield block


def _blocks(file: Content, delimiter: str) -> Iterator[Block]:
    """Cut a file into blocks of whole rows; `UserError` where a quote is misplaced or a row too long."""
    block, kept, position, header = bytearray(PARSED), 0, 0, b""
    with file.unpacked() as stream:
        while True:
            with memoryview(block) as view:
                size = kept + stream.readinto(view[kept:])
            at_end = size < len(block)
            del block[size:]
            if position == 0 and block.startswith(BOM):
                del block[: len(BOM)]
                position = len(BOM)
            if not block:
                return
            fields = quoted_fields(block, delimiter) if delimiter == "," else NONE
            if fields.fault >= 0:
                raise csv_faults.text_after_quote(file, position, block, fields)
            if fields.is_open and at_end:
                raise csv_faults.open_quote(file, position + fields.last_open)
            end = len(block) if at_end else last_row_end(block, fields)
            kept = len(block) - end
            if kept > content.ROW:
                raise csv_faults.long_row(file, position + end, content.ROW, fields)
            begin = 0 if header else first_row_end(block, fields) or end
            if end > begin:
                lines = line_feeds(block, end) if len(fields.opens) else 0
                yield Block(position, _copied(header, block, end), len(header), fields.before(end), lines)
            header = header or bytes(block[:begin])
            if at_end:
                return
            position += end
            block[:kept] = block[end:]
            block.extend(bytes(max(0, kept + PARSED - len(block))))


def _copied(header: bytes, block: bytearray, end: int) -> pa.Buffer:
    """Copy the header and the `block` up to `end` into memory of Arrow."""
    copy = pa.allocate_buffer(len(header) + end)
    with memoryview(copy) as signed, signed.cast("B") as target, memoryview(block) as source:
        target[: len(header)] = header
        target[len(header) :] = source[:end]
    return copy
