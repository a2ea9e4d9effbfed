"""What experiments measure beside perplexity, counted out by hand."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import corpora
import measures
from tests.small import make_run


def test_detection_is_by_perplexities_as_z_scores(tmp_path: Path) -> None:
    """The mean AUC of the values, each against the others and a distractor, counted out pair by pair."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    values = list(run.schema.variable("city").values[1:])
    assert len(values) >= 2
    pairs = itertools.product(("sea 1", "sun 2", "a 3"), (*values, "x"))
    rows = [{"text": text, "city": name, "stars": "1"} for text, name in pairs]
    judged = corpora.written(tmp_path / "judged.parquet", pa.Table.from_pylist(rows))
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
