"""Empty context columns: they are read as expected values; unseen values are counted."""

import math
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from tests.findings import collected_findings

COLUMNS = ("city:category", "stars:number", "at:hour", "topic:vector", "title:text")
CONFIG = Config.of(context=COLUMNS, min_context_count=1, min_count=1)
FULL: dict[str, Any] = {"city": "Oslo", "stars": 1.5, "at": "2024-02-29T12:00", "topic": [1, 2], "title": "sea"}
ROWS: list[dict[str, Any]] = [
    {**FULL, "text": "all empty", "city": "", "stars": None, "at": "", "topic": None},
    {**FULL, "text": "full"},
    {**FULL, "text": "no stars", "stars": math.nan, "city": "Rome"},
    {**FULL, "text": "no title", "title": "", "stars": 2.5, "topic": [3, 2], "at": "2024-02-29T18:00"},
    {**FULL, "text": "no hour", "at": None},
]


def read(rows: Any, **options: Any) -> tuple[Corpus, list[str]]:
    """Return the corpus of `rows` and the notices about it; `options` are those of `prepare`."""
    with collected_findings() as caught:
        corpus = prepare(rows, **({"config": CONFIG} | options))
    return corpus, [warning.text for warning in caught]


def test_empty_columns_are_encoded_as_missing_and_do_not_change_the_statistics_of_the_others() -> None:
    corpus, notices = read(ROWS)
    assert notices == [
        "in-memory table: an empty context column in 3 of 5 texts (city 1, stars 2, at 2, topic 1), "
        "read as the expected value of the column"
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


def test_errors_have_the_row_of_the_table() -> None:
    corpus, _ = read(ROWS)
    options: dict[str, Any] = {"tokenizer": corpus.tokenizer, "schema": corpus.schema, "unknown": "error"}
    with pytest.raises(UserError, match="row 6: city 'Bergen' was never seen"):
        read([*ROWS, {**FULL, "text": "a", "city": "Bergen"}], **options)
    with pytest.raises(UserError, match="row 6: stars is 'many', not a number"):
        read([*ROWS, {**FULL, "text": "a", "stars": "many"}])
    with pytest.raises(UserError, match="row 6: text is 5, not a text"):
        read([*ROWS, {**FULL, "text": 5}])


def test_a_column_without_any_value_cannot_be_a_context() -> None:
    for column in ("stars:number", "topic:vector", "at:weekday"):
        name, _, _ = column.partition(":")
        with pytest.raises(UserError, match=f"^in-memory table: {name} is empty in all rows; leave the column out$"):
            read([{"text": "a", name: None}] * 3, config=Config.of(context=(column,)))


def test_a_notice_counts_the_texts_with_values_that_training_did_not_see() -> None:
    config = Config.of(context=("city", "land"), min_context_count=2, min_count=1)
    training = [{"text": "a", "city": city, "land": "no"} for city in ("Oslo", "Oslo", "Bergen")]
    corpus, _ = read(training, config=config)
    places = [("Oslo", "no"), ("Bergen", "no"), ("Rome", "no"), ("Rome", "it"), (None, "fr")]
    rows = [{"text": "a", "city": city, "land": land} for city, land in places]
    options: dict[str, Any] = {"config": config, "tokenizer": corpus.tokenizer, "schema": corpus.schema}
    grouped, notices = read(rows, **options)
    assert grouped.categories.tolist() == [[1, 1], [0, 1], [0, 1], [0, 0], [-1, 0]]
    problem = "in-memory table: unseen or rare values in 4 of 5 texts (city 3, land 2)"
    assert notices == [
        f"{problem}, read as the unknown value (--unknown group)",
        "in-memory table: an empty context column in 1 of 5 texts (city 1), read as the expected value of the column",
    ]
    assert read(rows, **options, unknown="expected")[1] == [
        "in-memory table: missing, unseen or rare values in 4 of 5 texts (city 4, land 2), "
        "read as the expected value of the column"
    ]
    assert read(rows[:1], **options)[1] == []


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
