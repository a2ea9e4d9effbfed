"""Tables to batches: texts as flat arrays of ids, their contexts as columns, batches of texts of like length.

`prepare` reads a source once, in chunks, and tokenises it once. No text outlives its chunk.

Shapes: B texts, T targets of the longest.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from factorcell.config import DataConfig, UserError
from factorcell.data.columns import Ragged, Reader, column_readers, new_schema
from factorcell.data.context import Bags, Context
from factorcell.data.schema import MISSING, ContextSchema
from factorcell.data.tables import Table, line_count, open_table
from factorcell.data.tokens import Ids, count, map_ids, tokenise
from factorcell.data.vocabulary import END, Vocabulary

CACHE_VERSION = 3  # of the arrays below; part of the key, so that older ones are not read
POOL = 50  # batches' worth of shuffled rows that are sorted by length together


@dataclass(frozen=True)
class Batch:
    """`tokens` (B, T + 1) from `START` to `END`, padded with `END`; `lengths` (B,) counts targets; `rows` (B,)."""

    tokens: Tensor
    lengths: Tensor
    context: Context
    rows: Tensor

    def mask(self) -> Tensor:
        """(B, T), true at real targets."""
        return torch.arange(self.tokens.shape[1] - 1, device=self.tokens.device) < self.lengths[:, None]

    def select(self, rows: Tensor) -> "Batch":
        """The texts of `rows` (B',) as a batch no longer than they are."""
        lengths = self.lengths[rows]
        return Batch(self.tokens[rows, : int(lengths.max()) + 1], lengths, self.context.select(rows), self.rows[rows])

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        return Batch(self.tokens.to(device), self.lengths.to(device), self.context.to(device), self.rows.to(device))


@dataclass(frozen=True)
class Corpus:
    """Texts and contexts of one table.

    `tokens`: all ids, text after text, each from `START` to `END` (a text that was cut has no `END`);
    `offsets` (rows + 1): where each text begins; `categories` (rows, C); `numbers` (rows, N); `vectors` (rows, D) of
    each vector variable; `bags` of each text variable.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    categories: NDArray[np.int32]
    numbers: NDArray[np.float32]
    vocabulary: Vocabulary
    schema: ContextSchema
    vectors: tuple[NDArray[np.float32], ...] = ()
    bags: tuple[Ragged, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def targets(self) -> int:
        """The number of predicted tokens: all but the start tokens."""
        return len(self.tokens) - len(self)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Targets of each text (rows,)."""
        return np.diff(self.offsets) - 1

    def context(self, rows: NDArray[np.int64]) -> Context:
        """The contexts of `rows`."""
        bags = [bags.select(rows) for bags in self.bags]
        return Context(
            torch.from_numpy(self.categories[rows].astype(np.int64)),
            torch.from_numpy(self.numbers[rows]),
            tuple(torch.from_numpy(vectors[rows]) for vectors in self.vectors),
            tuple(Bags(torch.from_numpy(b.values.astype(np.int64)), torch.from_numpy(b.offsets)) for b in bags),
        )

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The texts of `rows` as one padded batch."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        steps = np.arange(lengths.max())
        index = np.minimum(starts[:, None] + steps, (starts + lengths - 1)[:, None])
        tokens = np.where(steps < lengths[:, None], self.tokens[index], END).astype(np.int64)
        return Batch(
            torch.from_numpy(tokens), torch.from_numpy(lengths - 1), self.context(rows), torch.from_numpy(rows)
        )

    def batches(self, batch_tokens: int, seed: int | None = None, epoch: int = 0) -> list[NDArray[np.int64]]:
        """Rows of every batch: rows x longest text within `batch_tokens`, unless one text alone is longer.

        Without a seed sorted by length; with one, rows are shuffled, sorted within pools, and batches shuffled.
        """
        lengths = self.lengths
        if seed is None:
            return list(_cut(np.argsort(lengths, kind="stable"), lengths, batch_tokens))
        random = np.random.default_rng((seed, epoch))
        rows = random.permutation(len(self))
        size = max(1, int(POOL * batch_tokens / max(1.0, float(lengths.mean()))))
        batches: list[NDArray[np.int64]] = []
        for begin in range(0, len(rows), size):
            pool = rows[begin : begin + size]
            batches += _cut(pool[np.argsort(lengths[pool], kind="stable")], lengths, batch_tokens)
        return [batches[index] for index in random.permutation(len(batches))]

    def select(self, rows: NDArray[np.int64]) -> "Corpus":
        """A corpus of `rows` alone, in that order."""
        tokens, offsets = Ragged(self.tokens, self.offsets).select(rows)
        return replace(
            self,
            tokens=tokens,
            offsets=offsets,
            categories=self.categories[rows],
            numbers=self.numbers[rows],
            vectors=tuple(vectors[rows] for vectors in self.vectors),
            bags=tuple(bags.select(rows) for bags in self.bags),
        )

    def without_context(self, schema: ContextSchema) -> "Corpus":
        """The same texts for a model with the variables of `schema`, all of them missing."""
        rows = len(self)
        return replace(
            self,
            schema=schema,
            categories=np.full((rows, len(schema.categories)), MISSING, dtype=np.int32),
            numbers=np.full((rows, len(schema.numbers)), np.nan, dtype=np.float32),
            vectors=tuple(np.full((rows, len(v.means)), np.nan, dtype=np.float32) for v in schema.vectors),
            bags=tuple(Ragged(np.zeros(0, np.int32), np.zeros(rows + 1, np.int64)) for _ in schema.texts),
        )

    def split(self, share: float, seed: int) -> tuple["Corpus", "Corpus"]:
        """Two corpora: about `share` of the rows held out, drawn by the seed, come second."""
        held = np.random.default_rng((seed, 0xDE7)).permutation(len(self))
        count = min(max(1, round(share * len(self))), len(self) - 1)
        if len(self) < 2:
            raise UserError("one row cannot be split into training and development data")
        return self.select(np.sort(held[count:])), self.select(np.sort(held[:count]))


def _cut(rows: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Cut `rows`, sorted by length, into batches of at most `batch_tokens`, padding counted."""
    ordered, begin = np.maximum(lengths[rows], 1), 0
    while begin < len(rows):
        low, high = begin + 1, len(rows)  # the last end whose padded size fits; sizes grow with it
        while low < high:
            middle = (low + high + 1) // 2
            fits = (middle - begin) * ordered[middle - 1] <= batch_tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        yield rows[begin:low]
        begin = low


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
    if table.path is None:
        return _build(table, config, vocabulary, schema, readers, progress, None)
    key = _key(table.path, config, vocabulary, schema, (unknown, *optional))
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
    path: Path,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    policy: tuple[str, ...],
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    how = {
        "version": CACHE_VERSION,
        "name": path.suffixes,
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
    with tqdm(
        total=table.rows or line_count(table), desc="reading", unit=" rows", unit_scale=True, disable=not progress
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


def target_offsets(corpus: Corpus) -> NDArray[np.int64]:
    """Where the targets of each text begin among all targets (rows + 1): a text has one target less than tokens."""
    offsets: NDArray[np.int64] = np.asarray(corpus.offsets) - np.arange(len(corpus.offsets))
    return offsets


def targets(corpus: Corpus) -> NDArray[np.int64]:
    """The ids of all targets of `corpus`, text after text: every token but the start tokens."""
    keep = np.ones(len(corpus.tokens), dtype=bool)
    keep[np.asarray(corpus.offsets[:-1])] = False
    return np.asarray(corpus.tokens)[keep].astype(np.int64)
