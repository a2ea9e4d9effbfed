"""Rows of figures: written as JSON lines with the machine they were measured on, and printed as Markdown tables."""

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def about() -> Row:
    """Return the machine and its load."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    load = round(os.getloadavg()[0], 1)
    return {"processor": processor, "cores": os.cpu_count(), "load": load, "torch": torch.__version__}


def append(rows: Iterable[Row], out: Path | None) -> None:
    """Append rows to the file `out`, if it is not None."""
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**row, "time": round(time.time()), **about()}) + "\n" for row in rows)


def show(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print a Markdown table of the fields in `columns` with their headings."""
    print("| " + " | ".join(columns.values()) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(_cell(row.get(name)) for name in columns) + " |")
    print()


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a `share` of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
