"""Completion of commands in a shell: verbs, options, what they choose among, files and run folders.

After `eval "$(register-python-argcomplete factorcell)"` every Tab starts the command anew with the line that is typed,
so that this too reads no more than what the verb on the line takes.
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
    """Write what may follow on the line, and end."""
    begin = int(os.environ["_ARGCOMPLETE"])  # where the words after the command start
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    path = main.find_commands(words[begin:])
    os.environ["_ARGCOMPLETE"] = str(begin + len(path) - 1)  # the last word that is known stands for the command
    if path[-1].subcommands:
        parser = Parser(path[-1].name, path[-1].summary)
        parser.add_argument("verb", choices=[verb.name for verb in path[-1].subcommands])
    else:
        parser = main.make_parser(path)
    for action in parser.actions:
        action.completer = _completer(str(action.metavar or ""), action.type)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser.to_argparse())
    raise AssertionError("argcomplete ends the process")


def _completer(metavar: str, kind: Any) -> Callable[..., Iterable[str]]:
    """What completes the values of an argument; nothing does where only the user knows what to write."""
    if metavar in ("RUN", "FOLDER"):
        return DirectoriesCompleter()
    if kind is Path or metavar in ("FILE", "HTML"):
        return FilesCompleter()
    names = metavar[1:-1].split(",") if metavar.startswith("{") else []
    return lambda **_: names
