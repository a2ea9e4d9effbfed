"""The command line: it finds the command in a table and imports only the modules of this command.

After a user error or an error of the operating system, the exit code is 2 and standard error has one line about it.
After an interrupt, the exit code is 130.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from factorcell.commands import options, parser, streams, terminal
from factorcell.commands.parser import Parser
from factorcell.interrupts import INTERRUPTED_EXIT_CODE
from factorcell.limits import UserError, nearest_hint

PROG, ABOUT = "factorcell", "Language models that adapt to context."


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        name: The word that selects the command.
        summary: One line for the list of commands.
        module: The module of `factorcell.commands` with the function `run_NAME`, or `run_NAME_SUBCOMMAND`.
        subcommands: The commands one of which must follow; such a command has no function.
    """

    name: str
    summary: str
    module: str = ""
    subcommands: tuple["Command", ...] = ()


BASELINES = (
    Command("ngram", "n-gram model (modified Kneser-Ney) for `evaluate`", "baselines"),
    Command("bayes", "naive Bayes classifier: one unigram model per value", "baselines"),
    Command("linear", "logistic regression on hashed n-grams", "baselines"),
    Command("fasttext", "fastText classifier (requires the extra `fasttext`)", "baselines"),
)

USERS = (
    Command("list", "print the ids of all stored users", "users"),
    Command("show", "print the stored texts of a user", "users"),
    Command("export", "print all data that users entered, one line of JSON per user", "users"),
    Command("import", "store users from the output of export", "users"),
    Command("forget", "delete a text of a user and everything learned from it", "users"),
    Command("delete", "delete users and all their data", "users"),
    Command("migrate", "let a run learn the texts of all stored users now, not at their next request", "users"),
    Command("key", "create a server key, store its hash in a file and print the key", "users"),
)

# For each group of commands by its title: the module of `commands.arguments` for their arguments, and the commands.
GROUPS: dict[str, tuple[str, tuple[Command, ...]]] = {
    "train and compare": (
        "training",
        (
            Command("train", "train a model on a table of texts", "training"),
            Command("compare", "train the models of the papers on the same texts and compare them", "training"),
            Command("tune", "search for good options in many trials; each trial writes a run folder", "training"),
            Command("finetune", "continue to train a run on other texts, usually few", "finetuning"),
            Command("separate", "train one unadapted model for each value of a column", "finetuning"),
            Command("mix", "fit the weights of a linear mixture of models", "finetuning"),
            Command("report", "write an HTML page about one or more runs", "training"),
            Command("check", "check that the files of a run folder are complete and unchanged", "training"),
            Command("demo", "train models of place names, generate names and draw maps (minutes)", "demo"),
        ),
    ),
    "evaluate": (
        "evaluation",
        (
            Command("evaluate", "compute the perplexity of a table under a model", "evaluation"),
            Command("classify", "predict the context of each text", "evaluation"),
            Command("score", "compute the nats and the perplexity of each text", "evaluation"),
            Command("baseline", "train a baseline: an n-gram model or a classifier", "", BASELINES),
            Command("audit", "measure memorization: the exposure of planted random texts (canaries)", "audit"),
            Command("advise", "estimate before training how much each context column lowers the perplexity", "advice"),
            Command("rescore", "rerank a speech recognizer's n-best lists with a model", "rescoring"),
        ),
    ),
    "complete": (
        "completion",
        (
            Command("complete", "suggest the most probable texts that begin with a prefix", "completion"),
            Command(
                "tune-online", "choose how a run learns from new users, using texts of held-out users", "completion"
            ),
            Command(
                "replay", "evaluate completion on a log: complete, score and learn its texts in order of time", "replay"
            ),
        ),
    ),
    "serve": (
        "serving",
        (
            Command("serve", "complete texts over HTTP; store and learn the texts that users accept", "serving"),
            Command("users", "show, export, import and delete stored users; create server keys", "", USERS),
        ),
    ),
    "generate": (
        "generation",
        (Command("generate", "generate texts for a context", "generation"),),
    ),
    "explain": (
        "explanation",
        (
            Command("explain", "show which tokens of a text make one context more probable than another", "explain"),
            Command("contexts", "show what a run learned about contexts: neighbours, words, maps", "embeddings"),
        ),
    ),
}
ROOT_COMMAND = Command(PROG, ABOUT, "", tuple(command for _, commands in GROUPS.values() for command in commands))
RESUME_FROM_STOP = "; repeat the command with --resume to continue"
RESUME_FROM_CHECKPOINT = "; repeat the command with --resume to continue from the last checkpoint, if there is one"
# The module of `commands.arguments` for each command.
ARGUMENTS = {command.name: module for module, commands in GROUPS.values() for command in commands}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code; `words` exclude the program."""
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("factorcell.commands.shell").complete()
    try:
        streams.prepare()
        try:
            return _main(sys.argv[1:] if words is None else words)
        finally:
            sys.stdout.flush()  # while an error can still be reported
    except BrokenPipeError:  # the process that reads the results has ended
        streams.discard_output()
        return 0
    except (UserError, OSError) as error:
        streams.discard_output()
        line = streams.describe_os_error(error) if isinstance(error, OSError) else error.as_command()
        terminal.notify(f"{PROG}: {line}")
        return 2


def _main(words: Sequence[str]) -> int:
    """Run a command line and return its exit code, also after an interrupt; other errors are raised."""
    arguments = argparse.Namespace()
    try:
        path = find_commands(words)
        if path[-1].subcommands:
            return _without_command(path, words[len(path) - 1 :])
        arguments = make_parser(path, words).parse(words[len(path) - 1 :])
        _run(path, arguments)
    except KeyboardInterrupt as stop:  # a message says that the work saved its progress
        resume = RESUME_FROM_STOP if str(stop) else RESUME_FROM_CHECKPOINT
        resume = getattr(arguments, "resume_hint", resume if hasattr(arguments, "resume") else "")
        terminal.notify("", f"{str(stop) or 'stopped'}{resume}")
        return INTERRUPTED_EXIT_CODE
    return 0


def find_commands(words: Iterable[str]) -> list[Command]:
    """Return the root command, followed by the command and the subcommand that `words` begin with."""
    path = [ROOT_COMMAND]
    for word in words:
        match = next((command for command in path[-1].subcommands if command.name == word), None)
        if match is None:
            break
        path.append(match)
    return path


def make_parser(path: Sequence[Command], words: Sequence[str] = ()) -> Parser:
    """Return the parser of the last command of `path`.

    The parser has the options of the kinds of tokenizer, backbone and head that `words` select.
    """
    module = importlib.import_module(f"factorcell.commands.arguments.{ARGUMENTS[path[1].name]}")
    command_parser = Parser(
        " ".join(command.name for command in path), path[-1].summary, options.kinds_from_words(words)
    )
    getattr(module, _function_name(path))(command_parser)
    return command_parser


def _function_name(path: Sequence[Command]) -> str:
    """Return the Python name of the last command of a path: `baseline_ngram` for `baseline ngram`."""
    return "_".join(command.name.replace("-", "_") for command in path[1:])


def _without_command(path: Sequence[Command], words: Sequence[str]) -> int:
    """Handle a command line that ends before its command, and return the exit code.

    `words` follow the commands of `path`. Show the list of commands, or the version for --version; an unknown word
    ends the process with a message.
    """
    prog, names = " ".join(command.name for command in path), [command.name for command in path[-1].subcommands]
    if words and words[0] == "--version" and path == [ROOT_COMMAND]:
        terminal.show(f"{PROG} {importlib.import_module('factorcell.version').__version__}")
        return 0
    if words and words[0] not in ("-h", "--help"):
        kind = "option" if words[0].startswith("-") else "command"
        parser.fail(prog, f"unknown {kind} {words[0]!r}{nearest_hint(words[0], names)}")
    groups = {"": path[-1].subcommands} if len(path) > 1 else {title: group for title, (_, group) in GROUPS.items()}
    terminal.show_help(f"usage: {prog} COMMAND [options]\n\n{path[-1].summary}\n")
    for title, commands in groups.items():
        rows = ((command.name, command.summary) for command in commands)
        terminal.show_help(parser.format_list(title, rows, left=16) + "\n")
    terminal.show(f"{prog} COMMAND --help shows the options of a command.")
    if path == [ROOT_COMMAND]:
        terminal.show(f"{prog} --version shows the version.")
    return 0 if words else 2


def _run(path: Sequence[Command], arguments: argparse.Namespace) -> None:
    """Call the function of the last command of a path, within the limits on threads and memory in `arguments`."""
    run = getattr(importlib.import_module(f"factorcell.commands.{path[-1].module}"), f"run_{_function_name(path)}")
    with terminal.warnings_as_notices():
        options.set_threads(getattr(arguments, "threads", 0))
        options.set_max_memory(getattr(arguments, "max_memory", None))
        run(arguments)
        terminal.notify(*getattr(arguments, "precision_notice", ()))
