"""Classes and regions of hotels."""

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
def test_a_hotel_has_the_class_of_its_longest_chain_name(hotel: str, name: str | None) -> None:
    """Case and hyphens do not matter."""
    assert hotels.class_of(hotel) == name


def test_texts_have_regions_and_classes(tmp_path: Path) -> None:
    """A city without a state has no region; hotels without a chain have no class."""
    rows = [
        {"text": "a", "hotel": "Super 8", "city": "Boise, ID"},
        {"text": "b", "hotel": "Rose Cottage", "city": "Oslo, Norway"},
        {"text": "c", "hotel": "Hyatt", "city": "Reno, NV"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    rows_with_labels = hotels.region_and_class_rows(tmp_path / "t.parquet")
    assert [row["region"] for row in rows_with_labels] == ["ID", None, "NV"]
    assert [row["class"] for row in rows_with_labels] == ["economy", None, "upscale"]
    chain_texts = hotels.with_classes(tmp_path / "t.parquet").to_pylist()
    assert [(row["text"], row["class"]) for row in chain_texts] == [("a", "economy"), ("c", "upscale")]
    assert set(hotels.chains().values()) == set(hotels.CLASSES)
