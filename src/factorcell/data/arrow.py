"""Arrow batches as plain Python values, and those of a Parquet file, which stay within memory.

What Arrow holds and Python cannot is named with its row.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from factorcell import memory
from factorcell.config import UserError

BATCH = 1 << 30  # bytes that the values of a dictionary may take in one batch

BEYOND = (ValueError, OverflowError, TypeError, pa.ArrowException)  # of a value that Python has no form for


def plain(batches: Iterable[pa.RecordBatch], where: str) -> Iterator[dict[str, list[Any]]]:
    """Each batch with rows as a dict from column to values; a `UserError` names the column and row of a bad one."""
    before = 0
    for batch in batches:
        if batch.num_rows:
            try:
                chunk = batch.to_pydict()
            except BEYOND:
                chunk = {name: _values(batch[name], name, where, before) for name in batch.schema.names}
            yield chunk
        before += batch.num_rows


def one_line(error: object) -> str:
    """What an error of Arrow or the system says, in one line."""
    return " ".join(str(error).split())


def _values(column: pa.Array, name: str, where: str, before: int) -> list[Any]:
    """The values of a column one by one."""
    values = []
    for row, value in enumerate(column, before + 1):
        try:
            values.append(value.as_py())
        except BEYOND as error:
            why = f"{value.type}: {one_line(error)}"
            raise UserError(f"{where} row {row}: {name} is no value that can be read ({why})") from None
    return values


def batches(raw: BinaryIO, columns: Sequence[str], rows: int, where: str) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` of a Parquet file; a `UserError` where a row group of the `columns` is beyond memory.

    A small file can repeat a large value of a dictionary in millions of rows: the larger it is, the fewer rows at once.
    """
    with pq.ParquetFile(raw) as file:
        metadata, schema = file.metadata, file.schema
        leaves = [n for n in range(len(schema)) if schema.column(n).path.split(".")[0] in columns]
        sizes: list[int] = []  # of the row groups, in memory
        large: dict[str, list[int]] = {}  # the row groups in which the dictionary of a column may be
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(leaf) for leaf in leaves]
            sizes.append(sum(chunk.total_uncompressed_size for chunk in chunks))
            for chunk in chunks:
                strings = chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
                if strings and chunk.total_uncompressed_size * rows > BATCH:
                    large.setdefault(chunk.path_in_schema, []).append(number)
        memory.check(max(sizes, default=0), f"{where}: its largest row group")
        longest = max((_longest(raw, path, groups) for path, groups in large.items()), default=1)
        yield from file.iter_batches(max(1, min(rows, BATCH // longest)), columns=list(columns))


def _longest(raw: BinaryIO, path: str, groups: Sequence[int]) -> int:
    """The bytes of the longest value in the dictionaries of a column; at least 1."""
    longest = 1
    file = pq.ParquetFile(raw, read_dictionary=[path], buffer_size=1 << 20)
    for group in groups:
        for batch in file.iter_batches(1, row_groups=[group], columns=[path]):
            column = batch.column(0)
            while pa.types.is_list(column.type):
                column = column.values
            if pa.types.is_dictionary(column.type):
                longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 1)
            break
    return longest
