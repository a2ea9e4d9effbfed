"""The arguments of one verb: help in sections with rare options last, and mistakes in one line.

    usage: factorcell train [options] TRAIN --out RUN

Required arguments come first, then the other options, then the sections in the order in which they were begun.
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
METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
LEFT, WIDEST = 28, 100  # columns of the names, and of a line


class Section(NamedTuple):
    """A heading of the help, under which options are added."""

    parser: "Parser"
    title: str

    def add_argument(self, *names: str, **how: Any) -> argparse.Action:
        """Add an option under this heading."""
        return self.parser.add_argument(*names, section=self.title, **how)


class Parser:
    """The arguments of one verb.

    Options and positional arguments have an argparse parser each, so that options may stand anywhere.
    """

    def __init__(self, prog: str, text: str, kinds: Mapping[str, str] | None = None) -> None:
        self.prog, self.summary, self.kinds = prog, text, kinds or {}
        self.optional, self.positional = _OneLine(prog), _OneLine(prog)
        self.sections: dict[str, list[argparse.Action]] = {"": [], "options": []}

    def add_argument(
        self, *names: str, section: str = "options", choices: Sequence[str] = (), **how: Any
    ) -> argparse.Action:
        """Add an argument as argparse does, under a heading of the help, or first if it is required."""
        if choices:
            how |= {"type": _one_of(choices), "metavar": f"{{{','.join(choices)}}}"}
        is_option = names[0].startswith("-")
        action = (self.optional if is_option else self.positional).add_argument(*names, **how)
        self.sections.setdefault(section if is_option and not action.required else "", []).append(action)
        return action

    def section(self, title: str) -> Section:
        """The options under a heading."""
        return Section(self, title)

    @property
    def rare(self) -> Section:
        """The options that few users need."""
        return Section(self, RARE)

    @property
    def actions(self) -> list[argparse.Action]:
        """All arguments, as argparse describes them."""
        return list(itertools.chain.from_iterable(self.sections.values()))

    @property
    def options(self) -> list[str]:
        """The names of all options."""
        return ["--help", *(name for action in self.actions for name in action.option_strings)]

    def to_argparse(self) -> argparse.ArgumentParser:
        """One argparse parser of all arguments."""
        return argparse.ArgumentParser(self.prog, add_help=False, parents=[self.positional, self.optional])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command; an unknown option is reported before other mistakes."""
        before = list(itertools.takewhile("--".__ne__, words))
        if {"-h", "--help"}.intersection(before):
            terminal.show_help(self.format_help())
            sys.exit(0)
        for word in before:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in word and name not in self.options:
                fail(self.prog, f"unknown option {name}{limits.nearest_hint(name, self.options)}")
        given, rest = self.optional.parse_known_args(before)
        given, rest = self.positional.parse_known_args([*rest, *words[len(before) :]], given)
        if rest:
            fail(self.prog, f"unknown argument {rest[0]!r}")
        for action in self.actions:
            if action.type in (int, float) and action.dest in limits.NUMBER_LIMITS:  # the config checks its own
                limits.check(**{action.dest: getattr(given, action.dest, None)})
        return given

    def format_help(self) -> str:
        """The whole help."""
        required = self.sections[""]
        usage = f"usage: {self.prog} [options] {' '.join(map(_placeholder, required))}".rstrip()
        titles = sorted(self.sections, key=lambda title: title == RARE)
        blocks = [format_list(title, map(_row, self.sections[title])) for title in titles if self.sections[title]]
        return "\n\n".join([usage, textwrap.fill(self.summary, width()), *blocks])


class _OneLine(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without its usage."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message.replace("the following arguments are required:", "missing:"))


def width() -> int:
    """The columns of a line of help."""
    return min(WIDEST, shutil.get_terminal_size().columns) - 2


def format_list(title: str, rows: Iterable[tuple[str, str]], left: int = LEFT) -> str:
    """Names and what they mean, under a heading; a name that is wider than `left` columns has a line of its own."""
    lines = [terminal.bold(title)] if title else []
    for name, text in rows:
        first, *others = textwrap.wrap(text, max(20, width() - left), break_on_hyphens=False) or [""]
        if len(name) + 4 > left:
            lines.append("  " + name)
            name = ""
        lines += [f"  {name:<{left - 2}}{first}", *(" " * left + line for line in others)]
    return "\n".join(lines)


def fail(prog: str, message: str) -> NoReturn:
    """End with exit code 2 and one line on standard error."""
    terminal.notify(f"{prog}: {message}; see {prog} --help")
    sys.exit(2)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """The type of an argument that is one of `choices`, whose error names the nearest one."""

    def check(text: str) -> str:
        if text not in choices:
            near = limits.nearest_hint(text, choices)
            raise argparse.ArgumentTypeError(f"unknown {text!r}{near}, expected one of {', '.join(choices)}")
        return text

    return check


def _row(action: argparse.Action) -> tuple[str, str]:
    """The name of an option with its placeholder, and its help with the default."""
    names = ", ".join(name for name in action.option_strings if name.startswith("--"))
    text, value = (action.help or "") % vars(action), action.default
    if not (action.required or isinstance(value, bool) or value in (None, "", [], argparse.SUPPRESS, math.inf)):
        value = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        text += "" if "default:" in text else f" (default: {value})"
    return " ".join([names, *_values(action)]).strip(), text


def _placeholder(action: argparse.Action) -> str:
    """A required argument, or a positional one, as the usage line has it."""
    words = " ".join([*action.option_strings[-1:], *_values(action)])
    return f"[{words}]" if action.nargs == "?" else words


def _values(action: argparse.Action) -> list[str]:
    """The placeholders of the values that an argument takes."""
    name = str(action.metavar or METAVARS.get(action.type) or action.dest.upper())
    if isinstance(action.nargs, int):
        return [name] * action.nargs
    return [name, "..."] if action.nargs == "+" else [name]
