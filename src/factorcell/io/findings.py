"""Findings: sentences about what may mislead, with its cause and a remedy.

The logger `factorcell` is the only channel for remarks. Facts about the progress of a command or a function have the
level INFO; details, such as chosen options, have the level DEBUG. Findings have the level WARNING, which Python shows
unless `logging` is configured otherwise. A process logs equal findings only once.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from factorcell.io.output import escape_hidden

LOG = logging.getLogger("factorcell")
LABEL_WIDTH = 12
Fact = tuple[str, str]  # a label and a text
NAMES = (  # of all findings, from those that can mislead most to those that can mislead least
    *(
        "column kind",
        "dependent columns",
        "repeated texts",
        "unfinished",
        "undertrained",
        "other base",
        "unread context",
        "no effect",
    ),
    *("weak model", "unknown users", "column without effect", "uninformative column"),
    *("more errors", "unknown words", "outlier", "outside range", "unseen values", "reserved names"),
    *("quotes", "no evidence", "cut texts", "missing values", "empty texts", "lost bias"),
)


def _escape(record: logging.LogRecord) -> bool:
    """Escape hidden characters, such as those of file names and values, which could control a terminal."""
    record.msg, record.args = escape_hidden(record.getMessage()), ()
    return True


LOG.addFilter(_escape)


@dataclass(frozen=True)
class Finding:
    """A sentence, `text`, about something that may mislead; the `name` is one of `NAMES`."""

    name: str
    text: str

    @property
    def rank(self) -> int:
        """The position of the name in `NAMES`; a finding with a lower rank can mislead more."""
        return NAMES.index(self.name)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return different findings, those that can mislead most first."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.rank)


def format_fact(label: str, text: str) -> str:
    """Return a line with a label, aligned with the other lines of a block."""
    return f"  {label:<{LABEL_WIDTH}} {text}"


def log_facts(*facts: Fact, level: int = logging.INFO) -> None:
    """Log each fact as a line of a block, whose record has the label as the attribute `label`."""
    for label, text in facts:
        LOG.log(level, "%s", format_fact(label, text), extra={"label": label})


def report(*findings: Finding) -> None:
    """Log findings that this process has not logged before."""
    for finding in ranked(findings):
        log_once(finding)


@lru_cache(maxsize=1000)
def log_once(finding: Finding) -> None:
    """Log a finding as a warning, whose record has it as the attribute `finding`."""
    LOG.warning("%s", finding.text, extra={"finding": finding})


def show() -> None:
    """Let the handlers of the logger show the findings that they have collected, before work that takes long."""
    for handler in LOG.handlers:
        handler.flush()
