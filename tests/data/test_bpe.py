"""Pieces of words: every text has tokens and is restored exactly, and what may begin a text is never dropped."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from factorcell.config import BpeOptions, Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.bpe import BpeTokenizer, default_vocabulary
from factorcell.data.tokenizers.kinds import load_tokenizer, new_tokenizer
from factorcell.data.tokenizers.tokenizer import Specials, Tokenizer
from factorcell.errors import UserError

TEXTS = [
    "the sea is cold, the sun isn't",
    "they're at the sea, we've 1234 seas",
    "e\u0301te\u0301 été naïve 😀😃 日本語",
    "a  b\n\nc\t\td  \n e",
    "the coldest sunniest seaside",
] * 3
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LIKELY = st.lists(st.sampled_from([*"thesacoldun' \n\t1é\u0301😀日\0", "the", " sea", "'re", "  "]), max_size=12).map(
    "".join
)


def trained(texts: list[str] = TEXTS, **options: Any) -> BpeTokenizer:
    """Return a tokenizer whose pieces are learned from texts."""
    new = new_tokenizer(Config.of(**{"tokenizer": "bpe", "max_vocabulary": 300, "min_count": 1, **options}))
    tokenizer = new.train(Counter(word for words in new.split_all(texts) for word in words))
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer


def pretrained_byte_level() -> BpeTokenizer:
    """Return a tokenizer as that of GPT-2, with special tokens in the middle and at the end of the vocabulary."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(["<|unknown|>", "<|start|>"])
    library.add_tokens(["<tool>"])
    library.add_special_tokens(["<|end|>"])
    ids = [library.get_vocab()[name] for name in ("<|unknown|>", "<|start|>", "<|end|>")]
    return BpeTokenizer(BpeOptions(), library, Specials(*ids))


def pretrained_byte_fallback() -> BpeTokenizer:
    """Return a tokenizer as that of Llama 2: a space is a letter, and a byte without a letter has its own token."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdelnstuo"]
    merges = [("▁", "s"), ("▁s", "e"), ("▁se", "a"), ("▁", "c"), ("o", "l"), ("ol", "d"), ("▁c", "old")]
    names += [first + second for first, second in merges]
    vocabulary = {name: index for index, name in enumerate(names)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return BpeTokenizer(BpeOptions(), library, Specials())


def pretrained_with_whole_words() -> BpeTokenizer:
    """Return a tokenizer as that of Llama 3: words in the vocabulary stay whole, also without merges for them."""
    content = json.loads(pretrained_byte_level()._library.to_str())
    content["model"]["ignore_merges"] = True
    content["model"]["merges"] = content["model"]["merges"][::2]
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    ids = [library.get_vocab()[name] for name in ("<|unknown|>", "<|start|>", "<|end|>")]
    return BpeTokenizer(BpeOptions(), library, Specials(*ids))


TOKENIZERS = {
    "trained": trained(),
    "byte level": pretrained_byte_level(),
    "byte fallback": pretrained_byte_fallback(),
    "whole words": pretrained_with_whole_words(),
}
EACH = pytest.mark.parametrize("name", TOKENIZERS)


@EACH
@given(text=ANY_TEXT | LIKELY)
@settings(max_examples=100)
def test_every_text_has_known_tokens_and_is_restored_exactly(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    normalized = tokenizer.normalize(text)
    ids = tokenizer.encode(tokenizer.split(text))
    assert not {*ids} & {*tokenizer.specials}
    assert tokenizer.join(tokenizer.decode(ids)) == normalized
    is_unicode = text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
    assert (normalized == text) == is_unicode


@EACH
@pytest.mark.parametrize("text", ["</s>", "<unk> <s>", "<|end|><|start|>", "<0x41>", "<tool>", "Ġ"])
def test_the_name_of_a_special_token_in_a_text_is_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert not {*tokenizer.encode(tokenizer.split(text))} & {*tokenizer.specials}
    assert tokenizer.join(tokenizer.split(text)) == text


@EACH
@given(text=LIKELY)
@settings(max_examples=100)
def test_the_first_tokens_of_a_text_may_begin_a_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.split(text)
    assert all(tokenizer.may_begin(tokens[:length]) for length in range(len(tokens) + 1))


def test_a_word_that_is_never_cut_may_begin_a_longer_word_with_other_tokens() -> None:
    tokenizer = TOKENIZERS["whole words"]
    assert tokenizer.split("the sea") == ["the", "Ġsea"]
    assert tokenizer.split("the sead") == ["the", "Ġs", "e", "a", "d"]
    assert tokenizer.may_begin(["the", "Ġs", "e", "a"])
    assert tokenizer.may_begin(["the", "Ġsea"])
    assert not tokenizer.may_begin(["t", "h", "e", "Ġsea"])


@EACH
@given(text=LIKELY, length=st.integers(0, 12))
@settings(max_examples=100)
def test_certain_tokens_are_the_first_tokens_of_all_longer_texts(name: str, text: str, length: int) -> None:
    tokenizer = TOKENIZERS[name]
    certain = tokenizer.certain_tokens(text[:length])
    assert tokenizer.split(text)[: len(certain)] == certain


def test_other_tokens_of_a_text_may_not_begin_a_text() -> None:
    tokenizer = TOKENIZERS["trained"]
    assert tokenizer.split("the sea") == ["the", "Ġsea"]
    assert not tokenizer.may_begin(["t", "h", "e"])
    assert not tokenizer.may_begin(["the", "Ġ", "s", "ea"])
    assert not tokenizer.may_begin(["the", "</s>"])
    assert not tokenizer.may_begin(["Ã", "the"]), "the first byte of a character is followed by a letter"
    assert tokenizer.may_begin(["Ã"])
    assert tokenizer.certain_tokens("the sea is cold") == ["the", "Ġsea"]


@EACH
@given(text=LIKELY, cut=st.integers(0, 20))
def test_the_text_of_more_tokens_begins_with_the_text_of_fewer(name: str, text: str, cut: int) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.split(text)
    assert text.startswith(tokenizer.join(tokens[:cut]))


def test_half_a_character_is_not_shown() -> None:
    tokenizer = TOKENIZERS["trained"]
    first, *rest = [
        token for byte in "é".encode() for token in tokenizer.tokens if tokenizer._to_bytes([token]) == bytes([byte])
    ]
    assert tokenizer.join(["the", first]) == "the"
    assert tokenizer.join(["the", first, *rest]) == "theé"
    assert tokenizer.join(["the", first, "the"]) == "the\ufffdthe"
    assert tokenizer.readable(first) == "\\xc3"
    assert tokenizer.readable("Ġsea") == " sea"
    assert tokenizer.readable("</s>") == "</s>"


def corpus_of(source: Any, tokenizer: Tokenizer | None = None, **options: Any) -> Corpus:
    fields = {"tokenizer": "bpe", "context": (), "min_count": 1, "max_vocabulary": 300, **options}
    return prepare(source, Config.of(**fields), tokenizer=tokenizer)


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 100])
@pytest.mark.parametrize("chunk_rows", [1, 5, 8192])
def test_training_reads_texts_as_the_trained_tokenizer_does(
    max_tokens: int, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorcell.data.tables.tables.CHUNK_ROWS", chunk_rows)
    rows = [{"text": text} for text in ["", *TEXTS, "", "zzz"]]
    corpus = corpus_of(rows, max_tokens=max_tokens)
    again = corpus_of(rows, corpus.tokenizer, max_tokens=max_tokens)
    assert np.array_equal(corpus.tokens, again.tokens)
    assert np.array_equal(corpus.offsets, again.offsets)
    specials = corpus.tokenizer.specials
    for row, begin, end in zip(rows, corpus.offsets, corpus.offsets[1:], strict=False):
        ids = corpus.tokenizer.encode(corpus.tokenizer.split(row["text"]))
        whole = [specials.start, *ids, specials.end] if len(ids) < max_tokens else [specials.start, *ids[:max_tokens]]
        assert corpus.tokens[begin:end].tolist() == whole


def test_training_is_deterministic_and_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    first, second = trained(), trained(TEXTS[::-1])
    assert first.contents() == second.contents()
    first.save(tmp_path)
    opened = load_tokenizer(Config.of(tokenizer="bpe"), tmp_path)
    assert opened.contents() == first.contents()
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXTS[0]).tokens == first.split(
        TEXTS[0]
    )


def test_special_tokens_are_stored_by_name(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["byte level"]
    contents = tokenizer.contents()
    names = {"unk_token": "<|unknown|>", "bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert json.loads(contents["special_tokens_map.json"]) == names
    opened = BpeTokenizer.from_contents(tokenizer.options, contents)
    assert opened.specials == tokenizer.specials == (290, 291, 293)
    assert opened.tokens == tokenizer.tokens


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("special_tokens_map.json", b"[]"),
        ("special_tokens_map.json", b"{}"),
        ("special_tokens_map.json", b'{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "no such token"}'),
        ("special_tokens_map.json", b'{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": 3}'),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    contents = {**trained().contents(), name: content}
    for file, file_content in contents.items():
        (tmp_path / file).write_bytes(file_content)
    with pytest.raises(UserError, match="damaged"):
        load_tokenizer(Config.of(tokenizer="bpe"), tmp_path)


def test_a_tokenizer_whose_tokens_are_not_bytes_or_whose_special_ids_are_wrong_is_refused() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    with pytest.raises(UserError, match="expected a byte-level tokenizer, or one with byte fallback, got WordLevel"):
        BpeTokenizer(BpeOptions(), words, Specials())
    for ids in ((0, 1, 1), (0, 1, 9999), (-1, 0, 1)):
        with pytest.raises(UserError, match="expected three different special ids"):
            BpeTokenizer(BpeOptions(), trained()._library, Specials(*ids))


def test_the_vocabulary_has_every_byte_and_at_most_its_maximum_size() -> None:
    for size in (1, 256, 280):
        tokenizer = trained(max_vocabulary=size)
        assert len(tokenizer) == max(size, 256) + 3
        assert {bytes([byte]) for byte in range(256)} <= {*tokenizer.bytes_by_id}
    assert len(trained(max_vocabulary=100_000)) < 600, "few pairs occur in the texts"


def test_the_default_size_grows_with_the_texts() -> None:
    sizes = [default_vocabulary(count) for count in (0, 10**4, 10**6, 10**7, 10**10)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] < sizes[-1] == default_vocabulary(10**12)


def test_counts_of_many_words_are_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    untrained = new_tokenizer(Config.of(tokenizer="bpe", max_vocabulary=300))
    scaled = untrained.train({"thethe": 100, "seasea": 50}).contents()
    monkeypatch.setattr("factorcell.data.tokenizers.bpe.MAX_TRAINING_WORDS", 150)
    assert untrained.train({"seasea": 5000, "thethe": 10_000, "rare": 20}).contents() == scaled


def test_lower_case_is_an_option() -> None:
    tokenizer = trained(lowercase=True)
    assert tokenizer.join(tokenizer.split("The SEA")) == "the sea"
    assert tokenizer.is_lossless
