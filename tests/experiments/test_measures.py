"""What experiments measure beside perplexity, counted out by hand."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import corpora
import measures
from factorcell.evaluation.classification import classify
from tests.small_runs import make_run


def test_detection_is_by_perplexities_as_z_scores(tmp_path: Path) -> None:
    """The mean AUC of the values, each against the others and a distractor, counted out pair by pair."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    values = list(run.schema.variable("city").values[1:])
    assert len(values) >= 2
    pairs = itertools.product(("sea 1", "sun 2", "a 3"), (*values, "x"))
    rows = [{"text": text, "city": name, "stars": "1"} for text, name in pairs]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    found = measures.detected(run, {"judged": judged}, "city", values, ("x",)).row
    scored = [[run.score([{**row, "city": name}], unknown="group")[0] for name in values] for row in rows]
    perplexities = np.array([[np.exp(one["nats"] / one["targets"]) for one in line] for line in scored])
    scores = (perplexities.mean(1, keepdims=True) - perplexities) / perplexities.std(1, keepdims=True)
    areas = []
    for place, name in enumerate(values):
        own = [score for row, score in zip(rows, scores[:, place], strict=True) if row["city"] == name]
        others = [score for row, score in zip(rows, scores[:, place], strict=True) if row["city"] != name]
        areas.append(np.mean([(a > b) + (a == b) / 2 for a in own for b in others]))
    assert found["auc"] == pytest.approx(np.mean(areas))
    assert (found["candidates"], found["distractors"]) == (len(values), 3)
    assert measures.detected(run, {"judged": judged}, "city", values[:1], ("x",)).row == {}


def test_values_are_told_by_samples_where_that_is_asked_for(tmp_path: Path) -> None:
    """By draws from unigrams, as printed; else by the whole softmax."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    run.save_unigram_counts(np.arange(len(run.tokenizer)))
    values = run.schema.variable("city").values[1:]
    rows = [{"text": text, "city": name, "stars": "1"} for text, name in itertools.product(("sea 1", "a 3"), values)]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    for samples in (0, 3):
        found = measures.measure_classification(run, {"judged": judged}, "city", samples).row
        told = classify(run, judged, "city", unknown="group", samples=samples, proposal="unigram").metrics()
        assert (found["accuracy"], found["value_nats"]) == (told["accuracy"], told["value_nats"])
    assert found["value_nats"] != measures.measure_classification(run, {"judged": judged}, "city").row["value_nats"]


@pytest.mark.filterwarnings("ignore:.*far outside the range of training")
def test_the_cities_of_the_paper_stand_beside_ours(tmp_path: Path) -> None:
    """Each six judge the texts at most 300 km from one of them, by the likelihoods at these cities alone."""
    run = make_run(tmp_path / "r", ("city", "stars", "lat:number", "lon:number"))
    ours, printed = measures.Cities("world_cities.csv"), measures.PRINTED_CITIES
    assert len(printed.cities()) == 6
    near = {
        "London": (51.5, -0.1),
        "Manchester": (53.5, -2.2),
        "Vienna": (48.2, 16.4),
        "Madrid": (40.4, -3.7),
        "": (0, 0),
    }
    rows = [
        {"text": text, "city": "Nice", "stars": "1", "lat": lat, "lon": lon}
        for (lat, lon), text in itertools.product(near.values(), ("the sea", "sun and sand"))
    ]
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    found = measures.nearest_city(run, {"judged": judged}, ours)
    for ending, cities in (("", ours), (measures.PRINTED, printed)):
        names = [name for name in near for _ in range(2)]
        scores = [[run.score([{**row, **place}])[0]["nats"] for place in cities.cities().values()] for row in rows]
        best = [list(cities.cities())[int(np.argmin(line))] for line in scores]
        # Manchester is within 300 km of London, which is the nearest of our six there
        truth = ["London" if name == "Manchester" and not ending else name for name in names]
        right = [one == other for one, other in zip(best, truth, strict=True) if other in cities.cities()]
        assert found.row[f"judged{ending}"] == len(right) == 6
        assert found.row[f"candidates{ending}"] == 6
        assert found.row[f"accuracy{ending}"] == pytest.approx(np.mean(right))
        sums = found.figures[f"accuracy{ending}"]
        assert sums.numerator.sum() / sums.denominator.sum() == pytest.approx(np.mean(right))


@pytest.mark.filterwarnings("ignore:.*far outside the range of training")
def test_cities_that_no_text_is_near_are_left_out(tmp_path: Path) -> None:
    """A small trial has no row of them, where a share of no texts would be none."""
    run = make_run(tmp_path / "r", ("lat:number", "lon:number"))
    rows = [{"text": "the sea", "lat": 48.2, "lon": 16.4}]  # Vienna
    judged = corpora.write_table(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
    found = measures.nearest_city(run, {"judged": judged}, measures.Cities("world_cities.csv"))
    assert set(found.row) == {"candidates", "judged", "accuracy"}
