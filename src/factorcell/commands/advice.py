"""The command `advise`, which estimates by how much each context column could lower the perplexity."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.config import Config
from factorcell.data.columns.columns import parse_column
from factorcell.evaluation.advice import advise
from factorcell.io.finite import format_number

Row = Mapping[str, Any]

SCOPE = (
    "Estimated reduction of the perplexity by each column, on random held-out rows. For new users, authors or "
    "documents, the gain of their columns is smaller; with few texts, a trained model can also lose"
)
ACCURACY_EXPLANATION = (
    "accuracy: accuracy of predicting the value from the text; majority class: accuracy of always predicting the most "
    "frequent value; both leave out the texts with rare values"
)
USER_GAIN = "this gain holds for users of the training table; `factorcell replay` measures the gain for new users"


def run_advise(arguments: argparse.Namespace) -> None:
    """Run `factorcell advise`."""
    config = Config.from_dict(options.specified_options(arguments))
    result = advise(arguments.table, config, rows=arguments.rows, seed=arguments.seed)
    if arguments.json:
        return terminal.show_json([*result.columns, {"gain": result.gain}])
    sampling = "" if result.text_count == result.row_count else f" of {result.row_count:,}, sampled at random"
    size = f"{result.text_count:,} texts{sampling}, {result.targets_per_text:.1f} targets per text"
    terminal.show(f"{size}; gains per {result.unit}")
    terminal.show(f"all columns together: perplexity about {result.gain:.1%} lower")
    terminal.show_table(*_advice_table(result.columns))
    terminal.show(ACCURACY_EXPLANATION)
    for row in result.columns:
        is_user = row["column"] == config.data.user and row["advice"] != "leave out"
        terminal.show(f"{row['column']}: {row['advice']}: {row['why']}{f'; {USER_GAIN}' if is_user else ''}")
    if command := train_command(arguments.table, config, result.columns):
        terminal.show(f"to train with this advice: {command}")
        terminal.show("to measure the gain of each model: the same command with `compare`, --dev and --test")
    return terminal.notify(SCOPE)


def train_command(table: Path, config: Config, rows: Sequence[Row]) -> str:
    """Return the command that trains with all columns that are not left out; empty if all are."""
    used = {row["column"] for row in rows if row["advice"] != "leave out"}
    if not used:
        return ""
    options: dict[str, None] = {}
    for declaration in config.data.columns:
        column, kind, _ = parse_column(declaration)
        if used & {column, f"{column}.{kind}"}:
            option = "--user" if column == config.data.user else "--context"
            options[f"{option} {shlex.quote(declaration if option == '--context' else column)}"] = None
    return " ".join(
        ["factorcell train", shlex.quote(str(table)), "--text", shlex.quote(config.data.text), *options, "--out RUN"]
    )


def _advice_table(columns: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a table of the advice: a row of text for every context column, and the titles of the table's columns."""
    rows = [
        {
            "column": row["column"],
            "values": f"{row['values']:,} ranges" if row["is_binned"] else f"{row['values']:,}",
            "texts per value (median)": f"{row['texts_per_value']:,.0f}",
            **{name: f"{row[name]:.1%}" if row[name] else None for name in ("rare", "missing")},
            "expected gain": f"{row['gain']:.1%}",
            "added gain": f"{row['added']:.1%}",
            "accuracy": format_number(row["accuracy"], ".0%"),
            "majority class": format_number(row["majority"], ".0%"),
        }
        for row in columns
    ]
    return rows, list(rows[0])
