"""Texts that both the terminal and the HTML pages show: cells of tables, sentences and readable tokens."""

import calendar
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.data.vocabulary import SPECIAL_TOKENS, Specials

Row = Mapping[str, Any]

# Names of the months and of the weekdays, full and abbreviated, each series in its natural order.
SERIES = [
    [name.casefold() for name in names if name]
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
# A number, or a range that begins with a number, such as 18 to 34 or 65+.
NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:to|-|–)\s*[-+\d].*|\+)?", re.IGNORECASE)
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


def natural_order(names: Sequence[str]) -> list[int] | None:
    """Return the indices of `names` in natural order if they are numbers, ranges, months or weekdays; None for others.

    The names of rare and missing values, which begin with "<", come last.
    """
    regular = [index for index, name in enumerate(names) if name and not name.startswith("<")]
    if len(regular) < 2:
        return None
    rank_functions: list[Callable[[str], float | None]] = [
        _leading_number,
        *(partial(_rank_in_series, series) for series in SERIES),
    ]
    for rank_function in rank_functions:
        ranks = {index: rank for index in regular if (rank := rank_function(names[index])) is not None}
        if len(ranks) == len(regular):
            special = [index for index in range(len(names)) if index not in ranks]
            return sorted(regular, key=lambda index: (ranks[index], names[index])) + special
    return None


def _leading_number(name: str) -> float | None:
    """Return the number with which a number or a range begins (4, 18 to 34, 18-34, 65+), or None for other names."""
    match = NUMBER.fullmatch(name.strip())
    return None if match is None else float(match[1])


def _rank_in_series(series: Sequence[str], name: str) -> float | None:
    return series.index(name.casefold()) if name.casefold() in series else None


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
