"""Thesis chapter 6: contexts of generated texts, and how their fit is judged."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import generated_texts
import hotels
from corpora import read
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from tests.small_runs import make_run

CHAINS = ("Super 8 Boise", "Rose Cottage", "Hyatt Reno", "Comfort Inn")


def test_contexts_have_all_ratings_equally_often(tmp_path: Path) -> None:
    """Hotels are random, and equal at every call."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    ratings = Variable("rating", "category", (UNKNOWN_VALUE, "1", "5"), (1, 1, 1))
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, *CHAINS), (1,) * 5), ratings))
    contexts = generated_texts.draw_contexts(run, generated_texts.SETS["ratings"], 40)
    assert contexts == generated_texts.draw_contexts(run, generated_texts.SETS["imdb"], 40)
    assert Counter(value for _, value in contexts) == {"1": 20, "5": 20}
    assert all(context["rating"] == value for context, value in contexts)
    assert {context["hotel"] for context, _ in contexts} == set(CHAINS)
    run.schema = ContextSchema((ratings,))
    assert generated_texts.draw_contexts(run, generated_texts.SETS["ratings"], 3) == [
        ({"rating": "1"}, "1"),
        ({"rating": "5"}, "5"),
    ]


def test_film_reviews_have_all_ratings_equally_often(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    names = (UNKNOWN_VALUE, *"1", "10", "2")
    run.schema = ContextSchema((Variable("rating", "category", names, (1,) * 4),))
    contexts = generated_texts.draw_contexts(run, generated_texts.SETS["imdb"], 9)
    assert contexts == [({"rating": value}, value) for value in ("1", "2", "10") for _ in range(3)]


def test_hotel_contexts_are_random_hotels_of_chains(tmp_path: Path) -> None:
    """They are equal for every model and do not contain the class."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, *CHAINS), (1,) * 5),))
    contexts = generated_texts.draw_contexts(run, generated_texts.SETS["hotels"], 300)
    assert contexts == generated_texts.draw_contexts(run, generated_texts.SETS["hotels"], 300)
    assert all(set(context) == {"hotel", "rating"} and context["rating"] == "5" for context, _ in contexts)
    assert all(name == hotels.class_of(context["hotel"]) for context, name in contexts)
    counts = Counter(context["hotel"] for context, _ in contexts)
    assert set(counts) == set(CHAINS) - {"Rose Cottage"}
    assert min(counts.values()) > 70
    run.schema = ContextSchema((Variable("hotel", "category", (UNKNOWN_VALUE, "Rose Cottage"), (1,) * 2),))
    assert generated_texts.draw_contexts(run, generated_texts.SETS["hotels"], 300) == []


def test_texts_fit_if_the_judge_predicts_their_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", ("stars",), adapt=("concat",), output_bias=("low_rank",))
    run.schema = ContextSchema((Variable("rating", "category", (UNKNOWN_VALUE, "1", "5"), (1, 9, 9)),))
    words = {"1": "the sea is cold", "5": "sun and sand"}
    rows = [{"text": words[value], "rating": value} for value in "15" for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    texts = iter(["the sea is cold", "sun and sand", "sun and sand", "sun and sand"])

    def write(run: Any, contexts: Any, options: Any, path: Path) -> list[dict[str, Any]]:
        assert (options.width, options.branching, options.length_penalty) == (120, 8, 0.0)
        return [{"text": next(texts), "context": context} for context in contexts]

    monkeypatch.setattr(generated_texts, "write_texts", write)
    tables = {"labelled_train": tmp_path / "t.parquet", "labelled_test": tmp_path / "t.parquet"}
    measurement = generated_texts.measure(run, tables, generated_texts.SETS["imdb"], 4)
    assert measurement.row["specificity"] == 0.75
    assert measurement.row["deviation"] == pytest.approx(1.0)
    assert measurement.row["real"] == {"accuracy": 1.0, "deviation": 0.0}
    assert measurement.figures["specificity"].numerator.tolist() == [1, 0, 1, 1]


def test_the_judge_of_hotels_is_trained_on_texts_of_chains(tmp_path: Path) -> None:
    (tmp_path / "hotels").mkdir()
    rows = [
        {"text": f"{hotel} {n}", "hotel": hotel, "city": "Reno, NV", "rating": "5"}
        for n in range(40)
        for hotel in CHAINS
    ]
    for part in ("train", "dev", "test"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hotels" / f"{part}.parquet")
    paths = generated_texts.EXPERIMENTS["specificity_hotels"].tables(tmp_path, tmp_path / "made", 1.0)
    assert Counter(read(paths["labelled_train"])["class"].to_pylist()) == {"economy": 40, "upscale": 40, "midscale": 40}
    assert len(read(paths["train"])) == 160
