"""Slow: whole trainings on the shipped place names."""

from pathlib import Path

import pytest

from factorcell.commands import demo
from factorcell.config import PAPER_MODELS
from factorcell.training.compare import compare as compare_models

pytestmark = pytest.mark.slow


def test_the_papers_order_on_place_names(tmp_path: Path) -> None:
    said = {**demo.SAID, "training": {"epochs": 0.6, "evaluations": 2}}
    every = compare_models(demo.table_path("train"), demo.table_path("dev"), None, said, tmp_path / "runs")
    reached = [row for row in every if row["model"] != "ngram"]
    perplexity = [row["perplexity"] for row in reached]
    assert [row["model"] for row in reached] == list(PAPER_MODELS)
    assert perplexity == sorted(perplexity, reverse=True)
    assert perplexity[-1] < 0.8 * perplexity[0]
