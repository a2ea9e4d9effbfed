"""Completion in a shell: commands, options, their choices, files and run folders.

After `eval "$(register-python-argcomplete factorcell)"` every Tab starts this program with the line typed so far.
To be fast, this module imports only the arguments of the command on that line.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from argcomplete.lexers import split_line

from factorcell.commands import main
from factorcell.commands.parser import Parser


def complete() -> NoReturn:
    """Send the shell the words that can come next on the command line, and end the process."""
    begin = int(os.environ["_ARGCOMPLETE"])  # number of words before the arguments
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    path = main.find_commands(words[begin:])
    os.environ["_ARGCOMPLETE"] = str(begin + len(path) - 1)  # argcomplete takes the last command for the program
    if path[-1].subcommands:
        parser = Parser(path[-1].name, path[-1].summary)
        parser.add_argument("command", choices=[command.name for command in path[-1].subcommands])
    else:
        parser = main.make_parser(path)
    for action in parser.actions:
        action.completer = _completer(str(action.metavar or ""), action.type)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser.to_argparse())
    raise AssertionError("argcomplete ends the process")


def _completer(metavar: str, kind: Any) -> Callable[..., Iterable[str]]:
    """Return the completer for the values of an argument: folders, files, choices, or nothing for other values."""
    if metavar in ("RUN", "FOLDER"):
        return DirectoriesCompleter()
    if kind is Path or metavar in ("FILE", "HTML"):
        return FilesCompleter()
    names = metavar[1:-1].split(",") if metavar.startswith("{") else []
    return lambda **_: names
