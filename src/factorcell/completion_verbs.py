"""The verbs of completion."""

import argparse
import dataclasses
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import options, screen
from factorcell.completer import Completer
from factorcell.config import UserError
from factorcell.run import Run


def add(verbs: Any) -> None:
    """Add the verbs to those of the command line."""
    verb = options.verb(verbs, "complete", complete, "the most probable texts that begin with a prefix")
    verb.add_argument("run", type=Path, metavar="RUN", help="the run folder, of unit char or grapheme")
    verb.add_argument("prefix", metavar="PREFIX", help="what is typed so far; may be empty")
    verb.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a context column (repeatable; one that is not given is expected)",
    )
    verb.add_argument("--count", type=int, default=10, help="texts to suggest (default: 10)")
    verb.add_argument("--seconds", type=float, help="time after which the best so far will do")
    verb.add_argument("--slips", type=int, default=0, help="typing errors to forgive, 0 to 2 (default: 0)")
    options.computing(verb)


def complete(given: argparse.Namespace) -> None:
    """`factorcell complete`."""
    run = Run.open(given.run, device=given.device, precision=given.precision)
    completer = Completer(run, unknown=given.unknown, seconds=given.seconds, slips=given.slips)
    written = completer.type(completer.begin(_context(given.context)), given.prefix)
    found = completer.suggest(written, given.count)
    if found.cut:
        screen.say(f"cut after {found.rows:,} hypotheses: there may be better ones")
    rows = [dataclasses.asdict(suggestion) for suggestion in found.suggestions]
    if given.json:
        return screen.lines(rows)
    if not rows:
        return screen.say("no completion")
    shown = [
        {
            "text": _visible(row["text"]),
            "probability": f"{math.exp(row['log_probability']):.4f}",
            "slips": row["slips"] or None,
        }
        for row in rows
    ]
    return screen.table(shown, ("text", "probability", "slips"))


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


def _visible(text: str) -> str:
    """`text` with control characters written out, so that it cannot steer a terminal."""
    return "".join(repr(mark)[1:-1] if unicodedata.category(mark) == "Cc" else mark for mark in text)
