"""Turn a table into a corpus: read it in chunks, tokenize its texts, and cache the arrays of training tables.

Memory holds the texts of one chunk (`chunks.CHUNK_ROWS` rows) at a time; the arrays in the cache are memory-mapped.
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

CACHE_VERSION = 1  # part of the key of an entry, so that entries of other versions are not read


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

    The corpus of a file that is read without `schema` is cached under a digest of the file and of the options. If the
    cache cannot be written, a `Notice` reports the reason, and the corpus stays in memory. Another `Notice` reports the
    number of empty texts of a file.

    Args:
        source: A path or any other source that `open_table` accepts.
        config: The options for reading texts and columns.
        tokenizer: The tokenizer of a trained model. By default, the tokenizer that `config` selects gets a vocabulary
            from the texts of `source`.
        schema: The context variables of a trained model. By default, they are determined from `source`.
        unknown: How to read a category value that is not in `schema`: "error", "group" (as a rare value) or "expected"
            (as a missing value).
        optional: The names of variables that are read with the policy "expected", whatever `unknown` is.
        cache: The folder of the cache; by default `cache_folder()`.
        progress: Whether to show a progress bar.
        truncate: Whether to cut texts after `max_tokens` tokens.
        report_truncation: Whether to report the number of cut texts in a `Notice`.

    Returns:
        The corpus, with one row per row of the table.

    Raises:
        UserError: The table cannot be read, lacks a column, or has an invalid value; the message names the row.
    """
    table, data = open_table(source), config.data
    splitter = new_tokenizer(config) if tokenizer is None else tokenizer
    config = replace(config, tokenizer=splitter.options)
    if schema is None and data.text not in table.columns:
        raise table.missing_column_error(data.text, (("text", "COLUMN"),), "to name the column of the texts")

    def read(folder: Path | None) -> Corpus:
        columns = ContextColumns(table, data, schema, unknown, optional)
        with tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO() as spool:
            texts = TokenizedTexts(spool, splitter, data.max_tokens if truncate else None)
            _read_chunks(table, data.text, texts, columns, progress)
            arrays = texts.arrays(train=tokenizer is None, folder=folder)
        return Corpus(**arrays, **columns.arrays(len(texts.sizes)))

    if table.digest is None or schema is not None or not truncate:
        corpus = read(None)
    else:
        options = {"version": CACHE_VERSION, "name": Path(table.name).suffixes, "data": asdict(data)}
        options |= {"tokenizer": asdict(config.tokenizer), "tokens": tokenizer and list(tokenizer.tokens)}
        digest = hashlib.blake2b(table.digest(), digest_size=16)
        digest.update(json.dumps(options, sort_keys=True).encode())
        try:
            corpus = cache_entry.load_or_create(Path(cache or cache_folder()) / digest.hexdigest(), read, config)
        except OSError as error:
            reason = f"{error.filename or 'the cache'}: {error.strerror or error}"
            _warn(f"the cache cannot be written ({reason}); {table.name} is kept in memory")
            corpus = read(None)
    if table.digest is not None:
        _report_empty(corpus, table.name)
    if report_truncation:
        report_truncated(corpus.truncated, table.name, data.max_tokens)
    if schema is not None:
        _report_outliers(corpus, table.name)
    return corpus


def _warn(text: str) -> None:
    """Emit a `Notice`; Python shows equal texts only once by default, because all notices come from this line."""
    warnings.warn(Notice(text), stacklevel=1)


def _report_empty(corpus: Corpus, name: str) -> None:
    """Emit a `Notice` with the number of texts without tokens, if any."""
    second_tokens = corpus.tokens[corpus.offsets[:-1] + 1]  # the first token of every text is the start token
    if empty := int((second_tokens == corpus.tokenizer.specials.end).sum()):
        count = f"{empty:,} of {len(corpus):,} texts {'is' if empty == 1 else 'are'} empty"
        _warn(f"{name}: {count}; the end of an empty text is its only target")


def report_truncated(truncated: NDArray[np.bool_], name: str, max_tokens: int) -> None:
    """Emit a `Notice` with the number of `truncated` texts (rows,), if any, and the option that sets the limit."""
    if count := int(truncated.sum()):
        cut = f"{count:,} of {len(truncated):,} texts {'is' if count == 1 else 'are'} cut after {max_tokens:,} tokens"
        remedy = "a model trained with a larger max_tokens (--max-tokens) reads more"
        _warn(f"{name}: {cut}; {remedy}")


def _report_outliers(corpus: Corpus, name: str) -> None:
    """Emit a `Notice` for each numeric variable with values far outside the range of its values in training.

    A value is far outside if its distance from the range is larger than the width of the range.
    """
    for variable, column in zip(corpus.schema.numbers, corpus.numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        is_far = np.abs(column - middle) > 1.5 * width
        if width and not variable.period and is_far.any():
            training_range = f"the range of training ({variable.low:.4g} to {variable.high:.4g})"
            _warn(
                f"{name}: {variable.name} is far outside {training_range} in {is_far.sum():,} of {len(column):,} rows"
            )


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
    total = table.row_count or (table.estimate_rows() if progress else None)
    with progress_bar(total=total, desc="reading", unit="rows", unit_scale=True, show=progress) as bar:
        for chunk in table.chunks([text_column, *columns.names]):
            chunk_texts = chunk[text_column]
            columns.add(chunk, len(chunk_texts), rows_read)
            for row, text in enumerate(chunk_texts, rows_read + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {row}: {text_column} is {text!r}, not a text")
            texts.add(chunk_texts)
            rows_read += len(chunk_texts)
            bar.update(len(chunk_texts))
