"""Complete trainings on the place names of the demo (slow)."""

from pathlib import Path
from typing import Any

import pytest

from factorcell.commands import demo
from factorcell.config import PAPER_MODELS
from factorcell.training.compare import compare

pytestmark = pytest.mark.slow


def test_models_rank_as_in_the_paper_on_place_names(tmp_path: Path) -> None:
    options: dict[str, Any] = {**demo.OPTIONS, "epochs": 0.6, "evaluations": 2}
    comparison = compare(demo.table_path("train"), dev=demo.table_path("dev"), out=tmp_path / "runs", **options)
    rows = [row for row in comparison if "ngram" not in row["model"]]
    perplexity = [row["perplexity"] for row in rows]
    assert [row["model"] for row in rows] == list(PAPER_MODELS)
    assert perplexity == sorted(perplexity, reverse=True)
    assert perplexity[-1] < 0.8 * perplexity[0]
