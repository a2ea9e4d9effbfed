"""Runs of characters for the tests of completion."""

from pathlib import Path
from typing import Any

from factorcell.completion.online import Learner
from factorcell.runs.run import Run
from tests.small_runs import make_letters

CITY: dict[str, Any] = {"user": "city", "context": (), "min_user_count": 1}  # options with which cities are users


def save(folder: Path, **options: Any) -> Path:
    """Save a model of characters with random weights and the context city, and return its folder."""
    source_run = make_letters(spread=0.8, seed=3, **options)
    run = Run.create(folder, source_run.config, source_run.tokenizer, source_run.schema)
    run.model.load_state_dict(source_run.model.state_dict())
    run.save_weights({})
    return folder


class Learning(Learner):
    """A learner that records the texts that it learns."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.texts = list[str]()

    def learn(self, users: Any, texts: Any, contexts: Any = None) -> Any:
        self.texts += texts
        return super().learn(users, texts, contexts)
