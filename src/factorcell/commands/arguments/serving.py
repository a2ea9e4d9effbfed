"""Arguments of the commands that serve completions and manage stored users."""

import os
from pathlib import Path

from factorcell.choices import KEY_SCOPES, STORE_URLS, STORE_VARIABLE
from factorcell.commands import options
from factorcell.commands.parser import Parser
from factorcell.config import PRECISIONS


def serve(parser: Parser) -> None:
    """Add the arguments of `factorcell serve`."""
    text = "run folder of a model with tokenizer char or grapheme; demo: train one on place names (two minutes)"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free port")
    text = f"URL of the user store (default: the variable {STORE_VARIABLE}, else SQLite in RUN.users.db)"
    parser.add_argument("--store", metavar="URL", help=text)
    text = "file of keys (`factorcell users key`); without keys only this machine has access"
    parser.add_argument("--keys", type=Path, metavar="FILE", help=text)
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="number of processes that share the port")
    text = "deadline of a completion in milliseconds, unless the request sets another"
    parser.add_argument("--deadline-ms", type=int, default=100, help=text)
    parser.add_argument("--typos", type=int, default=0, help="typing errors to tolerate, 0 to 2")
    text = "number format of matrix products; auto: the faster one on this machine, with the same suggestions"
    parser.add_argument("--precision", default="float32", choices=PRECISIONS, help=text)
    group = parser.section("privacy")
    text = "time after which texts are deleted, such as 90d (default: never)"
    group.add_argument("--retention", metavar="TIME", help=text)
    text = "pattern of texts that are neither learned nor stored (repeatable)"
    group.add_argument("--withhold", action="append", default=[], metavar="REGEX", help=text)
    text = "file of phrases that are never suggested, one per line"
    group.add_argument("--block", type=Path, help=text)
    text = "pad each response to a multiple of this many bytes, to hide its length; 0: no padding"
    group.add_argument("--pad", type=int, default=0, metavar="BYTES", help=text)
    group = parser.section("pages")
    text = "placeholder text of the input box on the page"
    group.add_argument("--hint", metavar="TEXT", help=text)
    text = "origin of web pages that may send requests, such as https://shop.example (repeatable; default: none)"
    group.add_argument("--origin", action="append", default=[], metavar="URL", help=text)
    text = "number of users whose weights are cached in memory"
    parser.rare.add_argument("--cache-size", type=int, default=1000, metavar="N", help=text)


def users_list(parser: Parser) -> None:
    """Add the arguments of `factorcell users list`."""
    _add_store(parser)


def users_show(parser: Parser) -> None:
    """Add the arguments of `factorcell users show`."""
    _add_store_and_user(parser)
    options.add_json(parser)


def users_export(parser: Parser) -> None:
    """Add the arguments of `factorcell users export`."""
    _add_store(parser)
    parser.add_argument("users", nargs="*", metavar="USER", help="users to export (default: all)")


def users_forget(parser: Parser) -> None:
    """Add the arguments of `factorcell users forget`."""
    _add_store_and_user(parser)
    parser.add_argument("text", metavar="TEXT", help="the complete text to forget")


def users_delete(parser: Parser) -> None:
    """Add the arguments of `factorcell users delete`."""
    _add_store(parser)
    parser.add_argument("users", nargs="+", metavar="USER", help="users to delete")
    text = "also remove the deleted data from the raw files, which may take a while"
    parser.add_argument("--purge", action="store_true", help=text)


def users_import(parser: Parser) -> None:
    """Add the arguments of `factorcell users import`."""
    _add_store(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines in the format of `users export`")


def users_migrate(parser: Parser) -> None:
    """Add the arguments of `factorcell users migrate`."""
    options.add_run(parser, "run folder of the model that learns all users")
    _add_store(parser)


def users_key(parser: Parser) -> None:
    """Add the arguments of `factorcell users key`."""
    parser.add_argument("name", metavar="NAME", help="name of the key")
    text = "file of keys, created if missing; it contains hashes of the keys only"
    parser.add_argument("--keys", type=Path, required=True, metavar="FILE", help=text)
    text = "operations that the key allows (repeatable)"
    parser.add_argument("--scope", action="append", required=True, choices=KEY_SCOPES, help=text)
    parser.add_argument("--rate", type=float, metavar="N", help="maximum requests per second (default: no limit)")


def _add_store(parser: Parser) -> None:
    text = f"URL of the user store: {STORE_URLS} (default: the variable {STORE_VARIABLE})"
    parser.add_argument("--store", metavar="URL", required=STORE_VARIABLE not in os.environ, help=text)


def _add_store_and_user(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("user", metavar="USER", help="id of the user")
