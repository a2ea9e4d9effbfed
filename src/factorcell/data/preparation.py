"""Convert a table to a corpus: read it in chunks and tokenize its texts.

`TokenizedTexts` numbers the tokens in order of appearance. After the last text, it counts them to build a vocabulary,
and replaces each provisional id by the id of the token in the vocabulary, or by several ids if a tokenizer of pieces
cuts the token. Arrays of large tables are memory-mapped files (`factorcell.io.arrays`).
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.data.table_findings import CONTEXTS, number_findings, table_findings
from factorcell.data.tables.chunks import EmptyTableError, Table
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.data.tokenizing import END, START, ChunkTokenizer, TokenizedChunk
from factorcell.errors import UserError
from factorcell.io.arrays import GrowingArray, count_ids, list_blocks, to_offsets
from factorcell.io.findings import report
from factorcell.io.progress import progress_bar


class TokenizedTexts:
    """Collects the tokenized texts of a table.

    A text of `max_tokens` tokens or more is cut after `max_tokens` tokens and has no end token. With `max_tokens`
    None, texts are not cut.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        # Ids in order of appearance, after those of the special tokens
        self.id_by_token: defaultdict[str, int] = defaultdict(lambda: len(self.id_by_token) + END + 1)
        # Counts of the tokens after the cuts, by provisional id: these tokens are not stored, but they count for the
        # vocabulary.
        self.cut_counts = Counter[int]()
        # The provisional ids of all texts, and the number of ids of each text
        self.ids, self.sizes, self.originals = GrowingArray(), GrowingArray(), GrowingArray()

    def add(self, chunks: Iterable[TokenizedChunk]) -> None:
        """Add the texts of the next chunks."""
        for chunk in chunks:
            ids = np.array([0, START, END, *map(self.id_by_token.__getitem__, chunk.tokens)], np.uint32)
            self.ids.append(ids[chunk.ids])
            self.sizes.append(chunk.sizes)
            self.cut_counts.update({int(ids[token]): count for token, count in chunk.cut_counts.items()})
            if chunk.originals is not None:
                self.originals.append(chunk.originals)

    def corpus_fields(self, *, train: bool) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts; `train` creates the vocabulary from these texts."""
        tokenizer = self.tokenizer.train(self._count_tokens()) if train else self.tokenizer
        # After training, the tokens are words, of which a tokenizer of pieces makes several ids.
        encode = tokenizer.encode_words if train else lambda tokens: [(id_,) for id_ in tokenizer.encode(tokens)]
        ids_of_tokens = [*((special,) for special in tokenizer.specials), *encode(self.id_by_token)]
        final_ids = Ragged.of(ids_of_tokens, np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
        is_unknown = final_ids.values[final_ids.offsets[:-1]] == tokenizer.specials.unknown
        is_unknown[: END + 1] = False
        unknown_ids = np.cumsum(is_unknown, dtype=np.int32) - 1  # an index of the out-of-vocabulary tokens
        ids, offsets = self.ids.array(), to_offsets(self.sizes.array())
        tokens, sizes, unknown, unknown_counts = GrowingArray(), GrowingArray(), GrowingArray(), GrowingArray()
        for rows in list_blocks(offsets):
            part = ids[offsets[rows.start] : offsets[rows.stop]]
            id_counts = np.diff(offsets[rows.start : rows.stop + 1])
            final_tokens, final_sizes = self._replace(part, id_counts, final_ids)
            tokens.append(final_tokens)
            sizes.append(final_sizes)
            unknown.append(unknown_ids[part[is_unknown[part]]])
            unknown_counts.append(np.add.reduceat(is_unknown[part], np.cumsum(id_counts) - id_counts, dtype=np.int64))
        return {
            "tokens": tokens.array(),
            "offsets": to_offsets(sizes.array()),
            "tokenizer": tokenizer,
            "originals": self.originals.array() if len(self.originals) else None,
            "unknown": Ragged(unknown.array(), to_offsets(unknown_counts.array())),
            "unknown_names": tuple(compress(self.id_by_token, is_unknown[END + 1 :])),
        }

    def _replace(
        self, ids: NDArray[np.uint32], id_counts: NDArray[np.int64], final_ids: Ragged
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the final ids of texts, and their number for each text, from those of each provisional id."""
        pieces = final_ids.select(ids)
        sizes = np.diff(pieces.offsets[np.append(0, np.cumsum(id_counts))])
        max_size = sys.maxsize if self.max_tokens is None else 1 + self.max_tokens  # with the start token
        positions = np.arange(len(pieces.values)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return pieces.values[positions < max_size], np.minimum(sizes, max_size)

    def _count_tokens(self) -> dict[str, int]:
        """Return how often each token occurs in all texts, including the parts after cuts."""
        counts = count_ids(self.ids.array(), len(self.id_by_token) + END + 1)
        for token_id, count in self.cut_counts.items():
            counts[token_id] += count
        return dict(zip(self.id_by_token, counts[END + 1 :].tolist(), strict=True))


def prepare(
    source: Any,
    config: Config,
    *,
    tokenizer: Tokenizer | None = None,
    schema: ContextSchema | None = None,
    unknown: str = "group",
    optional: tuple[str, ...] = (),
    truncate: bool = True,
) -> Corpus:
    """Read a table and return its texts and contexts as a corpus.

    Doubtful properties of the table are reported (`table_findings`).

    Args:
        source: A path or any other source that `open_table` accepts.
        config: The options for reading texts and columns.
        tokenizer: The tokenizer of a trained model. By default, the texts of `source` determine its vocabulary.
        schema: The context variables of a trained model. By default, `config` and `source` determine the variables.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        optional: The names of the variables for which the policy is "expected" instead of `unknown`; their columns may
            be missing.
        truncate: Whether to cut texts after `max_tokens` tokens.

    Returns:
        The corpus, with one text per row of the table.

    Raises:
        UserError: The table cannot be read, lacks a column, or has an invalid value; the message names the row.
    """
    text_tokenizer = new_tokenizer(config) if tokenizer is None else tokenizer  # may fail, so before the table is read
    table, data_config = open_table(source), config.data
    if table.row_count == 0:
        raise EmptyTableError(f"{table.name}: no rows")
    if schema is None and data_config.text not in table.columns:
        raise table.missing_column_error(data_config.text, (("text", "COLUMN"),), "to name the column of the texts")

    columns = ContextColumns(table, data_config, schema, unknown, optional, text_tokenizer)
    texts = TokenizedTexts(text_tokenizer, data_config.max_tokens if truncate else None)
    with ChunkTokenizer(text_tokenizer, texts.max_tokens) as chunk_tokenizer:
        _read_chunks(table, data_config.text, chunk_tokenizer, texts, columns)
    text_fields = texts.corpus_fields(train=tokenizer is None)
    corpus = Corpus(**text_fields, **columns.corpus_fields(text_fields))
    report(*table_findings(corpus, table.name, data_config, None if schema is None else unknown, optional))
    if schema is not None:
        report(*number_findings(schema, corpus.numbers, table.name))
    return corpus


def _read_chunks(
    table: Table, text_column: str, chunk_tokenizer: ChunkTokenizer, texts: TokenizedTexts, columns: ContextColumns
) -> None:
    """Read all chunks of a table into `texts` and `columns`."""
    total, unit = (table.row_count, "rows") if table.file is None else (table.file.size, "bytes")
    is_table = table.name != CONTEXTS
    with progress_bar(total=total, desc="reading", unit=unit, unit_scale=True, show=is_table) as bar:
        for chunk in table.chunks([text_column, *columns.names]):
            chunk_texts = chunk[text_column]
            for row, text in enumerate(chunk_texts, columns.row_count + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.place(row)}: {text_column} is {text!r}, not a text; remove such rows")
            columns.add(chunk, len(chunk_texts))
            texts.add(chunk_tokenizer.add(chunk_texts))
            bar.update(len(chunk_texts) if table.file is None else table.file.bytes_read - bar.n)
    texts.add(chunk_tokenizer.finish())
