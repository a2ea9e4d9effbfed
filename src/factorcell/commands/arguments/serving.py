"""The arguments of the commands about serving and users."""

import os
from pathlib import Path

from factorcell.choices import KEY_SCOPES, STORE_URLS, STORE_VARIABLE
from factorcell.commands import options
from factorcell.commands.parser import Parser
from factorcell.config import PRECISIONS


def serve(verb: Parser) -> None:
    text = "the run folder, with tokenizer char or grapheme; `demo` is made of place names, within two minutes"
    verb.add_argument("run", type=Path, metavar="RUN", help=text)
    verb.add_argument("--host", default="127.0.0.1", help="address to serve at")
    verb.add_argument("--port", type=int, default=8000, help="port to serve at; 0: any that is free")
    text = f"where people are kept (default: what {STORE_VARIABLE} says, or SQLite in RUN.users.db)"
    verb.add_argument("--store", metavar="URL", help=text)
    text = "file of keys (`factorcell users key`); without it only this machine may ask"
    verb.add_argument("--keys", type=Path, metavar="FILE", help=text)
    verb.add_argument("--workers", type=int, default=1, metavar="N", help="processes that share the port")
    text = "milliseconds within which a completion is answered, unless it asks for others"
    verb.add_argument("--deadline-ms", type=int, default=100, help=text)
    verb.add_argument("--typos", type=int, default=0, help="typing errors to forgive, 0 to 2")
    text = "numbers in matrix products; auto: those that score faster here, and suggest the same texts"
    verb.add_argument("--precision", default="float32", choices=PRECISIONS, help=text)
    group = verb.section("privacy")
    text = "time after which texts are deleted, such as 90d (default: they are kept)"
    group.add_argument("--keep", metavar="TIME", help=text)
    text = "pattern of texts that are neither learned nor kept (repeatable)"
    group.add_argument("--never", action="append", default=[], metavar="REGEX", help=text)
    text = "file of phrases, one a line, that are suggested to nobody"
    group.add_argument("--block", type=Path, help=text)
    text = "bytes of which the length of each completion is a multiple, so that it tells less (default: as it is)"
    group.add_argument("--pad", type=int, default=0, metavar="BYTES", help=text)
    group = verb.section("pages")
    text = "what the empty box of the page says, so that people know what is typed here"
    group.add_argument("--hint", metavar="TEXT", help=text)
    text = "origin of pages that may ask, such as https://shop.example (repeatable; default: none)"
    group.add_argument("--origin", action="append", default=[], metavar="URL", help=text)
    text = "people whose weights are kept in memory"
    verb.rare.add_argument("--cached", type=int, default=1000, metavar="N", help=text)


def users_list(verb: Parser) -> None:
    _stored(verb)


def users_show(verb: Parser) -> None:
    _one(verb)
    options.add_json(verb)


def users_export(verb: Parser) -> None:
    _stored(verb)
    verb.add_argument("users", nargs="*", metavar="USER", help="who (default: everybody)")


def users_forget(verb: Parser) -> None:
    _one(verb)
    verb.add_argument("text", metavar="TEXT", help="the text to forget, whole")


def users_delete(verb: Parser) -> None:
    _stored(verb)
    verb.add_argument("users", nargs="+", metavar="USER", help="who")
    text = "remove what was deleted from the raw files too, which may take a while"
    verb.add_argument("--purge", action="store_true", help=text)


def users_import(verb: Parser) -> None:
    _stored(verb)
    verb.add_argument("file", type=Path, metavar="FILE", help="lines as `users export` prints them")


def users_migrate(verb: Parser) -> None:
    options.add_run(verb, "the run folder that shall have learned everybody")
    _stored(verb)


def users_key(verb: Parser) -> None:
    verb.add_argument("name", metavar="NAME", help="what the key is called")
    text = "file of keys, made if there is none; it holds hashes, no key"
    verb.add_argument("--keys", type=Path, required=True, metavar="FILE", help=text)
    text = "what it allows (repeatable)"
    verb.add_argument("--scope", action="append", required=True, choices=KEY_SCOPES, help=text)
    verb.add_argument("--rate", type=float, metavar="N", help="requests a second (default: any)")


def _stored(verb: Parser) -> None:
    text = f"where people are kept: {STORE_URLS} (default: what {STORE_VARIABLE} says)"
    verb.add_argument("--store", metavar="URL", required=STORE_VARIABLE not in os.environ, help=text)


def _one(verb: Parser) -> None:
    _stored(verb)
    verb.add_argument("user", metavar="USER", help="who")
