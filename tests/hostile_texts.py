"""Texts with characters that control a terminal, reverse the text or are invisible, and checks for them."""

import sys
from pathlib import Path

BIDIRECTIONAL = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
CONTROLS = [chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
HIDDEN = {*CONTROLS, *BIDIRECTIONAL, "\u2028", "\u2029", "\u200b", "\u2060", "\ufeff"}

# For names, values and texts. Lone surrogates are not included, because tables are UTF-8.
HOSTILE_TEXTS = {
    "screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "eight": "\x9b31m\x90",
    "lines": "x\rfactorcell\u2028fake\u2029\x85",
    "round": "\u202egnp.exe\u202c\u2066\u200f\u061c",
    "hidden": "ad\u200bmin\u2060\ufeff",
}


# A byte of a file name that is not UTF-8, in Python's representation; other systems refuse such names.
NOT_UTF8 = "\udce9" if sys.platform == "linux" else ""


def unescaped_characters(text: str) -> list[str]:
    """Return the hidden and controlling characters in the text of a terminal or a file."""
    return sorted(ascii(character) for character in set(text) & HIDDEN)


def read_exactly(path: Path) -> str:
    """Read the text of a file without converting line ends."""
    return path.read_bytes().decode()
