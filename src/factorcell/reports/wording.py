"""What the terminal and the pages both say of results: rows of text, sentences, tokens; nothing is drawn."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.data.vocabulary import SPECIALS, Specials
from factorcell.evaluation.statistics import rank_correlation

Row = Mapping[str, Any]

RESCORING = ("value", "utterances", "words", "first", "rescored", "oracle", "gain")
CANNOT = (
    "What these estimates cannot see: values that are alike and lend each other texts; how much a small or briefly "
    "trained model forgets (it gains more) or fails to learn of many values (it gains less); what the column does for "
    "writing or classifying texts; what more rows would teach of rare values."
)


def advice_lead(found: Row) -> list[str]:
    """What was read for advice, in a line, and what all columns together should bring."""
    of = "" if found["rows"] == found["of"] else f" of {found['of']:,}, drawn at random"
    first = f"{found['rows']:,} texts{of}, {found['tokens_per_text']:.1f} targets each"
    every = found["all"]
    together = f"{', '.join(every['columns'])}: perplexity about {every['expected']:.1%} lower"
    return [first, f"{together} ({every['least']:.1%} to {every['most']:.1%})"]


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
        cells |= {name: f"{row[name]:.1%}" for name in ("least", "expected", "most", "added")}
        cells["guessed"] = f"{row['accuracy_10']:.0%}, {row['accuracy_all']:.0%}"
        cells["majority"] = f"{row['majority']:.0%}"
        rows.append(cells)
    names = ("column", "values", "texts each", "rare", "missing", "least", "expected", "most", "added", "guessed")
    return rows, [*names, "majority"]


def advice_beside(runs: Sequence[Row]) -> tuple[list[dict[str, str]], list[str]]:
    """What runs gained beside what was expected."""
    rows = []
    for row in runs:
        cells = {"run": row["run"], "columns": ", ".join(row["columns"]), "perplexity": f"{row['perplexity']:.2f}"}
        cells["unadapted"] = f"{row['perplexity_unadapted']:.2f}"
        for name in ("measured", "expected", "least", "most"):
            cells[name] = "-" if row[name] is None else f"{row[name]:.1%}"
        rows.append(cells)
    return rows, list(rows[0])


def advice_agreement(runs: Sequence[Row]) -> str:
    """How expected and measured gains go together, in a line; empty of fewer than three runs."""
    there = [row for row in runs if row["expected"] is not None]
    found = rank_correlation([row["expected"] for row in there], [row["measured"] for row in there])
    return (
        "" if found["r"] is None else f"rank correlation of expected and measured: {found['r']:.2f} ({found['n']} runs)"
    )


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
    if row["gain_low"] is None:
        return f"{100 * row['gain']:+.2f}"
    point, low, high = (f"{100 * row[f'gain{end}']:+.2f}" for end in ("", "_low", "_high"))
    return f"{point} [{low}, {high}]"


def agreed(row: Row) -> str:
    """The row of `embeddings.agreement` as a sentence."""
    of = f"({row['values']:,} values, by {row['measure']})"
    if "same" in row:
        share = f"{row['same']:.1%} of nearest neighbours have the same {row['column']}"
        return f"{share}; of any two values {row['chance']:.1%} {of}."
    return f"The {row['column']} of a value and of its nearest neighbour correlate with {row['correlation']:.2f} {of}."


def drawn_unit(row: Row) -> str:
    """Which unit is drawn, and what of."""
    return f"hidden unit {row['hidden_unit']}, {'high' if row['sign'] > 0 else 'low'} in {row['value']}"


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
