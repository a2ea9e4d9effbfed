"""Parser of the arguments of one command: argparse with sections of help, and error messages of one line."""

import argparse
import itertools
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from factorcell.commands.cli import terminal
from factorcell.config import DEVICE_HELP, DEVICES, PRECISION_HELP, PRECISIONS
from factorcell.errors import UserError, nearest_hint
from factorcell.options.limits import NUMBER_LIMITS, PRESETS, STORE_URLS, STORE_VARIABLE, UNKNOWN_POLICIES

HELP_FLAGS = ("--help", "--help-all")
NAME_WIDTH, MAX_LINE_WIDTH = 28, 100  # characters of the column of names, and of a line of help


def output_path(text: str, folder: bool) -> Path:
    """Return `text` as a path; raise `UserError` if no file, or with `folder` no folder, can be written there."""
    from factorcell.io import files

    files.check_writable(text, folder)
    return Path(text)


# Types of arguments that are written; they are checked before a command begins its work.
OUTPUT_FILE, OUTPUT_FOLDER = partial(output_path, folder=False), partial(output_path, folder=True)
# Arguments that several commands have.
SHARED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "run": {"type": Path, "metavar": "RUN", "help": "run folder"},
    "table": {"type": Path, "metavar": "TABLE", "help": "table of texts: CSV, TSV, JSONL or Parquet"},
    "train": {"type": Path, "metavar": "TRAIN", "help": "table of texts: CSV, TSV, JSONL or Parquet"},
    "--dev": {"type": Path, "help": "development table (default: 5 % of the rows are held out)"},
    "--config": {"type": Path, "help": "TOML or JSON file of options; options on the command line take precedence"},
    "--minutes": {
        "help": "minutes for each training, with reading and the work after it (default: chosen from the table)"
    },
    "--preset": {"choices": PRESETS, "help": "effort to spend on each training (default: good; with --minutes: best)"},
    "--context": {
        "repeatable": True,
        "metavar": "NAME=VALUE",
        "help": "value of a context column (repeatable, or joined by ';'; all other columns have their expected value)",
    },
    "--by": {"repeatable": True, "metavar": "COLUMN", "help": "also report each value of this column (repeatable)"},
    "--unknown": {
        "choices": UNKNOWN_POLICIES,
        "default": "group",
        "help": "for context values that are rare in training or unseen: stop with an error, or read them as rare "
        "(group) or as missing values (expected)",
    },
    "--no-ngram-mixture": {
        "action": "store_true",
        "help": "use the neural model alone, even if the run has a mixture with n-gram counts",
    },
    "--save": {"action": "store_true", "help": "save the result in the run folder, for report"},
    "--resume": {"action": "store_true", "help": "resume the command that wrote --out, from its last checkpoint"},
    "user": {"metavar": "USER", "help": "id of the user"},
    "--store": {
        "metavar": "URL",
        "help": f"URL of the user store: {STORE_URLS} (default: the variable {STORE_VARIABLE}, else the SQLite file "
        "that `serve` made in this folder or in a subfolder)",
    },
    "--json": {"action": "store_true", "help": "print rows of JSON"},
    "--threads": {"section": "computing", "default": 0, "help": "number of threads; 0: one per core"},
    "--device": {"section": "computing", "choices": DEVICES, "default": "auto", "help": DEVICE_HELP},
    "--precision": {
        "section": "computing",
        "rare": True,
        "choices": PRECISIONS,
        "default": "auto",
        "help": PRECISION_HELP,
    },
    "--max-memory": {
        "section": "computing",
        "rare": True,
        "metavar": "GIB",
        "help": "memory limit in GiB; commands refuse work that needs more (default: memory of the machine)",
    },
}
COMPUTING = ("--json", "--threads", "--device", "--precision", "--max-memory")  # those of all that compute
TRAINING = ("train", "--dev", "--config", "--minutes", "--preset")  # those of all that train


class Parser:
    """Parser of one command. Options have an argparse parser of their own, so that they may be anywhere on the line.

    Attributes:
        words: The words of the command line, which select the options of some commands.
        sections: Title -> the argparse group of its options.
        actions: The argparse actions of all arguments.
        hidden_count: The number of rarely needed options that only --help-all shows.
        resume_hint: The advice after an interrupt, if the command can be resumed.
    """

    def __init__(self, prog: str, summary: str, words: Sequence[str] = ()) -> None:
        self.prog, self.summary, self.words = prog, summary, words
        self.positional, self.optional = _OneLineErrorParser(prog), _OneLineErrorParser(prog)
        self.sections: dict[str, Any] = {"required": self.optional.add_argument_group("required")}
        self.actions: list[argparse.Action] = []
        self.hidden_count, self.resume_hint = 0, ""

    def add(self, name: str, **settings: Any) -> None:
        """Add an argument as argparse does; those of `SHARED_ARGUMENTS` have settings already.

        Args:
            name: The flag, or the name of a positional argument. An option whose name is in `NUMBER_LIMITS` is a
                number.
            **settings: Parameters of `argparse.ArgumentParser.add_argument`, and further ones: the `section` of the
                help, `rare` for an option that only --help-all shows, `limits` of a number, and `repeatable` for an
                option whose values become a list. The default is added to `help`.
        """
        defaults = {"section": "general", "rare": False, "limits": None, "repeatable": False}
        settings = {**defaults, **SHARED_ARGUMENTS.get(name, {}), **settings}
        section, is_rare, limits, is_repeatable = (settings.pop(key) for key in defaults)
        is_option = name.startswith("-")
        if is_repeatable:
            settings = {"action": "append", "default": [], **settings}
        if is_option and not {"type", "action", "nargs"} & settings.keys():
            limits = limits or NUMBER_LIMITS.get(name.strip("-").replace("-", "_"))
        if limits is not None:
            settings = {"metavar": "N" if limits.whole else "X", **settings, "type": partial(_read, limits.parse)}
        elif choices := settings.pop("choices", None):
            settings["type"] = partial(_read, partial(_check_choice, choices=tuple(choices)))
            settings["metavar"] = f"{{{','.join(choices)}}}"
        elif "type" in settings:
            settings = {"metavar": "FILE", **settings, "type": partial(_read, settings["type"])}
        default, help_text = settings.get("default"), settings["help"]
        has_default = not (isinstance(default, bool) or default in (None, "", [], argparse.SUPPRESS, math.inf))
        if has_default and "default:" not in help_text:
            help_text += f" (default: {' '.join(default) if isinstance(default, list) else default})"
        is_hidden = is_rare and "--help-all" not in self.words
        self.hidden_count += is_hidden
        settings["help"] = argparse.SUPPRESS if is_hidden else help_text.replace("%", "%%")  # argparse formats it
        group: Any = self.positional
        if is_option:
            title = "required" if settings.get("required") else section
            if title not in self.sections:
                self.sections[title] = self.optional.add_argument_group(title)
            group = self.sections[title]
        self.actions.append(group.add_argument(name, **settings))

    def add_all(self, *names: str) -> None:
        """Add arguments of `SHARED_ARGUMENTS`."""
        for name in names:
            self.add(name)

    @property
    def flags(self) -> list[str]:
        """All flags, including those that show the help."""
        return [*HELP_FLAGS, *(flag for action in self.actions for flag in action.option_strings)]

    def format_help(self) -> str:
        """Return the help text, with the rarely needed options if the words of the command contain --help-all."""
        width = min(MAX_LINE_WIDTH, shutil.get_terminal_size().columns) - 2
        formatter = partial(argparse.HelpFormatter, max_help_position=NAME_WIDTH, width=width)
        epilog = f"{self.prog} --help-all also shows {self.hidden_count} rarely needed options."
        usage = argparse.HelpFormatter(f"{self.prog} [options]", width=sys.maxsize)  # one line
        usage.add_usage(None, [action for action in self.actions if action.required or not action.option_strings], [])
        parser = argparse.ArgumentParser(
            self.prog,
            usage=usage.format_help().strip().removeprefix("usage: "),
            description=self.summary,
            epilog=epilog if self.hidden_count else None,
            add_help=False,
            formatter_class=formatter,
            parents=[self.positional, self.optional],
        )
        return parser.format_help()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words that follow a command; if there is an unknown option, report it before all other errors."""
        option_words = list(itertools.takewhile("--".__ne__, words))  # all words after -- are positional
        if {"-h", *HELP_FLAGS}.intersection(option_words):
            terminal.show(*self.format_help().splitlines())
            sys.exit(0)
        for word in option_words:
            flag, _, _ = word.partition("=")
            if flag.startswith("--") and " " not in word and flag not in self.flags:
                self.optional.error(f"unknown option {flag}{nearest_hint(flag, self.flags)}")
        arguments, other_words = self.optional.parse_known_args(option_words)
        positional_words = [*other_words, *words[len(option_words) :]]
        arguments, unknown_words = self.positional.parse_known_args(positional_words, arguments)
        if unknown_words:
            self.optional.error(f"unknown argument {unknown_words[0]!r}")
        return arguments


class _OneLineErrorParser(argparse.ArgumentParser):
    """An argparse parser that raises its errors, which are one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required:", "missing:")
        raise UserError(f"{message}; see {self.prog} --help")


def _read(reader: Callable[[str], Any], text: str) -> Any:
    """Read a value of the command line; argparse shows the error."""
    try:
        return reader(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(error.as_command()) from None


def _check_choice(value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise UserError(f"expected one of {', '.join(choices)}, got {value!r}{nearest_hint(value, choices)}")
    return value
