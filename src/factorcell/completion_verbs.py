"""The verbs of completion."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell import options, screen
from factorcell.assistant import Assistant
from factorcell.blend import SOURCES
from factorcell.completer import Suggestions
from factorcell.config import UserError
from factorcell.online import User
from factorcell.run import Run

RISEN = 1500  # popular texts that are compared before and after a history (thesis 2018, section 5.4.2)


def add(verbs: Any) -> None:
    """Add the verbs to those of the command line."""
    verb = options.verb(verbs, "complete", complete, "the best texts that begin with a prefix, for one person")
    verb.add_argument("run", type=Path, metavar="RUN", help="the run folder, of unit char or grapheme")
    verb.add_argument("prefix", metavar="PREFIX", nargs="?", help="what is typed so far (default: in the terminal)")
    verb.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a context column (repeatable; one that is not given is expected)",
    )
    verb.add_argument("--history", metavar="TEXT;TEXT", help="what the person wrote before, learned in order")
    verb.add_argument("--explain", action="store_true", help="what each source adds, and what the history has changed")
    verb.add_argument("--count", type=int, default=10, help="texts to suggest (default: 10)")
    verb.add_argument("--seconds", type=float, help="time after which the best so far will do")
    options.computing(verb)


def complete(given: argparse.Namespace) -> None:
    """`factorcell complete`."""
    run = Run.open(given.run, device=given.device, precision=given.precision)
    assistant, context = Assistant.of(run, given.unknown, given.seconds), _context(given.context)
    user = (
        None if assistant.learner is None or assistant.learner.variable.source in context else assistant.learner.new()
    )
    user = _told(assistant, user, given.history)
    if given.prefix is None:
        return _talk(assistant, user, context, given.count)
    written = assistant.completer.type(assistant.completer.begin(user, context), given.prefix)
    found = assistant.suggest(written, user, given.count)
    risen = _risen(assistant, user, given.count) if given.explain else []
    return _show(found, risen, given)


def _somebody(assistant: Assistant, context: Mapping[str, str]) -> User | None:
    """A new user, unless the run tells none apart or the context names one."""
    learner = assistant.learner
    return None if learner is None or learner.variable.source in context else learner.new()


def _told(assistant: Assistant, user: User | None, history: str | None) -> User | None:
    """The user after the texts of a history."""
    if history is None:
        return user
    if user is None:
        raise UserError("--history is for a new user: it takes a run with --user, and no --context that names one")
    for text in filter(None, map(str.strip, history.split(";"))):
        user = assistant.learn(user, text)
    return user


def _risen(assistant: Assistant, user: User | None, count: int) -> list[tuple[str, float]]:
    """The popular texts that the history has made more likely."""
    if (
        assistant.learner is None
        or user is None
        or not user.seen
        or assistant.blend is None
        or not assistant.blend.popularity
    ):
        return []
    return assistant.learner.risen(user, assistant.blend.popularity.top(RISEN), count)


def _show(found: Suggestions, risen: Sequence[tuple[str, float]], given: argparse.Namespace) -> None:
    if found.cut:
        screen.say(f"cut after {found.rows:,} hypotheses: there may be better ones")
    rows = [dataclasses.asdict(suggestion) for suggestion in found.suggestions]
    if given.json:
        return screen.lines([*rows, *({"risen": text, "nats": nats} for text, nats in risen)])
    if not rows:
        return screen.say("no completion")
    shown = [
        {
            "text": screen.visible(row["text"]),
            "probability": f"{math.exp(row['log_probability']):.4f}",
            **({name: f"{row['parts'][name]:+.2f}" for name in row["parts"]} if given.explain else {}),
        }
        for row in rows
    ]
    screen.table(shown, ("text", "probability", *SOURCES))
    if risen:
        screen.show("\nmost risen among the popular texts, in nats")
        screen.table([{"text": screen.visible(text), "nats": f"{nats:+.2f}"} for text, nats in risen], ("text", "nats"))
    return None


def _talk(assistant: Assistant, user: User | None, context: dict[str, str], count: int) -> None:
    if not sys.stdin.isatty():
        raise UserError("no PREFIX is given, and the input is no terminal to type in")
    try:
        from factorcell.interactive import Menu, talk
    except ModuleNotFoundError as error:
        if error.name != "prompt_toolkit":
            raise
        raise UserError("typing in the terminal needs prompt-toolkit: pip install 'factorcell[complete]'") from None
    screen.say("Type; Tab and the arrows choose, Enter accepts and learns, Ctrl-D ends.")
    talk(Menu(assistant, user, context, count))


def _context(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` of every column."""
    context: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"--context {text!r}: it must be NAME=VALUE")
        if name in context:
            raise UserError(f"--context {name} is given twice")
        context[name] = value
    return context
