"""Parser of the arguments of one command, with help in sections and one-line error messages.

    usage: factorcell train [options] TRAIN --out RUN

The help lists required and positional arguments first, then options without a section, then the sections in the order
in which they were added. Rarely needed options are shown by --help-all, but not by --help.
"""

import argparse
import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from factorcell.commands.cli import terminal
from factorcell.errors import nearest_hint
from factorcell.options import limits

HELP_FLAGS = ("--help", "--help-all")
# Type of the value of an option -> the placeholder for the value in the help.
PLACEHOLDERS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
NAME_WIDTH = 28  # characters of the column of names in the help
MAX_LINE_WIDTH = 100  # maximum characters of a line of help


class Section(NamedTuple):
    """A section of the help of `parser`, to which options can be added; if `is_rare`, only --help-all shows them."""

    parser: "Parser"
    title: str
    is_rare: bool = False

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an option to this section."""
        action = self.parser.add_argument(*names, section=self.title, **settings)
        if self.is_rare:
            self.parser.rare_actions.append(action)
        return action


class Parser:
    """Parser of one command. Options have an argparse parser of their own, so that they may be anywhere on the line.

    Attributes:
        words: The words of the command line, which select the options of some commands.
        sections: Title -> the arguments of a section; the section "" has the required and positional arguments.
        rare_actions: The rarely needed options, which --help does not show.
    """

    def __init__(self, prog: str, summary: str, words: Sequence[str] = ()) -> None:
        self.prog, self.summary, self.words = prog, summary, words
        self.optional, self.positional = _OneLineErrorParser(prog), _OneLineErrorParser(prog)
        self.sections: dict[str, list[argparse.Action]] = {"": [], "options": []}
        self.rare_actions: list[argparse.Action] = []

    def add_argument(
        self, *names: str, section: str = "options", choices: Sequence[str] = (), **settings: Any
    ) -> argparse.Action:
        """Add an argument as argparse does; the help lists it in `section`, required and positional ones first."""
        if choices:
            settings |= {"type": _choice_checker(choices), "metavar": f"{{{','.join(choices)}}}"}
        is_option = names[0].startswith("-")
        argparse_parser = self.optional if is_option else self.positional
        action = argparse_parser.add_argument(*names, **settings)
        title = section if is_option and not action.required else ""
        self.sections.setdefault(title, []).append(action)
        return action

    def section(self, title: str, *, is_rare: bool = False) -> Section:
        """Return the section with this title, for common or for rarely needed options."""
        return Section(self, title, is_rare)

    @property
    def rare(self) -> Section:
        """The rarely needed options without a section."""
        return Section(self, "options", is_rare=True)

    @property
    def actions(self) -> list[argparse.Action]:
        """The argparse actions of all arguments."""
        return list(itertools.chain.from_iterable(self.sections.values()))

    @property
    def flags(self) -> list[str]:
        """All flags, including those that show the help."""
        return [*HELP_FLAGS, *(flag for action in self.actions for flag in action.option_strings)]

    def to_argparse(self) -> argparse.ArgumentParser:
        """Return a single argparse parser with all arguments; shell completion requires it."""
        return argparse.ArgumentParser(self.prog, add_help=False, parents=[self.positional, self.optional])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words that follow a command; if there is an unknown option, report it before all other errors."""
        option_words = list(itertools.takewhile("--".__ne__, words))  # all words after -- are positional
        if {"-h", *HELP_FLAGS}.intersection(option_words):
            terminal.show_help(self.format_help(shows_all="--help-all" in option_words))
            sys.exit(0)
        for word in option_words:
            flag, _, _ = word.partition("=")
            if flag.startswith("--") and " " not in word and flag not in self.flags:
                fail(self.prog, f"unknown option {flag}{nearest_hint(flag, self.flags)}")
        arguments, other_words = self.optional.parse_known_args(option_words)
        positional_words = [*other_words, *words[len(option_words) :]]
        arguments, unknown_words = self.positional.parse_known_args(positional_words, arguments)
        if unknown_words:
            fail(self.prog, f"unknown argument {unknown_words[0]!r}")
        for action in self.actions:
            # `Config` checks the options that are its fields.
            value = getattr(arguments, action.dest, None)
            if value is not None and action.type in (int, float) and action.dest in limits.NUMBER_LIMITS:
                limits.check(**{action.dest: value})
        return arguments

    def format_help(self, *, shows_all: bool = False) -> str:
        """Return the help text, with `shows_all` also of the rarely needed options."""
        required_words = " ".join(map(_usage_words, self.sections[""]))
        usage = f"usage: {self.prog} [options] {required_words}".rstrip()
        blocks = [usage, textwrap.fill(self.summary, line_width())]
        for title, actions in self.sections.items():
            shown = [action for action in actions if shows_all or action not in self.rare_actions]
            if shown:
                blocks.append(format_list(title, map(_help_row, shown)))
        if self.rare_actions and not shows_all:
            blocks.append(f"{self.prog} --help-all also shows {len(self.rare_actions)} rarely needed options.")
        return "\n\n".join(blocks)


class _OneLineErrorParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one line, without the usage line of argparse."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message.replace("the following arguments are required:", "missing:"))


def line_width() -> int:
    """Return the number of characters of a line of help."""
    return min(MAX_LINE_WIDTH, shutil.get_terminal_size().columns) - 2


def format_list(title: str, rows: Iterable[tuple[str, str]], name_width: int = NAME_WIDTH) -> str:
    """Return a titled list of names and descriptions in two columns; a long name has a line of its own.

    The descriptions begin after `name_width` characters.
    """
    lines = [terminal.bold(title)] if title else []
    for name, description in rows:
        description_width = max(20, line_width() - name_width)
        first_line, *other_lines = textwrap.wrap(description, description_width, break_on_hyphens=False) or [""]
        if len(name) + 4 > name_width:  # two spaces before the name, and at least two after it
            lines.append("  " + name)
            name = ""
        lines.append(f"  {name:<{name_width - 2}}{first_line}")
        lines += [" " * name_width + line for line in other_lines]
    return "\n".join(lines)


def fail(prog: str, message: str) -> NoReturn:
    """Print one line on standard error, and end the process with exit code 2."""
    terminal.notify(f"{prog}: {message}; see {prog} --help")
    sys.exit(2)


def _choice_checker(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a function that checks the value of an argument; its error message suggests the nearest choice."""

    def check(value: str) -> str:
        if value not in choices:
            hint = nearest_hint(value, choices)
            raise argparse.ArgumentTypeError(f"unknown {value!r}{hint}, expected one of {', '.join(choices)}")
        return value

    return check


def _help_row(action: argparse.Action) -> tuple[str, str]:
    """Return the flags and placeholders of an argument, and its description with the default."""
    flags = ", ".join(flag for flag in action.option_strings if flag.startswith("--"))
    description = (action.help or "") % vars(action)
    default = action.default
    has_default = not (isinstance(default, bool) or default in (None, "", [], argparse.SUPPRESS, math.inf))
    if has_default and not action.required and "default:" not in description:
        default_text = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
        description += f" (default: {default_text})"
    return " ".join([flags, *_placeholders(action)]).strip(), description


def _usage_words(action: argparse.Action) -> str:
    """Return a required or positional argument in the notation of the usage line."""
    words = " ".join([*action.option_strings[-1:], *_placeholders(action)])
    return f"[{words}]" if action.nargs == "?" else words


def _placeholders(action: argparse.Action) -> list[str]:
    """Return the placeholders for the values of an argument."""
    placeholder = str(action.metavar or PLACEHOLDERS.get(action.type) or action.dest.upper())
    if isinstance(action.nargs, int):
        return [placeholder] * action.nargs
    return [placeholder, "..."] if action.nargs == "+" else [placeholder]
