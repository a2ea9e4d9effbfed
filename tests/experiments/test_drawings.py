"""Pictures hold the figures of the rows, stand in their page, and are known by what they were drawn from."""

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import study
import tables
import thesis_queries
from factorcell import files
from pages import drawings
from pages.markdown import empty
from pages.results import Results
from tests import ROOT
from tests.experiments.test_queries import row as completed
from tests.experiments.test_trials import rows as drawn


def test_models_of_random_sizes() -> None:
    """A panel for each set that has rows; every trial is a point of its class, in figure 4.5 of its rank."""
    rows = drawn(-0.1, -0.003, noise=0.02)
    apart, letters, ranked = drawings.of_sizes({"dbpedia": rows, "hotels": [], "imdb": rows, "languages": []})
    assert [panel.title for panel in apart.panels] == ["dbpedia", "imdb"]
    assert not letters
    points = apart.panels[0].points
    own = [row for row in rows if row["row"].startswith("concatcell")]
    assert points["concatcell"] == [(row["perplexity_known"], 100 * row["accuracy"]) for row in own]
    counts = {kind: len(found) for kind, found in ranked.panels[0].points.items()}
    assert counts.pop("rank 0") == 14
    assert sum(counts.values()) == 14
    ranks = [row["config"]["model"]["rank"] for row in rows if row["row"].startswith("factorcell")]
    assert counts["1 to 7"] == sum(rank <= 7 for rank in ranks)


def test_gains_have_their_intervals() -> None:
    """A point for each range that has queries, what is gained in per cent beside both of its ends."""
    rows = [completed(name, share, seed) for name, share in (("unadapted", 0.3), ("factor", 0.33)) for seed in (0, 1)]
    found = Results.of(rows)
    made = drawings.of_completion(found, [])
    assert not any(made["Figure 5.1"])
    [panel] = made["Figure 5.2"][0].panels
    assert list(panel.points) == ["factorcell"]
    assert [point[0] for point in panel.points["factorcell"]] == list(thesis_queries.PLACES)
    gained = found.above("factor", "mrr_after_100", "unadapted")
    assert gained is not None
    assert gained.low is not None
    assert panel.points["factorcell"][-1][1:3] == pytest.approx((100 * gained.point, 100 * gained.low))


def test_pictures_stand_above_their_table(tmp_path: Path) -> None:
    """The page names the files that are written; each is an SVG and ends with the key of its points."""
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    files.write_rows(results / "tacl_trials_dbpedia.jsonl", drawn(-0.1, -0.003))
    made = {name: make(results) for name, make in tables.PAGES.items()}
    for name, own in made.items():
        (docs / name).write_text(empty(own), encoding="utf-8")
    assert tables.main(["--results", str(results), "--docs", str(docs)]) == 0
    lines = made["tables.md"]["Figures 4.2, 4.4 and 4.5"].splitlines()
    assert [line.partition("](")[2] for line in lines[:2]] == ["figures/figure-4.2.svg)", "figures/figure-4.5.svg)"]
    assert sorted(path.name for path in (docs / "figures").iterdir()) == ["figure-4.2.svg", "figure-4.5.svg"]
    pictures = drawings.pictures(tables.reader(results))["Figures 4.2, 4.4 and 4.5"]
    for picture in pictures:
        text = (docs / "figures" / picture.file).read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert text.endswith(picture.key())
    less = drawings.of_sizes({"dbpedia": drawn(-0.1, -0.003)[1:], "hotels": [], "imdb": [], "languages": []})
    assert less[0].key() != pictures[0].key()


def test_the_pictures_are_those_of_the_rows() -> None:
    """What `make tables` would draw is in the documentation already, and nothing else."""
    pictures = itertools.chain(*drawings.pictures(tables.reader(study.HERE / "results")).values())
    keys = {picture.file: picture.key() for picture in pictures}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / drawings.FOLDER).glob("*")}
    assert kept.keys() == keys.keys(), "run `make tables`"
    assert all(kept[name].endswith(key) for name, key in keys.items()), "run `make tables`"
