"""The contract of tokenizers, tested with all built-in kinds and with a tokenizer of pairs of letters."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config, PretrainedTokenizerOptions
from factorcell.data.tokenizers.bpe import PretrainedTokenizer
from factorcell.data.tokenizers.kinds import TOKENIZERS as CLASSES
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.data.tokenizers.tokenizer import WORD, Tokenizer
from tests.plugins import PieceOptions, Pieces

TEXTS = ["the sea, the sun", "e\u0301te\u0301 ab\u0327", "abcab", "a  b\tc", "", "don't!! 3.50"]


def of_kind(kind: str) -> Tokenizer:
    """Return a tokenizer with the tokens of `TEXTS`."""
    new = new_tokenizer(Config.of(tokenizer=kind, min_count=1))
    return new.train(Counter(token for text in TEXTS for token in new.split(text)))


def pairs_of(letters: str) -> Tokenizer:
    """Return a tokenizer of pieces of one or two letters, whose special ids come last."""
    return Pieces(PieceOptions(length=2), [first + second for first in letters for second in ("", *letters)])


def pretrained() -> Tokenizer:
    """Return the tokenizer of pieces as that of a pretrained model."""
    return PretrainedTokenizer.from_contents(PretrainedTokenizerOptions(), of_kind("bpe").contents())


TOKENIZERS: dict[str, Tokenizer] = {
    **{kind: of_kind(kind) for kind in CLASSES if kind != "pretrained"},
    "pretrained": pretrained(),
    "pairs": pairs_of("abc "),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_tokens_correspond_one_to_one(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    specials = tokenizer.specials
    assert len({*specials}) == 3
    ids = [index for index in range(len(tokenizer)) if index not in specials]
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.encode(["no such token"]) == [specials.unknown]
    for text in TEXTS:
        known = [token for token in tokenizer.split(text) if tokenizer.encode([token]) != [specials.unknown]]
        assert tokenizer.decode(tokenizer.encode(known)) == known


@pytest.mark.parametrize(
    ("name", "tokens", "expected"),
    [
        ("char", ["e", "\u0301"], ["é"]),
        ("char", ["e", "t", "e"], ["e", "t", "e"]),
        ("grapheme", ["\U0001f1ea", "\U0001f1f8"], ["\U0001f1ea\U0001f1f8"]),
        ("pairs", ["a", "bc"], ["ab", "c"]),
        ("pairs", ["ab", "c"], ["ab", "c"]),
    ],
)
def test_split_determines_the_tokens_of_a_joined_text(name: str, tokens: list[str], expected: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.split(tokenizer.join(tokens)) == expected


@given(st.lists(st.text(st.sampled_from("ab'’-.,:/12é\u0301中! \t\n\u00a0\u2028_"))))
def test_words_do_not_depend_on_other_texts(texts: list[str]) -> None:
    tokenizer = TOKENIZERS["word"]
    expected = [[match.group() for match in WORD.finditer(tokenizer.normalize(text))] for text in texts]
    assert tokenizer.split_all(texts) == expected
    assert tokenizer.split("a\x1cb") == ["a", "b"], "a separator of Unicode that the expression does not know"
