"""The command `demo` on a few hundred of its names."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from factorcell.commands import demo
from factorcell.commands.demo import demo_page


@pytest.fixture
def small_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use tables of a few of the included names, with all names on maps, and a coarse grid."""
    for part, rows in (("train", 600), ("dev", 150)):
        whole = pq.read_table(demo.table_path(part))
        texts, countries = whole["text"].to_pylist(), whole["country"].to_pylist()
        indices = [index for index, country in enumerate(countries) if country in demo.COUNTRIES][:rows]
        indices += [index for index, text in enumerate(texts) if text in demo.MAPPED_NAMES]
        pq.write_table(whole.take(indices), tmp_path / f"{part}.parquet")
    monkeypatch.setattr(demo, "table_path", lambda part: tmp_path / f"{part}.parquet")
    monkeypatch.setattr(demo, "GRID_STEP", 20)
    monkeypatch.setattr(demo, "MAPPED_NAMES", demo.MAPPED_NAMES[:2])  # a map takes half a second to draw
    return tmp_path


def test_demo_returns_everything_that_its_page_shows(small_tables: Path) -> None:
    """The results have four models, ten places, a posterior for each mapped name and ten countries."""
    results = demo.train_and_evaluate(small_tables / "runs", epochs=1)
    assert [model["model"] for model in results["models"]] == ["unadapted", "softmaxbias", "concatcell", "factorcell"]
    assert results["models"][0]["accuracy"] is None
    assert all(0 <= model["accuracy"] <= 1 for model in results["models"][1:])
    assert [place["place"] for place in results["names"]] == list(demo.PLACES)
    assert [entry["text"] for entry in results["maps"]] == list(demo.MAPPED_NAMES)
    for entry in results["maps"]:
        shares = np.array(entry["probability"])
        assert shares.shape == (len(entry["lat"]), len(entry["lon"]))
        assert np.nansum(shares) == pytest.approx(1)
    assert sum(row["count"] for row in results["countries"]) == np.sum(results["confusion"]["counts"])
    page = demo_page(results)
    assert all(text in page for text in (*demo.MAPPED_NAMES, *demo.PLACES, *demo.COUNTRIES.values()))


def test_points_are_inhabited_if_their_cell_has_enough_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a minimum of two names a cell with one name is not inhabited, also across the date line."""
    monkeypatch.setattr(demo, "GRID_STEP", 10.0)
    monkeypatch.setattr(demo, "MIN_POINT_NAMES", 2)
    places = [(4.9, 14.0), (-4.9, 5.1), (60.0, 179.0), (62.0, -179.0), (30.0, 30.0)]
    inhabited = demo._inhabited_points(
        np.arange(-60.0, 61.0, 10.0), np.arange(-180.0, 180.0, 10.0), [{"lat": y, "lon": x} for y, x in places]
    )
    assert np.argwhere(inhabited).tolist() == [[6, 19], [12, 0]]


def test_included_tables_are_complete_and_disjoint() -> None:
    """The included tables have the expected numbers of rows, and no name is in both."""
    train, dev = (pq.read_table(demo.table_path(part)) for part in ("train", "dev"))
    assert (train.num_rows, dev.num_rows) == (219_607, 5_000)
    assert not set(train["text"].to_pylist()) & set(dev["text"].to_pylist())
    assert set(demo.MAPPED_NAMES) <= set(dev["text"].to_pylist())
