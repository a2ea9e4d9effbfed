"""What the service asks of a store, and nothing more: people by their id, each written whole by compare and swap.

All of it blocks, and is called from threads: a request that is cancelled leaves its thread to finish, so that no
connection is ever left with half of an answer in it. Every method may raise a `StoreError`; whether a writing that
failed so has happened is unknown, and asking again tells. Nothing is retried within.
"""

from typing import Protocol

from factorcell.config import UserError
from factorcell.service.record import Record

PAGE = 1000  # people that are listed at once at most


class Store(Protocol):
    """People by their id. Any thread may use it, and any number of processes."""

    def read(self, user: str) -> Record | None:
        """All that is kept of a person, None of nobody. `DamagedRecordError` if it is not what was written."""
        ...

    def version(self, user: str) -> int | None:
        """The version of what is kept of a person, None of nobody: what costs least to ask for."""
        ...

    def write(self, record: Record, expected: int | None) -> bool:
        """Keep this of its person, if what is kept now has the `expected` version (None: if nothing is).

        True once it is on disk; False, with nothing written, if another writer was first.
        """
        ...

    def delete(self, user: str, expected: int | None = None) -> bool:
        """Delete all of a person, damaged or not; whether there was something, of the `expected` version if given."""
        ...

    def users(self, after: str = "", limit: int = PAGE) -> list[str]:
        """At most `limit` ids that come `after` that one, by the bytes of their UTF-8."""
        ...

    def aged(self, before: int, limit: int = PAGE) -> list[str]:
        """At most `limit` people, oldest first, with a text from `before` that time, or who were last there then."""
        ...

    def check(self) -> None:
        """`StoreError` unless it can be read and written now."""
        ...

    def purge(self) -> list[str]:
        """Remove what was deleted or replaced from the raw files, as far as this can be done from here.

        What is left to do, a line each; none if nothing is. It may take seconds, in which others wait.
        """
        ...

    def close(self) -> None:
        """Give up all connections; nothing can be asked any more."""
        ...


def check_schema(number: int, newest: int, where: object) -> None:
    """`UserError` for the schema of a later version, which this code would misread."""
    if number > newest:
        raise UserError(
            f"{where}: its schema is {number}, this factorcell knows up to {newest}; "
            "upgrade factorcell (pip install --upgrade factorcell)"
        )
