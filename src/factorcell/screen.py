"""What a command shows: aligned tables and rows of JSON on standard output, all else on standard error."""

import json
import sys
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def show(text: str) -> None:
    """A line of the result."""
    print(text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def lines(rows: Sequence[Row]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Rows as an aligned table; columns that no row has are left out."""
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [[_cell(name, row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        first = line[0].ljust(widths[0])
        print("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        if name == "gain":
            return f"{value:+.1%}"
        return f"{value:.4f}" if name in ("accuracy", "precision", "recall", "f1", "auc") else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    width = max(8, *(len(name[:16]) for name in names))
    print(" " * width + "".join(f"  {name[:8]:>8}" for name in names))
    for name, line in zip(names, counts, strict=True):
        print(f"{name[:16]:<{width}}" + "".join(f"  {count:>8,}" for count in line))
