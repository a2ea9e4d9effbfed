"""Splitting and joining texts, and vocabulary files, which can store any token."""

import itertools
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import CharacterOptions, Config
from factorcell.data.tokenizers.kinds import load_tokenizer
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS, UNKNOWN, CharacterTokenizer, sentence_case
from factorcell.errors import UserError
from paper_kinds import BareWordOptions
from tests.small_runs import join, split

WORDS, OPTIONS = Config.of(tokenizer="word"), CharacterOptions()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don't panic!", ["don't", "panic", "!"]),
        ("the well-kept B&B (at 10:30)", ["the", "well-kept", "b", "&", "b", "(", "at", "10:30", ")"]),
        ("$3.50, or 1,000... wow!!", ["$", "3.50", ",", "or", "1,000", "...", "wow", "!!"]),
        ("l’été à Ålesund", ["l’été", "à", "ålesund"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("e\u0301te\u0301", ["été"]),
        ("a_b 'quoted' -- x", ["a_b", "'", "quoted", "'", "--", "x"]),
        ("  \t\n ", []),
    ],
)
def test_texts_are_split_into_words(text: str, tokens: list[str]) -> None:
    assert split(text, WORDS) == tokens


@given(st.text())
def test_no_visible_character_is_lost(text: str) -> None:
    tokens = split(text, Config.of(tokenizer="word", lowercase=False))
    assert "".join(tokens) == "".join(unicodedata.normalize("NFC", text).split())


def test_tokenizer_options_change_the_tokens() -> None:
    assert split("A Bé", Config.of(tokenizer="word", lowercase=False)) == ["A", "Bé"]
    assert split("a, 5 % of $ - b!", Config.of(tokenizer=BareWordOptions.kind)) == ["a", "5", "%", "of", "$", "b"]
    assert split("A b,c", Config.of(tokenizer="space")) == ["a", "b,c"]
    assert split("A b", Config.of(tokenizer="char")) == ["A", " ", "b"]


def test_grapheme_clusters_are_not_split() -> None:
    text = "🇫🇷👩‍👩‍👧g̃"
    assert split(text, Config.of(tokenizer="grapheme")) == ["🇫🇷", "👩‍👩‍👧", "g̃"]
    assert len(split(text, Config.of(tokenizer="char"))) == 9


@given(st.text(), st.sampled_from(["char", "grapheme"]))
def test_joining_characters_returns_the_normalized_text(text: str, kind: str) -> None:
    assert join(split(text, Config.of(tokenizer=kind)), kind) == unicodedata.normalize("NFC", text)


def test_words_are_joined_with_the_usual_spaces() -> None:
    text = "nice , but ( a bit ) loud ! cost $ 5 ..."
    assert join(text.split(), "word") == "nice, but (a bit) loud! cost $5..."
    assert join(["a", "b,c"], "space") == "a b,c"
    assert join('he said " so " and " no " !'.split(), "word") == 'he said "so" and "no"!'


@given(st.lists(st.sampled_from(["a", "i", '"', "(", ")", ".", "!", "$", "…", "é", "5"]), max_size=9))
def test_joining_more_tokens_does_not_change_the_text_before(tokens: list[str]) -> None:
    whole = join(tokens, "word")
    for count in range(len(tokens)):
        beginning = join(tokens[:count], "word")
        assert whole.startswith(beginning)
        assert sentence_case(whole).startswith(sentence_case(beginning))
    assert split(whole, WORDS) == tokens or any(a == b or '"' in a + b for a, b in itertools.pairwise(tokens))


def test_sentence_case_capitalizes_the_beginning_of_sentences() -> None:
    assert sentence_case('we stayed. i (my wife and i) left! "so" i\'m back... élan') == (
        'We stayed. I (my wife and I) left! "So" I\'m back... Élan'
    )
    assert sentence_case("3.5 stars, iron, hi") == "3.5 stars, iron, hi"


@given(st.lists(st.text(min_size=1), unique=True))
def test_a_vocabulary_file_can_store_any_token(tokens: list[str]) -> None:
    tokens = [token for token in tokens if (token not in SPECIAL_TOKENS and token.isprintable()) or token.isspace()]
    tokens = list(dict.fromkeys([*SPECIAL_TOKENS, *tokens, "\\", "\\n", "\n", "\u2028", "\x85"]))
    contents = CharacterTokenizer(OPTIONS, tokens).contents()
    assert CharacterTokenizer.from_contents(OPTIONS, contents).tokens == tokens
    assert len(contents["vocabulary.txt"].split(b"\n")) == len(tokens) + 1


def test_a_vocabulary_file_can_store_white_space_and_escapes() -> None:
    tokens = [
        *SPECIAL_TOKENS,
        "\n",
        "\r",
        "\t",
        " ",
        "\\",
        "\\U0000000a",
        "\u2028",
        "\x85",
        "\x00",
        "é",
        "👩‍👧",
        "\ufeff",
    ]
    contents = CharacterTokenizer(OPTIONS, tokens).contents()
    assert CharacterTokenizer.from_contents(OPTIONS, contents).tokens == tokens


@given(st.lists(st.sampled_from("abcdefg"), max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_a_vocabulary_has_the_most_frequent_tokens(tokens: list[str], min_count: int, size: int) -> None:
    counts = Counter(tokens)
    tokenizer = CharacterTokenizer(CharacterOptions(min_count=min_count, max_vocabulary=size)).train(counts)
    expected = sorted((t for t in counts if counts[t] >= min_count), key=lambda t: (-counts[t], t))[:size]
    assert tokenizer.tokens == [*SPECIAL_TOKENS, *expected]


def test_tokens_out_of_vocabulary_have_the_unknown_id() -> None:
    tokenizer = CharacterTokenizer(CharacterOptions(min_count=1)).train({"a": 2, "b": 1, "<s>": 9})
    assert tokenizer.encode(["b", "a", "zyx", "<s>", "</s>"]) == [4, 3, UNKNOWN, UNKNOWN, UNKNOWN]
    assert len(tokenizer) == 5


def test_damaged_vocabulary_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    with pytest.raises(UserError, match="there is no such file"):
        load_tokenizer(WORDS, tmp_path)
    for content in (b"a\nb\n", b"<unk>\n<s>\n</s>\na\na\n", b"<unk>\n<s>\n</s>\n\xff\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            load_tokenizer(WORDS, tmp_path)
