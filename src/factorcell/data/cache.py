"""A table to a corpus, read once: the arrays of a table are kept in the user's cache and mapped from there.

`prepare` reads a source in chunks and tokenises it once. No text outlives its chunk.
"""

import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig, Notice, UserError
from factorcell.data import entry
from factorcell.data.chunks import Table
from factorcell.data.columns import Reader, column_readers, nearly_numbers, new_schema
from factorcell.data.content import Content, FolderContent
from factorcell.data.corpus import Corpus
from factorcell.data.counts import UNITS, TextDigests
from factorcell.data.originals import OriginalTexts
from factorcell.data.schema import ContextSchema
from factorcell.data.tables import open_table
from factorcell.data.text_files import line_count
from factorcell.data.tokens import Ids, count, map_ids, tokenise
from factorcell.data.values import CategoryColumn
from factorcell.data.vocabulary import END, Vocabulary
from factorcell.progress import progress_bar

CACHE_VERSION = 1  # of the arrays below; part of the key, so that entries of another version are not read
STALE = 24 * 60 * 60  # seconds after which nobody writes to an entry that is not complete


def prepare(
    source: Any,
    config: DataConfig,
    *,
    vocabulary: Vocabulary | None = None,
    schema: ContextSchema | None = None,
    unknown: str = "error",
    optional: tuple[str, ...] = (),
    cache: str | Path | None = None,
    progress: bool = False,
    truncate: bool = True,
    report: bool = True,
) -> Corpus:
    """Read `source` (a path, rows, or a table) as `config` says.

    Without `vocabulary` and `schema` they are made from this source (training); with them this source is read as that
    one was. `unknown` says what to do with a value the schema does not hold: an error, "group" (as a rare value) or
    "expected" (as a missing one); the `optional` variables are always read as "expected". Files are cached by content,
    or stay in memory, with a `Notice`, where the cache cannot be written. A `Notice` counts the empty texts of a file.
    Texts are cut after `config.max_tokens` tokens, unless `truncate` is false; a `Notice` says how many, if `report`
    is true. `UserError` says what is wrong with the data, and where.
    """
    table = open_table(source)

    if schema is None and config.text not in table.columns:
        raise table.lacks_text(config.text)

    def read(folder: Path | None) -> Corpus:
        readers = column_readers(table, config, schema, unknown, optional)
        texts = _texts(table, config, readers, progress)
        return _build(texts, config, vocabulary, schema, readers, folder, truncate)

    if table.content is None:
        corpus = read(None)
    else:
        key = _key(table.content, config, vocabulary, schema, (unknown, *optional), truncate)
        corpus = _cached(key, cache, read, table.name)
        _tell_empty(corpus, table.name)
    if report:
        report_truncated(corpus.truncated, table.name, config.max_tokens)
    if schema is not None:
        _tell_far(corpus, table.name)
        return corpus
    for line in nearly_numbers(table, config, corpus.schema):
        _notice(f"{table.name} {line}")
    return corpus


def _cached(key: str, cache: str | Path | None, read: Callable[[Path | None], Corpus], name: str) -> Corpus:
    """The corpus of that key in the cache, or as it is `read` there; in memory where the cache cannot be written."""
    try:
        folder = Path(cache or cache_folder()) / key
        if (corpus := entry.load(folder)) is not None:
            return corpus
        with _partial(folder) as partial:
            return _installed(read(partial), partial, folder)
    except OSError as error:
        why = f"{error.filename or 'the cache'}: {error.strerror or error}"
        _notice(f"the cache cannot be written ({why}); {name} is kept in memory")
    return read(None)


def _notice(text: str) -> None:
    """Warn of `text`, by default once, also if several functions read the same table: the warning is of this line."""
    warnings.warn(Notice(text), stacklevel=1)


def _tell_empty(corpus: Corpus, name: str) -> None:
    """A `Notice` of texts without any token, if there are some."""
    empty = int((corpus.tokens[corpus.offsets[:-1] + 1] == END).sum())
    if empty:
        of = f"{empty:,} of {len(corpus):,} texts {'is' if empty == 1 else 'are'} empty"
        _notice(f"{name}: {of}; the end of an empty text is its only target")


def report_truncated(truncated: NDArray[np.bool_], name: str, max_tokens: int) -> None:
    """Emit a `Notice` if texts were `truncated` (rows,), with their number and the option that sets the limit."""
    if count := int(truncated.sum()):
        of = f"{count:,} of {len(truncated):,} texts {'is' if count == 1 else 'are'} cut after {max_tokens:,} tokens"
        remedy = "a model trained with a larger max_tokens (--max-tokens) reads more"
        _notice(f"{name}: {of}; {remedy}")


def _tell_far(corpus: Corpus, name: str) -> None:
    """A `Notice` of each number that lies off the range of training by more than that range is wide."""
    for variable, column in zip(corpus.schema.numbers, corpus.numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        far = np.abs(column - middle) > 1.5 * width
        if width and not variable.period and far.any():
            known = f"of training, {variable.low:.4g} to {variable.high:.4g}"
            of = f"{far.sum():,} of {len(column):,}"
            _notice(f"{name}: {variable.name} is far outside {known}, in {of}")


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` in which an entry is made, as open to others as any; nothing of it stays.

    Nor of those that a process left behind when it was killed, after a day.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob("*.partial"):
        with suppress(FileNotFoundError):  # another process has put its own in place since
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _installed(corpus: Corpus, partial: Path, folder: Path) -> Corpus:
    """The corpus from its place in the cache; where another process was first, its copy is as good."""
    entry.save(corpus, partial)
    try:
        partial.rename(folder)
    except OSError:
        if (first := entry.load(folder)) is not None:
            return first
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        partial.rename(folder)
    if (opened := entry.load(folder)) is None:
        raise OSError(errno.EIO, "what was written does not come back", str(folder))
    return opened


def cache_folder() -> Path:
    """Where prepared files are kept: $FACTORCELL_CACHE, or factorcell in the user's cache folder.

    `OSError` where the user has no home.
    """
    if own := os.environ.get("FACTORCELL_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorcell"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder; set FACTORCELL_CACHE") from None


def _key(
    content: Content | FolderContent,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    policy: tuple[str, ...],
    truncate: bool,
) -> str:
    digest = hashlib.blake2b(content.digest(), digest_size=16)
    how = {
        "version": CACHE_VERSION,
        "name": content.path.suffixes,
        "config": asdict(config) | ({} if truncate else {"max_tokens": None}),
        "vocabulary": vocabulary and vocabulary.tokens,
        "schema": schema and schema.to_dict(),
        "policy": policy,
    }
    digest.update(json.dumps(how, sort_keys=True).encode())
    return digest.hexdigest()


def _build(
    chunks: Iterator[list[str]],
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    readers: list[Reader],
    folder: Path | None,
    truncate: bool,
) -> Corpus:
    """Tokenise, count and map the texts of all `chunks`, which fill the `readers` as they are read.

    With a `folder` the arrays are written there, else they stay in memory.
    """
    ids, digests, lengths, originals = Ids(), TextDigests(config), [], list[OriginalTexts]()
    writers = [r for r in readers if isinstance(r, CategoryColumn) and r.column == config.user]
    counted = bool(writers) and config.unit in UNITS
    with tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO() as spool:
        for texts in chunks:
            flat, sizes = tokenise(texts, config, ids, truncate)
            spool.write(flat.tobytes())
            lengths.append(sizes)
            originals.append(OriginalTexts.of(texts, config))
            if counted:
                digests.add(texts, flat, sizes)
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
        if vocabulary is None:
            vocabulary = count(spool, ids, config)
        tokens = map_ids(spool, ids, vocabulary, folder)
        users = writers[0].provisional() if writers else np.zeros(0, np.int32)
        frequent = digests.frequent(spool, ids, offsets, users) if counted else None
    schema = schema or new_schema(readers, config.min_context_count, {config.user: config.min_user_count})
    arrays: dict[str, Any] = {reader.name: reader.array(schema.variable(reader.name)) for reader in readers}
    if config.anonymous:
        schema = schema.without_names([reader.name for reader in writers])
    categories = [arrays[variable.name] for variable in schema.categories]
    numbers = [arrays[variable.name] for variable in schema.numbers]
    return Corpus(
        tokens,
        offsets,
        np.stack(categories, 1).astype(np.int32) if categories else np.zeros((len(offsets) - 1, 0), np.int32),
        np.stack(numbers, 1).astype(np.float32) if numbers else np.zeros((len(offsets) - 1, 0), np.float32),
        vocabulary,
        schema,
        tuple(arrays[variable.name] for variable in schema.vectors),
        tuple(arrays[variable.name] for variable in schema.texts),
        frequent,
        users,
        OriginalTexts.concatenated(originals),
    )


def _texts(table: Table, config: DataConfig, readers: list[Reader], progress: bool) -> Iterator[list[str]]:
    """The texts of every chunk, once the readers have taken their columns of it."""
    columns = [config.text, *(reader.column for reader in readers if reader.column in table.columns)]
    done = 0
    total = table.rows or (line_count(table) if progress else None)
    with progress_bar(total=total, desc="reading", unit="rows", unit_scale=True, show=progress) as bar:
        for chunk in table.chunks(columns):
            texts = chunk[config.text]
            for reader in readers:
                reader.add(chunk.get(reader.column) or [None] * len(texts), done)
            for number, text in enumerate(texts, done + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {number}: {config.text} is {text!r}, not a text")
            done += len(texts)
            bar.update(len(texts))
            yield texts
