"""Output of commands: results on standard output, as text, tables or rows of JSON; notices on standard error.

All output to a terminal passes through this module. It escapes control characters and other hidden characters, so that
no text, name or message can control the terminal, or look like a line that a command prints. Text of the type `Styled`
is already escaped and may contain colours.
"""

import codecs
import io
import logging
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from factorcell.errors import UserError
from factorcell.io import findings
from factorcell.io.findings import LOG, Finding
from factorcell.io.output import align_columns, escape_hidden, escape_hidden_json, to_json

SMALLEST_PROBABILITY = 1e-300  # smaller probabilities are printed as <1e-300; floats below 2.2e-308 lose precision

Row = dict[str, Any]


def prepare_streams() -> None:
    """Make the standard streams accept any text: characters that a stream cannot encode are escaped.

    If the locale specifies no encoding (the locale C), output is encoded in UTF-8, as files are. Raise a `UserError`
    if standard output is closed.
    """
    is_output_closed = sys.stdout is None
    # Without replacements for closed streams, a file that is opened later would become a standard stream.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            is_unspecified = is_ascii and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if is_unspecified else None, errors="backslashreplace")
    if is_output_closed:
        raise UserError("standard output is closed: results would be lost")


def discard_output() -> None:
    """Discard buffered standard output; otherwise Python would try to write it again when the process exits."""
    with suppress(OSError, ValueError):
        null_descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_descriptor, sys.stdout.fileno())
        os.close(null_descriptor)


def has_colours(stream: TextIO) -> bool:
    """Return whether `stream` shows colours: as NO_COLOR or FORCE_COLOR specify, or else whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


class Styled(str):
    """Text with escape sequences for colours; its hidden characters are already escaped."""

    __slots__ = ()


def coloured(text: str, codes: str) -> Styled:
    """Return `text` with the terminal attributes `codes` (SGR, such as "1" for bold)."""
    return Styled(f"\x1b[{codes}m{escape_hidden(text)}\x1b[0m")


def join(gap: str, parts: Sequence[str]) -> Styled:
    """Join texts, styled or not, with `gap` between them."""
    return Styled(escape_hidden(gap).join(map(_safe, parts)))


def show(*lines: str) -> None:
    """Print lines of the result."""
    for line in lines:
        print(_safe(line))


def show_fields(*cells: str) -> None:
    """Print a line of the result with tabs between its cells."""
    print("\t".join(map(_safe, cells)))


def show_part(text: str, before: str = "") -> None:
    """Print the next part of a line of the result immediately; `before` is the part printed before it."""
    print(escape_hidden(before + text)[len(escape_hidden(before)) :], end="", flush=True)


def notify(*lines: str) -> None:
    """Print notices on standard error, so that they do not mix with results."""
    for line in lines:
        print(_safe(line), file=sys.stderr, flush=True)


def show_json(rows: Sequence[Row]) -> None:
    """Print rows as lines of JSON with hidden characters escaped."""
    is_utf_8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"  # other encodings get JSON in ASCII
    for row in rows:
        print(escape_hidden_json(to_json(row, ensure_ascii=not is_utf_8)))


def _safe(text: str) -> str:
    return text if isinstance(text, Styled) else escape_hidden(text)


class FindingHandler(logging.Handler):
    """Prints log records; of findings, only the one that can mislead most, at `flush`, unless `verbose` is set."""

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.verbose, self.is_in_block, self.findings = verbose, False, list[Finding]()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record, or collect its finding."""
        finding: Finding | None = getattr(record, "finding", None)
        self.is_in_block |= hasattr(record, "label")
        if finding is None or self.verbose:
            self._print(record.getMessage(), is_warning=finding is not None)
        else:
            self.findings.append(finding)

    def flush(self) -> None:
        """Print the finding that can mislead most and the number of the others, and forget them."""
        if self.findings:
            first = min(self.findings, key=lambda finding: finding.rank)
            others = f" ({len(self.findings) - 1} more with --verbose)" if len(self.findings) > 1 else ""
            self._print(f"{first.text}{others}", is_warning=True)
        self.findings.clear()

    def _print(self, line: str, is_warning: bool) -> None:
        """Print a line, wrapped to the width of the terminal if it belongs to a block; a block labels its warnings."""
        if is_warning:
            line = findings.format_fact("warning", line) if self.is_in_block else f"warning: {line}"
        lines = [line]
        if self.is_in_block and sys.stderr.isatty():
            indent = " " * len(findings.format_fact("", ""))
            lines = textwrap.wrap(line, shutil.get_terminal_size().columns - 1, subsequent_indent=indent) or [line]
        notify(*lines)


@contextmanager
def logging_to_standard_error(verbose: bool) -> Iterator[None]:
    """Print log records and Python warnings on standard error; print findings at the end, unless there is an error."""
    handler, level, show_warning = FindingHandler(verbose), LOG.level, warnings.showwarning
    LOG.addHandler(handler)
    LOG.setLevel(logging.DEBUG if verbose else logging.INFO)
    warnings.showwarning = lambda message, category, *_: LOG.warning("%s: %s", category.__name__, message)
    findings.log_once.cache_clear()  # several commands in a process, as in tests, are independent
    try:
        yield
        handler.flush()
    finally:
        handler.findings.clear()
        warnings.showwarning = show_warning
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print rows as an aligned table; columns for which no row has a value are left out."""
    columns = [column for column in columns if any(row.get(column) is not None for row in rows)]
    if not columns:
        return
    # A title of several words, such as "gain over runs/my_run", is already one that people read.
    header = [column if " " in column else column.replace("_", " ") for column in columns]
    lines = [[_format_cell(column, row.get(column)) for column in columns] for row in rows]
    show(*align_columns([header, *lines]))


def _format_cell(column: str, value: Any) -> str:
    if value is None or value != value:  # NaN
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if column == "gain":
            return f"{value:+z.1%}"
        return f"{value:z.4f}" if column in ("accuracy", "precision", "recall", "f1", "auc") else f"{value:z.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_probability(value: float) -> str:
    """Return a probability with two significant digits: 0.34, 0.0022, 3.1e-07."""
    return f"{value:#.2g}" if value >= SMALLEST_PROBABILITY else f"<{SMALLEST_PROBABILITY:g}"


def format_interval(row: Mapping[str, Any], name: str) -> str:
    """Return a figure of a row with its interval, if it has one."""
    from factorcell.bootstrap import format_ends

    low, high = (row.get(f"{name}_{end}") for end in ("low", "high"))
    return f"{row[name]:.4f}" + ("" if low is None or high is None else f" {format_ends(low, high, '.4f')}")


def format_difference(row: Mapping[str, Any], name: str, number_format: str = ".4f", scale: float = 1.0) -> str:
    """Return a difference in a row with its interval, if it has one; a dash if the row has no such figure."""
    from factorcell.bootstrap import Interval

    difference = Interval.from_row(row, name)
    return "-" if difference is None else difference.to_text(number_format, scale)
