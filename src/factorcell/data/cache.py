"""A table to a corpus, read once: the arrays of a table are kept in the user's cache and mapped from there.

`prepare` reads a source in chunks and tokenises it once. No text outlives its chunk.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig, UserError
from factorcell.data.columns import Ragged, Reader, column_readers, new_schema
from factorcell.data.content import Content
from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.data.tables import Table, line_count, open_table
from factorcell.data.tokens import Ids, count, map_ids, tokenise
from factorcell.data.vocabulary import Vocabulary
from factorcell.progress import progress_bar

CACHE_VERSION = 3  # of the arrays below; part of the key, so that older ones are not read


def prepare(
    source: Any,
    config: DataConfig,
    *,
    vocabulary: Vocabulary | None = None,
    schema: ContextSchema | None = None,
    unknown: str = "error",
    optional: tuple[str, ...] = (),
    cache: Path | None = None,
    progress: bool = False,
) -> Corpus:
    """Read `source` (a path, rows, or a table) as `config` says.

    Without `vocabulary` and `schema` they are made from this source (training); with them this source is read as that
    one was. `unknown` says what to do with a value the schema does not hold: an error, "group" (as a rare value) or
    "expected" (as a missing one); the `optional` variables are always read as "expected". Files are cached by content.
    `UserError` says what is wrong with the data, and where.
    """
    table = open_table(source)
    readers = column_readers(table, config, schema, unknown, optional)
    if table.content is None:
        return _build(table, config, vocabulary, schema, readers, progress, None)
    key = _key(table.content, config, vocabulary, schema, (unknown, *optional))
    folder = (cache or cache_folder()) / key
    if (corpus := _open(folder)) is not None:
        return corpus
    partial = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=folder.parent))
        _build(table, config, vocabulary, schema, readers, progress, partial)
        (partial / "complete").touch()
        return _install(partial, folder)
    except OSError as error:
        raise UserError(f"{folder.parent}: the cache cannot be written ({error.strerror})") from None
    finally:
        if partial:
            shutil.rmtree(partial, ignore_errors=True)


def _install(partial: Path, folder: Path) -> Corpus:
    """Move what was made to its place in the cache; where another process was first, its copy is as good."""
    try:
        partial.rename(folder)
    except OSError:
        if (corpus := _open(folder)) is not None:
            return corpus
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        partial.rename(folder)
    if (corpus := _open(folder)) is None:
        raise UserError(f"{folder}: the cache was damaged while it was written; try again")
    return corpus


def cache_folder() -> Path:
    """Where prepared files are kept: $FACTORCELL_CACHE, or factorcell in the user's cache folder."""
    if own := os.environ.get("FACTORCELL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorcell"


def _key(
    content: Content,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    policy: tuple[str, ...],
) -> str:
    try:
        digest = hashlib.blake2b(content.digest(), digest_size=16)
    except OSError as error:
        raise UserError(f"{content.path}: cannot be read ({error.strerror})") from None
    how = {
        "version": CACHE_VERSION,
        "name": content.path.suffixes,
        "config": asdict(config),
        "vocabulary": vocabulary and vocabulary.tokens,
        "schema": schema and schema.to_dict(),
        "policy": policy,
    }
    digest.update(json.dumps(how, sort_keys=True).encode())
    return digest.hexdigest()


def _open(folder: Path) -> Corpus | None:
    """The corpus in a cache folder, its arrays mapped, not read; None where there is none or it is damaged."""
    try:
        return _load(folder) if (folder / "complete").exists() else None
    except (OSError, EOFError, ValueError, KeyError, UserError):  # a file of no bytes is an EOFError
        return None


def _load(folder: Path) -> Corpus:
    def mapped(name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")
        return array

    def ragged(name: str) -> Ragged:
        return Ragged(mapped(name), np.load(folder / f"{name}.offsets.npy"))

    tokens, categories, numbers = mapped("tokens"), mapped("categories"), mapped("numbers")
    offsets = np.load(folder / "offsets.npy")
    vocabulary = Vocabulary.load(folder / "vocabulary.txt")
    schema = ContextSchema.from_dict(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
    vectors = tuple(mapped(f"vectors.{index}") for index in range(len(schema.vectors)))
    bags = tuple(ragged(f"bags.{index}") for index in range(len(schema.texts)))
    widths = [len(schema.categories), len(schema.numbers), *(len(v.means) for v in schema.vectors)]
    rows = len(offsets) - 1
    fits = [a.shape == (rows, width) for a, width in zip((categories, numbers, *vectors), widths, strict=True)]
    fits += [len(flat) == ends[-1] for flat, ends in ((tokens, offsets), *bags)]
    if not all(fits) or any(len(b.offsets) != rows + 1 for b in bags):
        raise ValueError("arrays do not fit together")
    return Corpus(tokens, offsets, categories, numbers, vocabulary, schema, vectors, bags)


def _build(
    table: Table,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    readers: list[Reader],
    progress: bool,
    folder: Path | None,
) -> Corpus:
    """Read, tokenise, count, map. With a `folder` the arrays are written there, else they stay in memory."""
    ids, lengths = Ids(), []
    with tempfile.TemporaryFile(dir=folder) as spool:
        for texts in _texts(table, config, readers, progress):
            flat, sizes = tokenise(texts, config, ids)
            spool.write(flat.tobytes())
            lengths.append(sizes)
        sizes = np.concatenate(lengths)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if vocabulary is None:
            vocabulary = count(spool, ids, config)
        tokens = map_ids(spool, ids, vocabulary, folder)
    schema = schema or new_schema(readers, config.min_context_count, {config.user: config.min_user_count})
    arrays: dict[str, Any] = {reader.name: reader.array(schema.variable(reader.name)) for reader in readers}
    categories = [arrays[variable.name] for variable in schema.categories]
    numbers = [arrays[variable.name] for variable in schema.numbers]
    corpus = Corpus(
        tokens,
        offsets,
        np.stack(categories, 1).astype(np.int32) if categories else np.zeros((len(sizes), 0), np.int32),
        np.stack(numbers, 1).astype(np.float32) if numbers else np.zeros((len(sizes), 0), np.float32),
        vocabulary,
        schema,
        tuple(arrays[variable.name] for variable in schema.vectors),
        tuple(arrays[variable.name] for variable in schema.texts),
    )
    if folder:
        _save(corpus, folder)
    return corpus


def _save(corpus: Corpus, folder: Path) -> None:
    """Write all but the tokens, which are there already."""
    arrays: dict[str, Any] = {name: getattr(corpus, name) for name in ("offsets", "categories", "numbers")}
    arrays |= {f"vectors.{index}": vectors for index, vectors in enumerate(corpus.vectors)}
    arrays |= {f"bags.{index}": bags.values for index, bags in enumerate(corpus.bags)}
    arrays |= {f"bags.{index}.offsets": bags.offsets for index, bags in enumerate(corpus.bags)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    corpus.vocabulary.save(folder / "vocabulary.txt")
    (folder / "schema.json").write_text(json.dumps(corpus.schema.to_dict()), encoding="utf-8")


def _texts(table: Table, config: DataConfig, readers: list[Reader], progress: bool) -> Iterator[list[str]]:
    """The texts of every chunk, once the readers have taken their columns of it."""
    columns = [config.text, *(reader.column for reader in readers if reader.column in table.columns)]
    done = 0
    with progress_bar(
        total=table.rows or line_count(table), desc="reading", unit="rows", unit_scale=True, show=progress
    ) as bar:
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
