"""Empty context columns: they are read as expected values, drop their rows, or stop the command; values are counted."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from tests.findings import collected_findings

COLUMNS = ("city:category", "stars:number", "at:hour", "topic:vector", "title:text")
CONFIG = Config.of(context=COLUMNS, min_context_count=1, min_context_word=1, min_count=1)
FULL: dict[str, Any] = {"city": "Oslo", "stars": 1.5, "at": "2024-02-29T12:00", "topic": [1, 2], "title": "sea"}
ROWS: list[dict[str, Any]] = [
    {**FULL, "text": "all empty", "city": "", "stars": None, "at": "", "topic": None},
    {**FULL, "text": "full"},
    {**FULL, "text": "no stars", "stars": math.nan, "city": "Rome"},
    {**FULL, "text": "no title", "title": "", "stars": 2.5, "topic": [3, 2], "at": "2024-02-29T18:00"},
    {**FULL, "text": "no hour", "at": None},
]
PRESENT = [1, 3]  # the rows without an empty column, apart from the title


def read(rows: Any, **options: Any) -> tuple[Corpus, list[str]]:
    """Return the corpus of `rows` and the notices about it; `options` are those of `prepare`."""
    with collected_findings() as caught:
        corpus = prepare(rows, **({"config": CONFIG} | options))
    return corpus, [warning.text for warning in caught]


def assert_equal_contexts(first: Corpus, second: Corpus) -> None:
    arrays, expected_arrays = first.context_arrays(), second.context_arrays()
    assert list(arrays) == list(expected_arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected_arrays[name])


def test_empty_columns_are_encoded_as_missing_and_do_not_change_the_statistics_of_the_others() -> None:
    corpus, notices = read(ROWS)
    assert notices == [
        "in-memory table: an empty context column in 3 of 5 texts (city 1, stars 2, at 2, topic 1), "
        "read as the expected value of the column (--missing expected)"
    ]
    assert corpus.categories.T.tolist() == [[-1, 1, 2, 1, 1]]
    assert np.isnan(corpus.numbers).T.tolist() == [[True, False, True, False, False], [True, *[False] * 3, True]]
    assert np.isnan(corpus.vectors[0]).tolist() == [[True] * 2, *[[False] * 2] * 4]
    stars = corpus.schema.variable("stars")
    assert (stars.mean, stars.deviation) == pytest.approx((np.mean([1.5, 2.5, 1.5]), np.std([1.5, 2.5, 1.5])))
    assert (stars.low, stars.high) == (1.5, 2.5)
    hours = np.array([12, 12, 18])
    assert corpus.schema.variable("at.hour").means[1] == pytest.approx(np.cos(hours * 2 * np.pi / 24).mean())
    assert corpus.schema.variable("topic").means == pytest.approx((1.5, 2))


@pytest.mark.parametrize("as_file", [False, True])
def test_dropped_rows_leave_the_corpus_of_the_other_rows(as_file: bool, tmp_path: Path) -> None:
    source: Any = ROWS
    if as_file:
        source = tmp_path / "rows.parquet"
        pd.DataFrame(ROWS).to_parquet(source)
    config = CONFIG.with_options(missing="drop")
    expected, _ = read([ROWS[row] for row in PRESENT])
    for _ in range(2):  # the second time from the cache
        corpus, notices = read(source, config=config, cache=tmp_path / "cache")
        assert notices == []
        assert corpus.source_rows.tolist() == PRESENT
        assert corpus.tokens.tolist() == expected.tokens.tolist()
        assert corpus.tokenizer.tokens == expected.tokenizer.tokens
        assert corpus.schema == expected.schema
        assert_equal_contexts(corpus, expected)
    assert corpus.select(np.array([1])).source_rows.tolist() == [PRESENT[1]]
    assert read(ROWS)[0].source_rows.tolist() == list(range(len(ROWS)))


def test_errors_have_the_row_of_the_table_although_earlier_rows_are_dropped() -> None:
    corpus, _ = read(ROWS)
    options: dict[str, Any] = {"tokenizer": corpus.tokenizer, "schema": corpus.schema, "unknown": "error"}
    config = CONFIG.with_options(missing="drop")
    with pytest.raises(UserError, match="row 6: city 'Bergen' was never seen"):
        read([*ROWS, {**FULL, "text": "a", "city": "Bergen"}], config=config, **options)
    with pytest.raises(UserError, match="row 6: stars is 'many', not a number"):
        read([*ROWS, {**FULL, "text": "a", "stars": "many"}], config=config)
    with pytest.raises(UserError, match="row 6: text is 5, not a text"):
        read([*ROWS, {**FULL, "text": 5}], config=config)


def test_the_error_about_an_empty_column_names_its_row_and_the_options() -> None:
    config = CONFIG.with_options(missing="error")
    with pytest.raises(UserError) as error:
        read(ROWS[1:], config=config)
    assert error.value.as_command() == (
        "in-memory table row 2: stars is empty; fill it in or leave the row out; "
        "--missing expected or --missing drop to continue anyway"
    )
    corpus, _ = read([ROWS[row] for row in PRESENT], config=config)
    options: dict[str, Any] = {"config": config, "tokenizer": corpus.tokenizer, "schema": corpus.schema}
    with pytest.raises(UserError, match='city is empty; fill it in or leave the row out; unknown="expected" to'):
        read(ROWS, **options)
    assert len(read(ROWS, **options, unknown="expected")[0]) == len(ROWS)
    assert len(read(ROWS[2:4], **options, optional=("stars",))[0]) == 2


def test_a_column_without_any_value_cannot_be_a_context() -> None:
    for column in ("stars:number", "topic:vector", "at:weekday"):
        name, _, _ = column.partition(":")
        with pytest.raises(UserError, match=f"^in-memory table: {name} is empty in all rows; leave the column out$"):
            read([{"text": "a", name: None}] * 3, config=Config.of(context=(column,)))
    with pytest.raises(UserError, match="all rows have an empty context column and are dropped"):
        read([{"text": "a", "stars": None}], config=Config.of(context=("stars:number",), missing="drop"))


def test_a_notice_counts_the_texts_with_values_that_training_did_not_see() -> None:
    config = Config.of(context=("city", "land"), min_context_count=2, min_count=1)
    training = [{"text": "a", "city": city, "land": "no"} for city in ("Oslo", "Oslo", "Bergen")]
    corpus, _ = read(training, config=config)
    places = [("Oslo", "no"), ("Bergen", "no"), ("Rome", "no"), ("Rome", "it"), (None, "fr")]
    rows = [{"text": "a", "city": city, "land": land} for city, land in places]
    options: dict[str, Any] = {"config": config, "tokenizer": corpus.tokenizer, "schema": corpus.schema}
    grouped, notices = read(rows, **options)
    assert grouped.categories.tolist() == [[1, 1], [0, 1], [0, 1], [0, 0], [-1, 0]]
    problem = "in-memory table: values that training did not see in 3 of 5 texts (city 2, land 2)"
    assert notices == [
        f"{problem}, read as the unknown value (--unknown group)",
        "in-memory table: an empty context column in 1 of 5 texts (city 1), "
        "read as the expected value of the column (--missing expected)",
    ]
    assert read(rows, **options, unknown="expected")[1] == [
        f"{problem}, read as the expected value of the column (--unknown expected)"
    ]
    assert read(rows[:2], **options)[1] == []


def test_names_of_users_are_not_counted_in_an_anonymous_run() -> None:
    config = Config.of(user="who", anonymous=True, min_user_count=1, min_count=1)
    corpus, _ = read([{"text": "a", "who": "ann"}], config=config)
    other = [{"text": "a", "who": "bob"}]
    assert read(other, config=config, tokenizer=corpus.tokenizer, schema=corpus.schema)[1] == []


def test_vectors_may_be_missing_in_whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.data.tables.tables.CHUNK_ROWS", 2)
    vectors = [None, None, None, [1, 2], None, None, [3, 4]]
    corpus, _ = read(
        [{"text": "a", "topic": vector} for vector in vectors], config=Config.of(context=("topic:vector",))
    )
    expected = [[math.nan] * 2 if vector is None else vector for vector in vectors]
    np.testing.assert_array_equal(corpus.vectors[0], np.array(expected, np.float32))
    assert corpus.schema.variable("topic").means == (2, 3)
