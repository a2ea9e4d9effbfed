"""The tables of the thesis from canned rows, and the rank correlation that says how far two columns agree."""

import itertools
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import study
import thesis_tables as tables
from factorcell import files
from factorcell.config import UserError

PUBLISHED = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))
FIGURES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=8)


def row(name: str, known: float, **more: Any) -> dict[str, Any]:
    """A finished row."""
    return {"row": name, "perplexity": known + 1, "perplexity_known": known, **more}


def cells(table: str) -> list[list[str]]:
    """The cells of the lines of the first table of a page, without its heading."""
    lines = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


def by_name(table: str, columns: int) -> dict[str, list[str]]:
    """Line -> its further cells, where the first `columns` are Y or N."""
    return {"".join(line[:columns]): line[columns:] for line in cells(table)}


@given(FIGURES)
def test_rank_correlation_by_counting(pairs: list[tuple[int, int]]) -> None:
    """Against ranks counted one by one, ties sharing the mean of theirs, and the correlation written out."""
    columns = list(zip(*pairs, strict=True))
    ranks = [
        [sum(other < value for other in column) + (column.count(value) + 1) / 2 for value in column]
        for column in columns
    ]
    (a, b), mean = ranks, (len(pairs) + 1) / 2
    product = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spreads = [math.sqrt(sum((x - mean) ** 2 for x in column)) for column in ranks]
    expected = product / math.prod(spreads) if math.prod(spreads) else math.nan
    assert tables.spearman(*columns) == pytest.approx(expected, nan_ok=True)


def test_rank_correlation_of_the_same_and_the_opposite_order() -> None:
    """1 and -1, whatever the distances."""
    assert tables.spearman([1, 2, 50], [3.0, 3.1, 3.2]) == pytest.approx(1)
    assert tables.spearman([1, 2, 50], [0, -7, -8]) == pytest.approx(-1)


def test_sixteen_rows_beside_those_of_the_thesis() -> None:
    """Its own figures in the last columns, ours in the first, gains over the unadapted row; what is missing: empty."""
    rows = {
        "unadapted": row("unadapted", 40.0),
        "hash": row("hash", 30.0, accuracy=0.25),
        "scale+concat+low_rank+hash": row("all", 20.0, accuracy=0.5),
    }
    text = tables.sixteen(rows, PUBLISHED["scotus"], list(PUBLISHED["scotus"]), {"accuracy": "accuracy"})
    lines = by_name(text, 4)
    assert len(lines) == 16
    assert lines["NNNN"] == ["41.00", "40.00", "0.0%", "", "37.30", "0.0%", ""]
    assert lines["NNNY"] == ["31.00", "30.00", "25.0%", "25.0", "31.20", "16.4%", "29.6"]
    assert lines["YYYY"] == ["21.00", "20.00", "50.0%", "50.0", "29.40", "21.2%", "31.9"]
    assert lines["YNYN"] == ["", "", "", "", "32.30", "13.4%", "24.5"]
    assert "perplexity: 1.00 (3 rows)" in text
    assert "accuracy: 1.00 (2 rows)" in text
    f1 = tables.sixteen(rows, PUBLISHED["commonvoice9"], ["hash"], {"accuracy": "accuracy", "macro_f1": "F1"})
    assert by_name(f1, 4)["NNNY"] == ["31.00", "30.00", "25.0%", "25.0", "", "6.43", "0.2%", "56.1", "44.0"]


def test_variables_take_two_rows_of_the_other_table() -> None:
    """The unadapted model knows no variable, the one with all adaptations all three."""
    scotus = {"unadapted": row("unadapted", 40.0), "scale+concat+low_rank+hash": row("all", 30.0)}
    text = tables.variables({"case+role": row("case+role", 35.0)}, scotus, PUBLISHED["variables"])
    lines = by_name(text, 3)
    assert len(lines) == 8
    assert lines["NNN"][1:] == ["40.00", "0.0%", "37.30", "0.0%"]
    assert lines["YNY"][1:] == ["35.00", "12.5%", "30.30", "18.8%"]
    assert lines["YYY"][1:] == ["30.00", "25.0%", "29.40", "21.2%"]
    assert lines["NYN"][1:] == ["", "", "33.60", "9.9%"]
    assert "(3 rows)" in text


def test_communities_that_gain_most_and_least() -> None:
    """Nine at each end in order of their gains, none twice, none with few titles; those of the thesis once more."""

    def entries(factor: float) -> list[dict[str, Any]]:
        own = [{"value": f"s{n}", "count": 50, "perplexity": 100.0 * (1 - factor * n / 100)} for n in range(30)]
        own.append({"value": "few", "count": 49, "perplexity": 100 * (1 - factor * 0.9)})
        return [*own, {"value": "nba", "count": 60, "perplexity": 100 * (1 - factor * 0.145)}]

    rows = {name: row(name, 9.0, by=entries(f), nearest={}) for name, f in (("unadapted", 0.0), ("concat+hash", 1.0))}
    text = tables.subreddits(rows, PUBLISHED["subreddits"])
    assert [line[0] for line in cells(text)] == [f"s{n}" for n in (*range(29, 20, -1), *range(8, -1, -1))]
    assert cells(text)[0] == ["s29", "50", "100.0", "71.0", "29.0%", ""]
    assert "| nba | 60 | 100.0 | 85.5 | 14.5% | 16.4% |" in text
    assert "few" not in text
    del rows["unadapted"]
    assert "Not trained yet" in tables.subreddits(rows, PUBLISHED["subreddits"])


def test_the_best_penalty_stands_for_its_kind() -> None:
    """With its figures, in the order of the thesis; all trained rows follow."""
    rows = {
        name: row(name, perplexity, top_3=0.4)
        for name, perplexity in (
            ("none", 50.0),
            ("sparse-0", 44.0),
            ("sparse-0.1", 43.0),
            ("low_rank_each+sparse-0.1", 42.0),
        )
    }
    text = tables.sparse(rows, PUBLISHED["sparse"])
    lines = {line[0]: line[1:] for line in cells(text)}
    assert list(lines) == list(PUBLISHED["sparse"])
    assert lines["sparse"] == ["0.1", "44.00", "43.00", "40.00", "41.40", ""]
    assert lines["low_rank_each+sparse"] == ["0.1", "43.00", "42.00", "40.00", "41.20", "46.35"]
    assert lines["none"] == ["", "51.00", "50.00", "40.00", "44.00", ""]
    assert lines["low_rank"] == ["", "", "", "", "41.30", ""]
    assert all(f"| {name} |" in text for name in rows)


def test_tables_go_into_a_page_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written around them stays; a page without a place for one is an error; a second time changes nothing."""
    files.write_rows(tmp_path / "scotus.jsonl", [row("unadapted", 40.0)])
    page = tmp_path / "tables.md"
    arguments = ["--out", str(tmp_path), "--into", str(page)]
    assert tables.main(arguments) == 0
    first = page.read_text()
    assert first.count("| 41.00 | 40.00 |") == 2  # tables 3.7 and 3.8
    page.write_text("What agrees:\n\n" + first + "And this.\n")
    files.append_row(tmp_path / "scotus.jsonl", row("hash", 31.5))
    assert tables.main(arguments) == 0
    second = page.read_text()
    assert second.startswith("What agrees:\n\n## Table 3.4")
    assert second.endswith("And this.\n")
    assert "| 32.50 | 31.50 | 21.3% |" in second
    assert tables.main(arguments) == 0
    assert page.read_text() == second
    printed: list[str] = []
    assert tables.main(["--out", str(tmp_path), "--trial"], printed.append) == 0
    assert "| 41.00 | 40.00 |" not in printed[0]
    page.write_text(second.replace("<!-- end of Table 3.7 -->", ""))
    assert tables.main(arguments) == 2
    assert "no place for Table 3.7" in capsys.readouterr().err
    with pytest.raises(UserError, match="no place for x"):
        tables.filled("", {"x": "y"})


def test_every_mechanism_beside_the_others() -> None:
    """A line for each finished row of the experiment in its order, gains against the unadapted one."""
    rows = {"prefix": row("prefix", 150.0, accuracy=0.5, minutes=1.25), "gru": row("gru", 1.0)}
    rows["unadapted"] = row("unadapted", 200.0)
    found = {line[0]: line[1:] for line in cells(tables.family(rows))}
    assert list(found) == ["unadapted", "prefix"]
    assert found["prefix"] == ["151.00", "150.00", "25.0%", "0.500", "1.2"]
    assert found["unadapted"][2:] == ["0.0%", "", ""]
