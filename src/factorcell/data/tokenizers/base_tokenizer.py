"""The base class of tokenizers, which split texts into tokens, convert tokens to ids and back, and join tokens."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from factorcell.data.text_folds import lower_case, with_final_sigma
from factorcell.data.tokenizers.vocabulary import SPECIAL_IDS, SPECIAL_TOKENS, Specials, Vocabulary
from factorcell.io import files
from factorcell.options.option_fields import TokenizerOptions


class Tokenizer:
    """Base of all tokenizers: splits and joins texts, and converts tokens to ids with a `Vocabulary`.

    A subclass defines `split`, `join` and `Options`, the class of its options. A subclass with other ids, such as those
    of subword pieces, also overrides `train`, `contents`, `from_contents`, `tokens`, `specials`, `encode` and `decode`.

    Attributes:
        FILES: The names of the files that store the tokenizer in a run folder.
        is_character_level: Whether each token is one character or grapheme.
        unit: What a token is, for the unit of perplexities: "perplexity per word".
        is_subword: Whether tokens are pieces of words. The pieces of a text then depend on the text around them, and a
            tokenizer without a vocabulary splits into the words that `train` cuts into pieces.

    Args:
        options: The options, an instance of `Options`.
        vocabulary: The tokens that have ids; without it the tokenizer can only `split`, `join` and `train`.
    """

    Options: ClassVar[type[TokenizerOptions]] = TokenizerOptions
    FILES: ClassVar[tuple[str, ...]] = ("vocabulary.txt",)
    is_character_level: ClassVar[bool] = False
    unit: ClassVar[str] = "token"
    is_subword: ClassVar[bool] = False

    def __init__(self, options: Any, vocabulary: Vocabulary | None = None) -> None:
        self.options, self._vocabulary = options, vocabulary or Vocabulary(SPECIAL_TOKENS)

    @property
    def restores_texts(self) -> bool:
        """Whether tokens store white space, so that texts can be completed and counted."""
        return self.is_character_level or self.is_subword

    @property
    def is_lossless(self) -> bool:
        """Whether the tokens of each text determine its normalized text, so that bits per byte are exact."""
        return self.is_character_level

    @property
    def known_count(self) -> int:
        """The number of tokens that a pretrained model knows; the other ones, after them, were added to its tokenizer.

        By default all tokens.
        """
        return len(self)

    def __len__(self) -> int:
        """Return the number of tokens in the vocabulary, special tokens included."""
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """Return the tokens of a text, in-vocabulary or not."""
        raise NotImplementedError

    def split_all(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text."""
        return [self.split(text) for text in texts]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of `tokens`; the text of more tokens must begin with the text of the first ones."""
        raise NotImplementedError

    @property
    def tokens(self) -> Sequence[str]:
        """The token of each id, special tokens included."""
        return self._vocabulary.tokens

    @property
    def specials(self) -> Specials:
        """The ids of the unknown token, the start token and the end token."""
        return SPECIAL_IDS

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token; an out-of-vocabulary token has the id of the unknown token."""
        return self._vocabulary.encode(tokens)

    def encode_words(self, words: Iterable[str]) -> list[Sequence[int]]:
        """Return the ids of each of the tokens that `split` returned before `train`: by default, one id per token."""
        return [(token_id,) for token_id in self.encode(words)]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id."""
        tokens = self.tokens
        return [tokens[token_id] for token_id in ids]

    def train(self, counts: Mapping[str, int]) -> Self:
        """Return a tokenizer of this class with a vocabulary built from the training texts.

        Args:
            counts: How often each token that `split` returns occurs in the training texts.
        """
        options = self.options
        return type(self)(options, Vocabulary.build(counts, options.min_count, options.max_vocabulary))

    def contents(self) -> dict[str, bytes]:
        """Return the content of each file of `FILES` by name, for `from_contents`."""
        return {self.FILES[0]: self._vocabulary.content()}

    @classmethod
    def from_contents(cls, options: Any, contents: Mapping[str, bytes]) -> Self:
        """Return the tokenizer with these options and the content of its files, which `Tokenizer.contents` returned.

        Raises:
            ValueError: A file is damaged.
        """
        return cls(options, Vocabulary.from_content(contents[cls.FILES[0]]))

    def normalize(self, text: str) -> str:
        """Return `text` in NFC, in lower case if the options require it."""
        if not self.options.lowercase:
            return unicodedata.normalize("NFC", text)
        return lower_case(text) if self.restores_texts else with_final_sigma(lower_case(text))

    def written(self, text: str) -> str:
        """Return a complete text of joined tokens as people write it, where lower case changed its letters."""
        return with_final_sigma(text) if self.options.lowercase else text

    def readable(self, token: str) -> str:
        """Return `token` as reports show it."""
        return token

    def save(self, folder: Path) -> None:
        """Write the files of the tokenizer into `folder`."""
        for name, content in self.contents().items():
            files.write(folder / name, content)
