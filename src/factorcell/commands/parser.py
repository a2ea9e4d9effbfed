"""A parser for people: help in the order of use, rare options last; a mistake in one line that names the nearest.

    usage: factorcell train [options] TRAIN --out RUN

What is required comes first, then the other options, then the sections in the order in which they were begun.
"""

import argparse
import copy
import difflib
import itertools
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from factorcell import limits
from factorcell.commands import terminal

RARE = "rarely needed"
METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
LEFT, WIDEST = 28, 100  # columns of the names, and of a line


class Parser(argparse.ArgumentParser):
    """The options of one verb, `prog`, which `text` describes."""

    def __init__(self, prog: str, text: str) -> None:
        super().__init__(prog, description=text, allow_abbrev=False, add_help=False)
        self.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self._sections: dict[str, argparse._ArgumentGroup] = {}

    def section(self, title: str) -> argparse._ArgumentGroup:
        """The group of options under a heading."""
        if title not in self._sections:
            self._sections[title] = self.add_argument_group(title)
        return self._sections[title]

    @property
    def rare(self) -> argparse._ArgumentGroup:
        """The options that few will ever need."""
        return self.section(RARE)

    @property
    def options(self) -> list[str]:
        """The names of all options."""
        return [name for action in self._actions for name in action.option_strings]

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """What the words of a command say; an unknown option is reported before whatever else it makes wrong.

        Options are taken first, wherever they stand, and then all positionals at once: argparse alone gives an optional
        positional nothing as soon as an option follows the one before it, and never splits those of one list.
        """
        before = list(itertools.takewhile("--".__ne__, words))
        if {"-h", "--help"}.intersection(before):
            terminal.manual(
                self.format_help().removesuffix("\n")
            )  # `print_help` is silent where nothing can be written
            self.exit()
        for word in before:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in word and name not in self.options:
                self.error(unknown("option", name, (option for option in self.options if option.startswith("--"))))
        given, others = self._asking([]).parse_known_args(before)
        asked = [action for action in self._actions if not action.option_strings or action.dest not in given]
        given, rest = self._asking(asked).parse_known_args([*others, *words[len(before) :]], given)
        if rest:
            self.error(f"unknown argument {rest[0]!r}")
        self._check_numbers(given)
        return given

    def _asking(self, actions: list[argparse.Action]) -> argparse.ArgumentParser:
        """This parser, which still takes every option, but asks for the positionals and defaults of `actions` alone."""
        parser = copy.copy(self)
        parser._actions = actions
        return parser

    def _check_numbers(self, given: argparse.Namespace) -> None:
        """`UserError` for a number outside its limits, if it is no field of the config, which checks its own."""
        for action in self._actions:
            value = getattr(given, action.dest, None)
            if action.type in (int, float) and action.dest in limits.NUMBERS and value is not None:
                limits.NUMBERS[action.dest].check(action.dest, value)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """An error that names the nearest choice too."""
        if action.choices is not None and value not in action.choices:
            names = [str(name) for name in action.choices]
            said = f"unknown {value!r}{limits.nearest(str(value), names)}; choose from {', '.join(names)}"
            raise argparse.ArgumentError(action, said)

    def error(self, message: str) -> Any:
        """End with exit code 2 and one line."""
        message = message.replace("the following arguments are required:", "missing:")
        fail(self.prog, re.sub(r"^argument (\S+): invalid (int|float) value: (.*)$", _no_number, message))

    def format_usage(self) -> str:
        """One line: what must be given."""
        words = [_placeholder(action) for action in self._actions if _required(action)]
        return f"usage: {self.prog} [options] {' '.join(words)}".rstrip() + "\n"

    def format_help(self) -> str:
        """The whole help."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        apart = {id(action) for group in self._sections.values() for action in group._group_actions}
        common = [action for action in shown if id(action) not in apart]
        blocks = [
            ("", [action for action in common if _required(action)]),
            ("options", [action for action in common if not _required(action)]),
            *((title, group._group_actions) for title, group in self._sections.items() if title != RARE),
            (RARE, self._sections[RARE]._group_actions if RARE in self._sections else []),
        ]
        parts = [self.format_usage() + "\n" + textwrap.fill(self.description or "", width()) + "\n"]
        parts += [listed(title, map(_row, actions)) for title, actions in blocks if actions]
        return "\n".join(parts)


def width() -> int:
    """The columns of a line of help."""
    return min(WIDEST, shutil.get_terminal_size().columns) - 2


def listed(title: str, rows: Iterable[tuple[str, str]], left: int = LEFT) -> str:
    """Names and what they mean, under a heading; a name that is wider than `left` columns has a line of its own."""
    lines = [terminal.bold(title)] if title else []
    for name, text in rows:
        first, *others = textwrap.wrap(text, max(20, width() - left), break_on_hyphens=False)
        if len(name) + 4 > left:
            lines.append("  " + name)
            name = ""
        lines += [f"  {name:<{left - 2}}{first}", *(" " * left + line for line in others)]
    return "\n".join(lines) + "\n"


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message about a name that is none of `valid`."""
    near = difflib.get_close_matches(name, list(valid), n=1)
    shown = str if kind == "option" else repr
    return f"unknown {kind} {shown(name)}" + (f"; did you mean {shown(near[0])}?" if near else "")


def fail(prog: str, message: str) -> Any:
    """End with exit code 2 and one line on standard error."""
    terminal.say(f"{prog}: {message} ({prog} --help lists all)")
    sys.exit(2)


def _no_number(found: re.Match[str]) -> str:
    """What argparse says of a word that is no number, in words of people."""
    kind = "a whole number" if found[2] == "int" else "a number"
    return f"{found[1]}: {found[3]} is not {kind}"


def _required(action: argparse.Action) -> bool:
    return action.required or not action.option_strings


def _row(action: argparse.Action) -> tuple[str, str]:
    """The name of an option with its placeholder, and its help with the default."""
    names = [name for name in action.option_strings if name.startswith("--")]
    text = (action.help or "") % vars(action) if "%" in (action.help or "") else action.help or ""
    default = _default(action.default)
    if default and "default:" not in text and not _required(action):
        text += f" (default: {default})"
    return " ".join([", ".join(names), *_values(action)]).strip(), text


def _placeholder(action: argparse.Action) -> str:
    """An argument as the usage line has it."""
    value = " ".join(_values(action))
    return (
        f"[{value}]"
        if action.nargs == "?"
        else f"{action.option_strings[-1]} {value}"
        if action.option_strings
        else value
    )


def _values(action: argparse.Action) -> Iterator[str]:
    """The placeholders of the values that an argument takes."""
    if action.nargs == 0:
        return
    name = action.metavar or METAVARS.get(action.type) or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        name = f"{{{','.join(map(str, action.choices))}}}"
    assert isinstance(name, str)
    yield from [name] * action.nargs if isinstance(action.nargs, int) else [name]
    if action.nargs == "+":
        yield "..."


def _default(value: Any) -> str:
    """A default as somebody would type it; empty for one that says nothing."""
    if value in (None, "", argparse.SUPPRESS, math.inf) or isinstance(value, bool) or value == []:
        return ""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}"
