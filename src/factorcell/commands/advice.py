"""The command `advise`, which estimates by how much each context column could lower the perplexity."""

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from factorcell.commands import options, terminal
from factorcell.config import Config
from factorcell.evaluation.advice.advise import advise

Row = Mapping[str, Any]

LIMITATIONS = (
    "The estimates do not account for three effects. Similar values share what a model learns from their texts. A "
    "small or briefly trained model may gain more from context because it remembers less of the text, or less because "
    "it does not learn each of many values. More rows would improve the estimates for rare values."
)
SCOPE = (
    "Estimated reduction of the perplexity by each column. A column that reduces the perplexity little can still be "
    "useful for generating texts for its values, or for classifying texts by it"
)
ACCURACY_EXPLANATION = (
    "accuracy at 10, accuracy at end: accuracy of predicting the value from the first 10 tokens of a text, and from "
    "the whole text; majority class: accuracy of always predicting the most frequent value"
)


def run_advise(arguments: argparse.Namespace) -> None:
    """Run `factorcell advise`."""
    config = Config.from_dict(options.specified_options(arguments))
    result = advise(arguments.table, config, rows=arguments.rows, seed=arguments.seed, progress=True)
    if arguments.json:
        return terminal.show_json([*result["columns"], result["all"]])
    for line in _advice_lead(result):
        terminal.show(line)
    terminal.show_table(*_advice_table(result))
    terminal.show(ACCURACY_EXPLANATION)
    for row in result["columns"]:
        terminal.show(f"{row['column']}: {advice_text(row)}: {row['why']}")
    return terminal.notify(LIMITATIONS)


def _advice_lead(advice: Row) -> list[str]:
    """Return lines about the scope of the advice, the texts that it is based on, and the gain of all columns."""
    sampling = "" if advice["rows"] == advice["of"] else f" of {advice['of']:,}, sampled at random"
    texts_line = f"{advice['rows']:,} texts{sampling}, {advice['tokens_per_text']:.1f} targets per text"
    total = advice["all"]
    gain = f"{', '.join(total['columns'])}: perplexity about {total['expected']:.1%} lower"
    return [SCOPE, texts_line, f"{gain} ({total['least']:.1%} to {total['most']:.1%})"]


def advice_text(row: Row) -> str:
    """Return the advice on a column, with the options of `train` that put the advice into practice."""
    flags = {"use": "--context {}", "softmax bias": "--context {} --model softmaxbias"}.get(row["advice"])
    suffix = "" if flags is None else f" ({flags.format(shlex.quote(row['column']))})"
    return f"{row['advice']}{suffix}"


def _advice_table(advice: Row) -> tuple[list[dict[str, str]], list[str]]:
    """Return a table of the advice: a row of text for every context column, and the titles of the table's columns."""
    gains = {"least": "min gain", "expected": "expected gain", "most": "max gain", "added": "added gain"}
    accuracies = {"accuracy_10": "accuracy at 10", "accuracy_all": "accuracy at end"}
    rows = []
    for row in advice["columns"]:
        cells = {
            "column": row["column"],
            "values": f"{row['values']:,}",
            "texts per value": f"{row['texts_per_value']:,.0f}",
        }
        cells |= {name: f"{row[name]:.1%}" for name in ("rare", "missing") if row[name]}
        cells |= {title: f"{max(0.0, row[name]):.1%}" for name, title in gains.items()}
        cells |= {title: f"{row[name]:.0%}" for name, title in accuracies.items()}
        cells["majority class"] = f"{row['majority']:.0%}"
        rows.append(cells)
    names = ["column", "values", "texts per value", "rare", "missing"]
    return rows, [*names, *gains.values(), *accuracies.values(), "majority class"]
