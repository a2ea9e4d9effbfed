"""The results that a folder keeps, a row of results.jsonl each, and the answer to each question: the last one given.

A question is a measure of certain texts. It does not include the precision of products, so that results that
differ by rounding do not stand side by side.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from factorcell import files
from factorcell.finite import is_number

FILE = "results.jsonl"
COSTS, JUDGED = ("perplexity", "perplexity_known", "bits_per_byte"), ("accuracy", "macro_f1", "auc")


class Measurement(NamedTuple):
    """The `value` of a `measure` of a `table`; the number of texts is added if two tables have the same name.

    `low` and `high` are the ends of its interval, if it has one; `bound` says that it is only a lower bound.
    """

    table: str
    measure: str
    value: float
    low: float | None = None
    high: float | None = None
    bound: bool = False


class GainTable(NamedTuple):
    """Perplexities by the values of a `column` of a `table`: `rows`, whose gains are `over` a baseline.

    That is another model, or (None) the same one without context.
    """

    table: str
    column: str
    over: str | None
    rows: list[files.Row]


def read(folder: Path) -> list[files.Row]:
    """All results of a folder."""
    return files.read_rows(folder / FILE)


def append(folder: Path, row: Mapping[str, Any]) -> None:
    """Add a result to those of a folder."""
    files.append_row(folder / FILE, row)


def latest_measurements(rows: Iterable[files.Row]) -> list[Measurement]:
    """The last value of every measure of every table, in the order in which they were first asked for."""
    last: dict[tuple[str, str, str], tuple[int, files.Row]] = {}
    for row in rows:
        scores = row.get("evaluation", row)
        for name in (*COSTS, *JUDGED):
            if is_number(scores.get(name)):
                key = row.get("accuracy_key", scores.get("texts_key")) if name in JUDGED else scores.get("texts_key")
                measure = name.replace("_", " ") + (_asked(row) if name in JUDGED else "")
                last[scores.get("table", ""), measure, str(key)] = (scores.get("texts", 0), _value(scores, name))
    named = Counter((table, measure) for table, measure, _ in last)
    return [
        Measurement(f"{table} ({texts:,} texts)" if named[table, measure] > 1 else table, measure, **value)
        for (table, measure, _), (texts, value) in last.items()
    ]


def _value(scores: files.Row, name: str) -> files.Row:
    ends = {end: scores.get(f"{name}_{end}") for end in ("low", "high")}
    return {"value": scores[name], **ends, "bound": bool(scores.get(f"{name}_bound"))}


def _asked(row: files.Row) -> str:
    parts = [f" of {row['target']}"] if row.get("target") else []
    parts += [f", priors of {row['priors']}"] if row.get("priors", "uniform") != "uniform" else []
    parts += [f", {row['samples']:,} samples"] if row.get("samples") else []
    return "".join(parts + ([", calibrated"] if "temperature" in row else []))


def latest_evaluation(rows: Iterable[files.Row]) -> files.Row:
    """The perplexities of the table that was evaluated last, with its last gain; empty if there is none."""
    every = [row["evaluation"] for row in rows if row.get("kind") == "evaluate"]
    found: files.Row = {}
    for row in every:
        if all(row.get(name) == every[-1].get(name) for name in ("table", "texts_key")):
            found |= row
    return found


def latest_gains(rows: Iterable[files.Row]) -> list[GainTable]:
    """The last perplexities by every column of every table over every baseline."""
    last: dict[tuple[Any, ...], GainTable] = {}
    for row in rows:
        if row.get("kind") == "evaluate":
            table, over = row["evaluation"].get("table", ""), row["evaluation"].get("over")
            for column, values in row["by"].items():
                key = (column, table, row["evaluation"].get("texts_key"), over)
                last[key] = GainTable(table, column, over, values)
    return list(last.values())
