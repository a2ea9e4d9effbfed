"""The command line: `main` finds the command in a table and imports only the modules of this command.

After a user error or an error of the operating system, the exit code is 2, and one line on standard error describes the
error. After an interrupt, the exit code is 130.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import HELP_FLAGS, Parser
from factorcell.errors import UserError, nearest_hint
from factorcell.io.interrupts import INTERRUPTED_EXIT_CODE
from factorcell.io.memory import LIMIT_VARIABLE, PROCESSES_VARIABLE, usable_cores
from factorcell.io.torchrun import process_count

PROG, ABOUT = "factorcell", "Language models that adapt to context."

# Title of a group of commands -> the module of `commands` with their functions `add_NAME_arguments` and `run_NAME`, and
# the summary of each command. A name may consist of two words.
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "train and compare": (
        "training",
        {
            "train": "train a model on a table of texts",
            "compare": "train the models of the papers on the same texts and compare them",
            "tune": "search for good options in many trials; each trial writes a run folder",
            "finetune": "continue to train a run on other texts, usually few",
            "mix": "fit the weights of a linear mixture of models",
            "report": "write an HTML page about one or more runs",
            "demo": "train models of place names, generate names and draw maps (minutes)",
        },
    ),
    "evaluate": (
        "evaluation",
        {
            "evaluate": "compute the perplexity of a table under a model",
            "classify": "predict the context of each text",
            "score": "compute the nats and the perplexity of each text",
            "baseline ngram": "train an n-gram model (modified Kneser-Ney) for `evaluate`",
            "baseline linear": "classify texts by logistic regression on TF-IDF of n-grams",
            "advise": "estimate before training how much each context column lowers the perplexity",
            "rescore": "rerank a speech recognizer's n-best lists with a model",
        },
    ),
    "complete": (
        "completion",
        {
            "complete": "suggest the most probable texts that begin with a prefix",
            "tune-online": "choose how a run learns from new users, using texts of held-out users",
            "replay": "evaluate completion on a log: complete and learn its texts in order of time",
        },
    ),
    "serve": (
        "serving",
        {
            "serve": "complete texts over HTTP; store and learn the texts that users accept",
            "users list": "print the ids of all stored users",
            "users show": "print the stored texts of a user",
            "users export": "print all data that users entered, one line of JSON per user",
            "users import": "store users from the output of export",
            "users forget": "delete a text of a user and everything learned from it",
            "users delete": "delete users and all their data",
            "users migrate": "let a run learn the texts of all stored users now, not at their next request",
            "users key": "create or revoke a server key, whose hash is stored in a file",
            "export": "write a Transformer in one context for PEFT, transformers or llama.cpp",
        },
    ),
    "generate": ("generation", {"generate": "generate texts for a context"}),
    "explain": (
        "explaining",
        {
            "explain": "show which tokens of a text make one context more probable than another",
            "contexts": "show what a run learned about contexts: neighbours, words, maps",
        },
    ),
}
# Name of a command -> its module and its summary.
COMMANDS = {name: (module, summary) for module, group in GROUPS.values() for name, summary in group.items()}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process without the name of the program; return the exit code."""
    try:
        terminal.prepare_streams()
        try:
            words = sys.argv[1:] if words is None else words
            if process_count() == 1:
                return _run_command_line(words)
            from factorcell.training.processes import together

            return together(lambda: _run_command_line(words), lambda: 0)
        finally:
            sys.stdout.flush()  # an error of writing the buffered output is reported below
    except BrokenPipeError:  # the process that reads the results has ended
        terminal.discard_output()
        return 0
    except (UserError, OSError) as error:
        terminal.discard_output()
        if isinstance(error, UserError):
            message = error.as_command()
        else:
            message = f"{error.filename or 'reading or writing failed'}: {error.strerror or error}"
        terminal.notify(f"{PROG}: {message}")
        return 2


def _run_command_line(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; of all errors, handle only an interrupt."""
    command = find_command(words)
    if not command:
        return _show_commands(words)
    parser, start = make_parser(command, words), perf_counter()
    try:
        arguments = parser.parse(words[len(command.split()) :])
        arguments.start = start  # imports are part of the time that a training may take
        with terminal.logging_to_standard_error(arguments.verbose):
            threads = getattr(arguments, "threads", 0)
            options.set_threads(threads)
            os.environ.setdefault(PROCESSES_VARIABLE, str(threads or usable_cores()))
            if getattr(arguments, "max_memory", None) is not None:
                os.environ[LIMIT_VARIABLE] = str(arguments.max_memory)  # also for child processes
            find_function(command, "run")(arguments)
    except KeyboardInterrupt as stop:  # `stop` has a message if the command has saved its progress
        default_hint = "; repeat the command with --resume to continue" if "--resume" in parser.flags else ""
        terminal.notify("", f"{str(stop) or 'stopped'}{parser.resume_hint or default_hint}")
        return INTERRUPTED_EXIT_CODE
    return 0


def find_command(words: Sequence[str]) -> str:
    """Return the name of the command that `words` begin with; empty if there is none."""
    names = (" ".join(words[:count]) for count in (1, 2))
    return next((name for name in names if name in COMMANDS), "")


def make_parser(command: str, words: Sequence[str] = ()) -> Parser:
    """Return the parser of a command; `words` select the kinds whose options a parser of trainings has."""
    parser = Parser(f"{PROG} {command}", COMMANDS[command][1], words)
    find_function(command, "add", "_arguments")(parser)
    help_text = "print details, and all warnings instead of the most important one"
    parser.add("--verbose", action="store_true", help=help_text)
    return parser


def find_function(command: str, prefix: str, suffix: str = "") -> Callable[[Any], None]:
    """Return a function of a command, such as `run_baseline_ngram`."""
    module = importlib.import_module(f"factorcell.commands.{COMMANDS[command][0]}")
    name = command.replace(" ", "_").replace("-", "_")
    function: Callable[[Any], None] = getattr(module, f"{prefix}_{name}{suffix}")
    return function


def _show_commands(words: Sequence[str]) -> int:
    """Print the version, or the commands that can follow incomplete `words`; return the exit code."""
    if words and words[0] == "--version":
        terminal.show(f"{PROG} {importlib.import_module('factorcell.io.extras').__version__}")
        return 0
    is_group = any(name.startswith(f"{words[0]} ") for name in COMMANDS if words)
    begin, words = (f"{words[0]} ", words[1:]) if is_group else ("", words)
    prog = f"{PROG} {begin}".rstrip()
    if words and words[0] not in ("-h", *HELP_FLAGS):
        kind = "option" if words[0].startswith("-") else "command"
        names = [name.removeprefix(begin) for name in COMMANDS if name.startswith(begin)]
        raise UserError(f"unknown {kind} {words[0]!r}{nearest_hint(words[0], names)}; see {prog} --help")
    terminal.show(f"usage: {prog} COMMAND [options]", "", ABOUT)
    for title, (_, commands) in GROUPS.items():
        rows = [f"  {name:<17} {summary}" for name, summary in commands.items() if name.startswith(begin)]
        terminal.show(*["", title, *rows] if rows else [])
    terminal.show("", f"{PROG} COMMAND --help shows the options of a command, {PROG} --version the version.")
    return 0 if words else 2
