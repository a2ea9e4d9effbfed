"""The words of all commands and their parsers, for tests that apply to every command."""

from collections.abc import Iterator

from factorcell.commands.cli.main import ROOT_COMMAND, find_commands, make_parser
from factorcell.commands.cli.parser import Parser


def paths() -> Iterator[list[str]]:
    """Yield the words of every command and of every subcommand."""
    for command in ROOT_COMMAND.subcommands:
        yield [command.name]
        yield from ([command.name, subcommand.name] for subcommand in command.subcommands)


LEAVES = [words for words in paths() if not find_commands(words)[-1].subcommands]


def parser(*words: str) -> Parser:
    """Return the parser of a command."""
    return make_parser(find_commands(words))
