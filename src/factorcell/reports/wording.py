"""What the terminal and the pages both say of results: rows of text, sentences, tokens; nothing is drawn."""

import calendar
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.data.vocabulary import SPECIALS, Specials

Row = Mapping[str, Any]

# Names that come in an order of their own, each list in that order.
SERIES = [
    [name.casefold() for name in names if name]
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
]
NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:to|-|–)\s*[-+\d].*|\+)?", re.IGNORECASE)
RESCORING = ("value", "utterances", "words", "first", "rescored", "oracle", "gain")
CANNOT = (
    "What these estimates cannot see: values that are alike and lend each other texts; how much a small or briefly "
    "trained model forgets (it gains more) or fails to learn of many values (it gains less); what more rows would "
    "teach of rare values."
)
QUESTION = (
    "How much lower would perplexity be? Writing texts that fit a column, or classifying texts by it, is another "
    "question: there a column may serve well that saves next to nothing here"
)
GUESSED = (
    "guessed from 10, from all: how often the value is found from the first 10 tokens of a text, and from all of it; "
    "majority: by always naming the most frequent value"
)


def natural_order(names: Sequence[str]) -> list[int] | None:
    """The places of names in their order: numbers, ranges of them, months or weekdays; None if they have none.

    What stands for rare and missing values comes last.
    """
    known = [place for place, name in enumerate(names) if name and not name.startswith("<")]
    rankings: list[Callable[[str], float | None]] = [_number, *(partial(_place, series) for series in SERIES)]
    for rank in rankings:
        ranks = {place: found for place in known if (found := rank(names[place])) is not None}
        if len(ranks) == len(known) > 1:
            rest = [place for place in range(len(names)) if place not in ranks]
            return sorted(known, key=lambda place: (ranks[place], names[place])) + rest
    return None


def _number(name: str) -> float | None:
    """The number that a name is, or that its range begins with: 4, 18 to 34, 18-34, 65+, 2021-03."""
    found = NUMBER.fullmatch(name.strip())
    return None if found is None else float(found[1])


def _place(series: Sequence[str], name: str) -> float | None:
    return series.index(name.casefold()) if name.casefold() in series else None


def advice_lead(found: Row) -> list[str]:
    """What the advice is about, what was read, and what all columns together should bring, a line each."""
    of = "" if found["rows"] == found["of"] else f" of {found['of']:,}, drawn at random"
    first = f"{found['rows']:,} texts{of}, {found['tokens_per_text']:.1f} targets each"
    every = found["all"]
    together = f"{', '.join(every['columns'])}: perplexity about {every['expected']:.1%} lower"
    return [QUESTION, first, f"{together} ({every['least']:.1%} to {every['most']:.1%})"]


def advised(row: Row) -> str:
    """What to do with a column, with the options of `train` that do it."""
    options = {"use": "--context {}", "softmax bias": "--context {} --model softmaxbias"}.get(row["advice"])
    typed = "" if options is None else f" ({options.format(shlex.quote(row['column']))})"
    return f"{row['advice']}{typed}"


def advice_table(found: Row) -> tuple[list[dict[str, str]], list[str]]:
    """A row of text for every column, and the names of the table's columns."""
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
    """A row of text for every row of `rescore.summarise`, and the names of its columns."""
    rows = []
    for row in summary:
        rates = {name: f"{row[name]:.2%}" for name in ("first", "rescored", "oracle")}
        counts = {name: f"{row[name]:,}" for name in ("utterances", "words")}
        rows.append({"value": _value(row), **counts, **rates, "gain": gain(row)})
    return rows, list(RESCORING)


def _value(row: Row) -> str:
    return "all" if row["by"] == "all" else f"{row['by']} {row['value']}"


def gain(row: Row) -> str:
    """Points with their interval, if they have one: +2.1 [+1.0, +3.2]."""
    return Interval(row["gain"], row["gain_low"], row["gain_high"]).told(".2f", 100.0)


def agreed(row: Row) -> str:
    """The row of `embeddings.agreement` as a sentence."""
    of = f"({row['values']:,} values, by {row['measure']})"
    if "same" in row:
        share = f"{row['same']:.1%} of nearest neighbours have the same {row['column']}"
        return f"{share}; of any two values {row['chance']:.1%} {of}."
    return f"The {row['column']} of a value and of its nearest neighbour correlate with {row['correlation']:.2f} {of}."


def sign(token: str) -> str:
    """A token that can be seen: a sign for white space, a ring under a mark that has no letter."""
    if token.isspace():
        return "␣"
    return f"◌{token}" if unicodedata.combining(token[:1] or " ") else token


def readable(token: str) -> str:
    """A token as it is shown: the end of a text as a pilcrow, control characters as a space."""
    if token == SPECIALS[Specials().end]:
        return "¶"
    return "".join(" " if unicodedata.category(mark) in ("Cc", "Zl", "Zp") else mark for mark in token)
