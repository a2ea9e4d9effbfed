"""Measures of classification, compared with plain computations."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import corpora
import measures
from factorcell.evaluation.classification import classify
from tests.small_runs import make_run


def test_detection_uses_z_scores_of_perplexities(tmp_path: Path) -> None:
    """The mean AUC counts pairs with the other values and a distractor."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    values = list(run.schema.variable("city").values[1:])
    assert len(values) >= 2
    pairs = itertools.product(("sea 1", "sun 2", "a 3"), (*values, "x"))
    rows = [{"text": text, "city": name, "stars": "1"} for text, name in pairs]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    row_of_figures = measures.measure_detection(run, {"judged": judged}, "city", values, ("x",)).row
    scored = [[run.score_rows([{**row, "city": name}], unknown="group")[0] for name in values] for row in rows]
    perplexities = np.array(
        [[np.exp(score_row["nats"] / score_row["targets"]) for score_row in line] for line in scored]
    )
    scores = (perplexities.mean(1, keepdims=True) - perplexities) / perplexities.std(1, keepdims=True)
    areas = []
    for place, name in enumerate(values):
        positive = [score for row, score in zip(rows, scores[:, place], strict=True) if row["city"] == name]
        negative = [score for row, score in zip(rows, scores[:, place], strict=True) if row["city"] != name]
        areas.append(np.mean([(a > b) + (a == b) / 2 for a in positive for b in negative]))
    assert row_of_figures["auc"] == pytest.approx(np.mean(areas))
    assert (row_of_figures["candidates"], row_of_figures["distractors"]) == (len(values), 3)
    assert measures.measure_detection(run, {"judged": judged}, "city", values[:1], ("x",)).row == {}


def test_classification_uses_samples_if_requested(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ("city", "stars"))
    run.save_unigram_counts(np.arange(len(run.tokenizer)))
    values = run.schema.variable("city").values[1:]
    rows = [{"text": text, "city": name, "stars": "1"} for text, name in itertools.product(("sea 1", "a 3"), values)]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    for samples in (0, 3):
        figures = measures.measure_classification(run, {"judged": judged}, "city", samples).row
        options: dict[str, Any] = {"priors": "uniform", "samples": samples, "proposal": "unigram"}
        metrics = classify(run, judged, "city", unknown="group", **options).metrics()
        assert (figures["accuracy"], figures["value_nats"]) == (metrics["accuracy"], metrics["value_nats"])
    assert figures["value_nats"] != measures.measure_classification(run, {"judged": judged}, "city").row["value_nats"]


def test_accuracy_is_measured_for_both_sets_of_cities(tmp_path: Path) -> None:
    """Each set judges the texts within 300 km of one of its cities."""
    run = make_run(tmp_path / "r", ("city", "stars", "lat:number", "lon:number"))
    cities_of_file, paper_cities = measures.Cities("world_cities.csv"), measures.PAPER_CITIES
    assert len(paper_cities.cities()) == 6
    places = {
        "London": (51.5, -0.1),
        "Manchester": (53.5, -2.2),
        "Vienna": (48.2, 16.4),
        "Madrid": (40.4, -3.7),
        "": (0, 0),
    }
    rows = [
        {"text": text, "city": "Nice", "stars": "1", "lat": lat, "lon": lon}
        for (lat, lon), text in itertools.product(places.values(), ("the sea", "sun and sand"))
    ]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    measurement = measures.measure_nearest_city(run, {"judged": judged}, cities_of_file)
    for ending, cities in (("", cities_of_file), (measures.PAPER_SUFFIX, paper_cities)):
        names = [name for name in places for _ in range(2)]
        scores = [[run.score([{**row, **place}])[0] for place in cities.cities().values()] for row in rows]
        best = [list(cities.cities())[int(np.argmin(line))] for line in scores]
        # Manchester is within 300 km of London, the nearest of the cities of the file.
        truth = ["London" if name == "Manchester" and not ending else name for name in names]
        is_correct = [
            predicted == expected
            for predicted, expected in zip(best, truth, strict=True)
            if expected in cities.cities()
        ]
        assert measurement.row[f"judged{ending}"] == len(is_correct) == 6
        assert measurement.row[f"candidates{ending}"] == 6
        assert measurement.row[f"accuracy{ending}"] == pytest.approx(np.mean(is_correct))
        sums = measurement.figures[f"accuracy{ending}"]
        assert sums.numerator.sum() / sums.denominator.sum() == pytest.approx(np.mean(is_correct))


def test_cities_without_near_texts_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ("lat:number", "lon:number"))
    rows = [{"text": "the sea", "lat": 48.2, "lon": 16.4}]  # Vienna
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    measurement = measures.measure_nearest_city(run, {"judged": judged}, measures.Cities("world_cities.csv"))
    assert set(measurement.row) == {"candidates", "judged", "accuracy"}
