"""Convert a table to a corpus: read it in chunks, tokenize its texts, and cache the arrays of training tables.

The memory holds the texts of one chunk (`chunks.CHUNK_ROWS` rows) at a time; the arrays in the cache are memory-mapped.
"""

import errno
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data import cache_entry
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.schema import EXPECTED_READING, MISSING, ContextSchema
from factorcell.data.corpus import Corpus, is_empty_text
from factorcell.data.tables.chunks import Table
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer, new_tokenizer
from factorcell.data.tokenizers.tokens import TokenizedTexts
from factorcell.errors import UserError
from factorcell.io.findings import Finding, report
from factorcell.io.progress import is_shown, progress_bar

CONTEXTS = "contexts"  # the name of a table of values that no file has; its rows are not counted in findings
MAX_OUTSIDE_SHARE = 0.01  # a finding reports a larger share of numbers outside the range of training
CACHE_VERSION = 6  # part of the name of an entry, so that entries of other versions are not read


def prepare(
    source: Any,
    config: Config,
    *,
    tokenizer: Tokenizer | None = None,
    schema: ContextSchema | None = None,
    unknown: str = "group",
    optional: tuple[str, ...] = (),
    cache: str | Path | None = None,
    truncate: bool = True,
) -> Corpus:
    """Read a table and return its texts and contexts as a corpus.

    The corpus of a file is cached under a digest of the file and the options, unless `schema` is set or `truncate` is
    false. If the cache cannot be written, the corpus stays in memory. Doubtful properties of the
    table are reported (`table_findings`).

    Args:
        source: A path or any other source that `open_table` accepts.
        config: The options for reading texts and columns.
        tokenizer: The tokenizer of a trained model. By default, the texts of `source` determine its vocabulary.
        schema: The context variables of a trained model. By default, `config` and `source` determine the variables.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        optional: The names of the variables for which the policy is "expected" instead of `unknown`; their columns may
            be missing.
        cache: The folder of the cache; by default `cache_folder()`.
        truncate: Whether to cut texts after `max_tokens` tokens.

    Returns:
        The corpus, with one text per row of the table.

    Raises:
        UserError: The table cannot be read, lacks a column, or has an invalid value; the message names the row.
    """
    text_tokenizer = new_tokenizer(config) if tokenizer is None else tokenizer  # may fail, so before the table is read
    table, data_config = open_table(source), config.data
    config = replace(config, tokenizer=text_tokenizer.options)
    if schema is None and data_config.text not in table.columns:
        raise table.missing_column_error(data_config.text, (("text", "COLUMN"),), "to name the column of the texts")
    is_unseen: dict[str, NDArray[np.bool_]] = {}  # for each category, whether training never saw the value of each text

    def read_corpus(folder: Path | None) -> Corpus:
        """Return the corpus, with its tokens in a file in `folder` or, without a folder, in memory."""
        columns = ContextColumns(table, data_config, schema, unknown, optional, text_tokenizer)
        with tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO() as id_file:
            texts = TokenizedTexts(id_file, text_tokenizer, data_config.max_tokens if truncate else None)
            _read_chunks(table, data_config.text, texts, columns)
            text_fields = texts.corpus_fields(train=tokenizer is None, folder=folder)
        is_unseen.update(columns.unseen_rows())
        return Corpus(**text_fields, **columns.corpus_fields(text_fields))

    if table.digest is None or schema is not None or not truncate:
        corpus = read_corpus(folder=None)
    else:
        is_trained = tokenizer is not None or isinstance(text_tokenizer, PretrainedTokenizer)
        entry_name = _entry_name(table, config, text_tokenizer if is_trained else None)
        corpus = _load_or_read(cache, entry_name, read_corpus, config, table.name)
    report(*table_findings(corpus, table.name, is_unseen, unknown, optional, data_config.max_tokens))
    if schema is not None:
        report(*number_findings(schema, corpus.numbers, table.name))
    return corpus


def _load_or_read(
    cache: str | Path | None, entry_name: str, read: Callable[[Path | None], Corpus], config: Config, table_name: str
) -> Corpus:
    """Return the corpus of a cache entry, which `read` creates; if that fails, read the corpus into memory."""
    try:
        return cache_entry.load_or_create(Path(cache or cache_folder()) / entry_name, read, config)
    except OSError as error:
        reason = f"{error.filename or 'the cache'}: {error.strerror or error}"
        report(Finding("no cache", f"the cache cannot be written ({reason}); {table_name} is kept in memory"))
        return read(None)


def _entry_name(table: Table, config: Config, tokenizer: Tokenizer | None) -> str:
    """Return the name of a cache entry: a digest of the table, the options and the tokenizer of a trained model."""
    key: dict[str, Any] = {"version": CACHE_VERSION, "name": Path(table.name).suffixes, "data": asdict(config.data)}
    key["tokenizer"] = asdict(config.tokenizer)
    assert table.digest is not None  # only files are cached
    digest = hashlib.blake2b(table.digest(), digest_size=16)
    digest.update(json.dumps(key, sort_keys=True).encode())
    for content in () if tokenizer is None else tokenizer.contents().values():
        digest.update(hashlib.blake2b(content).digest())
    return digest.hexdigest()


def table_findings(
    corpus: Corpus,
    table_name: str,
    is_unseen: Mapping[str, NDArray[np.bool_]],
    unknown: str,
    optional: tuple[str, ...],
    max_tokens: int,
) -> Iterator[Finding]:
    """Yield a finding about unseen values, cut texts, empty context columns and empty texts of a table.

    A column of texts is not an empty context column, because an empty text is a text without words.
    `is_unseen` says for each category whether training never saw the value of each text (rows,).
    """

    def format_counts(is_affected: Mapping[str, NDArray[np.bool_]]) -> str:
        return _format_counts(is_affected, len(corpus), table_name)

    if unknown != "error" and (counts := format_counts(is_unseen)):
        reading = "the unknown value" if unknown == "group" else "the expected value of the column"
        text = f"values that training did not see in {counts}, read as {reading} (--unknown {unknown})"
        yield Finding("unseen values", f"{table_name}: {text}")
    if counts := format_counts({"": corpus.truncated}):
        remedy = "a model trained with a larger --max-tokens reads more"
        yield Finding("cut texts", f"{table_name}: {counts} cut after {max_tokens:,} tokens; {remedy}")
    if table_name == CONTEXTS:
        return
    schema = corpus.schema
    masks = [(variable, corpus.categories[:, index] == MISSING) for index, variable in enumerate(schema.categories)]
    masks += [(variable, np.isnan(corpus.numbers[:, index])) for index, variable in enumerate(schema.numbers)]
    masks += [(variable, np.isnan(corpus.vectors[index][:, 0])) for index, variable in enumerate(schema.vectors)]
    is_missing = {variable.source_column: mask for variable, mask in masks if variable.name not in optional}
    if unknown != "expected" and (counts := format_counts(is_missing)):
        text = f"an empty context column in {counts}, {EXPECTED_READING}"
        yield Finding("missing values", f"{table_name}: {text}")
    if counts := format_counts({"": is_empty_text(corpus)}):
        yield Finding("empty texts", f"{table_name}: {counts} empty; the end of an empty text is its only target")


def _format_counts(is_affected: Mapping[str, NDArray[np.bool_]], row_count: int, table_name: str) -> str:
    """Return "12 of 1,000 texts (city 10, user 3)": the number of affected texts, of all, and of affected by name.

    The result is empty if no text is affected. Texts of `CONTEXTS` may be read several times, so they are not counted.
    `is_affected` maps each name to an array (rows,).
    """
    counts = {name: int(mask.sum()) for name, mask in is_affected.items() if mask.any()}
    if not counts:
        return ""
    if table_name == CONTEXTS:
        return ", ".join(filter(None, counts)) or "texts"
    total = int(np.logical_or.reduce(list(is_affected.values())).sum())
    by_name = ", ".join(f"{name} {count:,}" for name, count in counts.items() if name)
    return f"{total:,} of {row_count:,} texts" + (f" ({by_name})" if by_name else "")


def number_findings(schema: ContextSchema, numbers: NDArray[np.float32], table_name: str) -> Iterator[Finding]:
    """Yield a finding for each numeric variable with values outside the range of its values in training.

    Values near the range are not reported if they are few, because random samples of the same numbers have such values.
    A value is far outside if its distance from the range is larger than the width of the range.

    Args:
        schema: The context variables of training.
        numbers: The values of its numeric variables (rows, variables).
        table_name: The name of the table.
    """
    for variable, column in zip(schema.numbers, numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        distances = np.abs(column - middle) - width / 2
        is_outside, is_far = distances > 1e-6 * max(abs(variable.low), abs(variable.high)), distances > width
        if width and not variable.period and (is_far.any() or is_outside.mean() > MAX_OUTSIDE_SHARE):
            training_range = f"the range of training ({variable.low:.6g} to {variable.high:.6g})"
            rows = "" if table_name == CONTEXTS else f" in {is_outside.sum():,} of {len(column):,} rows"
            text = f"{table_name}: {variable.name} is outside {training_range}{rows}; predictions are extrapolated"
            yield Finding("outside range", text)


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


def _read_chunks(table: Table, text_column: str, texts: TokenizedTexts, columns: ContextColumns) -> None:
    """Read all chunks of a table into `texts` and `columns`."""
    row_count = table.row_count or (table.estimate_rows() if is_shown() else None)
    is_table = table.name != CONTEXTS
    with progress_bar(total=row_count, desc="reading", unit="rows", unit_scale=True, show=is_table) as bar:
        for chunk in table.chunks([text_column, *columns.names]):
            chunk_texts = chunk[text_column]
            for row, text in enumerate(chunk_texts, columns.row_count + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {row}: {text_column} is {text!r}, not a text")
            columns.add(chunk, len(chunk_texts))
            texts.add(chunk_texts)
            bar.update(len(chunk_texts))
