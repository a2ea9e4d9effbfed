"""Tokenizers for the library `transformers` give the ids of the tokenizers of a run."""

import pytest

from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.bpe import BpeTokenizer

TEXTS = (
    "ΟΔΟΣ ΕΡΜΟΥ",
    "οδος",
    "οδοσημα",
    "ΣΣ Σ",
    "2kΣ 5Σ k\u0302Σ ΟΣ\u0301 Ο\u0323\u0316Σ",
    "İstanbul",
    "I\u0307i\u0307 ß",
    "J\u030ca ẖ",
    "Éte\u0301",
    "ΐ ΰ Ω",
)


@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_are_those_of_the_run_in_every_script(lowercase: bool) -> None:
    corpus = prepare([{"text": text} for text in TEXTS], Config.of(tokenizer="bpe", lowercase=lowercase, min_count=1))
    tokenizer = corpus.tokenizer
    assert isinstance(tokenizer, BpeTokenizer)
    converted = tokenizer.to_transformers(len(tokenizer), tokenizer.specials.start)
    for text in TEXTS:
        expected = [tokenizer.specials.start, *tokenizer.encode(tokenizer.split(text))]
        assert converted(text)["input_ids"] == expected, text
