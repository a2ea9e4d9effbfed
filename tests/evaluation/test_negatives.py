"""Classification with sampled tokens, drawn as in the papers, against explicit sums."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.commands.cli.main import main
from factorcell.data.corpus import target_frequencies
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import draw_samples, log_likelihoods
from factorcell.io import files
from factorcell.runs.run import UNIGRAMS, Run
from factorcell.training.fit import train_run
from tests.small_runs import ROWS, make_run

DRAWS = 6


def make_run_with_counts(folder: Path, **model: Any) -> Run:
    """Return a run with random weights and saved token counts."""
    run = make_run(folder, **model)
    run.save_unigram_counts(target_frequencies(run.prepare(ROWS)))
    return run


def expected_log_prob(run: Run, row: dict[str, Any], negative: list[int], draws: int) -> float:
    """Return log p(text) by a softmax over the target and `negative` tokens, each corrected by its log inclusion."""
    counts = Counter(word for other in ROWS for word in run.tokenizer.split(other["text"]))
    counts_of_tokens = [counts.get(token, 0) or 1 for token in run.tokenizer.tokens]
    counts_of_tokens[START], counts_of_tokens[END] = 0, len(ROWS)
    inclusion = [1 - (1 - count / sum(counts_of_tokens)) ** draws for count in counts_of_tokens]
    corpus = run.prepare([row])
    conditioning, state, total = run.model.condition(corpus.context(np.array([0]))), None, 0.0
    ids = corpus.tokens.tolist()
    with torch.no_grad():
        for token, target in itertools.pairwise(ids):
            logs, state = run.model.step(torch.tensor([token]), conditioning, state)
            scores = {word: float(logs[0, word]) - np.log(inclusion[word]) for word in {target, *negative}}
            total += scores[target] - np.logaddexp.reduce(list(scores.values()))
    return total


@pytest.mark.parametrize("bias", [["low_rank"], ["low_rank", "hash"]], ids=str)
def test_unigram_samples_give_the_corrected_likelihoods(tmp_path: Path, bias: list[str]) -> None:
    run = make_run_with_counts(tmp_path / "run", output_bias=bias)
    negative = draw_samples(run, DRAWS, "unigram").tokens.tolist()
    assert START not in negative
    candidates = [{"city": "Oslo"}, {"city": "Nice"}]
    likelihoods = log_likelihoods(run, run.prepare(ROWS), candidates, samples=DRAWS, proposal="unigram")
    for row, logs in zip(ROWS, likelihoods, strict=True):
        for city, log in zip(("Oslo", "Nice"), logs, strict=True):
            expected = expected_log_prob(run, {**row, "city": city}, negative, DRAWS)
            assert log == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_tokens_are_sampled_by_their_training_frequency(tmp_path: Path) -> None:
    run = make_run_with_counts(tmp_path / "run")
    counts, samples = run.unigram_counts().double().clamp(min=1), torch.zeros(len(run.tokenizer), dtype=torch.double)
    counts[START] = 0
    for seed in range(1000):
        samples[draw_samples(run, DRAWS, "unigram", seed).tokens] += 1
    torch.testing.assert_close(samples / 1000, 1 - (1 - counts / counts.sum()) ** DRAWS, atol=0.06, rtol=0)


def test_training_saves_the_token_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(tmp_path / "train.jsonl", ROWS * 3)
    config: dict[str, dict[str, Any]] = {
        "data": {"context": ["city"], "min_context_count": 1},
        "model": {"embedding_size": 8},
        "training": {"epochs": 1},
        "tokenizer": {"min_count": 1},
        "backbone": {"hidden_size": 8},
    }
    run = train_run(ROWS * 3, ROWS, config, tmp_path / "run")
    counts = Counter(word for row in ROWS * 3 for word in run.tokenizer.split(row["text"]))
    expected = {**counts, "</s>": 3 * len(ROWS)}
    assert dict(zip(run.tokenizer.tokens, run.unigram_counts().tolist(), strict=True)) == {
        token: expected.get(token, 0) for token in run.tokenizer.tokens
    }
    command = ["classify", str(run.folder), str(tmp_path / "train.jsonl"), "--target", "city", "--samples", "4"]
    assert main([*command, "--proposal", "unigram", "--out", str(tmp_path / "out.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected_result = classify(run, ROWS * 3, "city", samples=4, proposal="unigram")
    probabilities = [row["probabilities"][expected_result.names[0]] for row in rows]
    assert probabilities == pytest.approx(expected_result.probabilities[:, 0], abs=1e-5)
    (run.folder / UNIGRAMS).unlink()
    capsys.readouterr()
    assert main(command) == 0
    assert main([*command, "--proposal", "unigram"]) == 2
    assert "unigrams.safetensors: there is no such file; training writes it at its end" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"unknown proposal 'unigrams' \(did you mean 'unigram'\?\); choose from rank"):
        classify(run, ROWS, "city", proposal="unigrams")


@pytest.mark.parametrize(("size", "value"), [(3, 1), (10, 1.0), (10, -1)])
def test_counts_of_another_vocabulary_are_an_error(tmp_path: Path, size: int, value: float) -> None:
    run = make_run(tmp_path / "run")
    assert len(run.tokenizer) == 10
    files.save_tensors(run.folder / UNIGRAMS, {"counts": torch.full((size,), value)}, {})
    with pytest.raises(UserError, match=r"unigrams\.safetensors: expected "):
        draw_samples(run, 3, proposal="unigram")
