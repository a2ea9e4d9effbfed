"""The demo from end to end, on a few hundred of its names."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from factorcell.commands import demo
from factorcell.reports.demo import demo_page


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of a few of the shipped names, all the mapped ones among them, and a coarse grid."""
    for part, rows in (("train", 600), ("dev", 150)):
        whole = pq.read_table(demo.table(part))
        texts, countries = whole["text"].to_pylist(), whole["country"].to_pylist()
        wanted = [index for index, country in enumerate(countries) if country in demo.COUNTRIES][:rows]
        wanted += [index for index, text in enumerate(texts) if text in demo.MAPPED]
        pq.write_table(whole.take(wanted), tmp_path / f"{part}.parquet")
    monkeypatch.setattr(demo, "table", lambda part: tmp_path / f"{part}.parquet")
    monkeypatch.setattr(demo, "GRID", 20)
    monkeypatch.setattr(demo, "MAPPED", demo.MAPPED[:2])  # a map takes half a second to draw
    return tmp_path


def test_demo_makes_everything_that_its_page_shows(few: Path) -> None:
    """Four models, ten places, a posterior for each mapped name, ten countries, and a page of them all."""
    results = demo.make(few / "runs", epochs=1, notify=lambda text: None)
    assert [model["name"] for model in results["models"]] == ["unadapted", "softmaxbias", "concatcell", "factorcell"]
    assert results["models"][0]["accuracy"] is None
    assert all(0 <= model["accuracy"] <= 1 for model in results["models"][1:])
    assert [place["place"] for place in results["names"]] == list(demo.PLACES)
    assert [entry["text"] for entry in results["maps"]] == list(demo.MAPPED)
    for entry in results["maps"]:
        shares = np.array(entry["probability"])
        assert shares.shape == (len(entry["lat"]), len(entry["lon"]))
        assert np.nansum(shares) == pytest.approx(1)
    assert sum(row["count"] for row in results["countries"]) == np.sum(results["confusion"]["counts"])
    page = demo_page(results)
    assert all(text in page for text in (*demo.MAPPED, *demo.PLACES, *demo.COUNTRIES.values()))


def test_inhabited_points_are_those_with_names_in_their_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names fill a cell of the grid, if two are asked for, also across the date line; one name does not."""
    monkeypatch.setattr(demo, "GRID", 10.0)
    monkeypatch.setattr(demo, "INHABITED", 2)
    places = [(4.9, 14.0), (-4.9, 5.1), (60.0, 179.0), (62.0, -179.0), (30.0, 30.0)]
    found = demo._inhabited(
        np.arange(-60.0, 61.0, 10.0), np.arange(-180.0, 180.0, 10.0), [{"lat": y, "lon": x} for y, x in places]
    )
    assert np.argwhere(found).tolist() == [[6, 19], [12, 0]]


def test_shipped_names_are_whole() -> None:
    """The tables that ship are those of the credits: their rows, and no name in both."""
    train, dev = (pq.read_table(demo.table(part)) for part in ("train", "dev"))
    assert (train.num_rows, dev.num_rows) == (219_607, 5_000)
    assert not set(train["text"].to_pylist()) & set(dev["text"].to_pylist())
    assert set(demo.MAPPED) <= set(dev["text"].to_pylist())
