"""The command `advise`, which estimates by how much each context column could lower the perplexity."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.config import Config
from factorcell.data.columns.columns import parse_column
from factorcell.evaluation.advice.advise import LINEAR, MAX_CLASSES, advise
from factorcell.io.finite import format_number

Row = Mapping[str, Any]

LIMITATIONS = (
    "The estimates do not account for three effects. Similar values share what a model learns from their texts. A "
    "small or briefly trained model may gain more from context because it remembers less of the text, or less because "
    "it does not learn each of many values. More rows would improve the estimates for rare values. A model that is "
    "trained on few texts can gain less than the minimum, or lose."
)
SCOPE = (
    "Estimated reduction of the perplexity by each column. A column that reduces the perplexity little can still be "
    "useful for generating texts for its values, or for classifying texts by it"
)
HELD_OUT = (
    "The gains are measured on random rows of the table, which are held out. If further rows of the same users, "
    "authors or documents are in the rest, the gain for new ones is smaller"
)
ACCURACY_EXPLANATION = (
    "accuracy at 10, accuracy at end: accuracy of predicting the value from the first 10 tokens of a text, and from "
    "the whole text; majority class: accuracy of always predicting the most frequent value. All three leave out the "
    "texts with rare values"
)
N_GRAMS_ONLY = (
    f"* without the linear classifier, which is left out for more than {MAX_CLASSES} values: it is often more accurate"
)
USER_GAIN = "this gain holds for users of the training table; `factorcell replay` measures the gain for new users"


def run_advise(arguments: argparse.Namespace) -> None:
    """Run `factorcell advise`."""
    config = Config.from_dict(options.specified_options(arguments))
    result = advise(arguments.table, config, rows=arguments.rows, seed=arguments.seed)
    if arguments.json:
        return terminal.show_json([*result["columns"], result["all"]])
    for line in _advice_lead(result):
        terminal.show(line)
    terminal.show_table(*_advice_table(result))
    terminal.show(ACCURACY_EXPLANATION)
    if any(map(_lacks_linear_classifier, result["columns"])):
        terminal.show(N_GRAMS_ONLY)
    for row in result["columns"]:
        is_user = row["column"] == config.data.user
        line = f"{row['column']}: {advice_text(row, is_user)}: {row['why']}"
        terminal.show(f"{line}; {USER_GAIN}" if is_user and row["advice"] != "leave out" else line)
    if command := train_command(arguments.table, config, result["columns"]):
        terminal.show(f"to train with this advice: {command}")
        terminal.show("to measure the gain of each model: the same command with `compare`, --dev and --test")
    return terminal.notify(LIMITATIONS)


def _advice_lead(advice: Row) -> list[str]:
    """Return lines about the scope of the advice, the texts that it is based on, and the gain of all columns."""
    sampling = "" if advice["rows"] == advice["of"] else f" of {advice['of']:,}, sampled at random"
    texts_line = f"{advice['rows']:,} texts{sampling}, {advice['tokens_per_text']:.1f} targets per text"
    unit_line = f"gains per {advice['unit']}; use the --tokenizer of the planned training"
    total = advice["all"]
    gain = f"{', '.join(total['columns'])}: perplexity about {total['expected']:.1%} lower"
    gain_limits = f"min gain {total['least']:.1%}, max gain {total['most']:.1%}; no confidence interval"
    return [SCOPE, HELD_OUT, texts_line, unit_line, f"{gain} ({gain_limits})"]


def advice_text(row: Row, is_user: bool = False) -> str:
    """Return the advice on a column, with the option of `train` that adds the column.

    With `is_user`, the column names the users.
    """
    if row["advice"] == "leave out":
        return "leave out"
    return f"{row['advice']} ({'--user' if is_user else '--context'} {shlex.quote(row['column'])})"


def train_command(table: Path, config: Config, rows: Sequence[Row]) -> str:
    """Return the command that trains with all columns that are not left out; empty if all are."""
    advice = {row["column"]: row["advice"] for row in rows if row["advice"] != "leave out"}
    if not advice:
        return ""
    options: dict[str, None] = {}
    for declaration in config.data.columns:
        column, kind, _ = parse_column(declaration)
        if advice.keys() & {column, f"{column}.{kind}"}:
            option = "--user" if column == config.data.user else "--context"
            options[f"{option} {shlex.quote(declaration if option == '--context' else column)}"] = None
    if set(advice.values()) == {"softmax bias"}:
        options["--model softmaxbias"] = None
    return " ".join(
        ["factorcell train", shlex.quote(str(table)), "--text", shlex.quote(config.data.text), *options, "--out RUN"]
    )


def _lacks_linear_classifier(row: Row) -> bool:
    return row["values"] > 1 and LINEAR not in row["classifiers"]


def _advice_table(advice: Row) -> tuple[list[dict[str, str]], list[str]]:
    """Return a table of the advice: a row of text for every context column, and the titles of the table's columns."""
    gains = {"least": "min gain", "expected": "expected gain", "most": "max gain", "added": "added gain"}
    accuracies = {"accuracy_10": "accuracy at 10", "accuracy_all": "accuracy at end"}
    rows = []
    for row in advice["columns"]:
        cells = {
            "column": row["column"],
            "values": f"{row['values']:,} ranges" if row["is_binned"] else f"{row['values']:,}",
            "texts per value (median)": f"{row['texts_per_value']:,.0f}",
        }
        cells |= {name: f"{row[name]:.1%}" for name in ("rare", "missing") if row[name]}
        cells |= {title: f"{max(0.0, row[name]):.1%}" for name, title in gains.items()}
        mark = "*" if _lacks_linear_classifier(row) else ""
        cells |= {title: f"{format_number(row[name], '.0%')}{mark}" for name, title in accuracies.items()}
        cells["majority class"] = format_number(row["majority"], ".0%")
        rows.append(cells)
    names = ["column", "values", "texts per value (median)", "rare", "missing"]
    return rows, [*names, *gains.values(), *accuracies.values(), "majority class"]
