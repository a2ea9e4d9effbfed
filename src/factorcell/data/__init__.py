"""Read tables of texts and convert them to corpora: arrays of token ids and of context values."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.data.corpus import Corpus as Corpus
    from factorcell.data.preparation import prepare as prepare
    from factorcell.data.tokenizers.bpe import BpeTokenizer as BpeTokenizer
    from factorcell.data.tokenizers.kinds import register_tokenizer as register_tokenizer
    from factorcell.data.tokenizers.tokenizer import Specials as Specials
    from factorcell.data.tokenizers.tokenizer import Tokenizer as Tokenizer

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
