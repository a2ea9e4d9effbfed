"""All verbs and their parsers, for the tests that ask every one."""

from collections.abc import Iterator

from factorcell.commands.main import ALL, find, parser_of
from factorcell.commands.parser import Parser


def paths() -> Iterator[list[str]]:
    """The words of every verb and of every kind of one."""
    for verb in ALL.kinds:
        yield [verb.name]
        yield from ([verb.name, kind.name] for kind in verb.kinds)


LEAVES = [words for words in paths() if not find(words)[-1].kinds]


def parser(*words: str) -> Parser:
    """The parser of a verb."""
    return parser_of(find(words))
