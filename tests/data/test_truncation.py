"""Texts that are longer than `max_tokens`: which are cut, how a notice reports them, and how they are read whole."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.io import files
from tests.findings import collected_findings, expected_finding, no_findings
from tests.small_runs import split

KINDS = ("word", "space", "char", "grapheme")
PIECES = ["a", "é", "e\u0301", " ", "...", "👩‍👩‍👧", "🇳🇴", "ß", " </s> "]  # graphemes of one code point and of several


def config_of(kind: str, max_tokens: int, **options: Any) -> Config:
    return Config.of(tokenizer=kind, min_count=1, max_tokens=max_tokens, **options)


def texts_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.tokens[corpus.offsets[row] : corpus.offsets[row + 1]].tolist() for row in range(len(corpus))]


texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=texts, max_tokens=st.integers(1, 6))
def test_texts_of_max_tokens_or_more_are_truncated(kind: str, texts: list[str], max_tokens: int) -> None:
    config = config_of(kind, max_tokens)
    expected = [len(split(text, config)) >= max_tokens for text in texts]  # the end of a text counts as a token
    with collected_findings() as caught:
        corpus = prepare([{"text": text} for text in texts], config)
    assert corpus.truncated.tolist() == expected
    text = f"in-memory table: {sum(expected)} of {len(texts)} texts cut after {max_tokens} tokens"
    cut = [finding.text.partition(";")[0] for finding in caught if finding.name == "cut texts"]
    assert cut == [text] * any(expected)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=texts, max_tokens=st.integers(1, 6))
def test_cut_texts_are_the_first_tokens_of_whole_texts(kind: str, texts: list[str], max_tokens: int) -> None:
    config, rows = config_of(kind, max_tokens), [{"text": text} for text in texts]
    cut = prepare(rows, config)
    whole = prepare(rows, config, tokenizer=cut.tokenizer, schema=cut.schema, truncate=False)
    assert not whole.truncated.any()
    assert texts_of(whole) == [[START, *cut.tokenizer.encode(split(text, config)), END] for text in texts]
    assert [ids[: max_tokens + 1] for ids in texts_of(whole)] == texts_of(cut)


ROWS = [{"text": "a b c d e", "city": "Oslo"}, {"text": "a", "city": "Oslo"}, {"text": "a b c", "city": "Nice"}]


@pytest.mark.parametrize("name", ["rows.jsonl", ""])
def test_a_notice_reports_the_cut_texts_of_a_table(name: str, tmp_path: Path) -> None:
    files.write_rows(tmp_path / "rows.jsonl", ROWS)
    source, config = tmp_path / name if name else ROWS, config_of("word", 3, context=("city",), min_context_count=1)
    shown = str(source) if name else "in-memory table"
    for _ in range(2):
        with expected_finding("cut texts", f"{shown}: 2 of 3 texts cut after 3 tokens"):
            corpus = prepare(source, config)
        assert corpus.truncated.tolist() == [True, False, True]
    with no_findings():
        for _ in range(2):
            whole = prepare(source, config, truncate=False)
            assert whole.lengths.tolist() == [6, 2, 4]
        prepare(source, config_of("word", 6))


def test_an_equal_notice_is_shown_only_once(tmp_path: Path) -> None:
    with collected_findings() as caught:
        corpus = prepare(ROWS, config_of("word", 3))
        prepare(ROWS, config_of("word", 3), tokenizer=corpus.tokenizer, schema=corpus.schema)
        prepare(ROWS, config_of("word", 2))
    assert len(caught) == 2
