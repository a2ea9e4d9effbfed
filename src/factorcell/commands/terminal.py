"""What a command shows: aligned tables and rows of JSON on standard output, all else on standard error.

Nothing of factorcell reaches a terminal but through this module, and nothing passes it but by `visible`: no text, name
or message can steer the terminal, or add a line that looks like ours. Colours of our own are `Styled`.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from factorcell.commands import streams
from factorcell.escapes import align_columns, escape_hidden, escape_hidden_json

if TYPE_CHECKING:
    from factorcell.evaluation.bayes_rule import Classification

LEAST = 1e-300  # about the least probability that a float keeps in full

Row = dict[str, Any]


def has_colours(stream: TextIO) -> bool:
    """Whether to colour what is written to `stream`: as NO_COLOR or FORCE_COLOR say, otherwise on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


class Styled(str):
    """Text with colours of ours, in which all else has been made visible."""

    __slots__ = ()


def coloured(text: str, codes: str) -> Styled:
    """`text` in the colours of the `codes` (SGR, such as "1" for bold)."""
    return Styled(f"\x1b[{codes}m{escape_hidden(text)}\x1b[0m")


def join(gap: str, parts: Sequence[str]) -> Styled:
    """Texts, styled or not, in one line."""
    return Styled(escape_hidden(gap).join(map(_safe, parts)))


def bold(text: str) -> str:
    """A heading."""
    return coloured(text, "1") if has_colours(sys.stdout) else text


def show(*lines: str) -> None:
    """Print lines of the result."""
    for line in lines:
        print(_safe(line))


def show_fields(*cells: str) -> None:
    """A line of the result with tabs between its cells."""
    print("\t".join(map(_safe, cells)))


def show_part(text: str, before: str = "") -> None:
    """A part of a line of the result, shown at once; `before` is the part before it."""
    print(escape_hidden(before + text)[len(escape_hidden(before)) :], end="", flush=True)


def show_help(text: str) -> None:
    """Print help, which has no text of the user."""
    print(text)


def notify(*lines: str) -> None:
    """Lines to standard error, where they do not mix with results."""
    for line in lines:
        print(_safe(line), file=sys.stderr, flush=True)


def show_json(rows: Sequence[Row]) -> None:
    """Rows as lines of JSON, in which what is not visible is escaped."""
    for row in rows:
        print(escape_hidden_json(streams.to_json_line(row)))


def _safe(text: str) -> str:
    return text if isinstance(text, Styled) else escape_hidden(text)


class Log(logging.Handler):
    """Says what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        notify(record.getMessage())


@contextmanager
def warnings_as_notices() -> Iterator[None]:
    """Write warnings and log records to standard error like all other messages."""
    log, handler, shown = logging.getLogger("factorcell"), Log(logging.WARNING), warnings.showwarning
    log.addHandler(handler)
    warnings.showwarning = lambda message, category, *_: notify(f"{category.__name__}: {message}")
    try:
        yield
    finally:
        warnings.showwarning = shown
        log.removeHandler(handler)


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Rows as an aligned table; columns that no row has are left out."""
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    if not columns:
        return
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [[_cell(name, row.get(name)) for name in columns] for row in rows]
    show(*align_columns(cells))


def _cell(name: str, value: Any) -> str:
    if value is None or value != value:  # no number is no figure
        return "-"
    if isinstance(value, float):
        if name == "gain":
            return f"{value:+z.1%}"
        return f"{value:z.4f}" if name in ("accuracy", "precision", "recall", "f1", "auc") else f"{value:z.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_probability(value: float) -> str:
    """A probability to two digits, however small it is: 0.34, 0.0022, 3.1e-07."""
    return f"{value:#.2g}" if value >= LEAST else f"<{LEAST:g}"


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """A confusion matrix under the first letters of its names."""
    names = [escape_hidden(name) for name in names]
    width = max(8, *(len(name[:16]) for name in names))
    show(" " * width + "".join(f"  {name[:8]:>8}" for name in names))
    for name, line in zip(names, counts, strict=True):
        show(f"{name[:16]:<{width}}" + "".join(f"  {count:>8,}" for count in line))


def show_classification(result: "Classification", metrics: Row, as_json: bool) -> None:
    """What a classifier reached on texts that can be judged."""
    from factorcell.reports.wording import natural_order

    if as_json:
        return show_json([metrics])
    texts = f"{metrics['texts']:,} texts judged, {metrics['left_out']:,} left out"
    figures = f"accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}, mean AUC {metrics['auc']:.4f}"
    show(f"{figures} ({texts})")
    always = f"{metrics['majority_value']!r}, the most frequent value"
    show(f"{always}, has a share of {metrics['majority']:.4f}: the accuracy of always guessing it")
    if "accuracy_training_priors" in metrics:
        show(f"accuracy {metrics['accuracy_training_priors']:.4f} with --priors training")
    show(_calibration(metrics))
    if metrics.get("left_out_missing"):
        show(f"{metrics['left_out_missing']:,} left out since they have no value")
    if metrics.get("left_out_other"):
        why = "their value is no candidate: rare, never seen or not asked for"
        show(f"{metrics['left_out_other']:,} left out since {why}")
    if "perplexity" in metrics:
        show(f"perplexity {metrics['perplexity']:.2f} given the right value")
    order = natural_order(result.names) or list(range(len(result.names)))
    places = {result.names[place]: rank for rank, place in enumerate(order)}
    rows = sorted(metrics["values"], key=lambda row: places[row["value"]])
    show_table(rows, ("value", "count", "precision", "recall", "f1", "auc"))
    if len(result.names) <= 12:
        show("", "confusion (true down, predicted across)")
        counts = result.confusion()[order][:, order].tolist()
        matrix([result.names[place] for place in order], counts)
    return None


def _calibration(metrics: Row) -> str:
    """A sentence on the calibration of a classifier."""
    told = f"calibration error {metrics['calibration_error']:.4f}, {metrics['value_nats']:z.4f} nats of a true value"
    if "temperature" not in metrics:
        return told
    before = f"{metrics['calibration_error_at_1']:.4f} and {metrics['value_nats_at_1']:z.4f} without"
    if "accuracy_at_1" in metrics:
        before += f", and an accuracy of {metrics['accuracy_at_1']:.4f}"
    return f"{told} at temperature {metrics['temperature']:.3f} ({before})"
