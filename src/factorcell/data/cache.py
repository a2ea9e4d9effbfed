"""A table to a corpus: `prepare` reads a source in chunks and tokenises it once. No text outlives its chunk.

The arrays of a table of training are kept in the user's cache and mapped from there.
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

CACHE_VERSION = 1  # of the arrays below; part of the key, so that entries of another version are not read


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
    """Read `source` (a path, rows, or a table) as `config` says.

    Without `tokenizer` and `schema` they are made from this source (training): the tokenizer that `config` names gets a
    vocabulary. With them this source is read as that one was. `unknown` says what to do with a value the schema does
    not hold: an error, "group" (as a rare value) or "expected" (as a missing one); the `optional` variables are always
    read as "expected". A file without `schema` is cached by content, or stays in memory, with a `Notice`, where the
    cache cannot be written. A `Notice` counts the empty texts of a file. Texts are cut after `max_tokens` tokens,
    unless `truncate` is false; a `Notice` says how many, if `report` is true. `UserError` says what is wrong with the
    data, and where.
    """
    table, data = open_table(source), config.data
    reading = new_tokenizer(config) if tokenizer is None else tokenizer
    config = replace(config, tokenizer=reading.options)
    if schema is None and data.text not in table.columns:
        raise table.missing_column_error(data.text, (("text", "COLUMN"),), "says which one has the texts")

    def read(folder: Path | None) -> Corpus:
        columns = ContextColumns(table, data, schema, unknown, optional)
        with tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO() as spool:
            texts = TokenizedTexts(spool, reading, data.max_tokens if truncate else None)
            _read(table, data.text, texts, columns, progress)
            arrays = texts.arrays(train=tokenizer is None, folder=folder)
        return Corpus(**arrays, **columns.arrays(len(texts.sizes)))

    if table.digest is None or schema is not None or not truncate:
        corpus = read(None)
    else:
        how = {"version": CACHE_VERSION, "name": Path(table.name).suffixes, "data": asdict(data)}
        how |= {"tokenizer": asdict(config.tokenizer), "tokens": tokenizer and list(tokenizer.tokens)}
        digest = hashlib.blake2b(table.digest(), digest_size=16)
        digest.update(json.dumps(how, sort_keys=True).encode())
        try:
            corpus = cache_entry.load_or_create(Path(cache or cache_folder()) / digest.hexdigest(), read, config)
        except OSError as error:
            why = f"{error.filename or 'the cache'}: {error.strerror or error}"
            _notice(f"the cache cannot be written ({why}); {table.name} is kept in memory")
            corpus = read(None)
    if table.digest is not None and (
        empty := int((corpus.tokens[corpus.offsets[:-1] + 1] == corpus.tokenizer.specials.end).sum())
    ):
        of = f"{empty:,} of {len(corpus):,} texts {'is' if empty == 1 else 'are'} empty"
        _notice(f"{table.name}: {of}; the end of an empty text is its only target")
    if report_truncation:
        report_truncated(corpus.truncated, table.name, data.max_tokens)
    if schema is not None:
        _report_far(corpus, table.name)
    return corpus


def _notice(text: str) -> None:
    """Warn of `text`, by default once, also if several functions read the same table: the warning is of this line."""
    warnings.warn(Notice(text), stacklevel=1)


def report_truncated(truncated: NDArray[np.bool_], name: str, max_tokens: int) -> None:
    """Emit a `Notice` if texts were `truncated` (rows,), with their number and the option that sets the limit."""
    if count := int(truncated.sum()):
        of = f"{count:,} of {len(truncated):,} texts {'is' if count == 1 else 'are'} cut after {max_tokens:,} tokens"
        remedy = "a model trained with a larger max_tokens (--max-tokens) reads more"
        _notice(f"{name}: {of}; {remedy}")


def _report_far(corpus: Corpus, name: str) -> None:
    """A `Notice` of each number that lies off the range of training by more than that range is wide."""
    for variable, column in zip(corpus.schema.numbers, corpus.numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        far = np.abs(column - middle) > 1.5 * width
        if width and not variable.period and far.any():
            known = f"of training, {variable.low:.4g} to {variable.high:.4g}"
            of = f"{far.sum():,} of {len(column):,}"
            _notice(f"{name}: {variable.name} is far outside {known}, in {of}")


def cache_folder() -> Path:
    """Return the folder of prepared files: $FACTORCELL_CACHE, or factorcell in the user's cache folder.

    Raises:
        OSError: The user has no home folder.
    """
    if own := os.environ.get("FACTORCELL_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorcell"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder; set FACTORCELL_CACHE") from None


def _read(table: Table, name: str, texts: TokenizedTexts, columns: ContextColumns, progress: bool) -> None:
    """Read all chunks of a table, whose texts are in the column `name`, into `texts` and `columns`."""
    done = 0
    total = table.row_count or (table.estimate_rows() if progress else None)
    with progress_bar(total=total, desc="reading", unit="rows", unit_scale=True, show=progress) as bar:
        for chunk in table.chunks([name, *columns.names]):
            rows = chunk[name]
            columns.add(chunk, len(rows), done)
            for number, text in enumerate(rows, done + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {number}: {name} is {text!r}, not a text")
            texts.add(rows)
            done += len(rows)
            bar.update(len(rows))
