"""Complete trainings on the place names of the demo (slow)."""

from pathlib import Path

import pytest

from factorcell.commands import demo
from factorcell.config import PAPER_MODELS
from factorcell.training.compare import compare as compare_models

pytestmark = pytest.mark.slow


def test_models_rank_as_in_the_paper_on_place_names(tmp_path: Path) -> None:
    options = {**demo.OPTIONS, "training": {"epochs": 0.6, "evaluations": 2}}
    comparison = compare_models(demo.table_path("train"), demo.table_path("dev"), None, options, tmp_path / "runs")
    rows = [row for row in comparison if "ngram" not in row["model"]]
    perplexity = [row["perplexity"] for row in rows]
    assert [row["model"] for row in rows] == list(PAPER_MODELS)
    assert perplexity == sorted(perplexity, reverse=True)
    assert perplexity[-1] < 0.8 * perplexity[0]
