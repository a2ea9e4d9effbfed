"""Texts that both the terminal and the pages show: rows of text, sentences, tokens; nothing is drawn."""

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

# Names that have an order, each list in that order.
SERIES = [
    [name.casefold() for name in names if name]
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:to|-|–)\s*[-+\d].*|\+)?", re.IGNORECASE)
ADVICE_LIMITATIONS = (
    "These estimates ignore that similar values share what is learned from their texts; that a small or briefly "
    "trained model forgets much (it gains more) or does not learn each of many values (it gains less); and what more "
    "rows would teach about rare values."
)
QUESTION = (
    "How much lower would perplexity be? Writing texts that fit a column, or classifying texts by it, is another "
    "question: a column that saves little here can be useful there"
)
ACCURACY_EXPLANATION = (
    "guessed from 10, from all: accuracy of predicting the value from the first 10 tokens of a text, and from all of "
    "it; majority: the accuracy of always choosing the most frequent value"
)


def natural_order(names: Sequence[str]) -> list[int] | None:
    """Return the positions of numbers, ranges of numbers, months or weekdays in their order; None for other names.

    The names of rare and missing values come last.
    """
    known = [place for place, name in enumerate(names) if name and not name.startswith("<")]
    rankings: list[Callable[[str], float | None]] = [_number, *(partial(_place, series) for series in SERIES)]
    for rank in rankings:
        ranks = {place: value for place in known if (value := rank(names[place])) is not None}
        if len(ranks) == len(known) > 1:
            rest = [place for place in range(len(names)) if place not in ranks]
            return sorted(known, key=lambda place: (ranks[place], names[place])) + rest
    return None


def _number(name: str) -> float | None:
    """Return the number that a name is, or that its range begins with: 4, 18 to 34, 18-34, 65+, 2021-03."""
    match = NUMBER.fullmatch(name.strip())
    return None if match is None else float(match[1])


def _place(series: Sequence[str], name: str) -> float | None:
    return series.index(name.casefold()) if name.casefold() in series else None


def advice_lead(found: Row) -> list[str]:
    """Return lines about the question, the texts that were read, and the gain of all columns together."""
    of = "" if found["rows"] == found["of"] else f" of {found['of']:,}, drawn at random"
    first = f"{found['rows']:,} texts{of}, {found['tokens_per_text']:.1f} targets each"
    every = found["all"]
    together = f"{', '.join(every['columns'])}: perplexity about {every['expected']:.1%} lower"
    return [QUESTION, first, f"{together} ({every['least']:.1%} to {every['most']:.1%})"]


def advice_text(row: Row) -> str:
    """Return what to do with a column, with the options of `train` that do it."""
    options = {"use": "--context {}", "softmax bias": "--context {} --model softmaxbias"}.get(row["advice"])
    typed = "" if options is None else f" ({options.format(shlex.quote(row['column']))})"
    return f"{row['advice']}{typed}"


def advice_table(found: Row) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row of text for every column, and the names of the table's columns."""
    rows = []
    for row in found["columns"]:
        cells = {
            "column": row["column"],
            "values": f"{row['values']:,}",
            "texts each": f"{row['texts_per_value']:,.0f}",
        }
        cells |= {name: f"{row[name]:.1%}" for name in ("rare", "missing") if row[name]}
        cells |= {name: f"{max(0.0, row[name]):.1%}" for name in ("least", "expected", "most", "added")}
        cells |= {f"guessed from {after}": f"{row[f'accuracy_{after}']:.0%}" for after in ("10", "all")}
        cells["majority"] = f"{row['majority']:.0%}"
        rows.append(cells)
    names = ("column", "values", "texts each", "rare", "missing", "least", "expected", "most", "added")
    return rows, [*names, "guessed from 10", "guessed from all", "majority"]


def rescoring_table(summary: Sequence[Row]) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row of text for every row of `rescore.summarise`, and the names of its columns."""
    rows = []
    for row in summary:
        cells = {"value": "all" if row["by"] == "all" else f"{row['by']} {row['value']}"}
        cells |= {name: f"{row[name]:,}" for name in ("utterances", "words")}
        cells |= {name: f"{row[name]:.2%}" for name in ("first", "rescored", "oracle")}
        cells["gain"] = Interval(row["gain"], row["gain_low"], row["gain_high"]).to_text(".2f", 100.0)
        rows.append(cells)
    return rows, ["value", "utterances", "words", "first", "rescored", "oracle", "gain"]


def agreement_sentence(row: Row) -> str:
    """Return the row of `embeddings.agreement` as a sentence."""
    of = f"({row['values']:,} values, by {row['measure']})"
    if "same" in row:
        share = f"{row['same']:.1%} of nearest neighbours have the same {row['column']}"
        return f"{share}; of any two values {row['chance']:.1%} {of}."
    return f"The {row['column']} of a value and of its nearest neighbour correlate with {row['correlation']:.2f} {of}."


def visible_token(token: str) -> str:
    """Return a token that can be seen: a sign for white space, a ring under a mark that has no letter."""
    if token.isspace():
        return "␣"
    return f"◌{token}" if unicodedata.combining(token[:1] or " ") else token


def readable_token(token: str) -> str:
    """Return a token as it is shown: the end of a text as a pilcrow, control characters as a space."""
    if token == SPECIAL_TOKENS[Specials().end]:
        return "¶"
    return "".join(" " if unicodedata.category(mark) in ("Cc", "Zl", "Zp") else mark for mark in token)
