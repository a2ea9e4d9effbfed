"""CSV files that are separated by other marks: what is wrong, and what to do."""

import gzip
from pathlib import Path

import pytest

from factorcell.config import DataConfig, UserError
from factorcell.data.columns import column_readers
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table

COMMAS, TABS = "a .csv is separated by commas", "a .tsv is separated by tabs"
SEPARATED = [
    ("t.csv", "text;city\na;b\n", f"{COMMAS}, this header seems to be by semicolons: save it with commas, or with tabs"),
    ("t.csv", '"text";"city"\n"a, b";"c"\n', f"{COMMAS}, this header seems to be by semicolons"),
    ("t.csv", "text|city\na|b\n", f"{COMMAS}, this header seems to be by bars: save it with commas, or with tabs"),
    ("t.csv", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.csv.gz", "text\tcity\na\tb\n", f"{COMMAS}, this header seems to be by tabs: name the file .tsv"),
    ("t.tsv", "text,city\na,b\n", f"{TABS}, this header seems to be by commas: name the file .csv"),
    ("t.tsv", "text;city\na;b\n", f"{TABS}, this header seems to be by semicolons: save it with tabs, or with commas"),
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


@pytest.mark.parametrize(("name", "content"), [("t.csv", "city\na;b\n"), ("t.csv", "a;b,city\nc,d\n"), ("t.tsv", "a\tb\n")])
def test_a_header_that_is_separated_as_it_should_be_is_not_blamed(tmp_path: Path, name: str, content: str) -> None:
    """One column without marks, or several columns."""
    assert "separated" not in fault(tmp_path / name, content)


def test_a_fault_of_the_header_is_not_got_round(tmp_path: Path) -> None:
    """A column that is missing may be expected; not where none can be read."""
    schema = ContextSchema((Variable("city", "category", values=("<unknown>", "b"), counts=(0, 1)),))
    for name, header, remedies in [("t.csv", "text;city", ()), ("u.csv", "text,town", (("unknown", "expected"),))]:
        (tmp_path / name).write_text(f"{header}\n", encoding="utf-8")
        with pytest.raises(UserError, match="no column 'city'") as error:
            column_readers(open_table(tmp_path / name), DataConfig(context=("city",)), schema, "error")
        assert error.value.remedies == remedies
