"""Kinds that only tables of the papers need: words without punctuation, and a hashed softmax bias of another size.

python experiments/paper_kinds.py COMMAND ...       the command of factorcell, with these kinds
"""

import sys
from dataclasses import dataclass

from factorcell.commands.cli.main import main
from factorcell.config import SoftmaxOptions, WordOptions, option
from factorcell.data import register_tokenizer
from factorcell.data.tokenizers.tokenizer import WordTokenizer, without_punctuation
from factorcell.nn import register_head
from factorcell.nn.output import SoftmaxHead
from factorcell.nn.output_bias import BLOOM_SIZE, HASH_SIZE

MAX_HASH_SIZE = 1 << 30  # the sum of two hashes must fit into a 32-bit integer


@dataclass(frozen=True)
class BareWordOptions(WordOptions):
    kind: str = "bare_word"


class BareWordTokenizer(WordTokenizer):
    """Splits into the tokens of `word` that have a letter, a digit, $ or %."""

    Options = BareWordOptions

    def split(self, text: str) -> list[str]:
        return without_punctuation(super().split(text))


@dataclass(frozen=True)
class SizedSoftmaxOptions(SoftmaxOptions):
    kind: str = "sized_softmax"
    hash_size: int = option(HASH_SIZE, "number of buckets of the softmax bias hash", 1, MAX_HASH_SIZE)
    bloom_size: int = option(BLOOM_SIZE, "bits of the filter of the softmax bias hash; 0: none", 0, MAX_HASH_SIZE)


class SizedSoftmaxHead(SoftmaxHead):
    """The built-in head with options for the sizes of its softmax bias `hash`."""

    Options = SizedSoftmaxOptions

    @classmethod
    def hash_sizes(cls, options: SoftmaxOptions) -> tuple[int, int]:
        assert isinstance(options, SizedSoftmaxOptions)
        return options.hash_size, options.bloom_size


register_tokenizer(BareWordOptions.kind, BareWordTokenizer)
register_head(SizedSoftmaxOptions.kind, SizedSoftmaxHead)

if __name__ == "__main__":
    sys.exit(main())
