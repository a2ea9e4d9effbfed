"""The commands `serve`, `export`, and `users`, which manages the users in a store and the keys of a server."""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import Parser
from factorcell.config import PRECISION_HELP, PRECISIONS
from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.io.progress import progress_bar
from factorcell.options.limits import EXPORT_FORMATS, KEY_SCOPES, STORE_URLS, STORE_VARIABLE

if TYPE_CHECKING:
    from factorcell.service.record import Record
    from factorcell.service.stores.store import Store

DEMO_FOLDER = Path("demo")  # `factorcell serve demo` trains a run of place names here if the folder has none

DEFAULT_STORE_SUFFIX = ".users.db"  # end of the file name of the default store

# Each country is a user; the user's texts are the names of its places.
DEMO_OPTIONS: Any = {"user": "country", "max_tokens": 41, "min_user_count": 20, "tokenizer": "char", "min_count": 10}
DEMO_MINUTES = 1.5  # time limit of the training
DEMO_HINT = "Type the name of a place, such as Kyo or Lis"  # placeholder text of the input box


def add_serve_arguments(parser: Parser) -> None:
    help_text = "run folder of a model with tokenizer char, grapheme, bpe or pretrained; demo: train a run on place "
    help_text += "names (two minutes)"
    parser.add_argument("run", type=Path, metavar="RUN", help=help_text)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free port")
    help_text = f"URL of the user store (default: the variable {STORE_VARIABLE}, else SQLite in RUN.users.db)"
    parser.add_argument("--store", metavar="URL", help=help_text)
    help_text = "file of server keys (`factorcell users key`); without --keys only this machine has access"
    parser.add_argument("--keys", type=Path, metavar="FILE", help=help_text)
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="number of processes that share the port")
    help_text = "number of completions that a process computes at the same time; 0: one per core"
    parser.add_argument("--threads", type=int, default=0, metavar="N", help=help_text)
    help_text = "deadline of a completion in milliseconds, unless the request sets another"
    parser.add_argument("--deadline-ms", type=int, default=100, help=help_text)
    parser.add_argument("--typos", type=int, default=0, help="typing errors to tolerate, 0 to 2")
    parser.add_argument("--precision", default="auto", choices=PRECISIONS, help=PRECISION_HELP)
    options.add_no_ngram_mixture(parser)
    privacy = parser.section("privacy")
    help_text = "time after which texts are deleted, such as 90d (default: never)"
    privacy.add_argument("--retention", metavar="TIME", help=help_text)
    help_text = "further texts that are neither learned nor stored: those that match REGEX (repeatable)"
    privacy.add_argument("--withhold", action="append", default=[], metavar="REGEX", help=help_text)
    privacy.add_argument("--block", type=Path, help="file of phrases that are never suggested, one per line")
    help_text = "pad each response to a multiple of this many bytes, to hide its length; 0: no padding"
    privacy.add_argument("--pad", type=int, default=0, metavar="BYTES", help=help_text)
    pages = parser.section("pages")
    pages.add_argument("--hint", metavar="TEXT", help="placeholder text of the input box on the page")
    help_text = "origin of web pages that may send requests, such as https://shop.example (repeatable; default: none)"
    pages.add_argument("--origin", action="append", default=[], metavar="URL", help=help_text)
    help_text = "number of users whose adapted weights are cached in memory"
    parser.rare.add_argument("--cache-size", type=int, default=1000, metavar="N", help=help_text)


def run_serve(arguments: argparse.Namespace) -> None:
    try:
        from factorcell.service.http import server
        from factorcell.service.http.application import Settings
        from factorcell.service.privacy import Privacy, parse_duration
    except ModuleNotFoundError as error:
        from factorcell.io.extras import missing_package_error

        raise missing_package_error("serving", error.name, "serve") from None
    retention = None if arguments.retention is None else parse_duration(arguments.retention)
    hint = arguments.hint or (DEMO_HINT if arguments.run == DEMO_FOLDER else "")
    default_store = f"sqlite:///{default_store_path(arguments.run)}"
    server_options = server.ServerOptions(
        arguments.run,
        os.environ.get(STORE_VARIABLE, default_store) if arguments.store is None else arguments.store,
        keys=arguments.keys,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        threads=arguments.threads,
        typos=arguments.typos,
        precision=arguments.precision,
        mixture=not arguments.no_ngram_mixture,
        block_list=arguments.block,
        privacy=Privacy(tuple(arguments.withhold), retention),
        cache_size=arguments.cache_size,
        settings=Settings(arguments.deadline_ms / 1000, origins=tuple(arguments.origin), pad=arguments.pad, hint=hint),
    )
    if arguments.run == DEMO_FOLDER and not (DEMO_FOLDER / "weights.safetensors").exists():
        train_demo_run(DEMO_FOLDER)
    server.serve(server_options)


def default_store_path(run_folder: Path) -> Path:
    """Return the path of the default store of `serve`, which is next to the run folder and has its name."""
    # The paths "." and ".." do not contain the name of the folder.
    folder = run_folder if run_folder.name not in ("", "..") else Path(os.path.abspath(run_folder))
    return folder.parent / f"{folder.name}{DEFAULT_STORE_SUFFIX}"


def train_demo_run(folder: Path, epochs: float | None = None) -> None:
    """Train a small run that completes place names (GeoNames); if `epochs` is set, it replaces the time limit."""
    from factorcell.commands.demo import table_path
    from factorcell.training.fit import fit

    duration: dict[str, Any] = {"minutes": DEMO_MINUTES} if epochs is None else {"epochs": epochs}
    terminal.notify(f"{folder}: training on place names; this takes a minute or two and happens only once")
    fit(table_path("train"), dev=table_path("dev"), out=folder, resume=True, **duration, **DEMO_OPTIONS)


def add_export_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder of a model with a Transformer")
    path_type = partial(options.writable_path, folder=True)
    parser.add_argument("folder", type=path_type, metavar="DIR", help="folder to write, new or empty")
    help_text = "lora: a LoRA of PEFT, merged: a model of transformers, gguf-lora: a LoRA of llama.cpp"
    parser.add_argument("--to", choices=EXPORT_FORMATS, default="lora", help=f"{help_text} (default: lora)")
    options.add_context(parser)
    help_text = "approximate the bias of the output layer if a merged model has no place for it, and report the effect "
    help_text += "on the perplexity of the texts in TABLE"
    parser.add_argument("--approximate", type=Path, metavar="TABLE", help=help_text)
    options.add_unknown(parser, "error")
    options.add_threads(parser)
    options.add_max_memory(parser)


def run_export(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import report_run
    from factorcell.runs.exporting import export
    from factorcell.runs.run import Run

    run = Run.open(arguments.run, mixture=False)
    context = options.parse_context(run, arguments.context)
    report_run(run, context)
    export(
        run,
        arguments.folder,
        to=arguments.to,
        context=context,
        approximate=arguments.approximate,
        unknown=arguments.unknown,
    )


def add_users_list_arguments(parser: Parser) -> None:
    _add_store(parser)


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
    _add_store_and_user(parser)
    options.add_json(parser)


def run_users_show(arguments: argparse.Namespace) -> None:
    with _opened_store(arguments) as store:
        record = _read_record(store, arguments.user)
    rows = [
        {
            "number": text.number,
            "time": f"{datetime.fromtimestamp(text.time, UTC):%Y-%m-%d %H:%M:%S}",
            "text": text.text,
            "context": text.context or None,
        }
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


def add_users_export_arguments(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("users", nargs="*", metavar="USER", help="users to export (default: all)")


def run_users_export(arguments: argparse.Namespace) -> None:
    from factorcell.service import changes
    from factorcell.service.stores.store import all_users

    damaged_users: list[str] = []
    with _opened_store(arguments) as store:
        for user in arguments.users or all_users(store):
            with _damage_reported(user, damaged_users):
                record = _read_record(store, user) if arguments.users else store.read(user)
                if record is not None:  # another process may have deleted the user after `all_users`
                    terminal.show_json([changes.export_record(record)])
    _raise_if_damaged(damaged_users)


def add_users_import_arguments(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines in the format of `users export`")


def run_users_import(arguments: argparse.Namespace) -> None:
    from factorcell.service import changes
    from factorcell.service.privacy import Privacy

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


def add_users_forget_arguments(parser: Parser) -> None:
    _add_store_and_user(parser)
    parser.add_argument("text", metavar="TEXT", help="the complete text to forget, in the same upper and lower case")


def run_users_forget(arguments: argparse.Namespace) -> None:
    from factorcell.completion.texts import check_text
    from factorcell.data.text_folds import screening
    from factorcell.service import changes
    from factorcell.service.record import checked_id

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


def add_users_delete_arguments(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("users", nargs="+", metavar="USER", help="users to delete")
    help_text = "also remove the deleted data from the raw files, which may take a while"
    parser.add_argument("--purge", action="store_true", help=help_text)


def run_users_delete(arguments: argparse.Namespace) -> None:
    from factorcell.service.record import checked_id

    with _opened_store(arguments) as store:
        deleted_count = sum(store.delete(checked_id(user)) for user in arguments.users)
        if arguments.purge:
            terminal.notify(*(f"still to do: {line}" for line in store.purge()))
        count = f"users deleted: {deleted_count:,} of {len(arguments.users):,}"
        if deleted_count < len(arguments.users):
            raise UserError(f"{count}; the others are not in the store")
        terminal.notify(count)


def add_users_migrate_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder of the model that learns all users")
    _add_store(parser)


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
    parser.add_argument("name", metavar="NAME", help="name of the key")
    help_text = "file of keys, created if missing; it contains hashes of the keys only"
    parser.add_argument("--keys", type=Path, required=True, metavar="FILE", help=help_text)
    help_text = "operations that the key allows (repeatable)"
    parser.add_argument("--scope", action="append", required=True, choices=KEY_SCOPES, help=help_text)
    parser.add_argument("--rate", type=float, metavar="N", help="maximum requests per second (default: no limit)")


def run_users_key(arguments: argparse.Namespace) -> None:
    from factorcell.service.http import keys

    key = keys.add_key(arguments.keys, arguments.name, arguments.scope, arguments.rate)
    terminal.notify(f"{arguments.keys} stores the hash of this key; the key itself is not stored:")
    terminal.show(key)


def _add_store(parser: Parser) -> None:
    help_text = f"URL of the user store: {STORE_URLS} (default: the variable {STORE_VARIABLE}, else the SQLite file "
    help_text += "that `serve` made in this folder or in a subfolder)"
    parser.add_argument("--store", metavar="URL", help=help_text)


def _add_store_and_user(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("user", metavar="USER", help="id of the user")


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


def _read_record(store: "Store", user: str) -> "Record":
    from factorcell.service.record import checked_id

    record = store.read(checked_id(user))
    if record is None:
        raise UserError(f"user {user!r} is not in the store; `factorcell users list` shows all users")
    return record


def _now() -> int:
    return int(time.time())
