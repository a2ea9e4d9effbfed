"""Texts that steer a terminal, turn letters round or hide among them, and whether any of it came through."""

import sys
from pathlib import Path

BIDIRECTIONAL = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
MARKS = [chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
HIDING = {*MARKS, *BIDIRECTIONAL, "\u2028", "\u2029", "\u200b", "\u2060", "\ufeff"}

# In names, values and texts; those of a table are no lone surrogates, for it is UTF-8.
HOSTILE_TEXTS = {
    "screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "eight": "\x9b31m\x90",
    "lines": "x\rfactorcell\u2028fake\u2029\x85",
    "round": "\u202egnp.exe\u202c\u2066\u200f\u061c",
    "hidden": "ad\u200bmin\u2060\ufeff",
}


# A byte of a file name that is not UTF-8, as Python has it; other systems refuse such names.
NOT_UTF8 = "\udce9" if sys.platform == "linux" else ""


def unescaped_characters(shown: str) -> list[str]:
    """The characters of a terminal's text or a file's that act or hide."""
    return sorted(ascii(mark) for mark in set(shown) & HIDING)


def read_exactly(path: Path) -> str:
    """The text of a file with its line ends as they are."""
    return path.read_bytes().decode()
