"""What few users wrote is not learned: against n-grams counted one by one, and on the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.model.run import Run
from factorcell.training.shared_targets import ORDER, ORDER_OF_CHARACTERS, SharedTargets
from factorcell.training.trainer import Trainer

ORDERS = {"word": ORDER, "space": ORDER, "char": ORDER_OF_CHARACTERS, "grapheme": ORDER_OF_CHARACTERS}
SIZES = {"embedding_size": 4, "hidden_size": 5, "context_size": 2, "variable_size": 2, "rank": 1}


def read(rows: list[dict[str, Any]], unit: str = "char", least: int = 2, **training: Any) -> tuple[Corpus, Config]:
    data = {"tokenizer": unit, "user": "who", "min_count": 1, "min_user_count": 2}
    config = Config.of(**{**data, **SIZES, "min_users": least, **training})
    return prepare(rows, config), config


def counted(corpus: Corpus, order: int, least: int) -> list[bool]:
    """Of every target whether enough users wrote it after what is before it, one by one; nobody is 0."""
    texts = [corpus.tokens[corpus.offsets[i] : corpus.offsets[i + 1]].tolist() for i in range(len(corpus))]
    users: dict[tuple[int, ...], set[int]] = {}
    for text, user in zip(texts, corpus.users.tolist(), strict=True):
        for end in range(2, len(text) + 1):
            users.setdefault(tuple(text[max(0, end - order) : end]), set()).update({user} - {0})
    return [
        len(users[tuple(text[max(0, end - order) : end])]) >= least for text in texts for end in range(2, len(text) + 1)
    ]


@given(
    st.lists(st.tuples(st.text("ab ", max_size=9), st.sampled_from(("x", "y", "z", None))), min_size=2, max_size=12),
    st.sampled_from(sorted(ORDERS)),
    st.integers(1, 3),
)
def test_targets_of_common_ngrams_are_learned(rows: list[tuple[str, str | None]], unit: str, least: int) -> None:
    corpus, config = read([{"text": text, "who": who} for text, who in rows], unit, least)
    shared = SharedTargets.of(corpus, config)
    expected = counted(corpus, ORDERS[unit], least)
    assert shared.learned.tolist() == expected
    batch = corpus.batch(np.random.default_rng(0).permutation(len(corpus)))
    mask, starts = shared.mask(batch), np.cumsum([0, *corpus.lengths])
    for line, row in zip(mask.tolist(), batch.rows.tolist(), strict=True):
        own = expected[starts[row] : starts[row + 1]]
        assert line == own + [False] * (len(line) - len(own))
    assert shared.count(batch) == max(1, sum(expected))


ROWS = [{"text": text, "who": who} for who in "abc" for text in ("the sea", "the sun")]


def trainer(folder: Path, rows: list[dict[str, str]], **training: Any) -> Trainer:
    corpus, config = read(rows, **training)
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    return Trainer(run, corpus, corpus)


@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_the_loss_excludes_targets_of_single_users(loss: str, tmp_path: Path) -> None:
    made = trainer(tmp_path / "run", [*ROWS, {"text": "xqjz", "who": "a"}], least=3, loss=loss, samples=5)
    batch = made.corpus.batch(np.arange(len(made.corpus)))
    assert made.shared is not None
    assert made.shared.mask(batch)[-1].tolist() == [False] * 8
    assert made.shared.mask(batch)[:-1].all()
    nats, *_ = made.nats(batch, len(batch.rows))
    assert (nats[-1] == 0).all()
    assert (nats[:-1, 0] > 0).all()
    made.step(batch)
    assert made.progress.tokens == made.shared.count(batch) == sum(len(row["text"]) + 1 for row in ROWS)
    assert made.progress.nats == pytest.approx(float(nats.sum().detach()), rel=1e-4)  # a mean over what is learned


def test_without_shared_targets_nothing_is_learned(tmp_path: Path) -> None:
    made = trainer(tmp_path / "run", ROWS, least=4)
    before = [parameter.clone() for parameter in made.run.model.parameters()]
    made.step(made.corpus.batch(np.arange(len(made.corpus))))
    assert all(map(torch.equal, before, made.run.model.parameters()))


@pytest.mark.parametrize("option", ["min_users", "max_user_texts"])
def test_counting_users_needs_a_user_column(option: str) -> None:
    with pytest.raises(UserError, match=f"{option} counts users"):
        Config.of(**{option: 3})
