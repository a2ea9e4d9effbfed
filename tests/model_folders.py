"""Small model folders of each kind, with random weights: runs, an n-gram model and mixtures."""

from pathlib import Path
from typing import Any

import numpy as np

from factorcell.completion import blend
from factorcell.completion.online import LearningRule
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.ngram.ngram import NGram
from factorcell.runs.run import Run
from factorcell.training.mixture import MixedModels
from tests.small_runs import ROWS, make_letters, make_run

MODELS = ("words", "kinds", "letters", "plain", "ngram", "inner", "mixture")
OPTIONS: dict[str, Any] = {
    "adapt": ("concat", "factor", "scale", "prefix"),
    "output_bias": ("low_rank_each", "one_hot", "sparse", "hash"),
    "cell": "gru",
    "layers": 2,
    "layer_norm": True,
}
LETTERS = ("bake bread", "bake a cake", "ball game", "bat and ball")


def make_models(folder: Path) -> None:
    """Save a model of each kind in `folder`, each in a folder with its name in `MODELS`."""
    run = make_run(folder / "words")
    run.save_weights({})
    make_run(folder / "kinds", **OPTIONS).save_weights({})
    save_letters(folder / "letters")
    ngram = NGram.fit(ROWS, run.config, folder / "ngram", tokenizer=run.tokenizer)
    mixed = MixedModels(folder / "inner", [make_plain(folder / "plain"), run])
    mixed.folder.mkdir()
    mixed.save()
    weights = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    mixture = MixedModels(folder / "mixture", [run, ngram, mixed], "city", weights)
    mixture.folder.mkdir()
    mixture.save()


def save_letters(folder: Path) -> None:
    """Save a run of characters that learns users, with its settings of completion and popular texts."""
    source = make_letters(LETTERS, data={"user": "city", "context": (), "min_user_count": 1})
    run = Run.create(folder, source.config, source.tokenizer, source.schema)
    run.model.load_state_dict(source.model.state_dict())
    run.save_weights({})
    blend.save_settings(run, LearningRule("adadelta", 1.0), blend.DEFAULT_WEIGHTS)
    TextCounts({"ball game": 3, "bake bread": 4}, 7).save(folder / POPULARITY)


def make_plain(folder: Path) -> Run:
    """Save an unadapted run."""
    run = make_run(folder, (), adapt=(), output_bias=())
    run.save_weights({})
    return run
