"""The commands `users`, which manage the users in a store and the keys of a server."""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from factorcell.commands.cli import terminal
from factorcell.commands.serving import DEFAULT_STORE_SUFFIX
from factorcell.completion.texts import check_text
from factorcell.data.text_folds import screening
from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.io.progress import progress_bar
from factorcell.options.limits import STORE_VARIABLE
from factorcell.service import changes
from factorcell.service.http import keys
from factorcell.service.privacy import Privacy
from factorcell.service.record import DamagedRecordError, Record, StoreError, checked_id
from factorcell.service.stores.store import Store, all_users, open_store


def run_users_list(arguments: argparse.Namespace) -> None:
    """Run `factorcell users list`."""
    with _opened_store(arguments) as store:
        is_empty = True
        for user in all_users(store):
            terminal.show(user)
            is_empty = False
    if is_empty:
        terminal.notify("the store has no users")


def run_users_show(arguments: argparse.Namespace) -> None:
    """Run `factorcell users show`."""
    with _opened_store(arguments) as store:
        record = _read_record(store, arguments.user)
    rows = [
        {"number": text.number, "time": _format_time(text.time), "text": text.text, "context": text.context or None}
        for text in record.texts
    ]
    if arguments.json:
        return terminal.show_json(rows)
    state = "; learning is paused" if record.paused else ""
    terminal.show(f"{len(record.texts):,} texts stored, {record.last_number:,} accepted in total{state}")
    for row in rows:
        context_json = "" if row["context"] is None else json.dumps(row["context"], ensure_ascii=False)
        terminal.show_fields(f"{row['number']}", f"{row['time']}", f"{row['text']}", context_json)
    return None


def run_users_export(arguments: argparse.Namespace) -> None:
    """Run `factorcell users export`."""
    damaged_users: list[str] = []
    with _opened_store(arguments) as store:
        for user in arguments.users or all_users(store):
            with _damage_reported(user, damaged_users):
                record = _read_record(store, user) if arguments.users else store.read(user)
                if record is not None:  # another process may have deleted the user after `all_users`
                    terminal.show_json([changes.export_record(record)])
    _raise_if_damaged(damaged_users)


def run_users_import(arguments: argparse.Namespace) -> None:
    """Run `factorcell users import`."""
    exports = _split_exports(input_files.read_text(arguments.file))
    imported_count = unchanged_count = failure_count = 0
    omitted_counts = Counter[str]()  # number of texts by the reason of their omission
    with _opened_store(arguments, create=True) as store:
        for line_number, user_json in exports:
            try:
                record, omissions = changes.import_record(json.loads(user_json), Privacy(), _now())
                # With None as the expected version, the store writes a record only for a user without a record.
                is_new = store.write(record, expected_version=None)
            except (ValueError, RecursionError) as error:
                message = error.message if isinstance(error, UserError) else "expected valid JSON"
                terminal.notify(f"{arguments.file} line {line_number}: {message}")
                failure_count += 1
            else:
                imported_count += is_new
                unchanged_count += not is_new
                if is_new:
                    omitted_counts += omissions
    terminal.notify(
        f"users imported: {imported_count:,}; users that existed already and were not changed: {unchanged_count:,}"
    )
    for reason, count in omitted_counts.items():
        terminal.notify(f"texts that were omitted, since {reason}: {count:,}")
    if failure_count:
        raise UserError(f"{arguments.file}: {failure_count:,} of {len(exports):,} lines could not be imported")


def run_users_forget(arguments: argparse.Namespace) -> None:
    """Run `factorcell users forget`."""
    with _opened_store(arguments) as store:
        user, text = checked_id(arguments.user), check_text(arguments.text)
        before, after = changes.apply(store, user, lambda record: changes.remove_text(record, text), now=_now)
    deleted_count = len(before.texts) - len(after.texts)
    terminal.notify(f"texts deleted: {deleted_count:,}" if deleted_count else "the user has no such text")
    form = screening(text, ignore_case=True)
    if similar_count := sum(screening(saved.text, ignore_case=True) == form for saved in after.texts):
        terminal.notify(
            f"texts not deleted that differ only in case or in look-alike characters: {similar_count:,}; "
            "`factorcell users show` lists them"
        )


def run_users_delete(arguments: argparse.Namespace) -> None:
    """Run `factorcell users delete`."""
    with _opened_store(arguments) as store:
        deleted_count = sum(store.delete(checked_id(user)) for user in arguments.users)
        remark = "; the others are not in the store" if deleted_count < len(arguments.users) else ""
        terminal.notify(f"users deleted: {deleted_count:,} of {len(arguments.users):,}{remark}")
        if arguments.purge:
            terminal.notify(*(f"still to do: {line}" for line in store.purge()))


def run_users_migrate(arguments: argparse.Namespace) -> None:
    """Run `factorcell users migrate`."""
    from factorcell.runs.run import Run
    from factorcell.service.engine import Service
    from factorcell.service.learning import ServedModel

    with _opened_store(arguments) as store:
        service = Service(ServedModel(Run.open(arguments.run)), store)
        service.model.learner.new()  # raises an error if the run does not distinguish users
        users = list(all_users(store))
        damaged_users: list[str] = []
        unfinished_count = 0  # users whose records other processes changed too often
        for user in progress_bar(users, desc="learning", unit="users"):
            with _damage_reported(user, damaged_users):
                has_learned_all_texts = service.relearn(user)
                unfinished_count += not has_learned_all_texts
    learned_count = len(users) - unfinished_count - len(damaged_users)
    terminal.notify(f"{arguments.run} has learned the texts of {learned_count:,} users")
    if unfinished_count:
        terminal.notify(
            f"{unfinished_count:,} users changed during the migration; "
            "the server learns the texts of each at the user's next request"
        )
    _raise_if_damaged(damaged_users)


def run_users_key(arguments: argparse.Namespace) -> None:
    """Run `factorcell users key`."""
    key = keys.add_key(arguments.keys, arguments.name, arguments.scope, arguments.rate)
    terminal.notify(f"{arguments.keys} stores the hash of this key; the key itself is not stored:")
    terminal.show(key)


@contextmanager
def _opened_store(arguments: argparse.Namespace, create: bool = False) -> Iterator[Store]:
    """Open the store of a command, close it at the end, and raise errors of the store as `UserError`."""
    url = arguments.store or os.environ.get(STORE_VARIABLE) or _default_store_url()
    store = open_store(url, create=create)
    try:
        yield store
    except StoreError as error:
        raise UserError(f"store: {error}") from None
    finally:
        store.close()


@contextmanager
def _damage_reported(user: str, damaged_users: list[str]) -> Iterator[None]:
    """If the record of a user is damaged, print a notice and add the user to `damaged_users`."""
    try:
        yield
    except DamagedRecordError as error:
        terminal.notify(f"user {user!r} is skipped: {error}")
        damaged_users.append(user)


def _raise_if_damaged(damaged_users: list[str]) -> None:
    """Raise a `UserError` if there are users with damaged records."""
    if damaged_users:
        raise UserError(
            f"store: {len(damaged_users):,} users were skipped, because their records are damaged; "
            "restore the records from a backup, or delete these users"
        )


def _default_store_url() -> str:
    """Return the URL of the only default store of `serve` in the current folder or in one of its subfolders.

    Raises:
        UserError: There is no such store, or there are several.
    """
    pattern = f"*{DEFAULT_STORE_SUFFIX}"
    paths = sorted(Path().glob(pattern)) + sorted(Path().glob(f"*/{pattern}"))
    remedy = f"specify --store URL or set {STORE_VARIABLE}"
    if not paths:
        raise UserError(f"store: expected a file {pattern} of `serve` in this folder or in a subfolder; {remedy}")
    if len(paths) > 1:
        stores = ", ".join(f"--store sqlite:///{path}" for path in paths)
        raise UserError(f"store: expected one file {pattern} of `serve`, got {len(paths):,}; choose from {stores}")
    terminal.notify(f"store: {paths[0]}")
    return f"sqlite:///{paths[0]}"


def _split_exports(content: str) -> list[tuple[int, str]]:
    """Split an export into pairs (line number, JSON of a user).

    The export has one user per line, or a single user on several lines.
    """
    lines = content.split("\n")  # not splitlines, since texts may contain other line separators
    if lines[0].strip() == "{":
        return [(1, content)]
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read_record(store: Store, user: str) -> Record:
    record = store.read(checked_id(user))
    if record is None:
        raise UserError(f"user {user!r} is not in the store; `factorcell users list` shows all users")
    return record


def _format_time(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _now() -> int:
    return int(time.time())
