"""The errors about malformed CSV and TSV files: other separators, misplaced quotes, rows of other lengths."""

from collections.abc import Sequence

from factorcell.config import UserError
from factorcell.data.arrow import one_line
from factorcell.data.chunks import listed
from factorcell.data.content import BLOCK, Content
from factorcell.data.csv_rows import BREAK, QuotedFields, first_ragged_row, has_lines_like_rows
from factorcell.visible import visible

ENDINGS = {",": ".csv", "\t": ".tsv"}
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
QUOTING = 'put the whole field in quotes and write each quote inside it as ""'


def of_header(names: Sequence[str], delimiter: str) -> str:
    """Return what an error adds about a header that lacks a column; empty where nothing is wrong with it."""
    mark = max((mark for mark in SEPARATORS if mark != delimiter), key=names[0].count)
    if len(names) > 1 or mark not in names[0]:
        return ""
    own = f"{ENDINGS[delimiter]} is separated by {SEPARATORS[delimiter]}"
    (other,) = (known for known in ENDINGS if known != delimiter)
    save = f"save it with {SEPARATORS[delimiter]}, or with {SEPARATORS[other]} as a {ENDINGS[other]}"
    advice = f"name the file {ENDINGS[mark]}" if mark in ENDINGS else save
    return f"; a {own}, this header seems to be by {SEPARATORS[mark]}: {advice}"


def line_at(content: Content, position: int) -> int:
    """Return the number of the line that has the byte at `position` of the unpacked file."""
    line, before = 1, b""
    with content.unpacked() as stream:
        while position > 0 and (block := stream.read(min(BLOCK, position))):
            position -= len(block)
            line += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
            line -= before == b"\r" and block.startswith(b"\n")
            before = block[-1:]
    return line


def text_after_quote(content: Content, position: int, block: bytearray, fields: QuotedFields) -> UserError:
    """Return the error about the field `fields.fault` of a `block` that begins at `position` of the file."""
    opens, closes = int(fields.opens[fields.fault]), int(fields.closes[fields.fault])
    line = line_at(content, position + opens)
    if BREAK.search(block, opens, closes):
        closing = line_at(content, position + closes)
        what = f"the quote that opens a field here closes in line {closing}, where text follows it"
    else:
        end = BREAK.search(block, closes)
        text = block[opens : end.start() if end else None].decode("utf-8", "replace")
        what = f"text follows the closing quote of a field ({visible(text):.40})"
    return UserError(f"{content.path} line {line}: {what}; {QUOTING}")


def open_quote(content: Content, position: int) -> UserError:
    """Return the error about a quote at `position` that nothing closes."""
    line = line_at(content, position)
    return UserError(f"{content.path} line {line}: the quote that opens a field here is not closed; {QUOTING}")


def long_row(content: Content, position: int, limit: int, fields: QuotedFields) -> UserError:
    """Return the error about a row from `position` on that is longer than `limit` bytes."""
    why = ""
    if fields.is_open:
        line = line_at(content, position + fields.last_open)
        why = f"; the quote that opens a field in line {line} may not be closed: {QUOTING}"
    row = f"{content.path} line {line_at(content, position)}"
    return UserError(f"{row}: a row is longer than {limit:,} bytes{why}")


def ragged(
    content: Content, position: int, block: bytes, fields: QuotedFields, delimiter: str, names: Sequence[str]
) -> UserError | None:
    """Return the error about the first row of a `block` that has not as many columns as the header, if there is one."""
    row = first_ragged_row(block, fields, delimiter, len(names))
    if row is None:
        return None
    why = ""
    for field in row.fields:
        opens, closes = int(fields.opens[field]), int(fields.closes[field])
        if BREAK.search(block, opens, closes):
            first, last = line_at(content, position + opens), line_at(content, position + closes)
            why = f"; a quote opens in line {first} and closes in line {last}: is it part of the text? {QUOTING}"
            break
    line = line_at(content, position + row.begin)
    expected = f"expected {len(names)} columns ({listed(names)}), got {row.columns}"
    return UserError(f"{content.path} line {line}: {expected}{why}")


class SwallowedRows:
    """Whether the quoted fields that span lines seem to be rows, because a text began with a quote.

    Nothing is said once one of these fields has a line that is not as long as a row: then such fields are texts.
    """

    def __init__(self, delimiter: str, columns: int) -> None:
        self.delimiter, self.columns = delimiter, columns
        self.fields, self.first, self.texts = 0, 0, columns == 1

    def add(self, position: int, block: bytes, fields: QuotedFields) -> None:
        """Take a block that begins at `position` of the file."""
        if self.texts:
            return
        for opens, like_rows in has_lines_like_rows(block, fields, self.delimiter, self.columns):
            if not like_rows:
                self.texts = True
                return
            self.first = self.first if self.fields else position + opens
            self.fields += 1

    def notice(self, content: Content) -> str:
        """Return what a notice says; empty if there is nothing to say."""
        if self.texts or not self.fields:
            return ""
        more = f", like {self.fields - 1:,} other fields" if self.fields > 1 else ""
        where = f"{content.path} line {line_at(content, self.first)}"
        return f"{where}: a quoted field spans lines that look like rows{more}; if its quotes are text, {QUOTING}"


def encoding(content: Content, error: str) -> str:
    """Return what is wrong with a text file that does not parse: the line that is not UTF-8, or the parser's error."""
    for number, line in enumerate(content.lines("utf-8", "\n", "surrogateescape"), 1):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as fault:
            place = len(line[: fault.start].encode("utf-8")) + 1
            byte = f"byte 0x{ord(line[fault.start]) - 0xDC00:02x} at column {place}"
            return f"{content.path} line {number}: not UTF-8 ({byte}); convert it first"
    return f"{content.path}: {one_line(error)}"
