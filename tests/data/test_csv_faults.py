"""CSV files that are separated by other marks, or in which a quote stays open: what is wrong, where, what to do."""

import gzip
import re
from pathlib import Path

import pytest

from factorcell.config import DataConfig, UserError
from factorcell.data.columns import column_readers
from factorcell.data.csv_faults import CLOSE
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table

COMMAS, TABS = "a .csv is separated by commas", "a .tsv is separated by tabs"
SEPARATED = [
    (
        "t.csv",
        "text;city\na;b\n",
        f"{COMMAS}, this header seems to be by semicolons: save it with commas, or with tabs",
    ),
    ("t.csv", '"text";"city"\n"a, b";"c"\n', f"{COMMAS}, this header seems to be by semicolons"),
    ("t.csv", "text|city\na|b\n", f"{COMMAS}, this header seems to be by bars: save it with commas, or with tabs"),
    ("t.csv", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.csv.gz", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.tsv", "text,city\na,b\n", f"{TABS}, this header seems to be by commas: name the file .csv"),
    ("t.tsv", "text;city\na;b\n", f"{TABS}, this header seems to be by semicolons: save it with tabs, or with commas"),
]
ROW = f"is not closed where its text ends: {CLOSE}"
OPEN = [
    ("in a column of several", 'text,city\na,b\n"c,d\ne,f\n', f"line 3: 1 columns, the header has 2 .* line 3 {ROW}"),
    ("closed by a later one", 'text,city\n"a,b\nc,d\n"e, f",g\n', f"line 2: 3 columns, .* line 2 {ROW}"),
    ("in the last column", 'city,text\na,b\nc,"d\ne,f\n', f"line 3: text begins with a quote .* closed: {CLOSE}"),
    ("in the last column of Windows", 'city,text\r\na,b\r\nc,"d\r\ne,f\r\n', "line 3: text begins with a quote"),
    ("without a last line break", 'city,text\na,b\nc,"d\ne,f', "line 3: text begins with a quote"),
    ("before empty lines", 'city,text\na,b\nc,"d\ne,f\n\n\n', "line 3: text begins with a quote"),
    ("behind whole ones", 'text,city\n"two\nlines",a\n"b,c\nd,e\n', f"line 4: 1 columns, .* line 4 {ROW}"),
    ("beside a whole one", 'text,city,of\n"two\nlines","a,b\nc,d,e\n', f"line 2: 2 columns, .* line 3 {ROW}"),
    ("closed in its line", 'text,city\na,b\n"c,"d, e",f\n', f"line 3: 3 columns, .* line 3 {ROW}"),
    ("far from the end", 'text,city\na,b\n"c,d\n' + "e,f\n" * 50_000, f"line 3: 1 columns, .* line 3 {ROW}"),
    ("in the header", '"text,city\na,b\n', f"no column 'text'; .* line 1 {ROW}"),
    (
        "in the header of a long file",
        '"text,city\n' + "a,b\n" * 50_000,
        f"line 1: a quote opens here .* closed: {CLOSE}",
    ),
]


def fault(path: Path, content: str) -> str:
    """What an error says of a file of this content that is read."""
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    with pytest.raises(UserError) as error:
        list(open_table(path).chunks(["text"]))
    assert str(error.value).startswith(str(path))
    return str(error.value)


@pytest.mark.parametrize(("name", "content", "said"), SEPARATED)
def test_other_separators_are_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    """Where the column that is asked for is not there, and what the file is to be called or saved as."""
    message = fault(tmp_path / name, content)
    assert "no column 'text'; it has " in message
    assert said in message


@pytest.mark.parametrize(
    ("name", "content"), [("t.csv", "city\na;b\n"), ("t.csv", "a;b,city\nc,d\n"), ("t.tsv", "a\tb\n")]
)
def test_a_header_that_is_separated_as_it_should_be_is_not_blamed(tmp_path: Path, name: str, content: str) -> None:
    """One column without marks, or several columns."""
    assert "this header" not in fault(tmp_path / name, content)


def test_a_fault_of_the_header_is_not_got_round(tmp_path: Path) -> None:
    """A column that is missing may be expected; not where none can be read."""
    schema = ContextSchema((Variable("city", "category", values=("<unknown>", "b"), counts=(0, 1)),))
    for name, header, remedies in [("t.csv", "text;city", ()), ("u.csv", "text,town", (("unknown", "expected"),))]:
        (tmp_path / name).write_text(f"{header}\n", encoding="utf-8")
        with pytest.raises(UserError, match="no column 'city'") as error:
            column_readers(open_table(tmp_path / name), DataConfig(context=("city",)), schema, "error")
        assert error.value.remedies == remedies


@pytest.mark.parametrize(("content", "said"), [case[1:] for case in OPEN], ids=[name for name, _, _ in OPEN])
def test_an_open_quote_is_named_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    """Whatever it takes in, and wherever it ends."""
    assert re.search(said, fault(tmp_path / "t.csv", content))


def test_quotes_that_close_are_not_blamed_for_a_row_of_too_many_columns(tmp_path: Path) -> None:
    """Of one line or of several."""
    for row in ('"c, d",e,f', '"c\nd",e,"f"'):
        assert "perhaps" not in fault(tmp_path / "t.csv", f"text,city\na,b\n{row}\n")


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n\r\n"])
def test_a_closed_quote_is_not_blamed(tmp_path: Path, end: str) -> None:
    """A text of two lines that ends the file, with or without empty lines behind it."""
    (tmp_path / "t.csv").write_bytes(f'city,text\na,"two\nlines"{end}'.encode())
    assert list(open_table(tmp_path / "t.csv").chunks(["text"])) == [{"text": ["two\nlines"]}]
