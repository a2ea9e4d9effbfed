"""Readable forms of tokens, for the terminal and for pages."""

import unicodedata

from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS, Specials


def token_separator(tokenizer: str) -> str:
    """Return the text between two tokens of a tokenizer: a space between words, nothing between characters."""
    return " " if tokenizer in ("word", "space") else ""


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
