"""Tables, as `open_table` returns them for all kinds of sources, and the chunks of rows in which they are read.

A chunk is a dict from column to a list of values. All values of CSV and TSV files are strings, and an empty field is an
empty string; the column readers (`readers`) interpret the strings.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from factorcell.errors import CONTINUE_ANYWAY, UserError, nearest_hint
from factorcell.io.escapes import escape_hidden

CHUNK_ROWS = 8192  # maximum number of rows of a chunk
MAX_NAMES_SHOWN = 20  # maximum number of column names that an error message lists

Chunk = dict[str, list[Any]]


class UnknownKindError(UserError):
    """The error about a path that is neither a table file nor a folder of Parquet files."""

    def with_remedy_for_texts(self) -> UserError:
        """Return this error for a caller that also accepts texts, because the path may be a text."""
        return self.with_message(f"{self.message}; to read a text, pass a list of texts")


@dataclass(frozen=True)
class Table:
    """A source of rows that can be read repeatedly.

    All reads of a table return the same content: if a file has changed since it was opened, reading it raises a
    `UserError`.

    Attributes:
        name: The name of the source, for messages.
        columns: The names of all columns.
        read: A function that receives column names and yields chunks of these columns.
        digest: A function that returns a digest of the file's content; None for a source in memory.
        row_count: The number of rows, if it is known without reading the source.
        header_hint: A description of a likely mistake in the header, which errors about missing columns append to their
            message; empty if the header seems correct.
        estimate_rows: A function that returns an estimate of the number of rows, or None if it has no estimate.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[tuple[str, ...]], Iterator[Chunk]]
    digest: Callable[[], bytes] | None = None
    row_count: int | None = None
    header_hint: str = ""
    estimate_rows: Callable[[], int | None] = lambda: None

    def __post_init__(self) -> None:
        if not self.columns:
            raise UserError(f"{self.name}: empty, no columns and no rows")
        [(name, count)] = Counter(self.columns).most_common(1)
        if count > 1:
            raise UserError(f"{self.name}: the header has {name!r} twice")

    def chunks(self, columns: Collection[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns`.

        Raises:
            UserError: A column is missing, the table has no rows, or it cannot be read.
        """
        available_columns = set(self.columns)
        for name in columns:
            if name not in available_columns:
                raise self.missing_column_error(name)
        is_empty = True
        for chunk in self.read(tuple(dict.fromkeys(columns))):
            is_empty = False
            yield chunk
        if is_empty:
            raise UserError(f"{self.name}: no rows")

    def missing_column_error(
        self, column: str, remedies: Iterable[tuple[str, str]] = (), outcome: str = CONTINUE_ANYWAY
    ) -> UserError:
        """Return the error about a missing `column`.

        Args:
            column: The name of the column.
            remedies: Options that solve the problem, with their values; the error has none if `header_hint` is set.
            outcome: What the remedies achieve, as an infinitive for the message.
        """
        hint = "" if self.header_hint else nearest_hint(column, self.columns)
        if "," in column and set(column.split(",")) <= set(self.columns):
            hint = " (name each column by itself)"
        message = f"{self.name}: no column {column!r}{hint}; it has {format_names(self.columns)}{self.header_hint}"
        return UserError(message, () if self.header_hint else remedies, outcome)


def format_names(names: Collection[str]) -> str:
    """Return the first of `names` for a message, each cut to 60 characters; if not all, also the number of `names`."""
    shown_names = ", ".join(f"{escape_hidden(name):.60}" for name in islice(names, MAX_NAMES_SHOWN))
    return shown_names + (f", ... ({len(names):,} in all)" if len(names) > MAX_NAMES_SHOWN else "")
