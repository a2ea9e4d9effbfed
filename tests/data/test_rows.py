"""Arguments that are rows or values: all types of tables, numbers as names, missing values, wrong lengths, no rows."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from factorcell import Completer, Run, UserError, classify, generate
from factorcell.completion import Learner, User, learn_one
from factorcell.data.columns.rows import category_names, to_row, to_rows
from factorcell.evaluation import classify_points, evaluate, log_likelihoods
from factorcell.evaluation.explaining.embeddings import bias_shift
from factorcell.evaluation.explaining.token_evidence import explain
from factorcell.generation import stream
from tests.small_runs import make_letters, make_run


class ArrowColumn:
    """A column of a library with the Arrow PyCapsule interface and without `tolist`, such as polars."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.column = column

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.column.__arrow_c_stream__(requested_schema)


MISSING = [None, "", float("nan"), np.float32("nan"), pd.NA, pd.NaT]
COLUMNS = {"city": ["Oslo", "Nice"], "stars": [1, 5]}
ROWS = [{"city": "Oslo", "stars": 1}, {"city": "Nice", "stars": 5}]
# The same two rows in every supported type.
TABLES: dict[str, Any] = {
    "list": ROWS,
    "tuple": tuple(ROWS),
    "columns": COLUMNS,
    "arrays": {name: np.array(values) for name, values in COLUMNS.items()},
    "frame": pd.DataFrame(COLUMNS),
    "frame of objects": pd.DataFrame(COLUMNS, dtype=object),
    "arrow": pa.table(COLUMNS),
    "batch": pa.RecordBatch.from_pydict(COLUMNS),
    "arrow columns": {name: pa.array(values) for name, values in COLUMNS.items()},
    "capsules": {name: ArrowColumn(pa.chunked_array([values])) for name, values in COLUMNS.items()},
    "list of frames": [pd.DataFrame([row]) for row in ROWS],
}
EMPTY: dict[str, Any] = {
    "list": [],
    "tuple": (),
    "frame": pd.DataFrame(),
    "frame with columns": pd.DataFrame({"text": [], "city": []}),
    "columns": {"text": [], "city": []},
    "arrow": pa.table({"text": pa.array([], pa.string())}),
    "batch": pa.RecordBatch.from_pydict({"text": pa.array([], pa.string())}),
}
tables = pytest.mark.parametrize("source", TABLES.values(), ids=TABLES)
empty = pytest.mark.parametrize("source", EMPTY.values(), ids=EMPTY)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run")


@tables
def test_all_types_of_tables_are_converted_to_rows(source: Any) -> None:
    assert [{**row} for row in to_rows(source)] == ROWS
    with pytest.raises(UserError, match=r"expected one row, got 2|expected a mapping"):
        to_row(source if not isinstance(source, dict) else pd.DataFrame(COLUMNS))


@empty
def test_tables_without_rows_are_converted_to_an_empty_list(source: Any) -> None:
    assert to_rows(source) == []


@pytest.mark.parametrize("source", ["Oslo", 3, 2.5, None, ["Oslo"], [3], [None], Path("a.csv")])
def test_a_row_must_be_a_mapping_or_a_table(source: Any) -> None:
    with pytest.raises(UserError, match="expected a mapping from column to value, got"):
        to_row(source)


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_the_category_name_of_a_missing_value_is_none(missing: Any) -> None:
    values = [5, 5.0, "5", np.int64(5), np.float64(5), "5.0", missing]
    for argument in (values, tuple(values), pd.Series(values, dtype=object), np.array(values, dtype=object)):
        assert category_names(argument, "values", 7) == ["5"] * 6 + [None]
    with pytest.raises(UserError, match="values: expected one value for each of 200 texts, got 7"):
        category_names(values, "values", 200)


@pytest.mark.parametrize("values", ["abc", 5, None, {"a": 1}, b"ab"])
def test_values_must_be_a_list(values: Any) -> None:
    with pytest.raises(UserError, match="labels: expected a list of values, got"):
        category_names(values, "labels")


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["4.7", None, "b"]),
        pa.chunked_array([["4.7"], [None, "b"]]),
        pa.array([b"4.7", None, b"b"]),
        pa.array(["4.7", None, "b"]).dictionary_encode(),
        pd.Series(["4.7", None, "b"]),
        pd.Categorical(["4.7", None, "b"]),
        pd.Index(["4.7", None, "b"]),
        np.array(["4.7", None, "b"], dtype=object),
        ArrowColumn(pa.chunked_array([["4.7", None, "b"]])),
    ],
    ids=lambda values: f"{type(values).__module__}.{type(values).__name__}",
)
def test_columns_of_other_libraries_have_category_names(values: Any) -> None:
    assert category_names(values, "values", 3) == ["4.7", None, "b"]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        *itertools.product([list, np.array, pd.Series, pa.array], [np.float16, np.float32, np.float64]),
        *itertools.product(
            [pd.Categorical, pd.Index], [np.float32, np.float64]
        ),  # pandas has no index of 16-bit floats
    ],
)
def test_category_names_of_numbers_do_not_depend_on_their_width(make: Any, dtype: Any) -> None:
    assert category_names(make(np.array([4.7, 5, 0.1], dtype=dtype)), "values") == ["4.7", "5", "0.1"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([["a"], ["b"]], "values: value 1: expected a single value, got ["),
        (np.array([["a"], ["b"]]), "values: value 1: expected a single value, got ["),
        (["a", {"b": 1}], "values: value 2: expected a single value, got {"),
        (["a", b"\xff"], "values: value 2: expected text, got bytes that are not UTF-8"),
        (np.array("a"), "values: expected a list of values, got array"),
        (pd.DataFrame({"a": [1]}), "values: expected a list of values, got"),
        (pa.table({"a": [1]}), "values: expected a list of values, got"),
    ],
)
def test_values_without_a_category_name_are_errors(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        category_names(values, "values")


def test_an_arrow_stream_can_be_used_several_times(run: Run) -> None:
    text = run.tokenizer.tokens[4]
    table = pa.table({"text": [text] * 2, **COLUMNS})
    assert to_rows(table.to_reader()) == to_rows(table)
    contexts = of_cities(table)
    assert list(generate(run, contexts.to_reader())) == list(generate(run, contexts))
    table = table.append_column("lat", [[59.0, 44.0]]).append_column("lon", [[10.0, 7.5]])
    assert run.score_rows(table.to_reader()) == run.score_rows(table)
    first, second = (
        classify(run, table.to_reader(), "city", calibrate=table.to_reader()),
        classify(run, table, "city", calibrate=table),
    )
    assert first.rows() == second.rows()
    assert first.temperature == second.temperature


def of_cities(source: Any) -> Any:
    """Return the column `city` of a table, as a table of the same type."""
    if isinstance(source, list):
        return [row[["city"]] if isinstance(row, pd.DataFrame) else {"city": row["city"]} for row in source]
    if isinstance(source, tuple):
        return tuple(of_cities(list(source)))
    if isinstance(source, dict):
        return {"city": source["city"]}
    return source[["city"]] if isinstance(source, pd.DataFrame) else source.select(["city"])


@tables
def test_contexts_may_be_any_table(run: Run, source: Any) -> None:
    rows = [{"city": "Oslo"}, {"city": "Nice"}]
    contexts = of_cities(source)
    assert list(generate(run, contexts)) == list(generate(run, rows))
    text = run.tokenizer.tokens[4]
    corpus, expected = run.read([text, text], contexts), run.read([text, text], rows)
    assert np.array_equal(corpus.categories, expected.categories)
    with pytest.raises(UserError, match="expected one for each of 3 texts, got 2"):
        run.read([text] * 3, contexts)


POINTS = {1: {"lat": 43.7, "lon": 7.3}, 2.0: {"lat": 59.9, "lon": 10.8}}
ROW = {"city": "Oslo"}
ONE_ROW: dict[str, Any] = {
    "frame": pd.DataFrame([ROW]),
    "arrow": pa.table({"city": ["Oslo"]}),
    "list": pd.DataFrame([ROW]),
}


@pytest.mark.parametrize("row", ONE_ROW.values(), ids=ONE_ROW)
def test_a_context_may_be_a_table_of_one_row(run: Run, row: Any) -> None:
    assert list(generate(run, ROW)) == list(generate(run, [ROW])) == list(generate(run, row))
    assert list(stream(run, row)) == list(stream(run, ROW))
    assert np.array_equal(bias_shift(run, row), bias_shift(run, ROW))
    text, other = run.tokenizer.tokens[4], {"city": "Nice"}
    contexts = {"one": row, "two": other}
    assert explain(run, [text], contexts) == explain(run, [text], {"one": ROW, "two": other})
    letters = make_letters(spread=0.8)
    completer = Completer(letters)
    assert completer.complete("a", None, row) == completer.complete("a", None, ROW)
    texts = ["ab", "abc"]
    assert completer.log_probabilities("a", texts, None, row) == completer.log_probabilities("a", texts, None, ROW)


def test_category_values_may_be_numbers(run: Run) -> None:
    texts = [{"text": text, "stars": star} for text, star in (("the sea", 1), ("the sun", 5.0), ("sand", "1"))]
    values = run.schema.variable("stars").values[1:]
    first = classify(run, texts, "stars", values=values[:2], unknown="expected")
    second = classify(run, texts, "stars", values=[float(name) for name in values[:2]], unknown="expected")
    assert np.array_equal(first.log_posterior, second.log_posterior)
    assert first.names == second.names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": ["Oslo", None]}, "values: expected values of a category, got a missing value"),
        ({"values": [float("nan")]}, "values: expected values of a category, got a missing value"),
        ({"values": "Oslo"}, "values: expected a list of values, got 'Oslo'"),
        ({"values": 3}, "values: expected a list of values, got 3"),
    ],
)
def test_invalid_values_for_classification_are_errors(run: Run, options: dict[str, Any], message: str) -> None:
    options = {"values": ["Oslo", "Nice"], **options}
    with pytest.raises(UserError, match=message):
        classify(run, [{"text": "the sea", "city": "Oslo"}], "city", **options)


def test_points_and_their_truth_may_be_numbers(run: Run) -> None:
    rows = [{"text": "the sea", "lat": 59, "lon": 10}] * 2
    result = classify_points(run, rows, POINTS, truth=[np.int64(1), float("nan")], unknown="expected")
    assert result.names == ("1", "2")
    assert result.truth.tolist() == [0, -1]
    with pytest.raises(UserError, match="truth: expected one value for each of 2 texts, got 1"):
        classify_points(run, rows, POINTS, truth=["1"], unknown="expected")
    with pytest.raises(UserError, match="point '2': expected lat, lon, got lat"):
        classify_points(run, rows, {1: POINTS[1], 2: {"lat": 1.0}}, unknown="expected")
    with pytest.raises(UserError, match="candidates: expected at least one, got none"):
        log_likelihoods(run, run.read(["the sea"], [{}]), [])


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_texts_are_grouped_by_category_name(run: Run, missing: Any) -> None:
    table = [{"text": "the sea", "group": value} for value in (5, "5.0", missing, np.float64(5))]
    rows = evaluate(run, table, by=["group"], unknown="expected").by["group"]
    assert {row["value"]: row["count"] for row in rows} == {"5": 3, "(missing)": 1}


def test_learning_needs_a_text_and_a_context_for_each_user() -> None:
    run = make_letters(data={"user": "city", "context": (), "min_user_count": 1}, spread=0.8)
    learner, user = Learner(run), User.new(run)
    for texts, contexts in ((["ab"], None), (["ab"] * 3, None), (["ab", "b"], [{}])):
        with pytest.raises(UserError, match="expected a text and a context for each user, got 2 users"):
            learner.learn([user, user], texts, contexts)
    assert learner.learn([], [])[0] == []
    assert learn_one(run, user, "ab", {}).text_count == learn_one(run, user, "ab").text_count == 1


@empty
def test_functions_of_rows_return_nothing_for_no_rows(run: Run, source: Any) -> None:
    assert run.score_rows(source) == []
    assert list(generate(run, source)) == []


@empty
def test_functions_of_whole_tables_reject_tables_without_rows(run: Run, source: Any) -> None:
    for function in (
        run.prepare,
        lambda table: classify(run, table, "city"),
        lambda table: classify_points(run, table, POINTS),
    ):
        with pytest.raises(UserError, match=r"no rows|no column"):
            function(source)


def test_scoring_a_file_without_rows_returns_an_empty_list(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,city,stars,lat,lon\n", encoding="utf-8")
    assert run.score_rows(tmp_path / "a.csv") == []
