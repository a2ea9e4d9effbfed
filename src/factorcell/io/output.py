"""Output as text and JSON: escapes for hidden characters, aligned columns, and numbers that may be infinite or NaN.

Characters that would control a terminal, reverse the writing direction or be invisible are replaced by Python escapes:
control characters, line separators, marks of writing direction, characters without width, and lone surrogates. Letters
of all scripts and emoji stay unchanged, including the joiners between their parts.
"""

import json
import math
import re
from collections.abc import Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, TypeGuard
from uuid import UUID

# Characters that are always escaped.
CONTROLS = r"\x00-\x1f\x7f-\x9f"
DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
SEPARATORS = r"\u2028\u2029"
NO_WIDTH = r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
SURROGATES = r"\ud800-\udfff"
# Characters above U+FFFF without width: invisible marks of musical notation, and unused tags.
NO_WIDTH_ABOVE_FFFF = r"\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e00ff"

# Joiners stay unchanged after letters of scripts that use them and after emoji. Tags stay unchanged only after a black
# flag, where they select a flag such as that of Scotland.
JOINING = r"\u0590-\u1fff\u2100-\u2bff\ua800-\uabff\ufb1d-\ufdff\ufe0f\ufe70-\ufefc\U00010000-\U0001ffff"
JOINERS = rf"(?<![{JOINING}])[\u200c\u200d]"
TAGS = r"(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007f]+"

HIDDEN = re.compile(f"[{CONTROLS}{DIRECTIONS}{SEPARATORS}{NO_WIDTH}{SURROGATES}{NO_WIDTH_ABOVE_FFFF}]|{JOINERS}|{TAGS}")


def escape_hidden(text: str) -> str:
    """Return `text` with escapes for all hidden and control characters, including line feeds and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return HIDDEN.sub(_python_escape, text)


def escape_hidden_lines(text: str) -> str:
    """Return `text` with escapes for all hidden and control characters except line feeds and tabs."""
    return HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else _python_escape(match), text)


def escape_hidden_json(line: str) -> str:
    """Replace the hidden and control characters of a line of JSON by JSON escapes; the value stays the same."""
    return HIDDEN.sub(lambda match: "".join(map(_json_escape, match[0])), line)


def _python_escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _json_escape(character: str) -> str:
    utf_16 = character.encode("utf-16-be", "surrogatepass")
    code_units = (int.from_bytes(utf_16[i : i + 2], "big") for i in range(0, len(utf_16), 2))
    return "".join(f"\\u{code_unit:04x}" for code_unit in code_units)


def align_columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of `cells` as lines of text: the first column is aligned to the left, all others to the right."""
    rows = [[escape_hidden(cell) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        right_aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *right_aligned]))
    return lines


def to_json(content: Any, **options: Any) -> str:
    """Return `content` as valid JSON, with null for numbers that are not finite; `json.dumps` gets the `options`.

    Dates, times, decimal numbers, bytes and identifiers (UUID), which a Parquet table may have, become texts.
    """
    options = {"ensure_ascii": False, "allow_nan": False, "default": _to_text, **options}
    try:
        return json.dumps(content, **options)
    except ValueError:  # rare, so the values are inspected only after this error
        return json.dumps(_replace_nonfinite(content), **options)


def _to_text(value: Any) -> str:
    if isinstance(value, (date, time)):
        return value.isoformat()  # as the names of categories
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (Decimal, UUID, timedelta)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)


def format_number(value: float | None, number_format: str) -> str:
    """Format a number; return a dash for None and for numbers that are not finite."""
    return format(value, number_format) if is_number(value) else "-"


def _replace_nonfinite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_replace_nonfinite(value) for value in content]
    return content
