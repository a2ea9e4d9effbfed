"""Completion in a shell: commands, options, their choices, files and run folders.

After `eval "$(register-python-argcomplete factorcell)"`, the shell starts this program with the line typed so far
whenever the user presses Tab. To be fast, this module imports only the arguments of the command on that line.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from argcomplete.lexers import split_line

from factorcell.commands.cli import main
from factorcell.commands.cli.parser import Parser


def complete() -> NoReturn:
    """Send the shell the words that can come next on the command line, and end the process."""
    program_word_count = int(os.environ["_ARGCOMPLETE"])  # words before the arguments: 1 for `factorcell`
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    # The list begins with the root command, which is not among the words.
    commands = main.find_commands(words[program_word_count:])
    # The parser is that of the last command, so argcomplete has to skip the commands as it skips the program.
    os.environ["_ARGCOMPLETE"] = str(program_word_count + len(commands) - 1)
    last_command = commands[-1]
    if last_command.subcommands:
        parser = Parser(last_command.name, last_command.summary)
        parser.add_argument("command", choices=[command.name for command in last_command.subcommands])
    else:
        parser = main.make_parser(commands)
    for action in parser.actions:
        action.completer = _completer(str(action.metavar or ""), action.type)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser.to_argparse())
    raise AssertionError("argcomplete ends the process")


def _completer(metavar: str, value_type: Any) -> Callable[..., Iterable[str]]:
    """Return the completer for an argument: it suggests folders, files, the choices in `metavar`, or nothing."""
    if metavar in ("RUN", "FOLDER"):
        return DirectoriesCompleter()
    if value_type is Path or metavar in ("FILE", "HTML"):
        return FilesCompleter()
    choices = metavar[1:-1].split(",") if metavar.startswith("{") else []
    return lambda **_: choices
