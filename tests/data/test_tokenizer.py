"""The contract of a tokenizer, held by that of words and characters and by an odd one of pairs of letters."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import UNITS, Config
from factorcell.data.tokenizer import TextTokenizer, Tokenizer
from factorcell.data.vocabulary import SPECIALS, Specials, Vocabulary

TEXTS = ["the sea, the sun", "e\u0301te\u0301 ab\u0327", "abcab", "a  b\tc", "", "don't!! 3.50"]


class Pairs:
    """Two letters a token, the special ones last: nobody may take ids, or one letter a token, for granted."""

    def __init__(self, letters: str) -> None:
        self.pieces = [one + two for one in letters for two in ("", *letters)]

    @property
    def specials(self) -> Specials:
        """See `Tokenizer`."""
        return Specials(*range(len(self.pieces), len(self.pieces) + 3))

    def __len__(self) -> int:
        return len(self.pieces) + 3

    def split(self, text: str) -> list[str]:
        """See `Tokenizer`."""
        return [text[place : place + 2] for place in range(0, len(text), 2)]

    def join(self, tokens: Sequence[str]) -> str:
        """See `Tokenizer`."""
        return "".join(tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """See `Tokenizer`."""
        known = {piece: index for index, piece in enumerate(self.pieces)}
        return [known.get(token, self.specials.unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """See `Tokenizer`."""
        names = [*self.pieces, *SPECIALS]
        return [names[index] for index in ids]

    def follows(self, tokens: Sequence[str], more: Sequence[str]) -> bool:
        """See `Tokenizer`: after a single letter nothing but the end."""
        both = [*tokens, *more]
        return self.split(self.join(both)) == both


def of_unit(unit: str) -> Tokenizer:
    """The tokenizer of a unit, of the tokens of `TEXTS`."""
    data = Config.of(tokenizer=unit)
    split = TextTokenizer(Vocabulary(SPECIALS), data).split
    tokens = dict.fromkeys(token for text in TEXTS for token in split(text))
    return TextTokenizer(Vocabulary([*SPECIALS, *tokens]), data)


TOKENIZERS: dict[str, Tokenizer] = {**{unit: of_unit(unit) for unit in UNITS}, "pairs": Pairs("abc ")}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_tokens_are_one_to_one(name: str) -> None:
    """Every id has a token, known tokens come back, all others are the unknown one; the special ids are three."""
    tokenizer = TOKENIZERS[name]
    specials = tokenizer.specials
    assert len({*specials}) == 3
    ids = [index for index in range(len(tokenizer)) if index not in specials]
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.encode(["no such token"]) == [specials.unknown]
    for text in TEXTS:
        known = [token for token in tokenizer.split(text) if tokenizer.encode([token]) != [specials.unknown]]
        assert tokenizer.decode(tokenizer.encode(known)) == known


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(alphabet="ab c\u0301,.'\U0001f1ea\U0001f1f8", max_size=12), cut=st.integers(0, 12))
def test_what_is_split_may_follow_itself(name: str, text: str, cut: int) -> None:
    """A text that is read as it was written may be cut anywhere, and what was cut off may follow."""
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.split(text)
    again = tokenizer.split(tokenizer.join(tokens))
    assert tokenizer.follows(tokens[:cut], tokens[cut:]) == (again == tokens)


def test_what_would_be_read_otherwise_may_not_follow() -> None:
    """An accent joins the letter before it; half a flag waits for the other; a single letter takes another with it."""
    characters, graphemes = TOKENIZERS["char"], TOKENIZERS["grapheme"]
    assert not characters.follows(["e"], ["\u0301"])
    assert characters.follows(["e"], ["t", "e"])
    assert not graphemes.follows(["\U0001f1ea"], ["\U0001f1f8"])
    assert not TOKENIZERS["pairs"].follows(["a"], ["bc"])
    assert TOKENIZERS["pairs"].follows(["ab"], ["c"])
