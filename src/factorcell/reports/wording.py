"""Texts that both the terminal and the HTML pages show: sentences and readable tokens."""

import unicodedata
from collections.abc import Mapping
from typing import Any

from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS, Specials

Row = Mapping[str, Any]


def token_separator(tokenizer: str) -> str:
    """Return the text between two tokens of a tokenizer: a space between words, nothing between characters."""
    return " " if tokenizer in ("word", "space") else ""


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
