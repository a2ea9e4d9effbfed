"""From a table to a corpus: columns, the schema of a context, tokens and their ids."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.data.cache import prepare
    from factorcell.data.corpus import Batch, Corpus
    from factorcell.data.schema import ContextSchema
    from factorcell.data.tables import open_table
    from factorcell.data.tokenizer import Tokenizer
    from factorcell.data.vocabulary import Specials

__all__ = ["Batch", "ContextSchema", "Corpus", "Specials", "Tokenizer", "open_table", "prepare"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "cache": ("prepare",),
        "corpus": ("Batch", "Corpus"),
        "schema": ("ContextSchema",),
        "tables": ("open_table",),
        "tokenizer": ("Tokenizer",),
        "vocabulary": ("Specials",),
    },
)
