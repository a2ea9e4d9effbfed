"""Bits per byte against a loop over texts, across tokenizers, and for truncated and empty texts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.data.tokenizers.tokenizer import UNKNOWN
from factorcell.errors import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import TextSums
from factorcell.ngram.ngram import NGram, spelling_model
from tests.small_runs import make_letters, make_run

LETTERS = ("abc", "cab", "ba", "caf\u00e9", "👩‍👩‍👧", "", "abcabcabcabcabcabc")
TEXTS = [*LETTERS, "cafe\u0301", "xyz"] * 3


def rows_of(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text, "city": "Oslo", "stars": "5", "lat": 59.0, "lon": 10.0} for text in texts]


def bits(run: Any, texts: list[str]) -> tuple[list[float], list[int]]:
    """Return the bits and the bytes of every text that is not truncated, scored and spelled one by one."""
    costs, sizes = [], []
    for text in texts:
        corpus = run.prepare(rows_of([text]))
        if not corpus.truncated.any():
            unknown = [token for token in run.tokenizer.split(text) if run.tokenizer.encode([token]) == [UNKNOWN]]
            nats = run.nats(corpus).astype(np.float64).sum() + spelling_model(run.tokenizer).nats(unknown).sum()
            costs.append(float(nats) / math.log(2))
            sizes.append(len(run.tokenizer.normalize(text).encode()))
    return costs, sizes


@pytest.mark.parametrize("kind", ["char", "grapheme", "ngram"])
def test_bits_per_byte_equal_a_loop_over_texts(kind: str, tmp_path: Path) -> None:
    run: Any = make_letters(LETTERS)
    if kind == "grapheme":
        run = make_letters(LETTERS, data={"tokenizer": "grapheme"})
    if kind == "ngram":
        run = NGram.fit(rows_of(list(LETTERS)), run.config, tmp_path / "ngram", tokenizer=run.tokenizer)
    costs, sizes = bits(run, TEXTS)
    row = evaluate(run, rows_of(TEXTS)).row
    assert row["bits_per_byte"] == pytest.approx(sum(costs) / sum(sizes), rel=1e-5)
    assert row["bits_per_byte_texts"] == len(costs) == row["texts"] - row["truncated"]
    assert row["bits_per_byte_low"] < row["bits_per_byte"] < row["bits_per_byte_high"]
    assert row["unknown_targets"] == round(row["unknown_share"] * row["targets"]) > 0
    once = run.prepare(rows_of(TEXTS))
    assert perplexity.evaluate_corpus(run, once).row == row


def test_bytes_are_counted_after_unicode_normalization() -> None:
    composed, decomposed = (
        evaluate(make_letters(LETTERS), rows_of([text] * 12)).row for text in ("caf\u00e9", "cafe\u0301")
    )
    assert composed == decomposed


def test_words_have_no_bits_per_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert not any(name.startswith("bits") for name in evaluate(run, rows_of(TEXTS)).row)
    with pytest.raises(UserError, match="nor bits per byte, because tokens do not restore the texts"):
        evaluate(run, rows_of(TEXTS), baseline=make_letters(LETTERS))


@pytest.mark.parametrize("texts", [[""] * 12, ["abcabcabcabcabc"] * 12, ["", "abcabcabcabcabc"]])
def test_texts_without_counted_bytes_have_no_bits_per_byte(texts: list[str]) -> None:
    row = evaluate(make_letters(), rows_of(texts)).row
    assert not any(name.startswith("bits") for name in row)


def test_texts_without_originals_have_perplexities_only() -> None:
    run = make_letters()
    corpus = replace(run.prepare(rows_of(["abc"] * 12)), originals=None)
    assert not any(name.startswith("bits") for name in evaluate(run, corpus).row)
    assert list(text_figures.figures_from_nats(run.nats(corpus), corpus)) == ["perplexity", "perplexity_known"]


def saved_model(run: Any, texts: list[str], folder: Path) -> ComparedModel:
    """Return a model with its figures, which are saved in a folder and loaded again."""
    evaluation = evaluate(run, rows_of(texts))
    folder.mkdir()
    text_figures.save(folder, evaluation.figures, {})
    return ComparedModel(folder.name, [evaluation.row], [text_figures.load(folder, {})])


def test_models_with_different_tokenizers_are_compared_over_texts_that_neither_truncated(tmp_path: Path) -> None:
    char = make_letters(LETTERS)
    grapheme = make_letters(LETTERS, data={"tokenizer": "grapheme", "max_tokens": 4})
    models = [saved_model(run, TEXTS, tmp_path / name) for name, run in (("char", char), ("grapheme", grapheme))]
    _, compared = compare_models(models)
    texts = [
        text for text in TEXTS if not any(run.prepare(rows_of([text])).truncated.any() for run in (char, grapheme))
    ]
    assert 0 < len(texts) < len(TEXTS)
    char_bits, grapheme_bits = (
        sum(costs) / sum(sizes) for costs, sizes in (bits(run, texts) for run in (char, grapheme))
    )
    assert compared["bits_per_byte_below_baseline"] == pytest.approx(char_bits - grapheme_bits, rel=1e-4)
    assert "gain_over_baseline" not in compared
    assert "bits per byte below char" in str(compare_models(models))


def test_models_of_different_texts_are_not_compared(tmp_path: Path) -> None:
    texts = {"one": ["abc", "cab"] * 6, "other": ["cab", "abc"] * 6}
    models = [saved_model(make_letters(LETTERS), texts[name], tmp_path / name) for name in texts]
    assert "bits_per_byte_below_baseline" not in compare_models(models)[1]


def model_with_bits(name: str, cost: float, trainings: int = 1) -> ComparedModel:
    """Return a model with `cost` bits per byte on 50 texts."""
    sizes, noise = np.full(50, 10.0), np.random.default_rng(len(name)).normal(0, 0.01, 50)
    costs = [cost + 0.01 * training for training in range(trainings)]
    figures = [{"bits_per_byte": TextSums("c", sizes * (bits + noise - noise.mean()), sizes)} for bits in costs]
    return ComparedModel(name, [{"bits_per_byte": bits} for bits in costs], figures)


def test_fewer_bits_per_byte_are_a_positive_difference() -> None:
    first, second = compare_models([model_with_bits("char", 2.0), model_with_bits("grapheme", 1.5)])
    assert second["bits_per_byte_below_baseline"] == pytest.approx(0.5)
    assert (first["ahead"], second["ahead"]) == ([], ["bits_per_byte"])


def test_bits_per_byte_of_several_trainings_are_a_mean_with_an_interval() -> None:
    (several,) = compare_models([model_with_bits("char", 2.0, trainings=3)])
    assert several["bits_per_byte"] == pytest.approx(2.01)
    assert several["bits_per_byte_deviation"] == pytest.approx(0.01)
    assert several["bits_per_byte_low"] < 2.0
    assert several["bits_per_byte_high"] > 2.02


def test_evaluate_compares_bits_per_byte_with_a_baseline() -> None:
    run, texts = make_letters(LETTERS), rows_of(TEXTS)
    other_tokens = evaluate(run, texts, baseline=make_letters(LETTERS, data={"tokenizer": "grapheme"})).row
    assert "gain_over_baseline" not in other_tokens
    assert "perplexity_baseline" not in other_tokens
    assert other_tokens["bits_per_byte_below_baseline_low"] is not None
    same_tokens = evaluate(run, texts, baseline=make_letters(LETTERS, seed=1)).row
    assert same_tokens["gain_over_baseline"] is not None
    assert same_tokens["bits_per_byte_below_baseline"] == pytest.approx(
        same_tokens["bits_per_byte_baseline"] - same_tokens["bits_per_byte"]
    )
    assert "bits_per_byte_below_baseline" not in evaluate(run, texts, by=["city"]).row
