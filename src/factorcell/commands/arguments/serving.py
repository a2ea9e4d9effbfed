"""Arguments of the commands that serve completions and manage stored users."""

from functools import partial
from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.config import CHOICE_HELP, PRECISIONS
from factorcell.options.limits import EXPORT_FORMATS, KEY_SCOPES, STORE_URLS, STORE_VARIABLE


def add_serve_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell serve`."""
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
    parser.add_argument("--precision", default="auto", choices=PRECISIONS, help=CHOICE_HELP["precision"])
    options.add_no_ngram_mixture(parser)
    privacy = parser.section("privacy")
    help_text = "time after which texts are deleted, such as 90d (default: never)"
    privacy.add_argument("--retention", metavar="TIME", help=help_text)
    help_text = "further texts that are neither learned nor stored: those that match REGEX (repeatable)"
    privacy.add_argument("--withhold", action="append", default=[], metavar="REGEX", help=help_text)
    help_text = "file of phrases that are never suggested, one per line"
    privacy.add_argument("--block", type=Path, help=help_text)
    help_text = "pad each response to a multiple of this many bytes, to hide its length; 0: no padding"
    privacy.add_argument("--pad", type=int, default=0, metavar="BYTES", help=help_text)
    pages = parser.section("pages")
    help_text = "placeholder text of the input box on the page"
    pages.add_argument("--hint", metavar="TEXT", help=help_text)
    help_text = "origin of web pages that may send requests, such as https://shop.example (repeatable; default: none)"
    pages.add_argument("--origin", action="append", default=[], metavar="URL", help=help_text)
    help_text = "number of users whose adapted weights are cached in memory"
    parser.rare.add_argument("--cache-size", type=int, default=1000, metavar="N", help=help_text)


def add_users_list_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users list`."""
    _add_store(parser)


def add_users_show_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users show`."""
    _add_store_and_user(parser)
    options.add_json(parser)


def add_users_export_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users export`."""
    _add_store(parser)
    parser.add_argument("users", nargs="*", metavar="USER", help="users to export (default: all)")


def add_users_forget_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users forget`."""
    _add_store_and_user(parser)
    parser.add_argument("text", metavar="TEXT", help="the complete text to forget, in the same upper and lower case")


def add_users_delete_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users delete`."""
    _add_store(parser)
    parser.add_argument("users", nargs="+", metavar="USER", help="users to delete")
    help_text = "also remove the deleted data from the raw files, which may take a while"
    parser.add_argument("--purge", action="store_true", help=help_text)


def add_users_import_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users import`."""
    _add_store(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines in the format of `users export`")


def add_users_migrate_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users migrate`."""
    options.add_run(parser, "run folder of the model that learns all users")
    _add_store(parser)


def add_users_key_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell users key`."""
    parser.add_argument("name", metavar="NAME", help="name of the key")
    help_text = "file of keys, created if missing; it contains hashes of the keys only"
    parser.add_argument("--keys", type=Path, required=True, metavar="FILE", help=help_text)
    help_text = "operations that the key allows (repeatable)"
    parser.add_argument("--scope", action="append", required=True, choices=KEY_SCOPES, help=help_text)
    parser.add_argument("--rate", type=float, metavar="N", help="maximum requests per second (default: no limit)")


def _add_store(parser: Parser) -> None:
    help_text = f"URL of the user store: {STORE_URLS} (default: the variable {STORE_VARIABLE}, else the SQLite file "
    help_text += "that `serve` made in this folder or in a subfolder)"
    parser.add_argument("--store", metavar="URL", help=help_text)


def _add_store_and_user(parser: Parser) -> None:
    _add_store(parser)
    parser.add_argument("user", metavar="USER", help="id of the user")


def add_export_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell export`."""
    options.add_run(parser, "run folder of a model with a Transformer")
    path_type = partial(options.writable_path, folder=True)
    parser.add_argument("folder", type=path_type, metavar="DIR", help="folder to write, new or empty")
    help_text = "lora: a LoRA of PEFT, merged: a model of transformers, gguf-lora: a LoRA of llama.cpp"
    parser.add_argument("--to", choices=EXPORT_FORMATS, default="lora", help=f"{help_text} (default: lora)")
    options.add_context(parser)
    help_text = "leave out or approximate changes of biases that not every reader of the format supports, and report "
    help_text += "the effect on the perplexity of the texts in TABLE"
    parser.add_argument("--approximate", type=Path, metavar="TABLE", help=help_text)
    options.add_unknown(parser, "error")
    options.add_threads(parser)
    options.add_max_memory(parser)
