"""Completion of commands in a shell: verbs, options, what they choose among, files and run folders.

After `eval "$(register-python-argcomplete factorcell)"` every Tab starts the command anew with the line that is typed,
so that this too reads no more than what the verb on the line takes.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from argcomplete.lexers import split_line

from factorcell.commands import main
from factorcell.commands.parser import Parser

FOLDERS = ("RUN", "FOLDER")


def complete() -> NoReturn:
    """Write what may follow on the line, and end."""
    begin = int(os.environ["_ARGCOMPLETE"])  # where the words after the command start
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    path = main.find(words[begin:])
    os.environ["_ARGCOMPLETE"] = str(begin + len(path) - 1)  # the last word that is known stands for the command
    if path[-1].kinds:
        parser = Parser(path[-1].name, path[-1].text)
        parser.add_argument("verb", choices=[verb.name for verb in path[-1].kinds])
    else:
        parser = main.parser_of(path)
        add_completers(parser)
    argcomplete.autocomplete(parser)
    raise AssertionError("argcomplete ends the process")


def add_completers(parser: Parser) -> None:
    """Say what completes the values of each option; nothing does where somebody must know what to write."""
    for action in parser._actions:
        if action.choices is not None:
            continue  # argcomplete knows
        name, completer = str(action.metavar or ""), _names([])
        if name.startswith("{"):
            completer = _names(name[1:-1].split(","))
        elif name in FOLDERS:
            completer = DirectoriesCompleter()
        elif action.type is Path or name == "FILE":
            completer = FilesCompleter()
        action.completer = completer  # type: ignore[attr-defined]


def _names(names: list[str]) -> Callable[..., Iterable[str]]:
    return lambda **_: names
