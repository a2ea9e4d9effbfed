"""A column that a few values keep from being a number: told, with the first of them, whatever it is read as."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.config import DataConfig, Notice
from factorcell.data.cache import prepare
from factorcell.data.chunks import Chunk
from factorcell.data.columns import GUESS_ROWS, nearly_numbers
from factorcell.data.tables import open_table

pytestmark = pytest.mark.filterwarnings("ignore::factorcell.config.Notice")
NUMBERS = [f"{number / 7:.3f}" for number in range(300)]
ODD: list[tuple[list[Any], str]] = [
    (NUMBERS, ""),
    ([*NUMBERS[:150], "n/a", *NUMBERS[150:]], "row 151: x is 'n/a', no number; all else are numbers, so x is read as"),
    ([*NUMBERS, "inf", "", None, "inf", "?"], "row 301: x is 'inf', no number, like 2 other values; all else are"),
    (NUMBERS[:80] + ["none"] * 8, "row 81: x is 'none'"),
    (NUMBERS[:80] + ["none"] * 20, ""),  # a fifth
    (["1", "2", "3", "4", "5"] * 20 + ["n/a"], ""),  # ratings are a category without it too
    (["Oslo", "Nice"] * 50, ""),
]


@pytest.mark.parametrize(("values", "told"), ODD, ids=range(len(ODD)))
def test_a_column_that_is_nearly_a_number_is_told(values: list[Any], told: str) -> None:
    """With the first value that is none, where the column would be a number without it; never where a kind is said."""
    rows = [{"text": "a", "x": value} for value in values]
    config = DataConfig(context=("x",))
    schema = prepare(rows, config).schema
    found = nearly_numbers(open_table(rows), config, schema)
    assert len(found) == bool(told)
    assert "".join(found).startswith(told)
    assert not found or found[0].endswith("read as a category; say x:number or x:category")
    assert nearly_numbers(open_table(rows), DataConfig(context=("x:category",)), schema) == []


def test_it_is_told_of_a_table_in_the_cache_too(tmp_path: Path) -> None:
    """Whoever trains again has not read the first notice."""
    path = tmp_path / "t.csv"
    path.write_text("text,x,city,n\n" + "".join(f"a,{x},Oslo{x},{x}\n" for x in NUMBERS) + "a,n/a,Oslo,1.5\n")
    config = DataConfig(context=("x", "city", "n"), min_context_count=1)
    for _ in range(2):
        with pytest.warns(Notice, match=r"t\.csv row 301: x is 'n/a', no number; all else are numbers, so x is"):
            prepare(path, config, cache=tmp_path / "cache")


def test_little_is_read_for_it() -> None:
    """Words by their first chunk alone, numbers not at all, and no more rows than a kind is guessed from."""
    rows = [{"text": "a", "x": x, "n": number, "city": "Oslo"} for number, x in enumerate([*NUMBERS, "n/a"])]
    config, chunks = DataConfig(context=("x", "city", "n"), min_context_count=1), list[int]()
    schema = prepare(rows, config).schema
    half = {"x": ["1.5"] * (GUESS_ROWS // 2), "city": ["Oslo"] * (GUESS_ROWS // 2)}

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        assert names == ("x", "city")
        for number in range(3):
            chunks.append(number)
            yield half

    table = dataclasses.replace(open_table(rows), read=read)
    assert nearly_numbers(table, config, schema) == []
    assert chunks == [0, 1]
    chunks.clear()
    half["x"] = half["city"]
    assert nearly_numbers(table, config, schema) == []
    assert chunks == [0]
