"""Read tables of texts and convert them to corpora: arrays of token ids and of context values."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.data.base_tokenizer import Tokenizer as Tokenizer
    from factorcell.data.bpe import BpeTokenizer as BpeTokenizer
    from factorcell.data.cache import prepare as prepare
    from factorcell.data.corpus import Batch as Batch
    from factorcell.data.corpus import Corpus as Corpus
    from factorcell.data.schema import ContextSchema as ContextSchema
    from factorcell.data.tables import open_table as open_table
    from factorcell.data.vocabulary import Specials as Specials

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base_tokenizer": ("Tokenizer",),
        "bpe": ("BpeTokenizer",),
        "cache": ("prepare",),
        "corpus": ("Batch", "Corpus"),
        "schema": ("ContextSchema",),
        "tables": ("open_table",),
        "vocabulary": ("Specials",),
    },
)
