"""Hostile files as training table, development table and scored table: an error in one line, or their texts."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import pytest

from factorcell import Run
from tests.faults.tables import (
    LINES,
    PARQUET,
    PLAIN,
    ROLE,
    ROWS,
    WIDE,
    Expected,
    check_outcome,
    delimited,
    json_lines,
    parquet,
    rows_with_change,
    rows_without_column,
    zstd,
)


def with_row_before_last(cells: str) -> bytes:
    """Return the plain table with a row of `cells` before its last row."""
    lines = PLAIN.splitlines(keepends=True)
    return b"".join([*lines[:-1], cells.encode() + b"\n", lines[-1]])


def with_unclosed_quote() -> bytes:
    """Return the plain table with an unclosed quote in the last column of its fourth row."""
    return PLAIN.rstrip().removesuffix(b"bob") + b'"bob\nwarm,sea\n'


def zipped(content: bytes) -> bytes:
    """Return a zip archive with one file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("table.csv", content)
    return stream.getvalue()


def with_flipped_byte(content: bytes) -> bytes:
    """Return content with the byte in its middle inverted."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


# Unexpected files: name, content, and the expected outcome in every role.
TABLES: list[tuple[str, bytes, Expected]] = [
    ("empty.csv", b"", "the file is empty"),
    ("empty.jsonl", b"", "the file is empty"),
    ("empty.parquet", b"", "the file is empty"),
    ("empty.csv.gz", b"", "the file is empty"),
    ("nothing.csv.gz", gzip.compress(b""), "expected the names of the columns, got an empty line"),
    ("nothing.csv.zst", zstd(b""), "line 1: expected the names of the columns, got an empty line"),
    ("header.csv", PLAIN.splitlines(keepends=True)[0], "no rows"),
    ("newline.csv", b"\n", "line 1: expected the names of the columns, got an empty line"),
    ("newlines.jsonl", b"\n" * 1000, "empty, no columns and no rows"),
    ("blanks.csv", b"   \n  \n", "no column "),
    ("twice.csv", PLAIN.replace(b"\n", b",a\n").replace(b"who,a", b"who,text", 1), "the header has 'text' twice"),
    ("twice-unused.csv", PLAIN.replace(b"\n", b",x,x,,\n"), 4),
    (
        "twice-used.csv",
        PLAIN.replace(b"\n", b",Nice\n").replace(b"who,Nice", b"who,city", 1),
        "the header has 'city' twice",
    ),
    ("sep.csv", b"sep=;\r\n" + delimited(ROWS, ";", "\r\n"), 4),
    ("sep-only.csv", b"sep=;\n", "line 2: expected the names of the columns, got an empty line"),
    ("sep-other.csv", b"sep=;\n" + PLAIN, "no column "),
    ("bidi.csv", b"te\xe2\x80\xaext,city\na,b\n", "it has te\\u202ext, city"),
    ("spaces.csv", PLAIN.replace(b"text,", b" text ,", 1), "no column 'text'"),
    ("no-text.csv", delimited(rows_without_column("text")), "no column 'text'"),
    ("no-text.jsonl", json_lines(rows_without_column("text")), "no column 'text'"),
    ("no-text.parquet", parquet(rows_without_column("text")), "no column 'text'"),
    ("boms.csv", b"\xef\xbb\xbf" * 2 + PLAIN, "no column 'text'"),
    *(
        (f"{code}.csv", delimited(ROWS, encoding=code), f"{code.upper()}; convert it to UTF-8")
        for code in ("utf-16", "utf-32")
    ),
    *(
        (f"utf-16.{end}", b"\xfe\xff" + content.decode().encode("utf-16-be"), "UTF-16; convert it to UTF-8")
        for end, content in (("csv", PLAIN), ("tsv", delimited(ROWS, "\t")), ("jsonl", LINES))
    ),
    ("utf-16.csv.gz", gzip.compress(PLAIN.decode().encode("utf-16")), "UTF-16; convert it to UTF-8"),
    ("utf-16.jsonl", LINES.decode().encode("utf-16"), "UTF-16; convert it to UTF-8"),
    ("latin.csv", PLAIN.replace(b"Nice", b"N\xeece"), "line 3: not UTF-8 (byte 0xee at column"),
    ("latin.jsonl", LINES.replace(b"Nice", b"N\xeece"), "line 2: not UTF-8 (byte 0xee at column"),
    ("latin-header.csv", b"\xe9" + PLAIN, "line 1: not UTF-8 (byte 0xe9 at column 1)"),
    ("surrogate.csv", PLAIN.replace(b"Nice", b"\xed\xa0\x80"), "line 3: not UTF-8"),
    ("zeros.csv", b"\0" * 1000, "no column "),
    ("zeros.parquet", b"\0" * 1000, "not a Parquet file, or damaged"),
    ("noise.csv", bytes(range(128, 256)) * 50, "not UTF-8"),
    ("noise.parquet", bytes(range(256)) * 50, "not a Parquet file, or damaged"),
    ("noise.csv.gz", bytes(range(256)) * 50, "damaged"),
    ("noise.csv.xz", bytes(range(256)) * 50, "damaged"),
    ("noise.jsonl.zst", bytes(range(256)) * 50, "damaged"),
    ("noise.jsonl.bz2", bytes(range(256)) * 50, "damaged"),
    ("quote-opens.csv", with_unclosed_quote(), "line 5: the quote that opens a field of this row is not closed"),
    (
        "quote-opens.csv.gz",
        gzip.compress(with_unclosed_quote()),
        "line 5: the quote that opens a field of this row is not closed",
    ),
    (
        "quote-header.csv",
        b'"' + PLAIN,
        "line 2: text follows the closing quote of a field of a row that begins in line 1",
    ),
    (
        "quote-first.csv",
        PLAIN.replace(b"the sun", b'"the sun'),
        "line 3: text follows the closing quote of a field",
    ),
    ("quote-text.csv", PLAIN.replace(b"the sun", b'"the" sun'), "line 3: text follows the closing quote of a field"),
    ("quote-escape.csv", PLAIN.replace(b"the sun", rb'"the \"sun\""'), "line 3: text follows the closing quote"),
    ("quotes.tsv", delimited(ROWS, "\t").replace(b"the sun", b'"the sun').replace(b"warm sand", b'"warm" sand"'), 4),
    ("quote-header.tsv", b'"' + delimited(ROWS, "\t"), "no column 'text'"),
    ("quote-inside.csv", PLAIN.replace(b"the sun", b'the "sun'), 4),
    ("short.csv", with_row_before_last("a,b"), "line 5: expected 8 columns (text, city, "),
    ("long.csv", with_row_before_last(",".join("abcdefghi")), "line 5: expected 8 columns (text, city, "),
    ("blank.csv", with_row_before_last("   "), "line 5: expected 8 columns (text, city, "),
    ("blank-lines.csv", with_row_before_last("\n\n"), 4),
    ("no-end.jsonl", LINES.rstrip(), 4),
    ("wide.csv", delimited(WIDE), 4),
    ("semicolons.csv", delimited(ROWS, ";"), 4),
    ("semicolons-row.csv", delimited(ROWS, ";") + b"a,b\n", "line 6: expected 8 columns"),
    ("bars.csv", delimited(ROWS, "|"), 4),
    ("commas.tsv", delimited(ROWS), 4),
    ("tabs.csv", delimited(ROWS, "\t"), 4),
    *((f"plain{end}", PLAIN, "damaged") for end in (".csv.gz", ".csv.bz2", ".csv.zst", ".csv.xz")),
    ("plain.parquet", PLAIN, "not a Parquet file, or damaged"),
    ("plain.jsonl", PLAIN, "line 1: not valid JSON"),
    ("lines.csv", LINES, "no column "),
    *(
        (f"packed-{name}.{end}", pack(PLAIN), f"compressed with {name}; add .")
        for name, pack in (("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress), ("zstd", zstd))
        for end in ("csv", "tsv", "jsonl")
    ),
    ("zip.csv", zipped(PLAIN), "a zip archive or an Excel workbook; extract the table"),
    ("packed-twice.csv.gz", gzip.compress(gzip.compress(PLAIN)), "compressed with gzip"),
    ("parquet.csv", PARQUET, "a Parquet file; change the end of its name to .parquet"),
    ("parquet.jsonl", PARQUET, "a Parquet file; change the end of its name to .parquet"),
    *((f"table{end}", PLAIN, "unknown kind of file") for end in ("", ".txt", ".xlsx", ".csv.zip", ".gz", ".pickle")),
    ("table.parquet.gz", gzip.compress(PARQUET), "unknown kind of file"),
    ("CAPITALS.CSV", PLAIN, 4),
    ("CAPITALS.JSONL.GZ", gzip.compress(LINES), 4),
    *(
        (f"half{end}", pack(PLAIN)[: len(pack(PLAIN)) // 2], "")
        for end, pack in (
            (".csv.gz", gzip.compress),
            (".csv.bz2", bz2.compress),
            (".csv.xz", lzma.compress),
            (".csv.zst", zstd),
        )
    ),
    *(
        (f"cut{end}", pack(PLAIN)[:-3], "damaged")
        for end, pack in ((".csv.gz", gzip.compress), (".csv.bz2", bz2.compress), (".csv.xz", lzma.compress))
    ),
    *(
        (f"flip{end}", with_flipped_byte(pack(PLAIN)), "")
        for end, pack in ((".csv.gz", gzip.compress), (".csv.bz2", bz2.compress), (".csv.xz", lzma.compress))
    ),
    ("streams.csv.xz", lzma.compress(PLAIN[:50]) + lzma.compress(PLAIN[50:]), 4),
    *((f"cut-{size}.parquet", PARQUET[:size], "not a Parquet file") for size in (4, 8, 100, len(PARQUET) - 1)),
    ("headless.parquet", b"\0" * 4 + PARQUET[4:], 4),
    ("hole.parquet", PARQUET[:4] + b"\xff" * 400 + PARQUET[404:], "damaged"),
    ("footer.parquet", PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1", "not a Parquet file, or damaged"),
    ("brotli.parquet", parquet(ROWS, compression="brotli"), 4),
    ("array.jsonl", json.dumps(ROWS).encode(), "line 1: expected a JSON object, got list"),
    ("pretty.jsonl", json.dumps(ROWS[0], indent=1).encode(), "line 1: not valid JSON"),
    ("cut.jsonl", LINES[:-20], "line 4: not valid JSON"),
    ("number.jsonl", LINES + b"5\n", "line 5: expected a JSON object, got int"),
    ("empty-object.jsonl", LINES + b"{}\n", "row 5: "),
    ("objects.jsonl", b"{}\n" * 5, "empty, no columns and no rows"),
    ("deep.jsonl", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 1: not valid JSON"),
    ("digits.jsonl", LINES.replace(b'"25"', b"9" * 5000), "line 2: not valid JSON"),
    ("half.jsonl", LINES.replace(b"Nice", rb"N\ud800ce"), "line 2: not valid JSON (half of a surrogate pair, such as"),
    ("half-key.jsonl", b'{"te\\udfffxt": "a"}\n', "line 1: not valid JSON (half of a surrogate pair"),
    ("pair.jsonl", LINES.replace(b"blue", rb"\ud83d\ude00"), 4),
    ("missing-key.jsonl", LINES + json_lines(rows_without_column("city")[:1]), 5),
    ("late-key.jsonl", json_lines(rows_without_column("city")[:1]) + LINES, 5),
    ("single.jsonl", LINES.replace(b'"', b"'"), "line 1: not valid JSON"),
    ("comma.jsonl", LINES.replace(b"}", b",}"), "line 1: not valid JSON"),
    ("comment.jsonl", b"// rows\n" + LINES, "line 1: not valid JSON"),
    ("separators.jsonl", LINES.replace(b"blue", "\u2028\x85\u2029".encode()), 4),
    ("long.csv", delimited(rows_with_change(2, text="sand " * 200_000)), 4),
    ("long.jsonl", json_lines(rows_with_change(2, text="sand " * 200_000)), 4),
    ("long-name.csv", b"x" * 1_000_000 + b",y\na,b\n", "no column"),
]


@pytest.mark.parametrize("role", ROLE)
@pytest.mark.parametrize(("name", "content", "expected"), TABLES, ids=[name for name, _, _ in TABLES])
def test_hostile_files(
    name: str,
    content: bytes,
    expected: Expected,
    role: str,
    run: Run,
    tmp_path: Path,
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    check_outcome(path, role, run, expected)
