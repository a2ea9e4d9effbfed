"""Small runs of letters that distinguish users, for the tests of the service."""

from pathlib import Path
from typing import Any

import torch

from factorcell.config import Config
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from factorcell.training.trainer import observe

USERS = ("ann", "bob")
POPULAR = {"abc": 5, "abba": 3, "cab": 4, "acca b": 3}


def make_run(folder: Path, seed: int = 0, **model: Any) -> Run:
    sizes = {"embedding_size": 4, "hidden_size": 5, "rank": 2, "context_size": 3, "variable_size": 2}
    inputs = {"context": ("city",), "user": "who", "tokenizer": "char", "min_user_count": 1, "min_context_count": 1}
    config = Config.of(**{**inputs, "min_count": 1, "max_tokens": 14, **sizes, **model})
    rows = [
        {"text": text, "who": who, "city": city}
        for text in ("abc", "cab a", "ba")
        for who in USERS
        for city in ("Oslo", "Nice")
    ]
    corpus = prepare(rows, config)
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    observe(run.model, corpus)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.8, generator=random)
    run.save_weights({})
    TextCounts(POPULAR, 15).save(folder / POPULARITY)
    return Run.open(folder)
