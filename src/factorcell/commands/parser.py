"""Parser of the arguments of one command, with help in sections and error messages of one line.

    usage: factorcell train [options] TRAIN --out RUN

The help lists required arguments first, then options without a section, then the sections in the order in which they
were added; the section of rarely needed options comes last.
"""

import argparse
import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from factorcell import limits
from factorcell.commands import terminal

RARE = "rarely needed"
# Placeholders for the values of options, by type.
METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
NAME_WIDTH, MAX_WIDTH = 28, 100  # characters of the column of names, and maximum characters of a line


class Section(NamedTuple):
    """A section of the help, to which options can be added."""

    parser: "Parser"
    title: str

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an option to this section."""
        return self.parser.add_argument(*names, section=self.title, **settings)


class Parser:
    """Parser of the arguments of one command.

    Options and positional arguments have separate argparse parsers, so that options may be in any place
    on the command line.
    """

    def __init__(self, prog: str, summary: str, kinds: Mapping[str, str] | None = None) -> None:
        self.prog, self.summary, self.kinds = prog, summary, kinds or {}
        self.optional, self.positional = _OneLineErrorParser(prog), _OneLineErrorParser(prog)
        self.sections: dict[str, list[argparse.Action]] = {"": [], "options": []}

    def add_argument(
        self, *names: str, section: str = "options", choices: Sequence[str] = (), **settings: Any
    ) -> argparse.Action:
        """Add an argument as argparse does; the help lists it in `section`, or first if it is required."""
        if choices:
            settings |= {"type": _one_of(choices), "metavar": f"{{{','.join(choices)}}}"}
        is_option = names[0].startswith("-")
        action = (self.optional if is_option else self.positional).add_argument(*names, **settings)
        self.sections.setdefault(section if is_option and not action.required else "", []).append(action)
        return action

    def section(self, title: str) -> Section:
        """Return the section with this title."""
        return Section(self, title)

    @property
    def rare(self) -> Section:
        """The section of rarely needed options."""
        return Section(self, RARE)

    @property
    def actions(self) -> list[argparse.Action]:
        """The argparse actions of all arguments."""
        return list(itertools.chain.from_iterable(self.sections.values()))

    @property
    def options(self) -> list[str]:
        """All flags, including --help."""
        return ["--help", *(name for action in self.actions for name in action.option_strings)]

    def to_argparse(self) -> argparse.ArgumentParser:
        """Return one argparse parser with all arguments, which shell completion needs."""
        return argparse.ArgumentParser(self.prog, add_help=False, parents=[self.positional, self.optional])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words that follow a command; report an unknown option before all other errors."""
        option_words = list(itertools.takewhile("--".__ne__, words))  # all words after -- are positional
        if {"-h", "--help"}.intersection(option_words):
            terminal.show_help(self.format_help())
            sys.exit(0)
        for word in option_words:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in word and name not in self.options:
                fail(self.prog, f"unknown option {name}{limits.nearest_hint(name, self.options)}")
        arguments, rest = self.optional.parse_known_args(option_words)
        arguments, rest = self.positional.parse_known_args([*rest, *words[len(option_words) :]], arguments)
        if rest:
            fail(self.prog, f"unknown argument {rest[0]!r}")
        for action in self.actions:
            # The config checks its own fields, also those whose limits are not in `NUMBER_LIMITS`.
            if action.type in (int, float) and action.dest in limits.NUMBER_LIMITS:
                limits.check(**{action.dest: getattr(arguments, action.dest, None)})
        return arguments

    def format_help(self) -> str:
        """Return the help text."""
        required = self.sections[""]
        usage = f"usage: {self.prog} [options] {' '.join(map(_usage_words, required))}".rstrip()
        titles = sorted(self.sections, key=lambda title: title == RARE)
        blocks = [format_list(title, map(_help_row, self.sections[title])) for title in titles if self.sections[title]]
        return "\n\n".join([usage, textwrap.fill(self.summary, width()), *blocks])


class _OneLineErrorParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one line, without the usage line of argparse."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message.replace("the following arguments are required:", "missing:"))


def width() -> int:
    """Return the number of characters of a line of help."""
    return min(MAX_WIDTH, shutil.get_terminal_size().columns) - 2


def format_list(title: str, rows: Iterable[tuple[str, str]], left: int = NAME_WIDTH) -> str:
    """Return a titled list of names and descriptions in two columns; a long name has a line of its own.

    The descriptions begin after `left` characters.
    """
    lines = [terminal.bold(title)] if title else []
    for name, text in rows:
        first, *others = textwrap.wrap(text, max(20, width() - left), break_on_hyphens=False) or [""]
        if len(name) + 4 > left:
            lines.append("  " + name)
            name = ""
        lines += [f"  {name:<{left - 2}}{first}", *(" " * left + line for line in others)]
    return "\n".join(lines)


def fail(prog: str, message: str) -> NoReturn:
    """End the process with exit code 2 and one line on standard error."""
    terminal.notify(f"{prog}: {message}; see {prog} --help")
    sys.exit(2)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a function that checks the value of an argument; its error message suggests the nearest choice."""

    def check(text: str) -> str:
        if text not in choices:
            near = limits.nearest_hint(text, choices)
            raise argparse.ArgumentTypeError(f"unknown {text!r}{near}, expected one of {', '.join(choices)}")
        return text

    return check


def _help_row(action: argparse.Action) -> tuple[str, str]:
    """Return the flags and placeholders of an argument, and its description with the default."""
    names = ", ".join(name for name in action.option_strings if name.startswith("--"))
    text = (action.help or "") % vars(action)
    value = action.default
    if not (action.required or isinstance(value, bool) or value in (None, "", [], argparse.SUPPRESS, math.inf)):
        value = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        text += "" if "default:" in text else f" (default: {value})"
    return " ".join([names, *_placeholders(action)]).strip(), text


def _usage_words(action: argparse.Action) -> str:
    """Return a required or positional argument in the notation of the usage line."""
    words = " ".join([*action.option_strings[-1:], *_placeholders(action)])
    return f"[{words}]" if action.nargs == "?" else words


def _placeholders(action: argparse.Action) -> list[str]:
    """Return the placeholders for the values of an argument."""
    name = str(action.metavar or METAVARS.get(action.type) or action.dest.upper())
    if isinstance(action.nargs, int):
        return [name] * action.nargs
    return [name, "..."] if action.nargs == "+" else [name]
