"""The words of all commands and their parsers, for tests that apply to every command."""

from factorcell.commands.cli.main import COMMANDS, make_parser
from factorcell.commands.cli.parser import Parser

LEAVES = [name.split() for name in COMMANDS]
PATHS = [*LEAVES, ["baseline"], ["users"]]  # with the groups of commands


def parser(*words: str, shows_all: bool = False) -> Parser:
    """Return the parser of a command, with `shows_all` for a line that contains --help-all."""
    return make_parser(" ".join(words), ["--help-all"] if shows_all else [])
