"""People of a store, with no model at hand: those who are changed here are learned again by whoever serves them."""

import random
import time
from collections.abc import Iterator
from typing import Any

from factorcell.completion.texts import checked
from factorcell.service import changes
from factorcell.service.record import Record, StoreError, checked_id
from factorcell.service.stores.store import Store

ATTEMPTS, PAUSE = 1000, 0.01  # to write while others do, and the seconds between two of them at most


def users(store: Store) -> Iterator[str]:
    """The ids of all who are kept, by the bytes of their UTF-8."""
    last = ""
    while page := store.users(last):
        yield from page
        last = page[-1]


def read(store: Store, user: str) -> Record | None:
    """All that is kept of a person, None of nobody."""
    return store.read(checked_id(user))


def restore(store: Store, values: Any) -> str | None:
    """Keep a person as they were exported, and say who it is; None where somebody of that id is kept already."""
    record = changes.imported(values, int(time.time()))
    return record.user if store.write(record, None) else None


def forget(store: Store, user: str, text: str) -> int:
    """Delete a text of a person, with all that was learned of them; how often it was there."""
    checked(text), checked_id(user)
    for _ in range(ATTEMPTS):
        record = store.read(user)
        if record is None:
            return 0
        after = changes.without(record, text)
        if after is record:
            return 0
        after = changes.changed(after, version=record.version + 1, touched=int(time.time()))
        if store.write(after, record.version):
            return len(record.texts) - len(after.texts)
        time.sleep(random.uniform(0, PAUSE))  # another was first
    raise StoreError("others are writing this person all the time")
