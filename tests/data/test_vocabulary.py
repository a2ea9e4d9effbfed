"""Text to tokens and back, and vocabulary files that survive any token."""

import itertools
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config, UserError
from factorcell.data.tokenizer import join, sentence_case, split
from factorcell.data.vocabulary import END, SPECIALS, START, UNKNOWN, Vocabulary

WORDS = Config.of(tokenizer="word")


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
def test_words(text: str, tokens: list[str]) -> None:
    """Words with what belongs inside them, runs of one mark, other marks alone."""
    assert split(text, WORDS) == tokens


@given(st.text())
def test_no_visible_character_is_lost(text: str) -> None:
    """Words joined are the text without its white space."""
    tokens = split(text, Config.of(tokenizer="word", lowercase=False))
    assert "".join(tokens) == regex.sub(r"\s", "", unicodedata.normalize("NFC", text))


def test_options() -> None:
    """Case is kept where asked; punctuation is dropped where asked, but not $ and %."""
    assert split("A Bé", Config.of(tokenizer="word", lowercase=False)) == ["A", "Bé"]
    assert split("a, 5 % of $ - b!", Config.of(tokenizer="word", strip_punctuation=True)) == [
        "a",
        "5",
        "%",
        "of",
        "$",
        "b",
    ]
    assert split("A b,c", Config.of(tokenizer="space")) == ["a", "b,c"]
    assert split("A b", Config.of(tokenizer="char")) == ["A", " ", "b"]


def test_graphemes_stay_whole() -> None:
    """A flag, a family and a letter with a mark that has no composed form are one unit each; as characters several."""
    text = "🇫🇷👩‍👩‍👧g̃"
    assert split(text, Config.of(tokenizer="grapheme")) == ["🇫🇷", "👩‍👩‍👧", "g̃"]
    assert len(split(text, Config.of(tokenizer="char"))) == 9


@given(st.text(), st.sampled_from(["char", "grapheme"]))
def test_characters_join_exactly(text: str, unit: str) -> None:
    """Characters and graphemes bring back the text after NFC."""
    assert join(split(text, Config.of(tokenizer=unit)), unit) == unicodedata.normalize("NFC", text)


def test_words_join_readably() -> None:
    """Closing marks join the word before, opening ones the next."""
    text = "nice , but ( a bit ) loud ! cost $ 5 ..."
    assert join(text.split(), "word") == "nice, but (a bit) loud! cost $5..."
    assert join(["a", "b,c"], "space") == "a b,c"
    assert join('he said " so " and " no " !'.split(), "word") == 'he said "so" and "no"!'


@given(st.lists(st.sampled_from(["a", "i", '"', "(", ")", ".", "!", "$", "…", "é", "5"]), max_size=9))
def test_more_tokens_leave_the_text_before_as_it_is(tokens: list[str]) -> None:
    """What is joined of a beginning is the beginning of what is joined, in sentence case too."""
    whole = join(tokens, "word")
    for count in range(len(tokens)):
        begun = join(tokens[:count], "word")
        assert whole.startswith(begun)
        assert sentence_case(whole).startswith(sentence_case(begun))
    assert split(whole, WORDS) == tokens or any(a == b or '"' in a + b for a, b in itertools.pairwise(tokens))


def test_sentences_get_their_capitals() -> None:
    """After an end of sentence, at the start, and in I; not after an abbreviated word within."""
    assert sentence_case('we stayed. i (my wife and i) left! "so" i\'m back... élan') == (
        'We stayed. I (my wife and I) left! "So" I\'m back... Élan'
    )
    assert sentence_case("3.5 stars, iron, hi") == "3.5 stars, iron, hi"


@given(st.lists(st.text(min_size=1), unique=True))
def test_files_survive_any_token(tmp_path_factory: pytest.TempPathFactory, tokens: list[str]) -> None:
    """Tabs, line breaks, backslashes, lone controls: what is saved is loaded, one token a line."""
    tokens = [token for token in tokens if (token not in SPECIALS and token.isprintable()) or token.isspace()]
    vocabulary = Vocabulary([*SPECIALS, *tokens, "\\", "\\n", "\n", "\u2028", "\x85"][: 3 + len(tokens)])
    path = tmp_path_factory.mktemp("vocabulary") / "v.txt"
    vocabulary.save(path)
    assert Vocabulary.load(path).tokens == vocabulary.tokens
    assert len(path.read_bytes().split(b"\n")) == len(vocabulary) + 1


def test_awkward_tokens_survive(tmp_path: Path) -> None:
    """The ones that a text file would blur."""
    tokens = [*SPECIALS, "\n", "\r", "\t", " ", "\\", "\\U0000000a", "\u2028", "\x85", "\x00", "é", "👩‍👧", "\ufeff"]
    Vocabulary(tokens).save(tmp_path / "v.txt")
    assert Vocabulary.load(tmp_path / "v.txt").tokens == tokens


@given(st.lists(st.sampled_from("abcdefg"), max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_build_keeps_the_most_frequent(tokens: list[str], least: int, size: int) -> None:
    """By falling count, then by name, at most `size`, each seen `least` times."""
    counts = Counter(tokens)
    vocabulary = Vocabulary.build(counts, least, size)
    expected = sorted((t for t in counts if counts[t] >= least), key=lambda t: (-counts[t], t))[:size]
    assert vocabulary.tokens == [*SPECIALS, *expected]


def test_ids() -> None:
    """What is unknown, and the names of the special tokens, are `UNKNOWN`."""
    vocabulary = Vocabulary.build({"a": 2, "b": 1, "<s>": 9}, 1, 10)
    assert vocabulary.encode(["b", "a", "zyx", "<s>", "</s>"]) == [4, 3, UNKNOWN, UNKNOWN, UNKNOWN]
    assert vocabulary.decode([START, 3, END]) == ["<s>", "a", "</s>"]
    assert len(vocabulary) == 5


def test_damaged_files(tmp_path: Path) -> None:
    """One line for a missing file, a wrong beginning, a token twice, bytes that are no text."""
    path = tmp_path / "v.txt"
    with pytest.raises(UserError, match="there is no such file"):
        Vocabulary.load(path)
    for content in (b"a\nb\n", b"<unk>\n<s>\n</s>\na\na\n", b"<unk>\n<s>\n</s>\n\xff\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            Vocabulary.load(path)
