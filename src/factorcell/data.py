"""Tables to batches: texts as flat arrays of ids, their contexts as columns, batches of texts of like length.

`prepare` reads a source once, in chunks, and tokenises it once: tokens get provisional ids in order of appearance,
and when all are counted the flat array is mapped to the ids of the vocabulary. No text outlives its chunk.

Shapes: B texts, T targets of the longest.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from factorcell.columns import Categories, Numbers, column_readers
from factorcell.config import DataConfig, UserError
from factorcell.context import Context, ContextSchema
from factorcell.tables import Table, line_count, open_table
from factorcell.vocabulary import END, START, UNKNOWN, Vocabulary, splitter

CACHE_VERSION = 2  # of the arrays below; part of the key, so that older ones are not read
STRIDE = 1 << 24  # tokens mapped at once
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
    `offsets` (rows + 1): where each text begins; `categories` (rows, C); `numbers` (rows, N).
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    categories: NDArray[np.int32]
    numbers: NDArray[np.float32]
    vocabulary: Vocabulary
    schema: ContextSchema

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
        return Context(torch.from_numpy(self.categories[rows].astype(np.int64)), torch.from_numpy(self.numbers[rows]))

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
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Corpus(
            self.tokens[index], offsets, self.categories[rows], self.numbers[rows], self.vocabulary, self.schema
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
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "categories", "numbers")}
    offsets = np.load(folder / "offsets.npy")
    vocabulary = Vocabulary.load(folder / "vocabulary.txt")
    schema = ContextSchema.from_dict(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
    columns = {"categories": len(schema.categories), "numbers": len(schema.numbers)}
    fits = [arrays[name].shape == (len(offsets) - 1, count) for name, count in columns.items()]
    if len(arrays["tokens"]) != offsets[-1] or not all(fits):
        raise ValueError("arrays do not fit together")
    return Corpus(offsets=offsets, vocabulary=vocabulary, schema=schema, **arrays)


class _Ids(dict[str, int]):
    """Provisional ids of tokens, in order of appearance, after those of the special tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.beyond: Counter[int] = Counter()  # tokens after the cut: they count, but are not kept

    def __missing__(self, token: str) -> int:
        self[token] = index = len(self) + END + 1
        return index


def _build(
    table: Table,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    schema: ContextSchema | None,
    readers: list[Categories | Numbers],
    progress: bool,
    folder: Path | None,
) -> Corpus:
    """Read, tokenise, count, map. With a `folder` the arrays are written there, else they stay in memory."""
    ids, lengths = _Ids(), []
    with tempfile.TemporaryFile(dir=folder) as spool:
        for texts in _texts(table, config, readers, progress):
            flat, sizes = _tokenise(texts, config, ids)
            spool.write(flat.tobytes())
            lengths.append(sizes)
        sizes = np.concatenate(lengths)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if vocabulary is None:
            vocabulary = _count(spool, ids, config)
        tokens = _map(spool, ids, vocabulary, folder)
    made = ContextSchema(tuple(reader.variable(config.min_context_count) for reader in readers))
    schema = schema or made
    arrays = [reader.array(schema.variable(reader.name)) for reader in readers]
    categories = [array for reader, array in zip(readers, arrays, strict=True) if isinstance(reader, Categories)]
    numbers = [array for reader, array in zip(readers, arrays, strict=True) if isinstance(reader, Numbers)]
    corpus = Corpus(
        tokens,
        offsets,
        np.stack(categories, 1).astype(np.int32) if categories else np.zeros((len(sizes), 0), np.int32),
        np.stack(numbers, 1).astype(np.float32) if numbers else np.zeros((len(sizes), 0), np.float32),
        vocabulary,
        schema,
    )
    if folder:
        for name in ("offsets", "categories", "numbers"):
            np.save(folder / f"{name}.npy", getattr(corpus, name), allow_pickle=False)
        vocabulary.save(folder / "vocabulary.txt")
        (folder / "schema.json").write_text(json.dumps(schema.to_dict()), encoding="utf-8")
    return corpus


def _texts(
    table: Table, config: DataConfig, readers: list[Categories | Numbers], progress: bool
) -> Iterator[list[str]]:
    """The texts of every chunk, once the readers have taken their columns of it."""
    columns = [config.text, *(reader.name for reader in readers if reader.name in table.columns)]
    done = 0
    with tqdm(
        total=table.rows or line_count(table), desc="reading", unit=" rows", unit_scale=True, disable=not progress
    ) as bar:
        for chunk in table.chunks(columns):
            texts = chunk[config.text]
            for reader in readers:
                reader.add(chunk.get(reader.name) or [None] * len(texts), done)
            for number, text in enumerate(texts, done + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.name} row {number}: {config.text} is {text!r}, not a text")
            done += len(texts)
            bar.update(len(texts))
            yield texts


def _tokenise(texts: list[str], config: DataConfig, ids: _Ids) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Provisional ids of all `texts`, flat, with `START` and `END`, and the number of ids of each."""
    split, limit = splitter(config), config.max_tokens
    flat: list[int] = []
    sizes = np.empty(len(texts), dtype=np.int64)
    number = ids.__getitem__
    for index, text in enumerate(texts):
        tokens = split(text)
        flat.append(START)
        if len(tokens) < limit:
            flat.extend(map(number, tokens))
            flat.append(END)
        else:
            flat.extend(map(number, tokens[:limit]))
            ids.beyond.update(map(number, tokens[limit:]))
        sizes[index] = min(len(tokens) + 2, limit + 1)
    return np.array(flat, dtype=np.uint32), sizes


def _blocks(spool: Any) -> Iterator[NDArray[np.uint32]]:
    spool.seek(0)
    while block := spool.read(STRIDE * 4):
        yield np.frombuffer(block, dtype=np.uint32)


def _count(spool: Any, ids: _Ids, config: DataConfig) -> Vocabulary:
    counts = np.zeros(len(ids) + END + 1, dtype=np.int64)
    for block in _blocks(spool):
        counts += np.bincount(block, minlength=len(counts))
    for index, count in ids.beyond.items():
        counts[index] += count
    named = dict(zip(ids, counts[END + 1 :].tolist(), strict=True))
    return Vocabulary.build(named, config.min_count, config.max_vocabulary)


def _map(spool: Any, ids: _Ids, vocabulary: Vocabulary, folder: Path | None) -> NDArray[Any]:
    """Provisional ids to those of the vocabulary, block by block."""
    final = np.array([UNKNOWN, START, END, *vocabulary.encode(ids)], dtype=np.uint32)
    size = os.fstat(spool.fileno()).st_size // 4 if spool.flush() is None else 0
    kind = np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32
    tokens: NDArray[Any] = (
        np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=kind, shape=(size,))
        if folder
        else np.empty(size, dtype=kind)
    )
    done = 0
    for block in _blocks(spool):
        tokens[done : done + len(block)] = final[block]
        done += len(block)
    if isinstance(tokens, np.memmap):
        tokens.flush()
    return tokens
