"""Chapter 6: what is written for which context, whose runs write it, and the tables and figures of how much fits."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import hotels
import written
from corpora import read
from factorcell.data.schema import UNKNOWN_VALUE, ContextSchema, Variable
from tests.small_runs import make_run

CHAINS = ("Super 8 Boise", "Rose Cottage", "Hyatt Reno", "Comfort Inn")


def test_texts_are_wanted_for_every_rating_alike(tmp_path: Path) -> None:
    """As many for each, of whatever hotel, the same at every call; without hotels of ratings alone."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    ratings = Variable("rating", "category", (UNKNOWN_VALUE, "1", "5"), (1, 1, 1))
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, *CHAINS), (1,) * 5), ratings))
    found = written.draw_contexts(run, written.SETS["ratings"], 40)
    assert found == written.draw_contexts(run, written.SETS["imdb"], 40)
    assert Counter(value for _, value in found) == {"1": 20, "5": 20}
    assert all(context["rating"] == value for context, value in found)
    assert {context["hotel"] for context, _ in found} == set(CHAINS)
    run.schema = ContextSchema((ratings,))
    assert written.draw_contexts(run, written.SETS["ratings"], 3) == [({"rating": "1"}, "1"), ({"rating": "5"}, "5")]


def test_films_are_written_for_every_rating(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    names = (UNKNOWN_VALUE, *"1", "10", "2")
    run.schema = ContextSchema((Variable("rating", "category", names, (1,) * 4),))
    found = written.draw_contexts(run, written.SETS["imdb"], 9)
    assert found == [({"rating": value}, value) for value in ("1", "2", "10") for _ in range(3)]


def test_hotels_are_written_for_the_class_of_their_chain(tmp_path: Path) -> None:
    """Drawn alike for every model, hotels of no chain left out, five stars, and the class in no context."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, *CHAINS), (1,) * 5),))
    found = written.draw_contexts(run, written.SETS["hotels"], 300)
    assert found == written.draw_contexts(run, written.SETS["hotels"], 300)
    assert all(set(context) == {"hotel", "rating"} and context["rating"] == "5" for context, _ in found)
    assert all(name == hotels.class_of(context["hotel"]) for context, name in found)
    counts = Counter(context["hotel"] for context, _ in found)
    assert set(counts) == set(CHAINS) - {"Rose Cottage"}
    assert min(counts.values()) > 70
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, "Rose Cottage"), (1,) * 2),))
    assert written.draw_contexts(run, written.SETS["hotels"], 300) == []


def test_texts_are_judged_by_what_they_were_written_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that writes of the sea for one rating and of the sun for the other: what fits, by whom it was wanted."""
    run = make_run(tmp_path / "run", ("stars",), adapt=("concat",), output_bias=("low_rank",))
    run.schema = ContextSchema((Variable("rating", "category", (UNKNOWN_VALUE, "1", "5"), (1, 9, 9)),))
    words = {"1": "the sea is cold", "5": "sun and sand"}
    rows = [{"text": words[value], "rating": value} for value in "15" for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    texts = iter(["the sea is cold", "sun and sand", "sun and sand", "sun and sand"])

    def write(run: Any, contexts: Any, options: Any, path: Path) -> list[dict[str, Any]]:
        assert (options.width, options.grow, options.length_penalty) == (120, 8, 0.0)
        return [{"text": next(texts), "context": context} for context in contexts]

    monkeypatch.setattr(written, "write", write)
    given = {"labelled_train": tmp_path / "t.parquet", "labelled_test": tmp_path / "t.parquet"}
    found = written.measure(run, given, written.SETS["imdb"], 4)
    assert found.row["specificity"] == 0.75
    assert found.row["deviation"] == pytest.approx(1.0)
    assert found.row["real"] == {"accuracy": 1.0, "deviation": 0.0}
    assert found.figures["specificity"].numerator.tolist() == [1, 0, 1, 1]


def test_the_judge_of_hotels_learns_from_those_of_chains(tmp_path: Path) -> None:
    (tmp_path / "hotels").mkdir()
    rows = [
        {"text": f"{hotel} {n}", "hotel": hotel, "city": "Reno, NV", "rating": "5"}
        for n in range(40)
        for hotel in CHAINS
    ]
    for part in ("train", "dev", "test"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hotels" / f"{part}.parquet")
    made = written.EXPERIMENTS["specificity_hotels"].tables(tmp_path, tmp_path / "made", 1.0)
    assert Counter(read(made["labelled_train"])["class"].to_pylist()) == {"economy": 40, "upscale": 40, "midscale": 40}
    assert len(read(made["train"])) == 160
