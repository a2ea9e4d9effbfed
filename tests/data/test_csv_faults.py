"""Errors about CSV and TSV files with other separators or misplaced quotes: the line, the problem and the remedy."""

import csv
import gzip
import io
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.data.tables.tables import open_table
from factorcell.data.tables.text_files import QUOTING_HELP
from factorcell.errors import UserError
from tests.findings import collected_findings

OPEN = f"the quote that opens a field of this row is not closed; {QUOTING_HELP}"
SPANS = "the row ends in line 3; if its quotes are part of a text,"
TEXT = "text follows the closing quote of a field"
MISPLACED_QUOTES = [
    ("open in a column of several", 'text,city\na,b\n"c,d\ne,f\n', f"line 3: {OPEN}"),
    ("open in the last column of Windows", 'city,text\r\na,b\r\nc,"d\r\ne,f\r\n', f"line 3: {OPEN}"),
    ("open without a last line break", 'city,text\na,b\nc,"d\ne,f', f"line 3: {OPEN}"),
    ("open after whole fields", 'text,city\n"two\nlines",a\n"b,c\nd,e\n', f"line 4: {OPEN}"),
    ("open next to a whole field", 'text,city,of\n"two\nlines","a,b\nc,d,e\n', f"line 2: {OPEN}"),
    ("open after a doubled quote", 'text,city\na,b\n"c ""d,e\n"",f', f"line 3: {OPEN}"),
    ("open, far from the end", 'text,city\na,b\n"c,d\n' + "e,f\n" * 50_000, f"line 3: {OPEN}"),
    ("open at the very end", 'text,city\na,b\nc,"', f"line 3: {OPEN}"),
    ("open in the header", '"text,city\na,b\n', f"line 1: {OPEN}"),
    ("text after a field", 'text,city\na,b\n"Lovely" stay,c\n', f'line 3: {TEXT} ("Lovely" stay,c)'),
    ("text after the last field", 'city,text\na,b\nc,"Lovely" stay\n', f'line 3: {TEXT} (c,"Lovely" stay)'),
    ("a space after a field", 'text,city\n"a" ,b\n', f'line 2: {TEXT} ("a" ,b)'),
    ("text after an empty field", 'text,city\n""a,b\n', f'line 2: {TEXT} (""a,b)'),
    ("text after a doubled quote", 'text,city\n"a"""b,c\n', f'line 2: {TEXT} ("a"""b,c)'),
    ("text after a field in the header", '"te"xt,city\na,b\n', f"line 1: {TEXT}"),
    ("escapes", 'text,city\n"our \\"lovely\\" stay",b\n', f"line 2: {TEXT}"),
    ("more columns in one line", 'text,city\na,b\n"c,"d, e",f\n', f"line 3: {TEXT}"),
    ("a later line", 'text,city\n"a,b\nc,d\n"e",g\n', f'line 4: {TEXT} of a row that begins in line 2 ("e",g)'),
    ("more lines than columns", 'text,city\n"a\nb"\n', f"line 2: expected 2 columns (text, city), got 1; {SPANS}"),
]


def error_message(path: Path, content: str) -> str:
    """Return the message of the error about a file with this content."""
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    with pytest.raises(UserError) as error:
        list(open_table(path).chunks(["text"]))
    assert str(error.value).startswith(str(path))
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("t.csv", "text;city\na, b;c\n", 2),
        ("t.csv", '"text";"city"\n"a, b";"c"\n', 2),
        ("t.csv", "sep=;\ntext;city\na, b;c\n", 3),
        ("t.csv", 'sep=,\n"text",city\n"a, b",c\n', 3),
        ("t.csv", "sep=|\ntext|city\n\na, b|c\n", 4),
        ("t.csv", "sep=\t\ntext\tcity\na, b\tc\n", 3),
        ("t.csv", "text|city|of; whom\na, b|c|d\n", 2),
        ("t.csv", 'text\tcity\n"a, b"\tc\n', 2),
        ("t.tsv", 'text,city\n"a, b",c\n', 2),
        ("t.tsv", "text;city\na, b;c\n", 2),
        ("t.tsv", "text\tcity\tof;a;b\na, b\tc\td\n", 2),
    ],
)
def test_the_header_or_a_first_line_of_excel_determines_the_separator(
    tmp_path: Path, name: str, content: str, line: int
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    table = open_table(tmp_path / name)
    assert list(table.chunks(["text", "city"])) == [{"text": ["a, b"], "city": ["c"]}]
    assert table.place(1) == f"{tmp_path / name} line {line}, row 1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a;b,city\nc,d\n", "no column 'text'; it has a;b, city"),
        ("t.csv", '"sep=;"\r\n\r\ntext;city\r\n', "line 2: expected the names of the columns, got an empty line"),
        ("t.tsv", "a\tb\n", "no column 'text'; it has a, b"),
    ],
)
def test_a_header_is_read_with_its_own_separator(tmp_path: Path, name: str, content: str, message: str) -> None:
    assert message in error_message(tmp_path / name, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [case[1:] for case in MISPLACED_QUOTES],
    ids=[name for name, _, _ in MISPLACED_QUOTES],
)
def test_a_misplaced_quote_is_reported_with_its_line(tmp_path: Path, content: str, expected: str) -> None:
    message = error_message(tmp_path / "t.csv", content)
    assert expected in message
    assert message.endswith(QUOTING_HELP)


def read_with_csv_module(content: str, columns: int) -> list[list[str]] | None:
    """Return the rows that the strict mode of the csv module reads, or None for an error."""
    try:
        rows = list(csv.reader(io.StringIO(content, newline=""), strict=True))[1:]
    except csv.Error:
        return None
    rows = [row or [""] for row in rows if row or columns == 1]
    return rows if all(len(row) == columns for row in rows) else None


FIELDS = st.sampled_from(
    ["", "a", "bé", 'c"d', '""', '"', '"e"', '"f""g"', '"h,i"', '"j\nk"', '"l\r\n"', '"m"n', '"o', 'p"']
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(
    st.lists(st.tuples(st.lists(FIELDS, min_size=2, max_size=2), ENDS), min_size=1, max_size=6),
    st.text('a,"\n\r', max_size=8),
)
def test_rows_equal_those_of_the_csv_module(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], str]], tail: str
) -> None:
    for columns in (1, 2):
        names = ["text", "city"][:columns]
        body = "".join(",".join(fields[:columns]) + end for fields, end in rows)
        content = ",".join(names) + "\n" + body + tail
        path = tmp_path_factory.mktemp("csv") / "t.csv"
        path.write_bytes(content.encode())
        with warnings.catch_warnings(record=True):
            rows_read = read_rows(path, names)
        # The header ends with a line feed, so a lone carriage return does not end a line.
        assert rows_read == (read_with_csv_module(re.sub(r"\r(?!\n)", " ", content), columns) or None)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("text,city\na\rb,c\nd,e\n", ["a b", "d"]),
        ("text,city\r\na\rb,c\r\n", ["a b"]),
        ("text,city\ra,b\rc,d\r", ["a", "c"]),
        ("text,city\r\r\na,b\r\r\n", ["a"]),
    ],
)
def test_a_lone_carriage_return_ends_lines_only_where_all_lines_end_so(
    tmp_path: Path, content: str, texts: list[str]
) -> None:
    (tmp_path / "t.csv").write_bytes(content.encode())
    assert [row[0] for row in read_rows(tmp_path / "t.csv", ["text", "city"]) or ()] == texts


def test_doubled_carriage_returns_add_no_rows(tmp_path: Path) -> None:
    """Python writes them on Windows into a file that was opened without newline=""."""
    (tmp_path / "t.csv").write_bytes(b"text\r\r\na\r\r\n\r\r\nb\r\r\n")
    assert read_rows(tmp_path / "t.csv", ["text"]) == [["a"], [""], ["b"]]


def read_rows(path: Path, names: list[str]) -> list[list[str]] | None:
    try:
        chunks = list(open_table(path).chunks(names))
    except UserError:
        return None
    return [list(row) for chunk in chunks for row in zip(*chunk.values(), strict=True)]


def test_quotes_in_a_tsv_file_are_ordinary_characters(tmp_path: Path) -> None:
    texts = ['"Lovely stay', "fine", 'it was 5"', '"a"', 'b""c', r"d\"e"]
    path = tmp_path / "t.tsv"
    path.write_text('text\t"city"\n' + "".join(f'{text}\t"Oslo\n' for text in texts), encoding="utf-8")
    assert list(open_table(path).chunks(["text", '"city"'])) == [{"text": texts, '"city"': ['"Oslo'] * len(texts)}]
    path.write_text('text\tcity\n"a\nb"\tOslo\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: expected 2 columns \(text, city\), got 1$"):
        list(open_table(path).chunks(["text"]))


SPANNING = "a quoted field spans lines that look like rows"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('a,b\n"Lovely stay,Oslo\nfine,Nice\nit was 5",Rome\n', f"line 3: {SPANNING}; if its"),
        ('"Lovely stay,Oslo\r\nfine 5",Rome\r\nx,y\r\n"a,b\r\nc",d', f"line 2: {SPANNING}; if"),
        ('"two\nlines",Oslo\n', ""),
        ('"Lovely stay,Oslo\nfine 5",Rome\n"two\nlines",Oslo\n', ""),
        ('"one, line",Oslo\n', ""),
        ('"","\n,"\n', ""),
    ],
)
def test_a_notice_reports_a_field_whose_lines_look_like_rows(tmp_path: Path, body: str, expected: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"text,city\n" + body.encode())
    with collected_findings() as caught:
        table = open_table(path)
        for _ in range(2):
            list(table.chunks(["text"]))
    beginning = f"{path} {expected}"
    messages = [warning.text[: len(beginning)] for warning in caught]
    assert messages == ([beginning] if expected else [])


def test_a_row_with_too_many_columns_is_not_reported_as_a_problem_of_quotes(tmp_path: Path) -> None:
    assert error_message(tmp_path / "t.csv", 'text,city\na,b\n"c, d",e,f\n').endswith("got 3")
    for row in ('"c\nd",e,"f"', 'a,"b",""\n'):
        assert "got 3" in error_message(tmp_path / "t.csv", f"text,city\na,b\n{row}\n")
