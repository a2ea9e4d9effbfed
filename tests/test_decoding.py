"""Sampling against the model's own probabilities."""

from pathlib import Path

import numpy as np
import torch

from factorcell.decoding import sample
from factorcell.vocabulary import END, START, UNKNOWN
from small import make_run


def test_first_tokens_are_drawn_with_their_probabilities(tmp_path: Path) -> None:
    """Over many draws the first token has the frequencies of `step`, the unknown token left out."""
    run, count = make_run(tmp_path / "run", ("city",)), 20_000
    context = run.prepare([{"text": "", "city": "Oslo"}]).context(np.zeros(count, dtype=np.int64))
    with torch.inference_mode():
        conditioned = run.model.condition(context)
        logs, _ = run.model.step(torch.tensor([START]), run.model.condition(context.select(torch.tensor([0]))))
    expected = logs[0].exp().double()
    expected[UNKNOWN] = 0
    expected /= expected.sum()
    texts = sample(run.model, conditioned, count, most=1)
    first = torch.tensor([text[0] if text else END for text in texts])
    frequencies = torch.bincount(first, minlength=len(expected)) / count
    assert float((frequencies - expected).abs().max()) < 4 * (0.25 / count) ** 0.5


def test_texts_end_and_are_the_same_for_a_seed(tmp_path: Path) -> None:
    """No text is longer than asked or holds a special token; the seed decides; a low temperature draws the mode."""
    run = make_run(tmp_path / "run", ("city",))
    context = run.prepare([{"text": "", "city": "Nice"}]).context(np.zeros(50, dtype=np.int64))
    with torch.inference_mode():
        conditioned = run.model.condition(context)
    texts = sample(run.model, conditioned, 50, most=8, seed=3)
    assert texts == sample(run.model, conditioned, 50, most=8, seed=3)
    assert texts != sample(run.model, conditioned, 50, most=8, seed=4)
    assert max(map(len, texts)) <= 8
    assert not {UNKNOWN, START, END} & {token for text in texts for token in text}
    assert len({tuple(text) for text in sample(run.model, conditioned, 50, most=8, temperature=1e-4)}) == 1
