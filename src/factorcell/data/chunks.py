"""Tables as streams of column chunks: what every reader of tables returns.

A chunk is a dict from column name to a list of at most `CHUNK` plain values. Text files give strings throughout
(an empty field is the empty string); the reader of a column decides what a value means.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from factorcell.config import UserError
from factorcell.escapes import escape_hidden
from factorcell.limits import CONTINUE_ANYWAY, nearest_hint

CHUNK_ROWS = 8192
SHOWN = 20  # names of columns that an error lists

Chunk = dict[str, list[Any]]


class UnknownKindError(UserError):
    """A path whose name does not say what kind of table it is, so that it may be no path at all."""


@dataclass(frozen=True)
class Table:
    """A source that can be read repeatedly: its `name` for messages, its columns, its chunks.

    Every read of a file sees the content that `digest` is of: a `UserError` says that it has changed since it was
    opened. An error about a missing column ends with `fault`, which says what seems to be wrong with the header.
    `lines` estimates an unknown number of `rows`.
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
        name, times = Counter(self.columns).most_common(1)[0]
        if times > 1:
            raise UserError(f"{self.name}: the header has {name!r} twice")

    def chunks(self, columns: Collection[str]) -> Iterator[Chunk]:
        """Chunks of the named columns; `UserError` where a column is missing or the table is empty."""
        missing = set(columns).difference(self.columns)
        for name in columns:
            if name in missing:
                raise self.missing_column_error(name)
        empty = True
        for chunk in self.read(tuple(dict.fromkeys(columns))):
            empty = False
            yield chunk
        if empty:
            raise UserError(f"{self.name}: no rows")

    def missing_column_error(
        self, column: str, remedies: Iterable[tuple[str, str]] = (), outcome: str = CONTINUE_ANYWAY
    ) -> UserError:
        """The error about a `column` that is missing; a fault of the header has no `remedies`."""
        hint = "" if self.header_hint else nearest_hint(column, self.columns)
        if "," in column and set(column.split(",")) <= set(self.columns):
            hint = " (name each column by itself)"
        message = f"{self.name}: no column {column!r}{hint}; it has {format_names(self.columns)}{self.header_hint}"
        return UserError(message, () if self.header_hint else remedies, outcome)


def format_names(names: Collection[str]) -> str:
    """`names` as an error shows them: the first few, and how many there are."""
    shown = ", ".join(f"{escape_hidden(name):.60}" for name in islice(names, SHOWN))
    return shown + (f", ... ({len(names):,} in all)" if len(names) > SHOWN else "")
