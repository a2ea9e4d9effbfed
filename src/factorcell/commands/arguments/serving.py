"""What the verbs take that serve people."""

from pathlib import Path

from factorcell.commands import options
from factorcell.commands.parser import Parser


def serve(verb: Parser) -> None:
    """`factorcell serve`."""
    options.run(verb, "the run folder, of unit char or grapheme")
    verb.add_argument("--host", default="127.0.0.1", help="address to serve at")
    verb.add_argument("--port", type=int, default=8000, help="port to serve at; 0: any that is free")
    store(verb, "where people are kept (default: SQLite in RUN.users.db)")
    verb.add_argument("--workers", type=int, default=1, metavar="N", help="processes that share the port")
    text = "milliseconds within which a completion is answered, unless it asks for others"
    verb.add_argument("--deadline-ms", type=int, default=100, help=text)
    verb.add_argument("--slips", type=int, default=0, help="typing errors to forgive, 0 to 2")
    group = verb.section("privacy")
    text = "time after which texts are deleted, such as 90d (default: they are kept)"
    group.add_argument("--keep", metavar="TIME", help=text)
    text = "pattern of texts that are neither learned nor kept (repeatable)"
    group.add_argument("--never", action="append", default=[], metavar="REGEX", help=text)
    text = "file of phrases, one a line, that are suggested to nobody"
    group.add_argument("--block", type=Path, help=text)
    text = "people whose weights are kept in memory"
    verb.rare.add_argument("--cached", type=int, default=1000, metavar="N", help=text)


def store(verb: Parser, text: str) -> None:
    """Add where people are kept."""
    verb.add_argument("--store", metavar="URL", help=text)
