"""Corpora, compared with plain lists: token ids, contexts and batches."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data import preparation
from factorcell.data.corpus import Corpus, extend_hashes, text_hashes
from factorcell.data.preparation import prepare
from factorcell.data.tables import chunks, tables
from factorcell.data.tokenizers.tokenizer import END, START, UNKNOWN
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.progress import progress_bar
from tests.findings import collected_findings, expected_finding, logged_progress
from tests.small_runs import split

TEXTS = ["the sea is cold", "the sun", "", "sand and sand and sea", "the the the the the the the"]
ROWS = [{"text": text, "city": city, "lat": lat} for text, city, lat in zip(TEXTS, "ABABC", range(5), strict=True)]
CONFIG = Config.of(context=("city", "lat:number"), min_count=2, max_tokens=5, min_context_count=2)


def expected_ids(rows: list[dict[str, Any]], config: Config) -> list[list[int]]:
    """Return the ids of each text, computed with plain lists."""
    tokens = [split(row["text"], config) for row in rows]
    counts = Counter(token for line in tokens for token in line)
    frequent = sorted((t for t in counts if counts[t] >= config.tokenizer.min_count), key=lambda t: (-counts[t], t))
    ids = {token: index + 3 for index, token in enumerate(frequent[: config.tokenizer.max_vocabulary])}
    lines = []
    for line in tokens:
        cut = line[: config.data.max_tokens]
        lines.append(
            [START, *(ids.get(token, UNKNOWN) for token in cut)] + [END] * (len(line) < config.data.max_tokens)
        )
    return lines


def lines_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.tokens[corpus.offsets[i] : corpus.offsets[i + 1]].tolist() for i in range(len(corpus))]


@pytest.mark.parametrize("kind", ["word", "space", "char", "grapheme"])
def test_ids_equal_those_of_plain_lists(kind: str) -> None:
    config = Config.of(tokenizer=kind, min_count=2, max_tokens=5)
    corpus = prepare(ROWS, config)
    assert lines_of(corpus) == expected_ids(ROWS, config)
    assert corpus.target_count == sum(len(line) - 1 for line in lines_of(corpus))
    assert corpus.lengths.tolist() == [len(line) - 1 for line in lines_of(corpus)]


def test_a_notice_reports_the_empty_texts_of_a_file(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.jsonl", [*ROWS, {**ROWS[0], "text": "  "}]
    files.write_rows(path, rows)
    for kind, count in (("word", "2 of 6 texts empty"), ("char", "1 of 6 texts empty")):
        with expected_finding("empty texts", f"{path}: {count}"):
            corpus = prepare(path, Config.of(tokenizer=kind, max_tokens=1))
        assert lines_of(corpus)[2] == [START, END]
    files.write_rows(path, [row for row in ROWS if row["text"]])
    with collected_findings() as findings:
        prepare(path, CONFIG)
    assert "empty texts" not in [finding.name for finding in findings]


@given(st.lists(st.text(alphabet="ab c", max_size=12), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 4))
def test_ids_of_any_texts_equal_those_of_plain_lists(texts: list[str], max_tokens: int, min_count: int) -> None:
    config = Config.of(tokenizer="char", min_count=min_count, max_tokens=max_tokens)
    rows = [{"text": text} for text in texts]
    assert lines_of(prepare(rows, config)) == expected_ids(rows, config)


def test_the_sizes_of_chunks_do_not_change_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(ROWS * 10, CONFIG)
    monkeypatch.setattr(tables, "CHUNK_ROWS", 3)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 3)
    chunked = prepare(ROWS * 10, CONFIG)
    assert lines_of(whole) == lines_of(chunked)
    assert whole.tokenizer.tokens == chunked.tokenizer.tokens
    assert np.array_equal(whole.categories, chunked.categories)
    assert whole.schema == chunked.schema


def test_categories_are_indices_of_schema_values_and_numbers_are_unchanged() -> None:
    corpus = prepare(ROWS, CONFIG)
    assert corpus.schema.variable("city").values == ("<unknown>", "A", "B")
    assert corpus.categories[:, 0].tolist() == [1, 2, 1, 2, 0]
    assert corpus.numbers[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_other_tables_are_read_with_the_vocabulary_and_schema_of_training() -> None:
    first = prepare(ROWS, CONFIG)
    rows = [{"text": "the zyx", "city": "B", "lat": 4}]
    second = prepare(rows, CONFIG, tokenizer=first.tokenizer, schema=first.schema)
    assert lines_of(second) == [[START, *first.tokenizer.encode(["the"]), UNKNOWN, END]]
    assert second.categories.tolist() == [[2]]
    with pytest.raises(UserError, match="'Z' was never seen"):
        prepare([{**rows[0], "city": "Z"}], CONFIG, tokenizer=first.tokenizer, schema=first.schema, unknown="error")
    with pytest.raises(UserError, match="row 1: text is 5, not a text"):
        prepare([{**rows[0], "text": 5}], CONFIG)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(1, 200), st.integers(0, 3))
def test_every_text_is_in_one_batch_of_limited_size(lengths: list[int], budget: int, epoch: int) -> None:
    corpus = prepare([{"text": "x" * length} for length in lengths], Config.of(tokenizer="char", min_count=1))
    for seed in (None, 5):
        batches = corpus.batches(budget, seed, epoch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        for rows in batches:
            assert len(rows) == 1 or len(rows) * (max(lengths[row] for row in rows) + 1) <= budget
        again = corpus.batches(budget, seed, epoch)
        assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_epochs_have_different_batches_with_little_padding() -> None:
    lengths = np.random.default_rng(0).gamma(4, 9, 4000).astype(int)
    corpus = prepare([{"text": "x" * int(length)} for length in lengths], Config.of(tokenizer="char", min_count=1))
    first, second = corpus.batches(2000, 1, 0), corpus.batches(2000, 1, 1)
    assert [rows.tolist() for rows in first] != [rows.tolist() for rows in second]
    padded = sum(len(rows) * int(corpus.lengths[rows].max()) for rows in first)
    assert corpus.target_count / padded > 0.9


@given(st.integers(0, 99), st.integers(200, 3000))
def test_few_sorted_texts_have_little_padding(seed: int, count: int) -> None:
    lengths = np.random.default_rng(seed).gamma(4, 9, count).astype(int)
    corpus = prepare([{"text": "x" * int(length)} for length in lengths], Config.of(tokenizer="char", min_count=1))
    padded = sum(len(rows) * int(corpus.lengths[rows].max()) for rows in corpus.batches(20_000))
    assert corpus.target_count / padded > 0.75


USER_ROWS = [{"text": "x" * (index % 9), "who": who} for index, who in enumerate([*"aabacacaabdd" * 9, None, None])]


def test_rare_users_are_distinguished_too(tmp_path: Path) -> None:
    names = dict.fromkeys(row["who"] for row in USER_ROWS if row["who"])
    expected = [([*names].index(row["who"]) + 1 if row["who"] else 0) for row in USER_ROWS]
    config = Config.of(tokenizer="char", user="who", min_count=1, min_user_count=30)
    pd.DataFrame(USER_ROWS).to_csv(tmp_path / "written.csv", index=False)
    assert prepare(tmp_path / "written.csv", config).users.tolist() == expected
    corpus = prepare(USER_ROWS, config)
    assert corpus.select(np.array([5, 2])).users.tolist() == [expected[5], expected[2]]
    assert prepare(USER_ROWS, Config.of(tokenizer="char")).users.tolist() == []


def test_a_batch_has_the_tokens_and_contexts_of_its_rows() -> None:
    corpus = prepare(ROWS, CONFIG)
    batch = corpus.batch(np.array([3, 2, 0]))
    lines = lines_of(corpus)
    for index, row in enumerate((3, 2, 0)):
        line = lines[row]
        assert batch.tokens[index].tolist() == line + [END] * (batch.tokens.shape[1] - len(line))
        assert batch.mask()[index].tolist() == [step < len(line) - 1 for step in range(batch.tokens.shape[1] - 1)]
    assert batch.context.categories[:, 0].tolist() == [2, 1, 1]
    assert batch.rows.tolist() == [3, 2, 0]


def test_select_returns_rows_in_order_and_split_returns_every_row_once() -> None:
    corpus = prepare(ROWS * 20, CONFIG)
    selected = corpus.select(np.array([4, 1, 1]))
    assert lines_of(selected) == [lines_of(corpus)[row] for row in (4, 1, 1)]
    assert selected.numbers[:, 0].tolist() == [4, 1, 1]
    train, dev = corpus.split(0.1, seed=3)
    assert (len(train), len(dev)) == (90, 10)
    assert Counter(map(tuple, lines_of(train) + lines_of(dev))) == Counter(map(tuple, lines_of(corpus)))
    assert lines_of(corpus.split(0.1, seed=3)[1]) == lines_of(dev)
    with pytest.raises(UserError, match="one row cannot be split"):
        prepare(ROWS[:1], CONFIG).split(0.5, 0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pd.DataFrame(ROWS).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_the_progress_of_a_text_file_is_that_of_its_bytes(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = list[Any]()

    def record_bar(**options: Any) -> Any:
        bars.append(progress_bar(**options))
        return bars[-1]

    monkeypatch.setattr(preparation, "progress_bar", record_bar)
    with logged_progress():
        prepare(table, CONFIG)
    assert [bar.n for bar in bars] == [bar.total for bar in bars] == [table.stat().st_size]


def test_tables_are_read_with_the_tokenizer_and_the_schema_of_others(table: Path) -> None:
    first = prepare(table, CONFIG)
    assert lines_of(first) == lines_of(prepare(ROWS, CONFIG))
    assert lines_of(prepare(table, CONFIG, tokenizer=first.tokenizer, schema=first.schema)) == lines_of(first)


def test_hashes_equal_those_of_exact_integers() -> None:
    multiplier, modulus, random = 0x9E3779B97F4A7C15, 2**64, np.random.default_rng(0)
    hashes, ids = random.integers(0, modulus, 50, np.uint64), random.integers(0, 50_000, 50).astype(np.uint64)
    products = [(a ^ b) * multiplier % modulus for a, b in zip(hashes.tolist(), ids.tolist(), strict=True)]
    assert extend_hashes(hashes, ids).tolist() == [product ^ (product >> 29) for product in products]


def test_hashes_are_equal_for_equal_texts() -> None:
    config = Config.of(tokenizer="word", min_count=2)  # the words x and y are out of vocabulary
    corpus = prepare([{"text": text} for text in ("a b", "a x", "b a", "a b", "a y", "a x")], config)
    hashes = text_hashes(corpus).tolist()
    assert (hashes[3], hashes[5]) == (hashes[0], hashes[1])
    assert len(set(hashes)) == 4
    assert text_hashes(corpus.select(np.array([4, 2]))).tolist() == [hashes[4], hashes[2]]
