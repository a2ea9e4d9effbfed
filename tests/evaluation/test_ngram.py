"""Modified Kneser-Ney against an implementation with dictionaries that follows the definition."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.corpus import Corpus, target_ids
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import END, START, Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation.linear_classifier import read_train_and_test
from factorcell.evaluation.perplexity import evaluate
from factorcell.io import files
from factorcell.ngram import ngram
from factorcell.ngram.ngram import FALLBACK_DISCOUNTS, NGram, estimate_discounts
from tests import synthetic
from tests.pretrained_models import write_pretrained
from tests.small_runs import ROWS, make_run

Gram = tuple[int, ...]
CONFIG = Config.of(min_count=2)


class Textbook:
    """Interpolated modified Kneser-Ney by its definition, with dictionaries and loops."""

    def __init__(self, texts: Sequence[Sequence[int]], order: int, size: int) -> None:
        self.order, self.size = order, size
        grams = {
            n: Counter(text[i : i + n] for text in map(tuple, texts) for i in range(len(text) - n + 1))
            for n in range(1, order + 1)
        }
        self.counts: dict[int, dict[Gram, int]] = {order: dict(grams[order])}
        for n in range(1, order):
            self.counts[n] = {
                gram: times if gram[0] == START else len({longer[0] for longer in grams[n + 1] if longer[1:] == gram})
                for gram, times in grams[n].items()
            }
        self.counts[1].pop((START,), None)
        self.discounts = {n: self._discounts(list(self.counts[n].values())) for n in self.counts}

    @staticmethod
    def _discounts(counts: list[int]) -> tuple[float, ...]:
        n1, n2, n3, n4 = (counts.count(times) for times in (1, 2, 3, 4))
        if n1 == 0 or n2 == 0 or n3 == 0:
            return (0.5, 1.0, 1.5)
        y = n1 / (n1 + 2 * n2)
        estimates = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        return estimates if all(value > 0 for value in estimates) else (0.5, 1.0, 1.5)

    def probability(self, history: Gram, token: int) -> float:
        return self._interpolated(history[max(0, len(history) - self.order + 1) :], token)

    def _interpolated(self, history: Gram, token: int) -> float:
        lower = 1 / (self.size - 1) if not history else self._interpolated(history[1:], token)
        n = len(history) + 1
        following = {gram: times for gram, times in self.counts[n].items() if gram[:-1] == history}
        total = sum(following.values())
        if not total:
            return lower
        discounts_of = {gram: self.discounts[n][min(times, 3) - 1] for gram, times in following.items()}
        gram = (*history, token)
        discounted = following.get(gram, 0) - discounts_of.get(gram, 0.0)
        return discounted / total + sum(discounts_of.values()) / total * lower


def texts_of(corpus: Corpus) -> list[Gram]:
    return [tuple(text.tolist()) for text in np.split(corpus.tokens, corpus.offsets[1:-1])]


def fit(folder: Path, rows: Any, order: int, config: Config = CONFIG, tokenizer: Tokenizer | None = None) -> NGram:
    return NGram.fit(rows, config, folder, order=order, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """120 texts, some of them empty, with a few frequent and many rare words."""
    random = np.random.default_rng(5)
    drawn = [random.zipf(1.5, size=random.integers(0, 9)) % 40 for _ in range(120)]
    return [{"text": " ".join(f"w{word}" for word in text)} for text in drawn]


UNSEEN = [{"text": "w1 w2 w3 w1 w1"}, {"text": "new w5 newer w1"}, {"text": ""}, {"text": "w39 w38 w1 w2 w1 w2 w1"}]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_equal_the_textbook_definition(tmp_path: Path, rows: list[dict[str, str]], order: int) -> None:
    model = fit(tmp_path / "model", rows, order)
    size = len(model.tokenizer)
    book = Textbook(texts_of(model.prepare(rows)), order, size)
    for level, (length, taken) in zip(model.orders, sorted(book.discounts.items()), strict=True):
        assert level.discounts == pytest.approx(taken, rel=1e-12), length
    corpus = model.prepare([*UNSEEN, *rows[:20]])
    expected, histories = [], set()
    for text in texts_of(corpus):
        for place in range(1, len(text)):
            expected.append(-math.log(book.probability(text[:place], text[place])))
            histories.add(text[max(0, place - order + 1) : place])
    np.testing.assert_allclose(model.nats(corpus), expected, rtol=1e-12)
    for history in itertools.islice(sorted(histories), 0, None, 7):
        probabilities = [book.probability(history, token) for token in range(size) if token != START]
        assert sum(probabilities) == pytest.approx(1, abs=1e-12)


def test_nats_do_not_depend_on_the_block_size(
    tmp_path: Path, rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fit(tmp_path / "model", rows, 3)
    corpus = model.prepare([*UNSEEN, *rows])
    nats = model.nats(corpus)
    assert len(nats) == corpus.target_count
    monkeypatch.setattr(ngram, "TOKENS", 1)
    assert len(list(model.blocks(corpus))) == len(corpus)
    np.testing.assert_array_equal(model.nats(corpus), nats)
    monkeypatch.setattr(ngram, "TOKENS", 30)
    assert 1 < len(list(model.blocks(corpus))) < len(corpus)
    np.testing.assert_array_equal(model.nats(corpus), nats)


def test_truncated_texts_have_no_end_token(tmp_path: Path) -> None:
    config = Config.of(min_count=1, max_tokens=2)
    model = fit(tmp_path / "model", [{"text": "a b c"}, {"text": "d e f"}, {"text": "a"}], 3, config)
    corpus = model.prepare([{"text": "a b c"}, {"text": "d"}])
    texts = texts_of(model.prepare([{"text": "a b c"}, {"text": "d e f"}, {"text": "a"}]))
    assert [END in text for text in texts] == [False, False, True]
    book = Textbook(texts, 3, len(model.tokenizer))
    expected = [-math.log(book.probability(t[:i], t[i])) for t in texts_of(corpus) for i in range(1, len(t))]
    np.testing.assert_allclose(model.nats(corpus), expected, rtol=1e-12)


def test_discounts_follow_from_counts_of_counts() -> None:
    counts = np.repeat([1, 2, 3, 4, 7], [8, 4, 2, 1, 3])
    assert estimate_discounts(counts) == pytest.approx((0.5, 2 - 3 * 0.5 * 2 / 4, 3 - 4 * 0.5 / 2))
    for missing in (1, 2, 3):
        assert estimate_discounts(counts[counts != missing]) == FALLBACK_DISCOUNTS
    assert estimate_discounts(np.array([], dtype=np.int64)) == FALLBACK_DISCOUNTS
    assert (
        estimate_discounts(np.repeat([1, 2, 3], [3, 1, 9])) == FALLBACK_DISCOUNTS
    )  # the discount of 2 would be negative


def test_perplexity_of_a_markov_chain_is_near_its_entropy(
    tmp_path: Path, two_dialects: Callable[[int, int], tuple[list[dict[str, str]], float]]
) -> None:
    rows = {}
    for name, count, seed in (("train", 4000, 1), ("test", 1500, 2)):
        rows[name] = [row for row in two_dialects(count, seed)[0] if row["dialect"] == "coast"]
    chain = synthetic.dialects()
    nats = sum(float(chain.nats(row["text"])[0]) for row in rows["test"])
    count = sum(len(row["text"].split(" ")) + 1 for row in rows["test"])
    perplexities = {}
    for order in (1, 2, 3):
        model = fit(tmp_path / str(order), rows["train"], order)
        perplexities[order] = evaluate(model, model.prepare(rows["test"])).perplexity
    best = math.exp(nats / count)
    assert best < perplexities[2] < 1.02 * best
    assert perplexities[2] < perplexities[3] < 1.1 * best
    assert perplexities[1] > 1.5 * best


def test_a_saved_model_opens_without_its_training_data(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    model = fit(tmp_path / "model", rows, 3)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "ngram.json", "ngrams.safetensors", "training.lock", "vocabulary.txt",
    ]  # fmt: skip
    again = NGram.open(tmp_path / "model")
    corpus = again.prepare(UNSEEN)
    assert again.config == model.config
    np.testing.assert_array_equal(again.nats(corpus), model.nats(model.prepare(UNSEEN)))
    fit(tmp_path / "other", rows, 2)
    tables = tmp_path / "model" / "ngrams.safetensors"
    files.write(tables, (tmp_path / "other" / "ngrams.safetensors").read_bytes())
    with pytest.raises(UserError, match="do not match the order"):
        NGram.open(tmp_path / "model")
    tables.write_bytes(tables.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated"):
        NGram.open(tmp_path / "model")


def test_an_ngram_model_shares_targets_with_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    model = fit(tmp_path / "model", ROWS, 3, run.config, run.tokenizer)
    corpus = run.prepare(ROWS)
    np.testing.assert_array_equal(target_ids(corpus), target_ids(model.prepare(ROWS)))
    assert evaluate(run, ROWS, baseline=model).row["perplexity_baseline"] == pytest.approx(
        evaluate(model, corpus).perplexity
    )


def test_a_recipe_with_a_pretrained_base_counts_its_tokens(tmp_path: Path) -> None:
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    config = Config.of(base=str(base), tokenizer="pretrained", context=("city",))
    model = NGram.fit(ROWS, config, tmp_path / "model", order=2)
    opened = NGram.open(tmp_path / "model")
    assert opened.tokenizer.tokens == model.tokenizer.tokens
    np.testing.assert_allclose(opened.nats(opened.prepare(ROWS)), model.nats(model.prepare(ROWS)))
    train, _ = read_train_and_test(ROWS * 3, ROWS * 3, "city", config)
    assert train.tokenizer.tokens == model.tokenizer.tokens


def test_invalid_ngram_models_are_errors(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    with pytest.raises(UserError, match="order is 0; it must be a "):
        fit(tmp_path / "model", rows, 0)
    model = fit(tmp_path / "model", rows, 2)
    with pytest.raises(UserError, match="exists already"):
        fit(tmp_path / "model", rows, 2)
    other = prepare([{"text": "other words, other words"}], CONFIG)
    with pytest.raises(UserError, match="another vocabulary"):
        model.nats(other)
    with pytest.raises(UserError, match=r"ngram\.json: there is no such file"):
        NGram.open(tmp_path)
