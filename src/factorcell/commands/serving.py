"""The commands `serve`, `export`, and `users`, which manages the users in a store and the keys of a server."""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import OUTPUT_FOLDER, Parser
from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.io.progress import progress_bar
from factorcell.options.limits import EXPORT_FORMATS, KEY_SCOPES, STORE_VARIABLE, WEB

if TYPE_CHECKING:
    from factorcell.service.record import Record
    from factorcell.service.stores.store import Store

DEMO_FOLDER = Path("demo")  # `factorcell serve demo` trains a run of place names here if the folder has none

WITHHOLD_HELP = "further texts that are neither learned nor stored: those that match REGEX (repeatable)"
DEFAULT_STORE_SUFFIX = ".users.db"  # end of the file name of the default store

# Each country is a user; the user's texts are the names of its places.
DEMO_OPTIONS: Any = {"user": "country", "max_tokens": 41, "min_user_count": 20, "tokenizer": "char", "min_count": 10}
DEMO_MINUTES = 1.5  # time limit of the training


def add_serve_arguments(parser: Parser) -> None:
    help_text = "run folder of a model with tokenizer char, grapheme, bpe or pretrained; demo: train a run on place "
    help_text += "names (two minutes)"
    parser.add("run", type=Path, metavar="RUN", help=help_text)
    parser.add("--host", default="127.0.0.1", help="address to listen on")
    parser.add("--port", default=8000, help="port to listen on; 0: any free port")
    help_text = f"URL of the user store (default: the variable {STORE_VARIABLE}, else SQLite in RUN.users.db)"
    parser.add("--store", metavar="URL", help=help_text)
    help_text = "file of server keys (`factorcell users key`); without --keys only this machine has access"
    parser.add("--keys", type=Path, help=help_text)
    parser.add("--workers", default=1, help="number of processes that share the port")
    help_text = "number of completions that a process computes at the same time; 0: one per core"
    parser.add("--threads", help=help_text)
    help_text = "deadline of a completion in milliseconds, unless the request sets another"
    parser.add("--deadline-ms", default=100, help=help_text)
    parser.add("--typos", default=0, help="typing errors to tolerate, 0 to 2")
    parser.add("--precision")
    parser.add("--no-ngram-mixture")
    help_text = "time after which texts are deleted, such as 90d (default: never)"
    parser.add("--retention", metavar="TIME", section="privacy", help=help_text)
    parser.add("--withhold", repeatable=True, metavar="REGEX", section="privacy", help=WITHHOLD_HELP)
    parser.add("--block", type=Path, section="privacy", help="file of phrases that are never suggested, one per line")
    help_text = "pad each response to a multiple of this many bytes, to hide its length; 0: no padding"
    parser.add("--pad", default=0, metavar="BYTES", section="privacy", help=help_text)
    help_text = "origin of web pages that may send requests, such as https://shop.example (repeatable; default: none)"
    parser.add("--origin", repeatable=True, metavar="URL", section="pages", help=help_text)
    help_text = "folder of `export --to web`, with which the demo page can complete on the device of its user"
    parser.add("--web", type=Path, metavar="DIR", section="pages", help=help_text)
    help_text = "number of users whose adapted weights are cached in memory"
    parser.add("--cache-size", default=1000, rare=True, help=help_text)


def run_serve(arguments: argparse.Namespace) -> None:
    try:
        from factorcell.service.http import server
        from factorcell.service.http.application import Settings
        from factorcell.service.privacy import Privacy, parse_duration
    except ModuleNotFoundError as error:
        from factorcell.io.extras import missing_package_error

        raise missing_package_error("serving", error.name, "serve") from None
    retention = None if arguments.retention is None else parse_duration(arguments.retention)
    default_store = f"sqlite:///{default_store_path(arguments.run)}"
    names = ("run", "keys", "host", "port", "workers", "threads", "typos", "precision", "cache_size")
    pages = {"origins": tuple(arguments.origin), "device": arguments.web}
    server_options = server.ServerOptions(
        **options.selected(arguments, *names),
        store=os.environ.get(STORE_VARIABLE, default_store) if arguments.store is None else arguments.store,
        mixture=not arguments.no_ngram_mixture,
        block_list=arguments.block,
        privacy=Privacy(tuple(arguments.withhold), retention),
        settings=Settings(arguments.deadline_ms / 1000, pad=arguments.pad, **pages),
    )
    if arguments.run == DEMO_FOLDER and not (DEMO_FOLDER / "weights.safetensors").exists():
        train_demo_run(DEMO_FOLDER)
    server.serve(server_options)


def default_store_path(run_folder: Path) -> Path:
    """Return the path of the default store of `serve`, which is next to the run folder and has its name."""
    folder = Path(os.path.abspath(run_folder))  # the paths "." and ".." do not contain the name of the folder
    return folder.parent / f"{folder.name}{DEFAULT_STORE_SUFFIX}"


def train_demo_run(folder: Path, epochs: float | None = None) -> None:
    """Train a small run that completes place names (GeoNames); if `epochs` is set, it replaces the time limit."""
    from factorcell.commands.demo import table_path
    from factorcell.training.fit import fit

    duration: dict[str, Any] = {"minutes": DEMO_MINUTES} if epochs is None else {"epochs": epochs}
    terminal.notify(f"{folder}: training on place names; this takes a minute or two and happens only once")
    fit(table_path("train"), dev=table_path("dev"), out=folder, resume=True, **duration, **DEMO_OPTIONS)


def add_export_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder")
    parser.add("folder", type=OUTPUT_FOLDER, metavar="DIR", help="folder to write, new or empty")
    help_text = "lora: a LoRA of PEFT, merged: a model of transformers, gguf-lora: a LoRA of llama.cpp, onnx: graphs "
    help_text += "of a recurrent model, web: a model that completes texts and learns its user in a browser"
    parser.add("--to", choices=(*EXPORT_FORMATS, WEB), default="lora", help=f"{help_text} (default: lora)")
    parser.add("--block", type=Path, help="file of phrases that are never suggested, one per line (web)")
    parser.add("--context")
    help_text = "approximate the bias of the output layer if a merged model has no place for it, and report the effect "
    help_text += "on the perplexity of the texts in TABLE"
    parser.add("--approximate", type=Path, metavar="TABLE", help=help_text)
    parser.add("--unknown", default="error")
    parser.add("--threads")
    parser.add("--max-memory")


def run_export(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import report_run
    from factorcell.runs.exporting import export
    from factorcell.runs.run import Run

    if (arguments.block if arguments.to != WEB else arguments.approximate) is not None:
        option, formats = ("--block", "web") if arguments.to != WEB else ("--approximate", "merged")
        raise UserError(f"{option} requires --to {formats}, got {arguments.to}")
    run = Run.open(arguments.run, mixture=False)
    context = options.parse_context(run, arguments.context)
    report_run(run, context)
    if arguments.to == WEB:
        from factorcell.completion.device import export_to_device
        from factorcell.service.demo_page import export_page, has_runtime
        from factorcell.service.privacy import BlockList

        blocked = BlockList([]) if arguments.block is None else BlockList.read(arguments.block)
        selected = options.selected(arguments, "unknown")
        export_to_device(
            run, arguments.folder, context=context, blocked=blocked.phrases, is_allowed=blocked, **selected
        )
        if has_runtime():
            export_page(Path(arguments.folder))
        else:
            terminal.notify("the folder has no demo page: this installation has no run time, which `make web` builds")
        return
    settings = options.selected(arguments, "to", "approximate", "unknown")
    export(run, arguments.folder, context=context, **settings)


def add_users_list_arguments(parser: Parser) -> None:
    parser.add("--store")


def run_users_list(arguments: argparse.Namespace) -> None:
    from factorcell.service.stores.store import all_users

    with _opened_store(arguments) as store:
        is_empty = True
        for user in all_users(store):
            terminal.show(user)
            is_empty = False
    if is_empty:
        terminal.notify("the store has no users")


def add_users_show_arguments(parser: Parser) -> None:
    parser.add_all("--store", "user")


def run_users_show(arguments: argparse.Namespace) -> None:
    with _opened_store(arguments) as store:
        record = _read_record(store, arguments.user)
    state = "; learning is paused" if record.paused else ""
    terminal.show(f"{len(record.texts):,} texts stored, {record.last_number:,} accepted in total{state}")
    for saved in record.texts:
        time_text = f"{datetime.fromtimestamp(saved.time, UTC):%Y-%m-%d %H:%M:%S}"
        context_json = json.dumps(saved.context, ensure_ascii=False) if saved.context else ""
        terminal.show_fields(f"{saved.number}", time_text, saved.text, context_json)


def add_users_export_arguments(parser: Parser) -> None:
    parser.add("--store")
    parser.add("users", nargs="*", metavar="USER", help="users to export (default: all)")


def run_users_export(arguments: argparse.Namespace) -> None:
    from factorcell.service import messages
    from factorcell.service.stores.store import all_users

    damaged_users: list[str] = []
    with _opened_store(arguments) as store:
        for user in arguments.users or all_users(store):
            with _damage_reported(user, damaged_users):
                record = _read_record(store, user) if arguments.users else store.read(user)
                if record is not None:  # another process may have deleted the user after `all_users`
                    terminal.show_json([messages.export_record(record)])
    _raise_if_damaged(damaged_users)


def add_users_import_arguments(parser: Parser) -> None:
    parser.add("--store")
    parser.add("--withhold", repeatable=True, metavar="REGEX", help=WITHHOLD_HELP)
    parser.add("file", type=Path, help="JSON lines in the format of `users export`")


def run_users_import(arguments: argparse.Namespace) -> None:
    from factorcell.service import messages
    from factorcell.service.privacy import Privacy

    # Not `splitlines`, because texts may contain other line separators.
    content_lines = enumerate(input_files.read_text(arguments.file).split("\n"), 1)
    lines = [(number, line) for number, line in content_lines if line.strip()]
    privacy = Privacy(tuple(arguments.withhold))
    imported_count = unchanged_count = failure_count = 0
    omitted_counts = Counter[str]()  # number of texts by the reason of their omission
    with _opened_store(arguments, create=True) as store:
        for line_number, user_json in lines:
            try:
                record, omissions = messages.import_record(json.loads(user_json), privacy, _now())
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
        raise UserError(f"{arguments.file}: {failure_count:,} of {len(lines):,} lines could not be imported")


def add_users_forget_arguments(parser: Parser) -> None:
    parser.add_all("--store", "user")
    parser.add("text", metavar="TEXT", help="the complete text to forget, in any case")


def run_users_forget(arguments: argparse.Namespace) -> None:
    from factorcell.data.text_folds import check_text
    from factorcell.service.record import checked_id
    from factorcell.service.stores.store import update

    with _opened_store(arguments) as store:
        user, text = checked_id(arguments.user), check_text(arguments.text)
        before, after = update(store, user, lambda record: record.without_text(text), now=_now)
    deleted_count = len(before.texts) - len(after.texts)
    terminal.notify(f"texts deleted: {deleted_count:,}" if deleted_count else "the user has no such text")


def add_users_delete_arguments(parser: Parser) -> None:
    parser.add("--store")
    parser.add("users", nargs="+", metavar="USER", help="users to delete")


def run_users_delete(arguments: argparse.Namespace) -> None:
    from factorcell.service.record import checked_id

    users = [checked_id(user) for user in arguments.users]  # all, before the first deletion
    with _opened_store(arguments) as store:
        deleted_count = sum(map(store.delete, users))
    count = f"users deleted: {deleted_count:,} of {len(arguments.users):,}"
    if deleted_count < len(arguments.users):
        raise UserError(f"{count}; the others are not in the store")
    terminal.notify(count)


def add_users_migrate_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder of the model that learns all users")
    parser.add("--store")


def run_users_migrate(arguments: argparse.Namespace) -> None:
    from factorcell.runs.run import Run
    from factorcell.service.engine import Service
    from factorcell.service.learning import ServedModel
    from factorcell.service.stores.store import all_users

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


def add_users_key_arguments(parser: Parser) -> None:
    parser.add("name", metavar="NAME", help="name of the key")
    help_text = "file of keys, created if missing; it contains hashes of the keys only"
    parser.add("--keys", type=Path, required=True, help=help_text)
    help_text = "operations that the key allows (repeatable)"
    parser.add("--scope", repeatable=True, choices=KEY_SCOPES, help=help_text)
    parser.add("--rate", metavar="N", help="maximum requests per second (default: no limit)")
    parser.add("--revoke", action="store_true", help="remove the key NAME from the file, which ends its validity")


def run_users_key(arguments: argparse.Namespace) -> None:
    from factorcell.service.http import keys

    if arguments.revoke:
        keys.remove_key(arguments.keys, arguments.name)
        return terminal.notify(f"{arguments.keys}: the key {arguments.name} is removed")
    if not arguments.scope:
        raise UserError(f"--scope: expected one or more of {', '.join(KEY_SCOPES)}; or --revoke, to remove a key")
    key = keys.add_key(arguments.keys, arguments.name, arguments.scope, arguments.rate)
    terminal.notify(f"{arguments.keys} stores the hash of this key; the key itself is not stored:")
    return terminal.show(key)


@contextmanager
def _opened_store(arguments: argparse.Namespace, create: bool = False) -> "Iterator[Store]":
    """Open the store of a command, close it at the end, and raise errors of the store as `UserError`."""
    from factorcell.service.record import StoreError
    from factorcell.service.stores.store import open_store

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
    from factorcell.service.record import DamagedRecordError

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
    """Return the URL of the only default store of `serve` in this folder or a subfolder, or raise a `UserError`."""
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


def _read_record(store: "Store", user: str) -> "Record":
    from factorcell.service.record import checked_id

    record = store.read(checked_id(user))
    if record is None:
        raise UserError(f"user {user!r} is not in the store; `factorcell users list` shows all users")
    return record


def _now() -> int:
    return int(time.time())
