"""Text as a reader may see it: what would steer a terminal, turn letters round or hide among them is written out.

Control characters, line separators, marks of writing direction, characters without width, and lone surrogates become
the escapes of Python. Letters of all scripts stay as they are, joiners inside them and inside emoji too.
"""

import re
from collections.abc import Sequence

# Each is written out wherever it stands.
CONTROLS = r"\x00-\x1f\x7f-\x9f"
DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
SEPARATORS = r"\u2028\u2029"
NO_WIDTH = r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
SURROGATES = r"\ud800-\udfff"
NO_WIDTH_BEYOND = r"\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e00ff"  # of music, and unused tags

# Joiners belong behind letters of scripts that join them, and behind emoji; tags behind a black flag (Scotland's).
JOINING = r"\u0590-\u1fff\u2100-\u2bff\ua800-\uabff\ufb1d-\ufdff\ufe0f\ufe70-\ufefc\U00010000-\U0001ffff"
JOINERS = rf"(?<![{JOINING}])[\u200c\u200d]"
TAGS = r"(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007f]+"

HIDDEN = re.compile(f"[{CONTROLS}{DIRECTIONS}{SEPARATORS}{NO_WIDTH}{SURROGATES}{NO_WIDTH_BEYOND}]|{JOINERS}|{TAGS}")
LAID_OUT = re.compile(r"[\n\t]")


def escape_hidden(text: str) -> str:
    """`text` in one line, with nothing in it that acts or hides."""
    if text.isascii() and text.isprintable():
        return text
    return HIDDEN.sub(_written_out, text)


def escape_hidden_lines(text: str) -> str:
    """The same of a text laid out in lines and by tabs, which stay."""
    return HIDDEN.sub(lambda found: found[0] if LAID_OUT.fullmatch(found[0]) else _written_out(found), text)


def escape_hidden_json(line: str) -> str:
    """The same of a line of JSON, by its own escapes: it is read as before."""
    return HIDDEN.sub(lambda found: "".join(map(_json_escape, found[0])), line)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escape(mark: str) -> str:
    units = mark.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def align_columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of `cells` as lines whose columns stand under each other, the first to the left."""
    cells = [[escape_hidden(cell) for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]
