"""Baseline classifiers against loops over dictionaries, and on texts that differ only in the order of words."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.data.schema import wave_parameters
from factorcell.data.vocabulary import START
from factorcell.evaluation import baselines, linear_features
from factorcell.evaluation.baselines import (
    FastTextClassifier,
    LinearClassifier,
    classify_with_naive_bayes,
    read_train_and_test,
)
from factorcell.evaluation.linear_features import context_features, sizes_of_features
from factorcell.model.ngram import NGram
from tests.small_runs import CONTEXT, make_run

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]

CONFIG = Config.of(min_count=1, min_context_count=2)
TRAIN = [
    {"text": "sun sun sand", "place": "beach"},
    {"text": "sea sun", "place": "beach"},
    {"text": "", "place": "beach"},
    {"text": "snow ice snow", "place": "hill"},
    {"text": "sun snow wood wood wood", "place": "hill"},
    {"text": "sand wood", "place": "desert"},
]
TEST = [
    {"text": "sun sand sand", "place": "beach"},
    {"text": "never seen snow", "place": "hill"},
    {"text": "wood", "place": "beach"},
    {"text": "sand", "place": "desert"},
    {"text": "ice", "place": "swamp"},
]


@pytest.fixture
def corpora() -> tuple[Corpus, Corpus]:
    """Corpora with two frequent values, a rare one (desert), and an unseen one (swamp)."""
    return read_train_and_test(TRAIN, TEST, "place", CONFIG)


def texts_of(corpus: Corpus) -> list[tuple[int, ...]]:
    return [tuple(text.tolist()) for text in np.split(corpus.tokens, corpus.offsets[1:-1])]


@pytest.mark.parametrize("priors", ["uniform", "training"])
def test_naive_bayes_equals_bayes_rule_over_counts(corpora: tuple[Corpus, Corpus], priors: str) -> None:
    train, test = corpora
    result, tally = classify_with_naive_bayes(train, test, priors=priors)
    assert result.names == ("beach", "hill")
    counts: dict[str, Counter[int]] = {name: Counter() for name in result.names}
    for row, text in zip(TRAIN, texts_of(train), strict=True):
        if row["place"] in counts:
            counts[row["place"]].update(text[1:])
    tokens = [token for token in range(len(train.tokenizer)) if token != START]
    nats, length = 0.0, 0
    for index, (row, text) in enumerate(zip(TEST, texts_of(test), strict=True)):
        joint = {}
        for name, share in (("beach", 3 / 5), ("hill", 2 / 5)):
            total = sum(counts[name][token] + 0.5 for token in tokens)
            joint[name] = sum(math.log((counts[name][token] + 0.5) / total) for token in text[1:])
            if row["place"] == name:
                nats, length = nats - joint[name], length + len(text) - 1
            joint[name] += math.log(share if priors == "training" else 0.5)
        expected = np.exp(list(joint.values())) / sum(np.exp(list(joint.values())))
        np.testing.assert_allclose(result.probabilities[index], expected, rtol=1e-9)
    assert result.truth.tolist() == [0, 1, 0, -1, -1]
    assert tally.perplexity == pytest.approx(math.exp(nats / length))


def test_naive_bayes_does_not_depend_on_the_block_size(
    corpora: tuple[Corpus, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, tally = classify_with_naive_bayes(*corpora)
    monkeypatch.setattr(baselines, "MAX_ELEMENTS", 7)
    parts, again = classify_with_naive_bayes(*corpora)
    np.testing.assert_array_equal(whole.log_posterior, parts.log_posterior)
    assert again == tally


def slow_linear(train: Corpus, test: Corpus, order: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log posteriors (B, K) of the linear model, computed n-gram by n-gram without hashing."""
    labels, names = np.maximum(train.categories[:, 0] - 1, -1), train.schema.categories[0].values[1:]
    zero = np.zeros(len(names))
    weights: dict[tuple[int, ...], Any] = {}
    squares: dict[tuple[int, ...], Any] = {}

    def grams(text: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [text[i : i + n] for n in range(1, order + 1) for i in range(len(text) - n + 1)]

    def log_posterior(text: tuple[int, ...]) -> Any:
        text_grams = grams(text)
        logits = sum((weights.get(gram, zero) for gram in text_grams), zero) / math.sqrt(len(text_grams))
        return logits - np.log(np.exp(logits).sum())

    texts, random = texts_of(train), np.random.default_rng(seed)
    rows = np.flatnonzero(labels >= 0)
    orders = [random.permutation(rows) for _ in range(3)]
    batches = [rows[begin : begin + 64] for rows in orders for begin in range(0, len(rows), 64)]
    for step, batch in enumerate(batches):
        gradients: dict[tuple[int, ...], Any] = {}
        for row in batch:
            error = (np.exp(log_posterior(texts[row])) - np.eye(len(names))[labels[row]]) / len(batch)
            text_grams = grams(texts[row])
            for gram in text_grams:
                gradients[gram] = gradients.get(gram, zero) + error / math.sqrt(len(text_grams))
        for gram, gradient in gradients.items():
            squares[gram] = squares.get(gram, zero) + gradient**2
            rate = 0.5 * (1 - step / len(batches))
            weights[gram] = weights.get(gram, zero) - rate * gradient / (np.sqrt(squares[gram]) + 1e-8)
    return np.array([log_posterior(text) for text in texts_of(test)])


@pytest.mark.parametrize("order", [1, 3])
def test_the_linear_model_equals_an_implementation_with_dictionaries(
    corpora: tuple[Corpus, Corpus], two_dialects: Dialects, order: int
) -> None:
    rows, unseen = two_dialects(150, 1)[0], two_dialects(20, 2)[0]
    for train, test in (corpora, read_train_and_test(rows, unseen, "dialect", CONFIG)):
        result = LinearClassifier(train, order=order, seed=3)(test)
        np.testing.assert_allclose(result.log_posterior, slow_linear(train, test, order, 3), atol=2e-5)
        np.testing.assert_allclose(result.probabilities.sum(1), 1, atol=1e-9)


def test_classifiers_read_longer_n_grams_of_characters(two_dialects: Dialects) -> None:
    rows = two_dialects(30, 1)[0]
    for tokenizer, order in (("word", 2), ("char", 5), ("grapheme", 5)):
        config = CONFIG.with_options(tokenizer=tokenizer)
        train, test = read_train_and_test(rows, rows, "dialect", config)
        by_default, explicit = LinearClassifier(train), LinearClassifier(train, order=order)
        assert by_default.order == order
        np.testing.assert_array_equal(by_default(test).log_posterior, explicit(test).log_posterior)


def test_the_linear_model_reads_a_part_of_large_tables(
    corpora: tuple[Corpus, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, _ = corpora
    read_texts: list[int] = []
    take = linear_features.Features.take

    def count(features: Any, texts: Any) -> Any:
        read_texts.append(len(texts))
        return take(features, texts)

    monkeypatch.setattr(linear_features.Features, "take", count)
    LinearClassifier(train, order=2)
    all_texts = sum(read_texts)
    read_texts.clear()
    monkeypatch.setattr(baselines, "MAX_READ_NGRAMS", baselines.EPOCHS * 2 * len(train.tokens) // 2)
    LinearClassifier(train, order=2)
    assert sum(read_texts) == baselines.EPOCHS * (len(train) // 2) < all_texts


def test_fasttext_gives_posteriors_and_is_reproducible(two_dialects: Dialects) -> None:
    train, test = read_train_and_test(
        two_dialects(200, 1)[0], [{"text": "", "dialect": "coast"}, *two_dialects(30, 2)[0]], "dialect", CONFIG
    )
    first, again = (FastTextClassifier(train, seed=4)(test) for _ in range(2))
    np.testing.assert_allclose(first.probabilities.sum(1), 1, atol=1e-3)
    np.testing.assert_array_equal(first.log_posterior, again.log_posterior)
    assert not np.array_equal(first.log_posterior, FastTextClassifier(train, seed=5)(test).log_posterior)


def test_invalid_arguments_of_classifiers_are_errors(
    corpora: tuple[Corpus, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UserError, match=r"; pip install 'fasttext-community>="):
        FastTextClassifier(corpora[0])
    with pytest.raises(UserError, match="unknown priors 'flat'"):
        classify_with_naive_bayes(*corpora, priors="flat")
    with pytest.raises(UserError, match="place: expected at least two values with 2 training texts each, got fewer"):
        read_train_and_test(TRAIN[:3], TEST, "place", CONFIG)
    with pytest.raises(UserError, match="no column 'city'"):
        read_train_and_test(TRAIN, TEST, "city", CONFIG)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, two_dialects: Dialects) -> Path:
    for name, count, seed in (("train", 300, 1), ("test", 60, 2)):
        files.write_rows(tmp_path / f"{name}.jsonl", two_dialects(count, seed)[0])
    (tmp_path / "recipe.toml").write_text("[tokenizer]\nmin_count = 1\n", encoding="utf-8")
    return tmp_path


def test_the_baseline_commands_print_the_metrics_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test, recipe = (str(folder / name) for name in ("train.jsonl", "test.jsonl", "recipe.toml"))
    model = str(folder / "kn")
    assert main(["baseline", "ngram", train, "--config", recipe, "--out", model, "--order", "2"]) == 0
    assert "n-grams" in capsys.readouterr().err
    (row,) = run_json(capsys, "evaluate", model, test, "--save")
    assert 1 < row["perplexity"] < 12
    assert row["perplexity"] == row["perplexity_known"]
    assert files.read_rows(folder / "kn" / "results.jsonl")[0] == row
    assert main(["evaluate", model, test, "--by", "dialect"]) == 0
    judging = [train, "--config", recipe, "--test", test, "--target", "dialect"]
    (bayes,) = run_json(capsys, "baseline", "bayes", *judging, "--priors", "training")
    assert {"accuracy", "macro_f1", "perplexity", "values"} < set(bayes)
    (regression,) = run_json(capsys, "baseline", "linear", *judging, "--order", "2", "--seed", "1")
    assert regression["accuracy"] > bayes["accuracy"]
    assert "perplexity" not in regression
    assert main(["baseline", "fasttext", *judging]) == 0
    assert "confusion" in capsys.readouterr().out
    assert main(["baseline", "bayes", *judging]) == 0
    assert "given the true value" in capsys.readouterr().out


def test_baselines_ignore_users_and_times(folder: Path) -> None:
    config = CONFIG.with_options(user="dialect", anonymous=True, time="day")
    train, test = read_train_and_test(folder / "train.jsonl", folder / "test.jsonl", "dialect", config)
    assert [variable.name for variable in train.schema.variables] == ["dialect"]
    assert set(test.categories[:, 0].tolist()) == {1, 2}
    table = [{"text": "sun sand"}, {"text": "sun sea"}]
    model = NGram.fit(table, config, folder / "counts", order=2)
    data = model.config.data
    assert (data.user, data.time, data.anonymous) == ("", "", False)
    assert NGram.open(folder / "counts").prepare(table).target_count == 6


def test_like_reads_texts_with_the_tokenizer_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "run", CONTEXT).save_weights({})
    train, model = str(folder / "train.jsonl"), str(folder / "kn")
    assert main(["baseline", "ngram", train, "--like", str(folder / "run"), "--out", model]) == 0
    (row,) = run_json(capsys, "evaluate", model, str(folder / "test.jsonl"))
    assert row["unknown_share"] > 0.5
    again = str(folder / "kn2")
    assert (
        main(["baseline", "ngram", train, "--like", model, "--out", again]) == 0
    )  # --like also accepts an n-gram model
    (same,) = run_json(capsys, "evaluate", again, str(folder / "test.jsonl"))
    assert same == row
    assert main(["baseline", "ngram", train, "--like", str(folder / "nothing"), "--out", str(folder / "kn3")]) == 2
    assert "expected a run folder" in capsys.readouterr().err


def test_the_features_of_other_columns_are_values_waves_words_and_standardized_numbers() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a b", "place": "x", "kind": "p", "age": 1.0, "hour": "06:00", "tags": "red blue", "v": [1.0, 3.0]},
        {"text": "b", "place": "y", "kind": "q", "age": 3.0, "hour": "17:00", "tags": "red", "v": [3.0, 3.0]},
        {"text": "b a b", "place": "x", "kind": None, "age": None, "hour": "06:00", "tags": "", "v": [2.0, 9.0]},
        {"text": "a", "place": "y", "kind": "p", "age": 5.0, "hour": "03:00", "tags": "blue", "v": [2.0, 5.0]},
    ]
    context = ["kind", "age:number", "hour:hour", "tags:text", "v:vector"]
    config = Config.of(min_count=1, min_context_count=1, min_context_word=1, missing="expected")
    train, test = read_train_and_test(rows, rows, "place", config, context=context)
    schema, features = train.schema, np.zeros((4, sum(sizes_of_features(train.schema))))
    for texts, columns, values in context_features(test):
        features[texts, columns] += values
    expected = []
    for row in rows:
        kind = [float(value == row["kind"]) for value in schema.variable("kind").values]
        age, hour, words = schema.variable("age"), schema.variable("hour.hour"), str(row["tags"]).split()
        number = 0.0 if row["age"] is None else (row["age"] - age.mean) / age.deviation
        parameters = wave_parameters(24.0, len(hour.means) // 2)
        waves = [math.sin(f * int(str(row["hour"])[:2]) + p) for f, p in zip(*parameters, strict=True)]
        waves = [(w - m) / d for w, m, d in zip(waves, hour.means, hour.deviations, strict=True)]
        bag = [words.count(word) / math.sqrt(max(1, len(words))) for word in schema.variable("tags").values]
        vector = schema.variable("v")
        standardized = [(x - m) / d for x, m, d in zip(row["v"], vector.means, vector.deviations, strict=True)]
        expected.append([*kind, number, *waves, *bag, *standardized])
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_the_linear_classifier_learns_from_another_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(5)
    for name, count in (("train", 400), ("test", 100)):
        places, ages = random.choice(["beach", "hill"], count), random.normal(0, 1, count)
        rows = [
            {"text": "sun sea", "place": place, "age": age + 3 * (place == "hill")}
            for place, age in zip(places.tolist(), ages.tolist(), strict=True)
        ]
        files.write_rows(tmp_path / f"{name}.jsonl", rows)
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    accuracies = []
    for context in ([], ["--context", "age:number"]):
        paths = [str(train), "--test", str(test), "--target", "place", "--json"]
        assert main(["baseline", "linear", *paths, *context]) == 0
        accuracies.append(json.loads(capsys.readouterr().out)["accuracy"])
    best = np.mean([(row["age"] > 1.5) == (row["place"] == "hill") for row in files.read_rows(test)])
    assert accuracies[0] < 0.65
    assert accuracies[1] == pytest.approx(best, abs=0.03)
    assert main(["baseline", "linear", str(train), "--test", str(test), "--target", "place", "--context", "place"]) == 2
    assert "context column 'place': it is the target; choose other columns" in capsys.readouterr().err


def test_the_linear_classifier_learns_a_value_that_alternates_with_a_number() -> None:
    years = np.random.default_rng(0).integers(1, 9, 600).tolist()
    rows = [{"text": "sun sea", "kind": "xy"[year % 2], "year": year} for year in years]
    train = prepare(rows, Config.of(context=("kind", "year:number"), min_count=1, min_context_count=1))
    assert LinearClassifier(train)(train).metrics()["accuracy"] == 1
