"""What experiments keep of models in words and maps, and the tables that are made of it."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import hotels


@pytest.mark.parametrize(
    ("hotel", "name"),
    [
        ("Super 8 Denver", "economy"),
        ("Comfort Inn-Downtown", "midscale"),
        ("Fairfield Inn by Marriott Boise", "midscale"),
        ("Residence Inn", "upscale"),
        ("Rose Cottage", None),
    ],
)
def test_classes_of_hotels(hotel: str, name: str | None) -> None:
    """By the longest chain in a name, whatever its case and hyphens."""
    assert hotels.class_of(hotel) == name


def test_regions_and_classes_of_texts(tmp_path: Path) -> None:
    """A city without a state has no region; texts of hotels of no chain are no texts of classes."""
    rows = [
        {"text": "a", "hotel": "Super 8", "city": "Boise, ID"},
        {"text": "b", "hotel": "Rose Cottage", "city": "Oslo, Norway"},
        {"text": "c", "hotel": "Hyatt", "city": "Reno, NV"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    told = hotels.described(tmp_path / "t.parquet")
    assert [row["region"] for row in told] == ["ID", None, "NV"]
    assert [row["class"] for row in told] == ["economy", None, "upscale"]
    kept = hotels.with_classes(tmp_path / "t.parquet").to_pylist()
    assert [(row["text"], row["class"]) for row in kept] == [("a", "economy"), ("c", "upscale")]
    assert set(hotels.chains().values()) == set(hotels.CLASSES)
