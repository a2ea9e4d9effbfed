"""All verbs and their parsers, for the tests that ask every one."""

from collections.abc import Iterator

from factorcell.commands.main import ROOT_COMMAND, find_commands, make_parser
from factorcell.commands.parser import Parser


def paths() -> Iterator[list[str]]:
    """The words of every verb and of every kind of one."""
    for verb in ROOT_COMMAND.subcommands:
        yield [verb.name]
        yield from ([verb.name, kind.name] for kind in verb.subcommands)


LEAVES = [words for words in paths() if not find_commands(words)[-1].subcommands]


def parser(*words: str) -> Parser:
    """The parser of a verb."""
    return make_parser(find_commands(words))
