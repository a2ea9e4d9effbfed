"""Tables in memory: columns of other libraries, and sources that are not supported."""

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from factorcell.data.columns.values import is_missing, to_time
from factorcell.data.tables.tables import open_table, to_value_list
from factorcell.errors import UserError


def test_columns_in_memory_may_mix_types_and_be_arrays() -> None:
    for columns in (
        {"text": ["a", "b"], "stars": (5, "5")},
        {"text": pd.Series(["a", "b"]), "stars": pd.Series([5, "5"])},
    ):
        assert list(open_table(columns).chunks(["stars"])) == [{"stars": [5, "5"]}]


def class_labels() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = {"text": datasets.Value("string"), "city": datasets.ClassLabel(names=["Rome", "Paris"])}
    columns = {"text": ["a", "b", "c"], "city": [0, 1, -1]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def class_labels_as_parquet(folder: Path) -> Path:
    path = folder / "t.parquet"
    pq.write_table(class_labels().with_format("arrow")[:], path)
    return path


@pytest.mark.parametrize("source", [lambda _: class_labels(), class_labels_as_parquet], ids=["data set", "Parquet"])
def test_class_labels_have_the_names_of_their_classes(source: Callable[[Path], Any], tmp_path: Path) -> None:
    assert list(open_table(source(tmp_path)).chunks(["city"])) == [{"city": ["Rome", "Paris", None]}]


@pytest.mark.parametrize("metadata", [b"", b"[]", b"{}", b'{"info": {"features": [1]}}', b"\xff"])
def test_other_metadata_is_ignored(metadata: bytes) -> None:
    table = pa.table({"city": [0]}, metadata={b"huggingface": metadata})
    assert list(open_table(table).chunks(["city"])) == [{"city": [0]}]


def test_columns_of_pandas_are_converted_to_python_values() -> None:
    frame = pd.DataFrame(
        {
            "cut": pd.cut([1, 5], [0, 3, 6]),
            "interval": pd.interval_range(0, 2),
            "month": pd.period_range("2026-01", periods=2, freq="M"),
            "sparse": pd.arrays.SparseArray([0, 1]),
            "mixed": ["x", 3],
            "narrow": pd.array([4.7, None], dtype="Float32"),
            "arrow": pd.array([4.7, None], dtype=pd.ArrowDtype(pa.float32())),
            "category": pd.Categorical(np.array([4.7, np.nan], np.float32)),
        }
    )
    (chunk,) = open_table(frame).chunks(list(frame.columns))
    assert chunk == {
        "cut": ["(0, 3]", "(3, 6]"],
        "interval": ["(0, 1]", "(1, 2]"],
        "month": ["2026-01", "2026-02"],
        "sparse": [0, 1],
        "mixed": ["x", 3],
        "narrow": [4.7, None],
        "arrow": [4.7, None],
        "category": [4.7, None],
    }


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_arrays_of_times_are_times(unit: str) -> None:
    times = np.array(["2026-01-02", "NaT"], f"datetime64[{unit}]")
    (chunk,) = open_table({"when": times}).chunks(["when"])
    assert to_time(chunk["when"][0]) in (date(2026, 1, 2), datetime(2026, 1, 2))
    assert is_missing(chunk["when"][1])


def test_stored_pandas_periods_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": ["a"], "month": pd.period_range("2026-01", periods=1, freq="M")}).to_parquet(path)
    with pytest.raises(
        UserError, match="column month contains pandas periods or intervals, which cannot be read; convert"
    ):
        list(open_table(path).chunks(["month"]))


def test_a_long_text_is_not_a_path() -> None:
    for text in ("a review " * 200, "a" * 300):
        with pytest.raises(UserError, match="unknown kind of file"):
            open_table(text)


def test_a_missing_column_is_named_among_names_that_are_no_texts() -> None:
    with pytest.raises(UserError, match="no column 'text'; it has 0, 1"):
        list(open_table([{0: "a", 1: "b"}]).chunks(["text"]))


def test_many_unused_categories_are_not_converted() -> None:
    values = pd.Series(["a", "b"], dtype=pd.CategoricalDtype(["a", "b", *map(str, range(100_000))]))
    assert to_value_list(values) == ["a", "b"]
    dictionary = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["a", "b", "c", "d"]))
    (chunk,) = open_table(pa.table({"x": dictionary})).chunks(["x"])
    assert chunk["x"] == ["b", "a", None]
