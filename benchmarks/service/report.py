"""Rows of figures: kept as JSON lines with what they were measured on, and shown as tables in Markdown."""

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
    """The machine, and how busy it was."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    load = round(os.getloadavg()[0], 1)
    return {"processor": processor, "cores": os.cpu_count(), "load": load, "torch": torch.__version__}


def keep(rows: Iterable[Row], out: Path | None) -> None:
    """Add rows to a file, if there is one."""
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**row, "time": round(time.time()), **about()}) + "\n" for row in rows)


def show(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print a table in Markdown: the fields that `columns` names, by their headings."""
    print("| " + " | ".join(columns.values()) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(_cell(row.get(name)) for name in columns) + " |")
    print()


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
