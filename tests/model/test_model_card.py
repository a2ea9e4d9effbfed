"""The model card says what the run folder knows, and its example works."""

import re
from pathlib import Path

import pytest

from factorcell.config import Config
from factorcell.evaluation import results
from factorcell.model import model_card
from factorcell.model.run import Run
from factorcell.training.fit import fit
from tests.small import CONTEXT, ROWS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run trained for a moment."""
    config = Config.from_dict(
        {
            "data": {"context": list(CONTEXT), "min_count": 1, "min_context_count": 1},
            "model": {"embedding_size": 4, "hidden_size": 4, "rank": 1},
            "training": {"epochs": 1},
        }
    )
    return fit(ROWS, ROWS, config, tmp_path / "run")


def test_card_has_the_numbers_reached(run: Run) -> None:
    """Texts, context, development figures, and the results that were noted later."""
    result = results.evaluate(run, ROWS, by=["city"])["evaluation"]
    text = (run.folder / "README.md").read_text(encoding="utf-8")
    best = min(row["perplexity"] for row in run.log() if row["split"] == "dev")
    assert "10 texts" in text
    assert "full softmax" in text
    assert "city: category, 2 values" in text
    assert f"| development | perplexity | {best:.2f} |" in text
    assert f"| rows | perplexity | {result['perplexity']:.4g} |" in text
    assert text == model_card.text(run)


def test_the_example_on_the_card_runs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python of the card opens the folder and scores its row."""
    found = re.search(r"```python\n(.*?)\n```", model_card.text(run), re.DOTALL)
    assert found
    source = found[1].splitlines()
    source[-1] = f"print({source[-1]})"
    exec("\n".join(source), {})
    assert "perplexity" in capsys.readouterr().out
