"""The original texts of a corpus: their sizes in bytes and their digests, after normalization."""

import itertools
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.corpus import Corpus, originals_key
from factorcell.data.preparation import prepare
from factorcell.data.text_folds import lower_case
from factorcell.data.tokenizers.kinds import new_tokenizer

KINDS = ("char", "grapheme")
COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
BYTES = {  # counted by hand
    "": 0,
    "abc": 3,
    "ABC": 3,
    " a  b\n": 6,
    COMPOSED: 5,
    DECOMPOSED: 5,
    "\u212b": 2,  # the Angstrom sign, which NFC converts to a letter of two bytes
    "👩‍👩‍👧": 18,
    "🇳🇴": 8,
    "a\x00b": 3,
    "\ud800": 3,  # half of a surrogate pair, which JSON can represent
}
texts = st.lists(st.text(max_size=8) | st.sampled_from(list(BYTES)), min_size=1, max_size=8)


def read(texts: list[str], kind: str = "char", **options: Any) -> Corpus:
    config = Config.of(tokenizer=kind, min_count=1, **options)
    return prepare([{"text": text} for text in texts], config)


def originals_of(corpus: Corpus) -> list[list[int]]:
    assert corpus.originals is not None
    rows: list[list[int]] = corpus.originals.tolist()
    return rows


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *itertools.product(KINDS, [{}, {"lowercase": True}, {"max_tokens": 1}]),
    ],
    ids=str,
)
def test_sizes_are_those_of_the_normalized_texts(kind: str, options: dict[str, Any]) -> None:
    corpus = read(list(BYTES), kind, **options)
    assert corpus.originals is not None
    lowercase = options.get("lowercase", False)
    sizes = (
        [len(lower_case(text).encode("utf-8", "surrogatepass")) for text in BYTES] if lowercase else [*BYTES.values()]
    )
    assert corpus.originals[:, 0].tolist() == sizes


@given(texts=texts, data=st.data())
def test_selected_corpora_have_the_originals_of_their_texts(texts: list[str], data: st.DataObject) -> None:
    corpus = read(["", *texts])
    rows = data.draw(st.lists(st.integers(0, len(corpus) - 1), max_size=9))
    expected = [originals_of(corpus)[row] for row in rows]
    assert originals_of(corpus.select(np.array(rows, dtype=np.int64))) == expected
    train, held_out = corpus.split(0.5, 0)
    assert sorted(originals_of(train) + originals_of(held_out)) == sorted(originals_of(corpus))
    assert originals_of(corpus.without_context(corpus.schema)) == originals_of(corpus)


@given(texts=texts)
def test_the_key_depends_on_the_original_texts_and_their_order(texts: list[str]) -> None:
    def key(texts: list[str], kind: str = "char") -> str:
        originals = read(texts, kind).originals
        assert originals is not None
        return originals_key(originals)

    assert len({key(texts, kind) for kind in KINDS}) == 1
    normalized = [unicodedata.normalize("NFC", text) for text in texts]
    assert (key(texts) == key(texts[::-1])) == (normalized == normalized[::-1])
    assert key([*texts, COMPOSED]) == key([*texts, DECOMPOSED]) != key([*texts, "other"])


@pytest.mark.parametrize("kind", ["word", "space"])
def test_words_do_not_determine_texts(kind: str) -> None:
    assert read(["a b"], kind).originals is None


@given(text=st.text(max_size=8) | st.sampled_from(list(BYTES)), kind=st.sampled_from(KINDS), lowercase=st.booleans())
def test_joining_the_tokens_of_a_lossless_tokenizer_returns_the_normalized_text(
    text: str, kind: str, lowercase: bool
) -> None:
    tokenizer = new_tokenizer(Config.of(tokenizer=kind, lowercase=lowercase))
    assert tokenizer.is_lossless
    assert tokenizer.join(tokenizer.split(text)) == tokenizer.normalize(text)
