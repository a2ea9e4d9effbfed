"""The commands about the users in a store, and about the keys of a server."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from factorcell import input_files
from factorcell.choices import STORE_VARIABLE
from factorcell.commands import terminal
from factorcell.completion.texts import check_text
from factorcell.config import UserError
from factorcell.progress import progress_bar
from factorcell.service import changes
from factorcell.service.http import keys
from factorcell.service.record import Record, StoreError, checked_id
from factorcell.service.stores.opening import open_store
from factorcell.service.stores.store import Store, all_users


def run_users_list(given: argparse.Namespace) -> None:
    with _opened(given) as store:
        nobody = True
        for user in all_users(store):
            terminal.show(user)
            nobody = False
    if nobody:
        terminal.notify("nobody is kept")


def run_users_show(given: argparse.Namespace) -> None:
    with _opened(given) as store:
        record = _found(store, given.user)
    rows = [
        {"number": one.number, "time": _shown(one.time), "text": one.text, "context": one.context or None}
        for one in record.texts
    ]
    if given.json:
        return terminal.show_json(rows)
    state = "; nothing more is kept until they resume" if record.paused else ""
    terminal.show(f"{len(record.texts):,} texts are kept of {record.accepted:,} that were accepted{state}")
    for row in rows:
        context = "" if row["context"] is None else json.dumps(row["context"], ensure_ascii=False)
        terminal.show_fields(f"{row['number']}", f"{row['time']}", f"{row['text']}", context)
    return None


def run_users_export(given: argparse.Namespace) -> None:
    with _opened(given) as store:
        for user in given.users or all_users(store):
            record = _found(store, user) if given.users else store.read(user)
            if record is not None:  # a user may be deleted meanwhile
                terminal.show_json([changes.export_record(record)])


def run_users_import(given: argparse.Namespace) -> None:
    people = _people(input_files.read_text(given.file))
    count = known = failures = 0
    with _opened(given, make=True) as store:
        for number, line in people:
            try:
                is_new = store.write(changes.import_record(json.loads(line), _now()), None)
            except (ValueError, RecursionError) as error:
                message = error.message if isinstance(error, UserError) else "not valid JSON"
                terminal.notify(f"{given.file} line {number}: {message}")
                failures += 1
            else:
                count, known = count + is_new, known + (not is_new)
    terminal.notify(f"people kept now: {count:,}; there already, and as they were: {known:,}")
    if failures:
        raise UserError(f"{given.file}: {failures:,} of {len(people):,} lines could not be imported")


def run_users_forget(given: argparse.Namespace) -> None:
    with _opened(given) as store:
        user, text = checked_id(given.user), check_text(given.text)
        before, after = changes.apply(
            store, user, lambda record: changes.remove_text(record, text), lambda: int(time.time())
        )
    removed = len(before.texts) - len(after.texts)
    terminal.notify(f"texts that are gone: {removed:,}" if removed else "no such text is kept of this person")


def run_users_delete(given: argparse.Namespace) -> None:
    with _opened(given) as store:
        deleted = sum(store.delete(checked_id(user)) for user in given.users)
        terminal.notify(f"{deleted:,} of {len(given.users):,} people are deleted; of the others nothing was kept")
        if given.purge:
            terminal.notify(*(f"left to do: {line}" for line in store.purge()))


def run_users_migrate(given: argparse.Namespace) -> None:
    from factorcell.model.run import Run
    from factorcell.service.engine import Service
    from factorcell.service.learning import ServedModel

    with _opened(given) as store:
        service = Service(ServedModel(Run.open(given.run)), store)
        service.model.learner.new()  # or an error for a run that does not distinguish users
        everybody = list(all_users(store))
        late = [user for user in progress_bar(everybody, desc="learning", unit="people") if not service.relearn(user)]
    terminal.notify(f"{len(everybody) - len(late):,} people are learned by {given.run}")
    if late:
        terminal.notify(f"{len(late):,} wrote all the time, and are learned as they come")


def run_users_key(given: argparse.Namespace) -> None:
    key = keys.add_key(given.keys, given.name, given.scope, given.rate)
    terminal.notify(f"{given.keys} has its hash; the key itself is nowhere else:")
    terminal.show(key)


@contextmanager
def _opened(given: argparse.Namespace, make: bool = False) -> Iterator[Store]:
    """Open the store of a command; its failures are one line."""
    store = open_store(os.environ[STORE_VARIABLE] if given.store is None else given.store, create=make)
    try:
        yield store
    except StoreError as error:
        raise UserError(f"store: {error}") from None
    finally:
        store.close()


def _people(content: str) -> list[tuple[int, str]]:
    """Return each user in a file with its line number: a user per line, or one user on several lines."""
    lines = content.split("\n")  # texts may have other line ends
    if lines[0].strip() == "{":
        return [(1, content)]
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _found(store: Store, user: str) -> Record:
    record = store.read(checked_id(user))
    if record is None:
        raise UserError("nothing is kept of this person; `factorcell users list` has all")
    return record


def _shown(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _now() -> int:
    return int(time.time())
