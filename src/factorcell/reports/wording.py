"""Texts that both the terminal and the HTML pages show: cells of tables, sentences and readable tokens."""

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.data.vocabulary import SPECIAL_TOKENS, Specials

Row = Mapping[str, Any]

ADVICE_LIMITATIONS = (
    "The estimates do not account for three effects. Similar values share what a model learns from their texts. A "
    "small or briefly trained model may gain more from context because it remembers less of the text, or less because "
    "it does not learn each of many values. More rows would improve the estimates for rare values."
)
ADVICE_SCOPE = (
    "Estimated reduction of the perplexity by each column. A column that reduces the perplexity little can still be "
    "useful for generating texts for its values, or for classifying texts by it"
)
ACCURACY_EXPLANATION = (
    "accuracy at 10, accuracy at end: accuracy of predicting the value from the first 10 tokens of a text, and from "
    "the whole text; majority class: accuracy of always predicting the most frequent value"
)


def advice_lead(advice: Row) -> list[str]:
    """Return lines about the scope of the advice, the texts that it is based on, and the gain of all columns."""
    sampling = "" if advice["rows"] == advice["of"] else f" of {advice['of']:,}, sampled at random"
    texts_line = f"{advice['rows']:,} texts{sampling}, {advice['tokens_per_text']:.1f} targets per text"
    total = advice["all"]
    gain = f"{', '.join(total['columns'])}: perplexity about {total['expected']:.1%} lower"
    return [ADVICE_SCOPE, texts_line, f"{gain} ({total['least']:.1%} to {total['most']:.1%})"]


def advice_text(row: Row) -> str:
    """Return the advice on a column, with the options of `train` that put the advice into practice."""
    options = {"use": "--context {}", "softmax bias": "--context {} --model softmaxbias"}.get(row["advice"])
    suffix = "" if options is None else f" ({options.format(shlex.quote(row['column']))})"
    return f"{row['advice']}{suffix}"


def advice_table(advice: Row) -> tuple[list[dict[str, str]], list[str]]:
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


def rescoring_table(summary: Sequence[Row]) -> tuple[list[dict[str, str]], list[str]]:
    """Return a table of word error rates: a row of text for every row of `word_error_rates`, and the columns."""
    rows = []
    for row in summary:
        cells = {"value": "all" if row["by"] == "all" else f"{row['by']} {row['value']}"}
        cells |= {name: f"{row[name]:,}" for name in ("utterances", "words")}
        cells |= {name: f"{row[name]:.2%}" for name in ("first", "rescored", "oracle")}
        cells["gain"] = Interval(row["gain"], row["gain_low"], row["gain_high"]).to_text(".2f", 100.0)
        rows.append(cells)
    return rows, ["value", "utterances", "words", "first", "rescored", "oracle", "gain"]


def agreement_sentence(row: Row) -> str:
    """Return a row of `neighbour_agreement` as a sentence."""
    basis = f"({row['values']:,} values, neighbours by {row['measure']})"
    column = row["column"]
    if row.get("groups") == 1:
        return f"All values have the same {column} {basis}; choose a column with several groups."
    if row.get("groups") == row["values"]:
        return f"Every value has another {column} {basis}; choose a column in which values share groups."
    if "same" in row:
        agreement = f"{row['same']:.1%} of the values have the same {column} as their nearest neighbour"
        return f"{agreement}; chance level {row['chance']:.1%} {basis}."
    return f"Correlation of the {column} of values and of their nearest neighbours: {row['correlation']:.2f} {basis}."


def visible_token(token: str) -> str:
    """Return a token in visible form: white space becomes ␣, and a combining mark has a dotted circle before it."""
    if token.isspace():
        return "␣"
    return f"◌{token}" if unicodedata.combining(token[:1] or " ") else token


def readable_token(token: str) -> str:
    """Return a token in readable form: the end token becomes ¶, and control characters become spaces."""
    if token == SPECIAL_TOKENS[Specials().end]:
        return "¶"
    controls = ("Cc", "Zl", "Zp")  # categories of Unicode: control characters, and separators of lines and paragraphs
    return "".join(" " if unicodedata.category(character) in controls else character for character in token)
