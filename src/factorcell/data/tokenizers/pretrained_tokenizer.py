"""The tokenizer of a pretrained model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from factorcell.config import Config
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.vocabulary import Specials
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.options.option_fields import HuggingFaceOptions, PretrainedTokenizerOptions

# Special tokens that are added to the vocabulary if the model has no such token, or uses one token for two purposes.
ADDED = UNKNOWN, START, END = "<unknown token>", "<start of text>", "<end of text>"


class PretrainedTokenizer(BpeTokenizer):
    """The tokenizer of a pretrained model; training on a table does not change it."""

    Options = PretrainedTokenizerOptions

    @classmethod
    def of_base(cls, config: Config) -> Self:
        """Return the tokenizer of the pretrained model that the backbone of `config` names.

        Raises:
            UserError: The backbone is not pretrained, or its tokenizer is missing or not supported.
        """
        backbone = config.backbone
        if not (isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained):
            raise UserError("tokenizer pretrained: expected a pretrained model (base), got none; set base, or use bpe")
        source = pretrained.find_source(backbone.base)
        library_tokenizer, special_ids = pretrained.read_tokenizer(source)
        return cls(config.tokenizer, library_tokenizer, _complete(library_tokenizer, *special_ids))

    def train(self, counts: Mapping[str, int]) -> Self:
        """Return this tokenizer."""
        return self

    def encode_words(self, words: Iterable[str]) -> list[Sequence[int]]:
        """Return the id of each token; the vocabulary exists before training, so that words are tokens already."""
        return [(token_id,) for token_id in self.encode(words)]

    @property
    def known_count(self) -> int:
        """The number of tokens without the special tokens that were added, which are the last ones."""
        return min((special for special in self.specials if self.tokens[special] in ADDED), default=len(self))


def _complete(library_tokenizer: Any, unknown: int | None, start: int | None, end: int | None) -> Specials:
    """Return three different special ids: those of a model, and new ones for those that are missing or repeated."""

    def add(token: str) -> int:
        library_tokenizer.add_special_tokens([token])
        return int(library_tokenizer.token_to_id(token))

    end = add(END) if end is None else end
    start = add(START) if start in (None, end) else start
    unknown = add(UNKNOWN) if unknown in (None, start, end) else unknown
    return Specials(*map(int, (unknown, start, end)))
