"""Any table as a stream of column chunks: CSV, TSV, JSON lines and Parquet, plain or compressed, and tables in memory.

A chunk is a dict from column name to a list of at most `CHUNK` plain values. Text files give strings throughout
(an empty field is the empty string); what a value means is decided by whoever reads the column.
"""

import csv as text_csv
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet as pq

from factorcell.config import UserError
from factorcell.data import csv_faults
from factorcell.data.arrow import batches, one_line, plain
from factorcell.data.content import COMPRESSIONS, ROW, Content
from factorcell.limits import GOES_ON, nearest
from factorcell.visible import visible

CHUNK = 8192
PARSED = ROW  # bytes of a CSV file that are parsed at once, and so those of the longest row
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
GIVEN = "the columns given"  # the name of a table of columns, in errors
SHOWN = 20  # names of columns that an error lists

Chunk = dict[str, list[Any]]


class UnknownKindError(UserError):
    """A path whose name does not say what kind of table it is, so that it may be no path at all."""


@dataclass(frozen=True)
class Table:
    """A source that can be read repeatedly: its `name` for messages, its columns, its chunks; of a file its `content`.

    All that is read of a file is of one content: a `UserError` says that it has changed meanwhile. A `fault` of its
    header is told where a column is missing.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[tuple[str, ...]], Iterator[Chunk]]
    content: Content | None = None
    rows: int | None = None
    fault: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise UserError(f"{self.name}: empty, no columns and no rows")
        name, times = Counter(self.columns).most_common(1)[0]
        if times > 1:
            raise UserError(f"{self.name}: the header has {name!r} twice")

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Chunks of the named columns; `UserError` where a column is missing or the table is empty."""
        for name in columns:
            if name not in self.columns:
                raise self.lacks(name)
        empty = True
        for chunk in self.read(tuple(dict.fromkeys(columns))):
            empty = False
            yield chunk
        if empty:
            raise UserError(f"{self.name}: no rows")

    def lacks(self, column: str, remedies: Iterable[tuple[str, str]] = (), outcome: str = GOES_ON) -> UserError:
        """The error about a `column` that is missing; a fault of the header has no `remedies`."""
        hint = "" if self.fault else nearest(column, self.columns)
        if "," in column and set(column.split(",")) <= set(self.columns):
            hint = " (name each column by itself)"
        message = f"{self.name}: no column {column!r}{hint}; it has {listed(self.columns)}{self.fault}"
        return UserError(message, () if self.fault else remedies, outcome)

    def lacks_text(self, column: str) -> UserError:
        """The same where nobody has read such a table before."""
        return self.lacks(column, (("text", "COLUMN"),), "says which one has the texts")


def listed(names: Sequence[str]) -> str:
    """`names` as an error shows them: the first few, and how many there are."""
    shown = ", ".join(f"{visible(name):.60}" for name in names[:SHOWN])
    return shown + (f", ... ({len(names):,} in all)" if len(names) > SHOWN else "")


def open_table(source: Any) -> Table:
    """A `Table` from a path, a row (dict) or a list of rows, a dict of columns, a pandas, Arrow or HF table."""
    if isinstance(source, (str, Path)):
        return _from_path(Path(source))
    if isinstance(source, Mapping):
        if source and all(hasattr(values, "with_format") for values in source.values()):
            raise UserError(f"this data set has splits; give one of them ({', '.join(source)})")
        if source and all(isinstance(v, (list, tuple)) or hasattr(v, "tolist") for v in source.values()):
            lists = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in source.items()}
            if all(isinstance(values, (list, tuple)) for values in lists.values()):
                return _from_columns(lists)
        return _from_rows([source])
    if isinstance(source, (list, tuple)):
        return _from_rows(source)
    if isinstance(source, pa.RecordBatch):
        return _from_arrow(pa.Table.from_batches([source]))
    if isinstance(source, pa.Table):
        return _from_arrow(source)
    if hasattr(source, "with_format") and hasattr(source, "num_rows"):  # a Hugging Face dataset, not a stream
        return _from_arrow(source.with_format("arrow")[:])
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a pandas data frame
        return _from_pandas(source)
    raise UserError(
        f"cannot read a table from {type(source).__name__}; give a path, rows, a data frame or an Arrow table"
    )


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UserError(f"row {number} is {type(row).__name__}; a row is a dict from column to value")
    columns = tuple(dict.fromkeys(name for row in rows for name in row))

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, len(rows), CHUNK):
            part = rows[begin : begin + CHUNK]
            yield {name: [row.get(name) for row in part] for name in names}

    return Table("the rows given", columns, read, rows=len(rows))


def _from_columns(columns: Mapping[str, Sequence[Any]]) -> Table:
    sizes = {name: len(values) for name, values in columns.items()}
    rows = max(sizes.values())
    for name, size in sizes.items():
        if size != rows:
            raise UserError(f"{GIVEN}: {name} has {size} rows, another has {rows}")

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for begin in range(0, rows, CHUNK):
            yield {name: list(columns[name][begin : begin + CHUNK]) for name in names}

    return Table(GIVEN, tuple(columns), read, rows=rows)


def _from_arrow(table: pa.Table, name: str = "the table given") -> Table:
    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        return plain(table.select(list(names)).to_batches(max_chunksize=CHUNK), name)

    return Table(name, tuple(table.column_names), read, rows=table.num_rows)


def _from_pandas(frame: Any) -> Table:
    columns = {str(name): place for place, name in enumerate(frame.columns)}

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        wanted = frame.iloc[:, [columns[name] for name in names]]
        try:
            table = pa.Table.from_pandas(wanted, preserve_index=False)
        except pa.ArrowException as error:
            raise UserError(f"the data frame given: a column mixes types ({error.args[-1]})") from None
        yield from _from_arrow(table).chunks(names)

    return Table("the data frame given", tuple(map(str, frame.columns)), read, rows=len(frame))


def _from_path(path: Path) -> Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in FORMATS or (kind == ".parquet" and compression):
        valid = f"{', '.join(FORMATS)} (text files also with {', '.join(COMPRESSIONS)})"
        raise UnknownKindError(f"{path}: unknown kind of file; its name must end in {valid}")
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    readers = {".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
    return readers[kind](Content(path, compression))


def line_count(table: Table) -> int | None:
    """About how many rows a text file has: its lines. None where that cannot be told without unpacking it."""
    if table.content is None or table.content.path.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        return None
    with table.content.open() as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def _parquet(content: Content) -> Table:
    path = content.path
    try:
        with content.open() as raw, pq.ParquetFile(raw) as file:
            names, rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a Parquet file, or damaged ({one_line(error)})") from None

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        try:
            with content.open() as raw:
                yield from plain(batches(raw, columns, CHUNK, str(path)), str(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    return Table(str(path), names, read, content, rows)


def _csv(content: Content) -> Table:
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
            raise UserError(_encoding(content, said)) from None
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
            for begin in range(0, batch.num_rows, CHUNK):
                yield batch.slice(begin, CHUNK)
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
        raise UserError(_encoding(content, "not UTF-8")) from None
    except (OSError, EOFError, lzma.LZMAError, text_csv.Error) as error:
        if isinstance(error, text_csv.Error) and reader.line_num > 1:
            opens = f"a quote opens here that is not closed: {csv_faults.CLOSE}"
            raise UserError(f"{content.path} line 1: {opens}") from None
        raise UserError(f"{content.path}: damaged ({one_line(error)})") from None
    if not names:
        raise UserError(f"{content.path} line 1: empty; it must name the columns")
    return names


def _encoding(content: Content, error: str) -> str:
    """What is wrong with a text file that does not parse: the line that is not UTF-8, or the parser's own word."""
    for number, line in enumerate(content.lines("utf-8", "\n", "surrogateescape"), 1):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as fault:
            place = len(line[: fault.start].encode("utf-8")) + 1
            byte = f"byte 0x{ord(line[fault.start]) - 0xDC00:02x} at column {place}"
            return f"{content.path} line {number}: not UTF-8 ({byte}); convert it first"
    return f"{content.path}: {one_line(error)}"


def _json_row(line: str, where: str) -> dict[str, Any]:
    """The object that one line holds."""
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeEncodeError:
        raise UserError(f"{where}: not valid JSON (half of a surrogate pair)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not an object; each line is one JSON object")
    return row


def _json_lines(content: Content) -> Table:
    path = content.path

    def lines() -> Iterator[tuple[int, int, dict[str, Any]]]:
        try:
            for number, line in enumerate(content.lines("utf-8-sig"), 1):
                if line.strip():
                    yield number, len(line), _json_row(line, f"{path} line {number}")
        except UnicodeDecodeError:
            raise UserError(_encoding(content, "not UTF-8")) from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged ({one_line(error)})") from None

    first = next(lines(), None)
    names = tuple(first[2]) if first else ()

    def read(columns: tuple[str, ...]) -> Iterator[Chunk]:
        chunk: Chunk = {name: [] for name in columns}
        size = length = 0
        for number, characters, row in lines():
            for name in columns:
                if name not in row:
                    raise UserError(f"{path} line {number}: no {name!r}; the first line has {listed(names)}")
                chunk[name].append(row[name])
            size, length = size + 1, length + characters
            if size == CHUNK or length > ROW:
                yield chunk
                chunk, size, length = {name: [] for name in columns}, 0, 0
        if size:
            yield chunk

    return Table(str(path), names, read, content)


def name_of(source: Any) -> str:
    """A table as results name it: its file without the folder, with what cannot be seen escaped, or "rows"."""
    return visible(Path(source).name) if isinstance(source, (str, Path)) else "rows"
