"""What a command shows: aligned tables and rows of JSON on standard output, all else on standard error."""

import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from factorcell.evaluation.classification import Classification

Row = dict[str, Any]


def colours(stream: TextIO) -> bool:
    """Whether to colour what is written to `stream`: as NO_COLOR or FORCE_COLOR say, otherwise on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def bold(text: str) -> str:
    """A heading."""
    return f"\x1b[1m{text}\x1b[0m" if colours(sys.stdout) else text


def show(text: str) -> None:
    """A line of the result."""
    print(text)


def piece(text: str) -> None:
    """A part of a line of the result, shown at once."""
    print(text, end="", flush=True)


def say(text: str) -> None:
    """A line to standard error, where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)


def lines(rows: Sequence[Row]) -> None:
    """Rows as lines of JSON."""
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Rows as an aligned table; columns that no row has are left out."""
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    if not columns:
        return
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [[_cell(name, row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        first = line[0].ljust(widths[0])
        print("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))


def visible(text: str) -> str:
    """`text` with control characters written out, so that it cannot steer a terminal."""
    return "".join(repr(mark)[1:-1] if unicodedata.category(mark) == "Cc" else mark for mark in text)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        if name == "gain":
            return f"{value:+.1%}"
        return f"{value:.4f}" if name in ("accuracy", "precision", "recall", "f1", "auc") else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """A confusion matrix under the first letters of its names."""
    width = max(8, *(len(name[:16]) for name in names))
    print(" " * width + "".join(f"  {name[:8]:>8}" for name in names))
    for name, line in zip(names, counts, strict=True):
        print(f"{name[:16]:<{width}}" + "".join(f"  {count:>8,}" for count in line))


def judged(result: "Classification", metrics: Row, as_json: bool) -> None:
    """What a classifier reached."""
    if as_json:
        return lines([metrics])
    texts = f"{metrics['texts']:,} texts judged, {metrics['left_out']:,} left out"
    figures = f"accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}, mean AUC {metrics['auc']:.4f}"
    print(f"{figures} ({texts})")
    if "perplexity" in metrics:
        print(f"perplexity {metrics['perplexity']:.2f} given the right value")
    table(metrics["values"], ("value", "count", "precision", "recall", "f1", "auc"))
    if len(result.names) <= 12 and metrics["texts"]:
        print("\nconfusion (true down, predicted across)")
        matrix(result.names, result.confusion().tolist())
    return None
