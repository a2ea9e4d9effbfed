"""Output of commands: results on standard output, as text, tables or rows of JSON; notices on standard error.

All output to a terminal passes through this module. It escapes control characters and other hidden characters, so that
no text, name or message can control the terminal, or look like a line that a command prints. Text of the type `Styled`
is already escaped and may contain colours.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from factorcell.commands.cli import streams
from factorcell.io import findings
from factorcell.io.escapes import align_columns, escape_hidden, escape_hidden_json
from factorcell.io.findings import LOG, Finding

if TYPE_CHECKING:
    from factorcell.evaluation.bayes_rule import Classification

SMALLEST_PROBABILITY = 1e-300  # smaller probabilities are printed as <1e-300; floats below 2.2e-308 lose precision
MAX_MATRIX_SIZE = 12  # maximum number of values for which the confusion matrix is printed

Row = dict[str, Any]


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


def bold(text: str) -> str:
    """Return a heading in bold if standard output shows colours."""
    return coloured(text, "1") if has_colours(sys.stdout) else text


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


def show_help(text: str) -> None:
    """Print help without escapes: it may contain colours, and it contains no text from users."""
    print(text)


def notify(*lines: str) -> None:
    """Print notices on standard error, so that they do not mix with results."""
    for line in lines:
        print(_safe(line), file=sys.stderr, flush=True)


def show_json(rows: Sequence[Row]) -> None:
    """Print rows as lines of JSON with hidden characters escaped."""
    for row in rows:
        print(escape_hidden_json(streams.to_json_line(row)))


def _safe(text: str) -> str:
    return text if isinstance(text, Styled) else escape_hidden(text)


class FindingHandler(logging.Handler):
    """Prints log records; of findings, only the one that can mislead most, at `flush`, unless `verbose` is set."""

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.verbose, self.count = verbose, 0
        self.first: Finding | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record; count a finding, and remember the first of the ranking."""
        finding: Finding | None = getattr(record, "finding", None)
        if finding is None:
            return notify(record.getMessage())
        if self.verbose:
            return notify(f"warning: {finding.text}")
        self.count += 1
        if self.first is None or finding.rank < self.first.rank:
            self.first = finding
        return None

    def flush(self) -> None:
        """Print the remembered finding and the number of the others, and forget them."""
        if self.first is not None:
            others = f" ({self.count - 1} more with --verbose)" if self.count > 1 else ""
            notify(f"warning: {self.first.text}{others}")
        self.clear()

    def clear(self) -> None:
        """Forget all findings."""
        self.first, self.count = None, 0


@contextmanager
def logging_to_standard_error(verbose: bool) -> Iterator[None]:
    """Print log records and Python warnings on standard error; print findings at the end, unless there is an error."""
    handler, level, show_warning = FindingHandler(verbose), LOG.level, warnings.showwarning
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    warnings.showwarning = lambda message, category, *_: LOG.warning("%s: %s", category.__name__, message)
    findings.log_once.cache_clear()  # several commands in a process, as in tests, are independent
    try:
        yield
        handler.flush()
    finally:
        handler.clear()
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
    if isinstance(value, float):
        if column == "gain":
            return f"{value:+z.1%}"
        return f"{value:z.4f}" if column in ("accuracy", "precision", "recall", "f1", "auc") else f"{value:z.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_probability(value: float) -> str:
    """Return a probability with two significant digits: 0.34, 0.0022, 3.1e-07."""
    return f"{value:#.2g}" if value >= SMALLEST_PROBABILITY else f"<{SMALLEST_PROBABILITY:g}"


def show_matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Print a confusion matrix; names are cut to 16 characters at the left, and to 8 characters at the top."""
    names = [escape_hidden(name) for name in names]
    left_width = max(8, *(len(name[:16]) for name in names))
    show(" " * left_width + "".join(f"  {name[:8]:>8}" for name in names))
    for name, row_counts in zip(names, counts, strict=True):
        show(f"{name[:16]:<{left_width}}" + "".join(f"  {count:>8,}" for count in row_counts))


def show_classification(result: "Classification", metrics: Row, as_json: bool) -> None:
    """Print the metrics of a classification of labelled texts, in total and for each value, and its confusion matrix.

    With `as_json`, print only the metrics.
    """
    from factorcell.data.tables.natural_order import natural_order

    if as_json:
        return show_json([metrics])
    text_counts = f"{metrics['texts']:,} texts, {metrics['left_out']:,} left out"
    accuracy = format_interval(metrics, "accuracy")
    references = f"majority class ({metrics['majority_value']!r}) {metrics['majority']:.4f}"
    if metrics.get("linear_accuracy") is not None:
        references += f", linear baseline {metrics['linear_accuracy']:.4f}"
    show(f"accuracy {accuracy}, {references}")
    show(f"macro F1 {metrics['macro_f1']:.4f}, mean AUC {metrics['auc']:.4f} ({text_counts})")
    show(_calibration_sentence(metrics))
    if weights := metrics.get("combination_weights"):
        shown_weights = ", ".join(f"{name} {weight:z.2f}" for name, weight in weights.items())
        show(f"weights of the combination, fitted on the development texts: {shown_weights}")
    if remark := metrics.get("combination_remark"):
        show(remark)
    if metrics.get("left_out_missing"):
        show(f"{metrics['left_out_missing']:,} texts left out: no value")
    if metrics.get("left_out_other"):
        reason = "their value is not a candidate (rare, not in the training table, or not in --values)"
        show(f"{metrics['left_out_other']:,} texts left out: {reason}")
    if metrics["others"]:
        _show_classifiers(result.name, metrics)
    order = natural_order(result.names) or list(range(len(result.names)))
    ranks = {result.names[index]: rank for rank, index in enumerate(order)}
    rows = sorted(metrics["values"], key=lambda row: ranks[row["value"]])
    show_table(rows, ("value", "count", "precision", "recall", "f1", "auc"))
    if len(result.names) <= MAX_MATRIX_SIZE:
        show("", "confusion matrix (rows: true value, columns: predicted value)")
        counts = result.confusion()[order][:, order].tolist()
        show_matrix([result.names[index] for index in order], counts)
    return None


def _show_classifiers(name: str, metrics: Row) -> None:
    """Print the accuracies of a classification and of other classifiers, and its differences to them."""
    from factorcell.bootstrap import Interval

    shown_rows = [{"classifier": name, "accuracy": format_interval(metrics, "accuracy")}]
    for row in metrics["others"]:
        difference = Interval(row["difference"], row["difference_low"], row["difference_high"]).to_text(".4f")
        shown_rows.append({**row, "accuracy": format_interval(row, "accuracy"), "difference": difference})
    show("", f"accuracy of each classifier, and the difference of {name!r} to it (95 % CI in brackets)")
    show_table(shown_rows, ("classifier", "accuracy", "difference"))
    show("")


def format_interval(row: Mapping[str, Any], name: str) -> str:
    """Return a figure of a row with its interval, if it has one."""
    from factorcell.bootstrap import format_ends

    low, high = (row.get(f"{name}_{end}") for end in ("low", "high"))
    return f"{row[name]:.4f}" + ("" if low is None or high is None else f" {format_ends(low, high, '.4f')}")


def _calibration_sentence(metrics: Row) -> str:
    """Return a sentence about the calibration of a classifier, at the fitted temperature and at 1 if one was fitted."""
    error, nats = metrics["calibration_error"], metrics["value_nats"]
    calibration = f"mean confidence {metrics['mean_confidence']:.4f}, calibration error {error:.4f}"
    sentence = f"{calibration}, negative log-likelihood of the true value {nats:z.4f} nats"
    if "temperature" not in metrics:
        return sentence
    figures_at_1 = f"{metrics['calibration_error_at_1']:.4f} and {metrics['value_nats_at_1']:z.4f} nats"
    if "accuracy_at_1" in metrics:
        figures_at_1 += f", accuracy {metrics['accuracy_at_1']:.4f}"
    return f"{sentence}, at temperature {metrics['temperature']:.3f} (at temperature 1: {figures_at_1})"
