"""Data sets of Hugging Face as tables: in memory, with selected rows, and streamed."""

from collections.abc import Iterator
from typing import Any

import pytest

from factorcell.data.columns.rows import category_names, to_texts
from factorcell.data.tables import tables
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

COLUMNS: dict[str, Any] = {
    "text": [f"text {number}" for number in range(10)],
    "city": [0, 1, -1, 1, 0] * 2,
    "stars": list(range(10)),
}
CITIES = ["Rome", "Paris", None, "Paris", "Rome"] * 2


def data_set() -> Any:
    features = {
        "text": datasets.Value("string"),
        "city": datasets.ClassLabel(names=["Rome", "Paris"]),
        "stars": datasets.Value("int64"),
    }
    return datasets.Dataset.from_dict(COLUMNS, features=datasets.Features(features))


def values(source: Any, *columns: str) -> dict[str, list[Any]]:
    """Return the values of columns of a table, which is read in chunks."""
    result: dict[str, list[Any]] = {name: [] for name in columns}
    for chunk in open_table(source).chunks(columns):
        for name, column in chunk.items():
            result[name] += column
    return result


@pytest.mark.parametrize("streamed", [False, True], ids=["in memory", "streamed"])
@pytest.mark.parametrize("rows_per_chunk", [3, 8192])
def test_a_data_set_is_read_repeatedly_in_chunks_with_class_names(
    monkeypatch: pytest.MonkeyPatch, streamed: bool, rows_per_chunk: int
) -> None:
    monkeypatch.setattr(tables, "CHUNK_ROWS", rows_per_chunk)
    source = data_set().to_iterable_dataset() if streamed else data_set()
    table = open_table(source)
    assert table.columns == ("text", "city", "stars")
    assert table.row_count == (None if streamed else 10)
    for _ in range(2):
        assert values(table, "city", "stars") == {"city": CITIES, "stars": COLUMNS["stars"]}
    assert max(len(chunk["stars"]) for chunk in table.chunks(["stars"])) == min(rows_per_chunk, 10)


def test_selected_and_shuffled_rows_are_read_in_their_order() -> None:
    indices = [7, 2, 2, 9]
    expected = {"text": [f"text {index}" for index in indices], "city": [CITIES[index] for index in indices]}
    assert values(data_set().select(indices), "text", "city") == expected
    shuffled = data_set().shuffle(seed=1)
    assert values(shuffled, "stars")["stars"] == list(shuffled["stars"]) != COLUMNS["stars"]


def test_a_format_or_transform_of_a_data_set_does_not_change_its_values() -> None:
    expected = {"stars": COLUMNS["stars"]}
    assert values(data_set().with_format("numpy"), "stars") == expected
    assert values(data_set().with_transform(lambda batch: {"stars": ["no"] * 10}), "stars") == expected


def test_a_streamed_data_set_without_known_columns_is_read() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        for text, stars in zip(COLUMNS["text"], COLUMNS["stars"], strict=True):
            yield {"text": text, "stars": stars}

    streamed = datasets.IterableDataset.from_generator(generate)
    assert streamed.column_names is None
    assert values(streamed, "stars") == {"stars": COLUMNS["stars"]}
    assert open_table(streamed).columns == ("text", "stars")


def test_a_changed_stream_has_the_class_names_of_its_features() -> None:
    """The batches of such a stream lack the names, or have those from before the change."""
    stream = data_set().to_iterable_dataset()
    assert values(stream.filter(lambda row: row["stars"] > 4), "city") == {"city": CITIES[5:]}
    renamed = stream.cast_column("city", datasets.ClassLabel(names=["Roma", "Parigi"]))
    italian = {"Rome": "Roma", "Paris": "Parigi", None: None}
    assert values(renamed, "city") == {"city": [italian[city] for city in CITIES]}


def test_empty_data_sets_are_an_error() -> None:
    for source in (data_set().select([]), data_set().to_iterable_dataset().take(0)):
        with pytest.raises(UserError, match="no rows"):
            list(open_table(source).chunks(["text"]))


def test_columns_of_a_data_set_are_columns() -> None:
    source = data_set()
    assert values({"text": source["text"], "stars": source["stars"]}, "text", "stars") == {
        "text": COLUMNS["text"],
        "stars": COLUMNS["stars"],
    }
    assert to_texts(source["text"]) == COLUMNS["text"]
    assert category_names(source["stars"], "values") == [str(number) for number in range(10)]


def test_a_dict_of_splits_is_an_error_that_names_the_splits() -> None:
    splits = datasets.DatasetDict(train=data_set(), test=data_set())
    for source in (splits, datasets.IterableDatasetDict(train=data_set().to_iterable_dataset())):
        with pytest.raises(UserError, match=r"expected a data set, got a dict of splits; pass one of them \(train"):
            open_table(source)
