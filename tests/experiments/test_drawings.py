"""Pictures hold the figures of the rows, stand in their page, and are known by what they were drawn from."""

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import study
import tables
import thesis_queries
from factorcell import files
from pages import drawings, verdicts, words
from pages.markdown import empty
from pages.results import Results
from tests import ROOT
from tests.experiments.test_queries import row as completed
from tests.experiments.test_trials import rows as drawn

NONE: dict[str, list[study.Row]] = {name: [] for name in drawings.SETS["4.5"]}  # no trial of any set


def test_models_of_random_sizes() -> None:
    """A panel for each set that has rows; every trial is a point of its class, in figure 4.5 of its rank."""
    rows = drawn(-0.1, -0.003, noise=0.02)
    apart, letters, ranked = drawings.of_sizes({**NONE, "dbpedia": rows, "hotels": rows})
    assert [panel.title for panel in apart.panels] == ["dbpedia", "hotels"]
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


def hotels(*same: float, count: int = 400) -> Results:
    """FactorCells whose nearest neighbours have the same region in such shares, where a fifth would by chance."""
    ellipse = {"group": "CA", "count": 9, "x": 1.0, "y": 2.0, "wide": 3.0, "high": 0.5, "angle": 30.0}
    told = {"values": 400, "accuracy": 0.1, "majority": 0.1}
    neighbours = [{"values": count, "same": one, "chance": 0.2} for one in same]
    regions = [{"neighbours": one, "predicted": told, "ellipses": [ellipse]} for one in neighbours]
    return Results.of(
        [
            {"row": "factorcell", "seed": n, "sums": {}, "perplexity": 1.0, "region": one}
            for n, one in enumerate(regions)
        ]
    )


def test_an_outline_is_that_of_the_ellipse() -> None:
    """Each of its points, turned back about the centre, is as far from it as both half axes say."""
    [picture] = [one for one in drawings.of_maps(hotels(0.3)) if one]
    points = np.array(picture.panels[0].points["CA"]) - (1.0, 2.0)
    turn = np.radians(30.0)
    along, across = points @ (np.cos(turn), np.sin(turn)), points @ (-np.sin(turn), np.cos(turn))
    assert (along / 3) ** 2 + (across / 0.5) ** 2 == pytest.approx(1)
    assert along.max() == pytest.approx(3)
    assert points[0].tolist() == pytest.approx(points[-1].tolist())
    assert "<path" in picture.svg()


def test_neighbours_are_alike_beyond_chance_or_not() -> None:
    """By the share of a binomial and by what trainings differ; two seeds tell nothing."""
    found = words.nearer(hotels(0.4, 0.4), "factorcell", "region")
    assert found is not None
    assert found == pytest.approx((0.2, 0.2 - 1.96 * 0.02449, 0.2 + 1.96 * 0.02449), abs=1e-4)

    def said(*same: float) -> tuple[str, str]:
        line = verdicts.grouped(verdicts.Line("F4.6", "x"), hotels(*same), "region")
        return line.verdict, line.why

    assert said(0.4, 0.41, 0.39) == ("agrees", "of 400 hotels")
    assert said(0.4, 0.1, 0.7)[0] == said(0.2, 0.21, 0.22)[0] == "cannot be told"
    assert said(0.1, 0.11, 0.1)[0] == "disagrees"
    assert said(0.4, 0.41) == ("cannot be told", "fewer than 3 seeds")
    assert said() == ("cannot be told", "not trained")


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
    less = drawings.of_sizes({**NONE, "dbpedia": drawn(-0.1, -0.003)[1:]})
    assert less[0].key() != pictures[0].key()


def test_the_pictures_are_those_of_the_rows() -> None:
    """What `make tables` would draw is in the documentation already, and nothing else."""
    pictures = itertools.chain(*drawings.pictures(tables.reader(study.HERE / "results")).values())
    keys = {picture.file: picture.key() for picture in pictures}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / drawings.FOLDER).glob("*")}
    assert kept.keys() == keys.keys(), "run `make tables`"
    assert all(kept[name].endswith(key) for name, key in keys.items()), "run `make tables`"
