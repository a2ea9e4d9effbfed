"""The command line: a table of verbs, of which only the one that is asked for is imported.

Exit code 2 and one line for a user's mistake or what the system refuses, 130 for one who stops.
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
    """A word of the command line, what it does, and which module of this package has its function `run_NAME`.

    A verb of several `kinds` is followed by one of them, whose function is `run_NAME_KIND`.
    """

    name: str
    summary: str
    module: str = ""
    subcommands: tuple["Command", ...] = ()


KINDS = (
    Command("ngram", "an n-gram model (modified Kneser-Ney) for `evaluate`", "baselines"),
    Command("bayes", "naive Bayes: a unigram model of every value", "baselines"),
    Command("linear", "logistic regression on hashed n-grams", "baselines"),
    Command("fasttext", "fastText (extra `fasttext`)", "baselines"),
)

USERS = (
    Command("list", "the ids of all who are kept", "users"),
    Command("show", "all that is kept of a person", "users"),
    Command("export", "all that people gave, a line of JSON each", "users"),
    Command("import", "keep people as they were exported", "users"),
    Command("forget", "delete a text of a person, and what was learned of it", "users"),
    Command("delete", "delete people", "users"),
    Command("migrate", "have a run learn everybody now, not one by one as they come", "users"),
    Command("key", "add a key to a file of keys, and print it", "users"),
)

# The heading of a group of verbs: the module of `arguments` that says what they take, and the verbs.
GROUPS: dict[str, tuple[str, tuple[Command, ...]]] = {
    "train and compare": (
        "training",
        (
            Command("train", "train a model on a table of texts", "training"),
            Command("compare", "train the papers' models side by side on the same texts", "training"),
            Command("tune", "search for good options: many trials, each a run folder", "training"),
            Command("finetune", "train a run further on few texts", "finetuning"),
            Command("separate", "train an unadapted run for each value of a column", "finetuning"),
            Command("mix", "fit the weights of a linear mixture of runs", "finetuning"),
            Command("report", "one page about one or more runs", "training"),
            Command("check", "is a run folder as it was written? a line per file", "training"),
            Command("demo", "place names of the world: train, classify, invent, draw (minutes)", "demo"),
        ),
    ),
    "judge": (
        "judging",
        (
            Command("evaluate", "perplexity of a table; RUN may be what separate or mix made", "judging"),
            Command("classify", "which context does each text have?", "judging"),
            Command("score", "nats and perplexity of each text", "judging"),
            Command("baseline", "what a context model is held against: an n-gram model, classifiers", "", KINDS),
            Command("audit", "what a run memorised of planted texts: the exposure of canaries", "audit"),
            Command("advise", "what each context column could save, before any training", "advice"),
            Command("rescore", "choose anew from a recogniser's n-best lists, in context", "rescoring"),
        ),
    ),
    "complete": (
        "completing",
        (
            Command("complete", "the best texts that begin with a prefix, for one person", "completion"),
            Command("tune-online", "how the users of a run should learn, on people held out", "completion"),
            Command("replay", "complete what users wrote, in order of time: predict, judge, learn", "replay"),
        ),
    ),
    "serve": (
        "serving",
        (
            Command("serve", "complete for people over HTTP, learn what they accept, keep it", "serving"),
            Command("users", "people who are kept: show, export, forget; keys of the server", "", USERS),
        ),
    ),
    "write": (
        "writing",
        (Command("generate", "texts that fit a context", "generation"),),
    ),
    "explain": (
        "explaining",
        (
            Command("explain", "which tokens of a text speak for one context and which for another", "explain"),
            Command("contexts", "what a run has learned about contexts: neighbours, words, maps", "embeddings"),
        ),
    ),
}
ROOT_COMMAND = Command(PROG, ABOUT, "", tuple(verb for _, verbs in GROUPS.values() for verb in verbs))
LATER = "; the same command with --resume goes on from the last checkpoint, if there is one"
ARGUMENTS = {verb.name: module for module, verbs in GROUPS.values() for verb in verbs}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("factorcell.commands.shell").complete()
    try:
        streams.prepare()
        try:
            return _main(sys.argv[1:] if words is None else words)
        finally:
            sys.stdout.flush()  # while an error can be reported
    except BrokenPipeError:  # the reader of the results has ended
        streams.discard_output()
        return 0
    except (UserError, OSError) as error:
        streams.discard_output()
        line = streams.describe_os_error(error) if isinstance(error, OSError) else error.as_command()
        terminal.notify(f"{PROG}: {line}")
        return 2


def _main(words: Sequence[str]) -> int:
    given = argparse.Namespace()
    try:
        path = find_commands(words)
        if path[-1].subcommands:
            return _without_verb(path, words[len(path) - 1 :])
        given = make_parser(path, words).parse(words[len(path) - 1 :])
        _run(path, given)
    except KeyboardInterrupt as stop:
        resume = "; the same command with --resume goes on from there" if str(stop) else LATER
        resume = getattr(given, "again", resume if hasattr(given, "resume") else "")
        terminal.notify("", f"{str(stop) or 'stopped'}{resume}")
        return INTERRUPTED_EXIT_CODE
    return 0


def find_commands(words: Iterable[str]) -> list[Command]:
    """All verbs, then those that `words` begin with, each a kind of the one before."""
    path = [ROOT_COMMAND]
    for word in words:
        found = next((verb for verb in path[-1].subcommands if verb.name == word), None)
        if found is None:
            break
        path.append(found)
    return path


def make_parser(path: Sequence[Command], words: Sequence[str] = ()) -> Parser:
    """Return the parser of the last verb of a path; it knows the options of the kinds that `words` name."""
    module = importlib.import_module(f"factorcell.commands.arguments.{ARGUMENTS[path[1].name]}")
    made = Parser(" ".join(verb.name for verb in path), path[-1].summary, options.kinds_from_words(words))
    getattr(module, _named(path))(made)
    return made


def _named(path: Sequence[Command]) -> str:
    """What a verb is called in Python, with the verb that it is a kind of."""
    return "_".join(verb.name.replace("-", "_") for verb in path[1:])


def _without_verb(path: Sequence[Command], words: Sequence[str]) -> int:
    """Show the verbs, if that or nothing is asked for; otherwise report the unknown word."""
    prog, names = " ".join(verb.name for verb in path), [verb.name for verb in path[-1].subcommands]
    if words and words[0] == "--version" and path == [ROOT_COMMAND]:
        terminal.show(f"{PROG} {importlib.import_module('factorcell.version').__version__}")
        return 0
    if words and words[0] not in ("-h", "--help"):
        kind = "option" if words[0].startswith("-") else "verb"
        parser.fail(prog, f"unknown {kind} {words[0]!r}{nearest_hint(words[0], names)}")
    groups = {"": path[-1].subcommands} if len(path) > 1 else {title: verbs for title, (_, verbs) in GROUPS.items()}
    terminal.show_help(f"usage: {prog} VERB [options]\n\n{path[-1].summary}\n")
    for title, verbs in groups.items():
        terminal.show_help(parser.format_list(title, ((verb.name, verb.summary) for verb in verbs), left=16) + "\n")
    terminal.show(f"{prog} VERB --help lists the options of a verb.")
    if path == [ROOT_COMMAND]:
        terminal.show(f"{prog} --version says which version this is.")
    return 0 if words else 2


def _run(path: Sequence[Command], given: argparse.Namespace) -> None:
    """Call the function of the last verb of a path."""
    run = getattr(importlib.import_module(f"factorcell.commands.{path[-1].module}"), f"run_{_named(path)}")
    with terminal.warnings_as_notices():
        options.set_threads(getattr(given, "threads", 0))
        options.set_max_memory(getattr(given, "max_memory", None))
        run(given)
        terminal.notify(*getattr(given, "computed", ()))
