"""Convert a table to a corpus: read it in chunks, tokenize its texts, and cache the arrays of training tables.

The memory holds the texts of one chunk (`chunks.CHUNK_ROWS` rows) at a time; the arrays in the cache are memory-mapped.
"""

import errno
import hashlib
import io
import json
import os
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config, Notice, UserError
from factorcell.data import cache_entry
from factorcell.data.chunks import Table
from factorcell.data.columns import ContextColumns
from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.data.tables import open_table
from factorcell.data.tokenizer import Tokenizer, new_tokenizer
from factorcell.data.tokens import TokenizedTexts
from factorcell.progress import progress_bar

CACHE_VERSION = 1  # part of the name of an entry, so that entries of other versions are not read


def prepare(
    source: Any,
    config: Config,
    *,
    tokenizer: Tokenizer | None = None,
    schema: ContextSchema | None = None,
    unknown: str = "error",
    optional: tuple[str, ...] = (),
    cache: str | Path | None = None,
    progress: bool = False,
    truncate: bool = True,
    report_truncation: bool = True,
) -> Corpus:
    """Read a table and return its texts and contexts as a corpus.

    The corpus of a file is cached under a digest of the file and the options, unless `schema` is set or `truncate` is
    false. If the cache cannot be written, a `Notice` reports the reason, and the corpus stays in memory. Other notices
    report the number of empty texts of a file and, with a `schema`, numbers far outside the range of training.

    Args:
        source: A path or any other source that `open_table` accepts.
        config: The options for reading texts and columns.
        tokenizer: The tokenizer of a trained model. By default, the tokenizer that `config` selects gets a vocabulary
            from the texts of `source`.
        schema: The context variables of a trained model. By default, `config` and `source` determine the variables.
        unknown: How to read a category value that is not in `schema`: "error", "group" (as a rare value) or "expected"
            (as a missing value).
        optional: The names of the variables for which the policy is "expected" instead of `unknown`.
        cache: The folder of the cache; by default `cache_folder()`.
        progress: Whether to show a progress bar.
        truncate: Whether to cut texts after `max_tokens` tokens.
        report_truncation: Whether to report the number of cut texts in a `Notice`.

    Returns:
        The corpus, with one row per row of the table.

    Raises:
        UserError: The table cannot be read, lacks a column, or has an invalid value; the message names the row.
    """
    table, data_config = open_table(source), config.data
    text_tokenizer = new_tokenizer(config) if tokenizer is None else tokenizer
    config = replace(config, tokenizer=text_tokenizer.options)
    if schema is None and data_config.text not in table.columns:
        raise table.missing_column_error(data_config.text, (("text", "COLUMN"),), "to name the column of the texts")

    def read_corpus(folder: Path | None) -> Corpus:
        """Return the corpus, with its tokens in a file in `folder` or, without a folder, in memory."""
        columns = ContextColumns(table, data_config, schema, unknown, optional)
        with tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO() as id_file:
            texts = TokenizedTexts(id_file, text_tokenizer, data_config.max_tokens if truncate else None)
            _read_chunks(table, data_config.text, texts, columns, progress)
            text_fields = texts.corpus_fields(train=tokenizer is None, folder=folder)
        return Corpus(**text_fields, **columns.corpus_fields(len(texts.sizes)))

    if table.digest is None or schema is not None or not truncate:
        corpus = read_corpus(folder=None)
    else:
        entry_name = _entry_name(table.digest(), table.name, config, tokenizer)
        try:
            entry_folder = Path(cache or cache_folder()) / entry_name
            corpus = cache_entry.load_or_create(entry_folder, read_corpus, config)
        except OSError as error:
            reason = f"{error.filename or 'the cache'}: {error.strerror or error}"
            _warn(f"the cache cannot be written ({reason}); {table.name} is kept in memory")
            corpus = read_corpus(folder=None)
    if table.digest is not None:
        _report_empty_texts(corpus, table.name)
    if report_truncation:
        report_truncated(corpus.truncated, table.name, data_config.max_tokens)
    if schema is not None:
        _report_outliers(corpus, table.name)
    return corpus


def _entry_name(table_digest: bytes, table_name: str, config: Config, tokenizer: Tokenizer | None) -> str:
    """Return the name of a cache entry: a digest of the table, the options and the vocabulary of a trained model."""
    key: dict[str, Any] = {"version": CACHE_VERSION, "name": Path(table_name).suffixes, "data": asdict(config.data)}
    key |= {"tokenizer": asdict(config.tokenizer), "tokens": tokenizer and list(tokenizer.tokens)}
    digest = hashlib.blake2b(table_digest, digest_size=16)
    digest.update(json.dumps(key, sort_keys=True).encode())
    return digest.hexdigest()


def _warn(text: str) -> None:
    """Emit a `Notice`; all notices come from this line, so Python by default shows equal notices only once."""
    warnings.warn(Notice(text), stacklevel=1)


def _report_empty_texts(corpus: Corpus, table_name: str) -> None:
    """Emit a `Notice` with the number of texts without tokens, if any."""
    second_tokens = corpus.tokens[corpus.offsets[:-1] + 1]  # the first token of every text is the start token
    if empty_count := int((second_tokens == corpus.tokenizer.specials.end).sum()):
        empty_texts = f"{empty_count:,} of {len(corpus):,} texts {'is' if empty_count == 1 else 'are'} empty"
        _warn(f"{table_name}: {empty_texts}; the end of an empty text is its only target")


def report_truncated(is_truncated: NDArray[np.bool_], table_name: str, max_tokens: int) -> None:
    """Emit a `Notice` with the number of truncated texts, if any, and the option that sets the limit.

    Args:
        is_truncated: Whether each text was cut (rows,).
        table_name: The name of the table, for the notice.
        max_tokens: The number of tokens after which texts were cut.
    """
    if cut_count := int(is_truncated.sum()):
        cut_texts = f"{cut_count:,} of {len(is_truncated):,} texts {'is' if cut_count == 1 else 'are'} cut"
        remedy = "a model trained with a larger max_tokens (--max-tokens) reads more"
        _warn(f"{table_name}: {cut_texts} after {max_tokens:,} tokens; {remedy}")


def _report_outliers(corpus: Corpus, table_name: str) -> None:
    """Emit a `Notice` for each numeric variable with values far outside the range of its values in training.

    A value is far outside if its distance from the range is larger than the width of the range.
    """
    for variable, column in zip(corpus.schema.numbers, corpus.numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        is_far = np.abs(column - middle) > 1.5 * width  # half the width from the middle to the end of the range
        if width and not variable.period and is_far.any():
            training_range = f"the range of training ({variable.low:.4g} to {variable.high:.4g})"
            far_rows = f"{is_far.sum():,} of {len(column):,} rows"
            _warn(f"{table_name}: {variable.name} is far outside {training_range} in {far_rows}")


def cache_folder() -> Path:
    """Return the folder of the cache: $FACTORCELL_CACHE, or `factorcell` in the user's cache folder.

    Raises:
        OSError: The user has no home folder.
    """
    if folder := os.environ.get("FACTORCELL_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorcell"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder; set FACTORCELL_CACHE") from None


def _read_chunks(
    table: Table, text_column: str, texts: TokenizedTexts, columns: ContextColumns, progress: bool
) -> None:
    """Read all chunks of a table into `texts` and `columns`."""
    rows_read = 0
    row_count = table.row_count or (table.estimate_rows() if progress else None)
    with progress_bar(total=row_count, desc="reading", unit="rows", unit_scale=True, show=progress) as bar:
        for chunk in table.chunks([text_column, *columns.names]):
            chunk_texts = chunk[text_column]
            columns.add(chunk, len(chunk_texts), rows_read)
            for row, text in enumerate(chunk_texts, rows_read + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {row}: {text_column} is {text!r}, not a text")
            texts.add(chunk_texts)
            rows_read += len(chunk_texts)
            bar.update(len(chunk_texts))
