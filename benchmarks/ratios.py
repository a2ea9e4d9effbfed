"""Repeat the measurements of `speed.py` in separate processes: medians of each figure, and ranges of ratios.

    python benchmarks/ratios.py --rounds 3 --out bench.jsonl --table speed.md

Within a process all contenders run in turn, so a ratio belongs to one process; between processes it varies with other
load on the machine. Run nothing else.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import speed
from tqdm import tqdm

FIGURES = ("milliseconds", "tokens_per_second", "gflops")
RATIOS = ("times_baseline", "times_lstm", "share_of_product", "with_adapters")

Row = dict[str, Any]


def measure(group: str, threads: int) -> list[Row]:
    """Return the rows of a group from a new process, and the time of layers with adapters relative to those without."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [sys.executable, speed.__file__, "--groups", group, "--threads", str(threads), "--out", str(rows)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        new_rows = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    spent = {(row["group"], row["what"]): row["milliseconds"] for row in new_rows}
    for row in new_rows:
        kind, comma, precision = row["what"].partition(", ")
        without = spent.get((row["group"], f"{kind}, no adapters{comma}{precision}"))
        if without:
            row["with_adapters"] = row["milliseconds"] / without
    return new_rows


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row per measurement: medians, and the ranges of ratios."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["group"], row["what"]].append(row)
    result = []
    for (group, what), members in groups.items():
        summary: Row = {"group": group, "what": what}
        for name in (*FIGURES, *RATIOS):
            values = [row[name] for row in members if name in row]
            if values:
                summary[name] = statistics.median(values)
            if values and name in RATIOS:
                summary[f"{name}_range"] = [min(values), max(values)]
        result.append(summary)
    return result


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table for each group."""
    names = (*FIGURES, *RATIOS)
    groups = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    lines = []
    for group, members in groups.items():
        present = [name for name in names if any(name in row for row in members)]
        heads = " | ".join(["what", *(name.replace("_", " ") for name in present)])
        lines += [f"**{group}**", "", f"| {heads} |", "|---" + "|---:" * len(present) + "|"]
        lines += ["| " + " | ".join([row["what"], *(cell(row, name) for name in present)]) + " |" for row in members]
        lines.append("")
    return "\n".join(lines)


def cell(row: Row, name: str) -> str:
    """Format a figure; a ratio with its range."""
    if name not in row:
        return ""
    if name not in RATIOS:
        return f"{row[name]:,.1f}" if name == "milliseconds" else f"{row[name]:,.0f}"
    low, high = row[f"{name}_range"]
    return f"{row[name]:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Measure, write the rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each group (default: 3)")
    parser.add_argument("--groups", nargs="+", choices=speed.GROUPS, default=list(speed.GROUPS))
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to, one per figure of a process")
    parser.add_argument("--table", type=Path, help="file of the table")
    arguments = parser.parse_args()
    work = [
        group
        for _ in range(arguments.rounds)
        for group in random.Random(0).sample(arguments.groups, len(arguments.groups))
    ]
    rows: list[Row] = []
    for group in tqdm(work, unit="process"):
        rows += measure(group, arguments.threads)
    text = table(summarise(rows))
    print(text)
    if arguments.out:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if arguments.table:
        arguments.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
