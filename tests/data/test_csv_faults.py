"""CSV and TSV files with other separators or misplaced quotes: the error, its line and the remedy."""

import csv
import gzip
import io
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config, UserError
from factorcell.data.columns import ContextColumns
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.data.text_files import QUOTING_HELP

COMMAS, TABS = "a .csv is separated by commas", "a .tsv is separated by tabs"
SEPARATED = [
    (
        "t.csv",
        "text;city\na;b\n",
        f"{COMMAS}, this header seems to be by semicolons: save it with commas",
    ),
    ("t.csv", '"text";"city"\n"a, b";"c"\n', f"{COMMAS}, this header seems to be by semicolons"),
    ("t.csv", "text|city\na|b\n", f"{COMMAS}, this header seems to be by bars: save it with commas"),
    ("t.csv", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.csv.gz", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.tsv", "text,city\na,b\n", f"{TABS}, this header seems to be by commas: name the file .csv"),
    ("t.tsv", "text;city\na;b\n", f"{TABS}, this header seems to be by semicolons: save it with tabs"),
]
OPEN = f"the quote that opens a field of this row is not closed; {QUOTING_HELP}"
SPANS = "the row ends in line 3: are its quotes part of a text?"
TEXT = "text follows the closing quote of a field"
QUOTES = [
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


def fault(path: Path, content: str) -> str:
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    with pytest.raises(UserError) as error:
        list(open_table(path).chunks(["text"]))
    assert str(error.value).startswith(str(path))
    return str(error.value)


@pytest.mark.parametrize(("name", "content", "said"), SEPARATED)
def test_other_separators_are_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    message = fault(tmp_path / name, content)
    assert "no column 'text'; it has " in message
    assert said in message


@pytest.mark.parametrize(
    ("name", "content"), [("t.csv", "city\na;b\n"), ("t.csv", "a;b,city\nc,d\n"), ("t.tsv", "a\tb\n")]
)
def test_a_header_that_is_separated_as_it_should_be_is_not_blamed(tmp_path: Path, name: str, content: str) -> None:
    assert "this header" not in fault(tmp_path / name, content)


def test_a_fault_of_the_header_is_not_got_round(tmp_path: Path) -> None:
    schema = ContextSchema((Variable("city", "category", values=("<unknown>", "b"), counts=(0, 1)),))
    for name, header, remedies in [("t.csv", "text;city", ()), ("u.csv", "text,town", (("unknown", "expected"),))]:
        (tmp_path / name).write_text(f"{header}\n", encoding="utf-8")
        with pytest.raises(UserError, match="no column 'city'") as error:
            ContextColumns(open_table(tmp_path / name), Config.of(context=("city",)).data, schema, "error")
        assert error.value.remedies == remedies


@pytest.mark.parametrize(("content", "said"), [case[1:] for case in QUOTES], ids=[name for name, _, _ in QUOTES])
def test_a_misplaced_quote_is_an_error_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    message = fault(tmp_path / "t.csv", content)
    assert said in message
    assert message.endswith(QUOTING_HELP)


def strict(content: str, columns: int) -> list[list[str]] | None:
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
def test_rows_are_those_of_the_csv_module(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], str]], tail: str
) -> None:
    for columns in (1, 2):
        names = ["text", "city"][:columns]
        body = "".join(",".join(fields[:columns]) + end for fields, end in rows)
        content = ",".join(names) + "\n" + body + tail
        path = tmp_path_factory.mktemp("csv") / "t.csv"
        path.write_bytes(content.encode())
        with warnings.catch_warnings(record=True):
            found = rows_of(path, names)
        assert found == (strict(content, columns) or None)


def rows_of(path: Path, names: list[str]) -> list[list[str]] | None:
    try:
        chunks = list(open_table(path).chunks(names))
    except UserError:
        return None
    return [list(row) for chunk in chunks for row in zip(*chunk.values(), strict=True)]


def test_in_a_tsv_quotes_are_ordinary_characters(tmp_path: Path) -> None:
    texts = ['"Lovely stay', "fine", 'it was 5"', '"a"', 'b""c', r"d\"e"]
    path = tmp_path / "t.tsv"
    path.write_text('text\t"city"\n' + "".join(f'{text}\t"Oslo\n' for text in texts), encoding="utf-8")
    assert list(open_table(path).chunks(["text", '"city"'])) == [{"text": texts, '"city"': ['"Oslo'] * len(texts)}]
    path.write_text('text\tcity\n"a\nb"\tOslo\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: expected 2 columns \(text, city\), got 1$"):
        list(open_table(path).chunks(["text"]))


SWALLOWED = "a quoted field spans lines that look like rows"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('a,b\n"Lovely stay,Oslo\nfine,Nice\nit was 5",Rome\n', f"line 3: {SWALLOWED}; if its"),
        ('"Lovely stay,Oslo\r\nfine 5",Rome\r\nx,y\r\n"a,b\r\nc",d', f"line 2: {SWALLOWED}, like 1 other fields; if"),
        ('"two\nlines",Oslo\n', ""),
        ('"Lovely stay,Oslo\nfine 5",Rome\n"two\nlines",Oslo\n', ""),
        ('"one, line",Oslo\n', ""),
        ('"","\n,"\n', ""),
    ],
)
def test_a_field_of_lines_that_look_like_rows_is_a_notice(tmp_path: Path, body: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"text,city\n" + body.encode())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = open_table(path)
        for _ in range(2):
            list(table.chunks(["text"]))
    assert [str(warning.message)[: len(f"{path} {said}")] for warning in caught] == ([f"{path} {said}"] if said else [])


def test_quotes_that_close_are_not_blamed_for_a_row_of_too_many_columns(tmp_path: Path) -> None:
    assert fault(tmp_path / "t.csv", 'text,city\na,b\n"c, d",e,f\n').endswith("got 3")
    for row in ('"c\nd",e,"f"', 'a,"b",""\n'):
        assert "got 3" in fault(tmp_path / "t.csv", f"text,city\na,b\n{row}\n")
