"""Targets that few users wrote are not learned: against a plain count of n-grams, and in the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.counts import CHARACTER_ORDER, WORD_ORDER, SharedTargets
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.training.trainer import Trainer

ORDERS = {"word": WORD_ORDER, "space": WORD_ORDER, "char": CHARACTER_ORDER, "grapheme": CHARACTER_ORDER}
SIZES = {"embedding_size": 4, "hidden_size": 5, "context_size": 2, "variable_size": 2, "rank": 1}


def read(
    rows: list[dict[str, Any]], tokenizer: str = "char", min_users: int = 2, **training: Any
) -> tuple[Corpus, Config]:
    data = {"tokenizer": tokenizer, "user": "who", "min_count": 1, "min_user_count": 2}
    config = Config.of(**{**data, **SIZES, "min_users": min_users, **training})
    return prepare(rows, config), config


def expected_mask(corpus: Corpus, order: int, min_users: int) -> list[bool]:
    """Return for each target whether at least `min_users` users wrote its n-gram; 0 stands for no user."""
    texts = [corpus.tokens[corpus.offsets[i] : corpus.offsets[i + 1]].tolist() for i in range(len(corpus))]
    users: dict[tuple[int, ...], set[int]] = {}
    for text, user in zip(texts, corpus.users.tolist(), strict=True):
        for end in range(2, len(text) + 1):
            users.setdefault(tuple(text[max(0, end - order) : end]), set()).update({user} - {0})
    return [
        len(users[tuple(text[max(0, end - order) : end])]) >= min_users
        for text in texts
        for end in range(2, len(text) + 1)
    ]


@given(
    st.lists(st.tuples(st.text("ab ", max_size=9), st.sampled_from(("x", "y", "z", None))), min_size=2, max_size=12),
    st.sampled_from(sorted(ORDERS)),
    st.integers(1, 3),
)
def test_targets_of_common_ngrams_are_learned(
    rows: list[tuple[str, str | None]], tokenizer: str, min_users: int
) -> None:
    corpus, config = read([{"text": text, "who": who} for text, who in rows], tokenizer, min_users)
    shared = SharedTargets.of(corpus, config.training.min_users)
    expected = expected_mask(corpus, ORDERS[tokenizer], min_users)
    assert shared.is_learned.tolist() == expected
    batch = corpus.batch(np.random.default_rng(0).permutation(len(corpus)))
    mask, starts = shared.mask(batch), np.cumsum([0, *corpus.lengths])
    for line, row in zip(mask.tolist(), batch.rows.tolist(), strict=True):
        text_mask = expected[starts[row] : starts[row + 1]]
        assert line == text_mask + [False] * (len(line) - len(text_mask))


ROWS = [{"text": text, "who": who} for who in "abc" for text in ("the sea", "the sun")]


def make_trainer(folder: Path, rows: list[dict[str, str]], **training: Any) -> Trainer:
    corpus, config = read(rows, **training)
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    return Trainer(run, corpus, corpus)


@pytest.mark.parametrize("samples", [0, 5])
def test_the_loss_excludes_targets_of_single_users(samples: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", [*ROWS, {"text": "xqjz", "who": "a"}], min_users=3, samples=samples)
    batch = trainer.corpus.batch(np.arange(len(trainer.corpus)))
    assert trainer.shared_targets is not None
    assert trainer.shared_targets.mask(batch)[-1].tolist() == [False] * 8
    assert trainer.shared_targets.mask(batch)[:-1].all()
    nats, *_ = trainer.nats(trainer.plan_step(batch))
    assert (nats[-1] == 0).all()
    assert (nats[:-1, 0] > 0).all()
    trainer.step(batch)
    assert trainer.progress.tokens == sum(len(row["text"]) + 1 for row in ROWS)
    assert trainer.progress.nats == pytest.approx(
        float(nats.sum().detach()), rel=1e-4
    )  # the mean is over learned targets


def test_without_shared_targets_nothing_is_learned(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", ROWS, min_users=4)
    before = [parameter.clone() for parameter in trainer.run.model.parameters()]
    trainer.step(trainer.corpus.batch(np.arange(len(trainer.corpus))))
    assert all(map(torch.equal, before, trainer.run.model.parameters()))


def test_counting_users_needs_a_user_column() -> None:
    with pytest.raises(UserError, match="min_users requires the column with the author"):
        Config.of(min_users=3)
