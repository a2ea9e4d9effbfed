"""The command line: `main` finds the command in a table and imports only the modules of this command.

After a user error or an error of the operating system, the exit code is 2, and one line on standard error describes the
error. After an interrupt, the exit code is 130.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from factorcell.commands.cli import options, parser, terminal
from factorcell.commands.cli.parser import Parser
from factorcell.errors import UserError, nearest_hint
from factorcell.io.interrupts import INTERRUPTED_EXIT_CODE
from factorcell.io.memory import LIMIT_VARIABLE

PROG, ABOUT = "factorcell", "Language models that adapt to context."


class Command(NamedTuple):
    """A command, or a group of subcommands."""

    name: str
    summary: str
    subcommands: tuple["Command", ...] = ()


BASELINES = (
    Command("ngram", "n-gram model (modified Kneser-Ney) for `evaluate`"),
    Command("linear", "logistic regression on TF-IDF of n-grams"),
)

USERS = (
    Command("list", "print the ids of all stored users"),
    Command("show", "print the stored texts of a user"),
    Command("export", "print all data that users entered, one line of JSON per user"),
    Command("import", "store users from the output of export"),
    Command("forget", "delete a text of a user and everything learned from it"),
    Command("delete", "delete users and all their data"),
    Command("migrate", "let a run learn the texts of all stored users now, not at their next request"),
    Command("key", "create a server key, store its hash in a file and print the key"),
)

# Title of a group of commands -> the module of `commands` with their functions `add_NAME_arguments` and `run_NAME`, and
# the commands.
GROUPS: dict[str, tuple[str, tuple[Command, ...]]] = {
    "train and compare": (
        "training",
        (
            Command("train", "train a model on a table of texts"),
            Command("compare", "train the models of the papers on the same texts and compare them"),
            Command("tune", "search for good options in many trials; each trial writes a run folder"),
            Command("finetune", "continue to train a run on other texts, usually few"),
            Command("mix", "fit the weights of a linear mixture of models"),
            Command("report", "write an HTML page about one or more runs"),
            Command("demo", "train models of place names, generate names and draw maps (minutes)"),
        ),
    ),
    "evaluate": (
        "evaluation",
        (
            Command("evaluate", "compute the perplexity of a table under a model"),
            Command("classify", "predict the context of each text"),
            Command("score", "compute the nats and the perplexity of each text"),
            Command("baseline", "train a baseline: an n-gram model or a classifier", BASELINES),
            Command("advise", "estimate before training how much each context column lowers the perplexity"),
            Command("rescore", "rerank a speech recognizer's n-best lists with a model"),
        ),
    ),
    "complete": (
        "completion",
        (
            Command("complete", "suggest the most probable texts that begin with a prefix"),
            Command("tune-online", "choose how a run learns from new users, using texts of held-out users"),
            Command("replay", "evaluate completion on a log: complete and learn its texts in order of time"),
        ),
    ),
    "serve": (
        "serving",
        (
            Command("serve", "complete texts over HTTP; store and learn the texts that users accept"),
            Command("users", "show, export, import and delete stored users; create server keys", USERS),
            Command("export", "write a Transformer in one context for PEFT, transformers or llama.cpp"),
        ),
    ),
    "generate": ("generation", (Command("generate", "generate texts for a context"),)),
    "explain": (
        "explaining",
        (
            Command("explain", "show which tokens of a text make one context more probable than another"),
            Command("contexts", "show what a run learned about contexts: neighbours, words, maps"),
        ),
    ),
}
ROOT_COMMAND = Command(PROG, ABOUT, tuple(command for _, commands in GROUPS.values() for command in commands))
RESUME_HINT = "; repeat the command with --resume to continue"
CHECKPOINT_RESUME_HINT = f"{RESUME_HINT} from the last checkpoint, if there is one"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code.

    `words` are the words after the name of the program, by default those of this process.
    """
    if "_ARGCOMPLETE" in os.environ:
        complete()
    try:
        terminal.prepare_streams()
        try:
            return _run_command_line(sys.argv[1:] if words is None else words)
        finally:
            sys.stdout.flush()  # an error of writing the buffered output is reported below
    except BrokenPipeError:  # the process that reads the results has ended
        terminal.discard_output()
        return 0
    except (UserError, OSError) as error:
        terminal.discard_output()
        message = error.as_command() if isinstance(error, UserError) else _describe(error)
        terminal.notify(f"{PROG}: {message}")
        return 2


def _describe(error: OSError) -> str:
    return f"{error.filename or 'reading or writing failed'}: {error.strerror or error}"


def _run_command_line(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; of all errors, handle only an interrupt."""
    arguments = argparse.Namespace()
    try:
        commands = find_commands(words)
        words_after_commands = words[len(commands) - 1 :]  # `words` do not contain the root command
        if commands[-1].subcommands:
            return _handle_incomplete_line(commands, words_after_commands)
        arguments = make_parser(commands, words).parse(words_after_commands)
        with terminal.logging_to_standard_error(arguments.verbose):
            options.set_threads(getattr(arguments, "threads", 0))
            if getattr(arguments, "max_memory", None) is not None:
                os.environ[LIMIT_VARIABLE] = str(arguments.max_memory)  # also for child processes
            find_function(commands, "run_{}")(arguments)
    except KeyboardInterrupt as stop:  # `stop` has a message if the command has saved its progress
        default_hint = RESUME_HINT if str(stop) else CHECKPOINT_RESUME_HINT
        hint = getattr(arguments, "resume_hint", default_hint if hasattr(arguments, "resume") else "")
        terminal.notify("", f"{str(stop) or 'stopped'}{hint}")
        return INTERRUPTED_EXIT_CODE
    return 0


def find_commands(words: Iterable[str]) -> list[Command]:
    """Return the root command, followed by the command and the subcommand that `words` begin with."""
    commands = [ROOT_COMMAND]
    for word in words:
        next_command = next((command for command in commands[-1].subcommands if command.name == word), None)
        if next_command is None:
            break
        commands.append(next_command)
    return commands


def make_parser(commands: Sequence[Command], words: Sequence[str] = ()) -> Parser:
    """Return the parser of the last of `commands`, which begin with the root command.

    Parsers of trainings have the options of the kinds of tokenizer, backbone and head that `words` select.
    """
    command_parser = Parser(_join_names(commands), commands[-1].summary, words)
    find_function(commands, "add_{}_arguments")(command_parser)
    help_text = "print details, and all warnings instead of the one that can mislead most"
    command_parser.add_argument("--verbose", action="store_true", help=help_text)
    return command_parser


def _join_names(commands: Sequence[Command]) -> str:
    return " ".join(command.name for command in commands)


def find_function(commands: Sequence[Command], pattern: str) -> Callable[[Any], None]:
    """Return a function of the last of `commands`; `{}` in its name stands for the words, such as `baseline_ngram`."""
    module_name = next(module for module, group in GROUPS.values() if commands[1] in group)
    words = "_".join(command.name.replace("-", "_") for command in commands[1:])
    function: Callable[[Any], None] = getattr(
        importlib.import_module(f"factorcell.commands.{module_name}"), pattern.format(words)
    )
    return function


def _handle_incomplete_line(commands: Sequence[Command], words: Sequence[str]) -> int:
    """Print the version or the commands that can follow a line which ends before its command; return the exit code.

    `words` follow `commands` on the line; an unknown word ends the process with a message.
    """
    prog, last_command = _join_names(commands), commands[-1]
    is_root = commands == [ROOT_COMMAND]
    if words and words[0] == "--version" and is_root:
        terminal.show(f"{PROG} {importlib.import_module('factorcell.io.extras').__version__}")
        return 0
    if words and words[0] not in ("-h", *parser.HELP_FLAGS):
        kind = "option" if words[0].startswith("-") else "command"
        hint = nearest_hint(words[0], [command.name for command in last_command.subcommands])
        parser.fail(prog, f"unknown {kind} {words[0]!r}{hint}")
    groups = [(title, group) for title, (_, group) in GROUPS.items()] if is_root else [("", last_command.subcommands)]
    terminal.show_help(f"usage: {prog} COMMAND [options]\n\n{last_command.summary}\n")
    for title, subcommands in groups:
        rows = ((command.name, command.summary) for command in subcommands)
        terminal.show_help(parser.format_list(title, rows, name_width=16) + "\n")
    terminal.show(f"{prog} COMMAND --help shows the options of a command.")
    if is_root:
        terminal.show(f"{prog} --version shows the version.")
    return 0 if words else 2


def complete() -> NoReturn:
    """Send the shell the words that can come next on the command line, and end the process.

    After `eval "$(register-python-argcomplete factorcell)"`, the shell starts this program with the line typed so far
    whenever the user presses Tab.
    """
    import argcomplete
    from argcomplete.lexers import split_line

    program_word_count = int(os.environ["_ARGCOMPLETE"])  # words before the arguments: 1 for `factorcell`
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    # The list begins with the root command, which is not among the words.
    commands = find_commands(words[program_word_count:])
    # The parser is that of the last command, so argcomplete has to skip the commands as it skips the program.
    os.environ["_ARGCOMPLETE"] = str(program_word_count + len(commands) - 1)
    last_command = commands[-1]
    if last_command.subcommands:
        command_parser = Parser(last_command.name, last_command.summary)
        command_parser.add_argument("command", choices=[command.name for command in last_command.subcommands])
    else:
        command_parser = make_parser(commands)
    for action in command_parser.actions:
        action.completer = _completer(str(action.metavar or ""), action.type)  # type: ignore[attr-defined]
    argcomplete.autocomplete(command_parser.to_argparse())
    raise AssertionError("argcomplete ends the process")


def _completer(metavar: str, value_type: Any) -> Callable[..., Iterable[str]]:
    """Return the completer for an argument: it suggests folders, files, the choices in `metavar`, or nothing."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    if metavar in ("RUN", "FOLDER"):
        return DirectoriesCompleter()
    if value_type is Path or metavar in ("FILE", "HTML"):
        return FilesCompleter()
    choices = metavar[1:-1].split(",") if metavar.startswith("{") else []
    return lambda **_: choices
