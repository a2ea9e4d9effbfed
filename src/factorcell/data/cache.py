"""Convert a table to a corpus: read it in chunks, tokenize its texts, and cache the arrays of training tables.

`TokenizedTexts` numbers the tokens in order of appearance. After the last text, it counts them to build a vocabulary,
and replaces each provisional id by the id of the token in the vocabulary, or by several ids if a tokenizer of pieces
cuts the token. An entry of the cache is a folder with the arrays of one table, which are memory-mapped when they are
read. It is complete, because it is written under another name and then renamed.
"""

import hashlib
import json
import os
import secrets
import shutil
import sys
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.declarations import with_kinds
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import SPELLING_END, Corpus, original_texts
from factorcell.data.table_findings import CONTEXTS, number_findings, table_findings
from factorcell.data.tables.chunks import EmptyTableError, Table
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.bpe import PretrainedTokenizer
from factorcell.data.tokenizers.kinds import load_tokenizer, new_tokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io.findings import Finding, report
from factorcell.io.progress import progress_bar

START, END = 1, 2  # provisional ids; 0 is the unknown token
CACHE_VERSION = 8  # part of the name of an entry, so that entries of other versions are not read


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
        # For each chunk, the provisional ids of its texts, and the number of ids of each text
        self.chunks = deque[tuple[NDArray[np.uint32], NDArray[np.int64]]]()
        self.originals = list[NDArray[np.uint64]]()

    def add(self, texts: Sequence[str]) -> None:
        """Add the texts of one chunk."""
        ids, sizes = array("I"), list[int]()  # an array takes half the memory of a list
        id_of = self.id_by_token.__getitem__
        for tokens in self.tokenizer.split_all(texts):
            begin = len(ids)
            ids.append(START)
            if self.max_tokens is None or len(tokens) < self.max_tokens:
                ids.extend(map(id_of, tokens))
                ids.append(END)
            else:
                ids.extend(map(id_of, tokens[: self.max_tokens]))
                self.cut_counts.update(map(id_of, tokens[self.max_tokens :]))
            sizes.append(len(ids) - begin)
        self.chunks.append((np.array(ids, dtype=np.uint32), np.array(sizes, dtype=np.int64)))
        if self.tokenizer.is_lossless:
            self.originals.append(original_texts([self.tokenizer.normalize(text) for text in texts]))

    def corpus_fields(self, *, train: bool) -> dict[str, Any]:
        """Return the fields of a `Corpus` that come from texts; `train` creates the vocabulary from these texts."""
        tokenizer, ids_of_tokens = self.tokenizer, list[Sequence[int]]()
        if train:  # the tokens are words, of which a tokenizer of pieces makes several ids
            tokenizer = tokenizer.train(self._count_tokens())
            ids_of_tokens += tokenizer.encode_words(self.id_by_token)
        else:
            ids_of_tokens += [(token_id,) for token_id in tokenizer.encode(self.id_by_token)]
        final_ids = Ragged.of([*((special,) for special in tokenizer.specials), *ids_of_tokens], np.uint32)
        # The out-of-vocabulary tokens are also stored as bytes.
        is_unknown = final_ids.values[final_ids.offsets[:-1]] == tokenizer.specials.unknown
        spellings = [b""] * (END + 1)
        spellings += [token.encode("utf-8", "surrogatepass") + SPELLING_END for token in self.id_by_token]
        byte_counts, spelled_bytes = np.array([*map(len, spellings)]) * is_unknown, list[bytes]()
        dtype: Any = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        tokens, sizes, spelled_sizes = list[NDArray[Any]](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
        while self.chunks:  # each chunk is removed to free its memory
            ids, chunk_sizes = self.chunks.popleft()
            chunk_tokens, final_sizes = self._replace(ids, chunk_sizes, final_ids)
            tokens.append(chunk_tokens.astype(dtype))
            sizes.append(final_sizes)
            spelled_bytes += [spellings[token_id] for token_id in ids[is_unknown[ids]].tolist()]
            spelled_sizes.append(np.add.reduceat(byte_counts[ids], np.cumsum(chunk_sizes) - chunk_sizes))
        spelled_offsets = np.append(0, np.cumsum(np.concatenate(spelled_sizes)))
        return {
            "tokens": np.concatenate(tokens),
            "offsets": np.append(0, np.cumsum(np.concatenate(sizes))),
            "tokenizer": tokenizer,
            "originals": np.concatenate(self.originals) if self.originals else None,
            "spellings": Ragged(np.frombuffer(b"".join(spelled_bytes), np.uint8), spelled_offsets),
        }

    def _replace(
        self, ids: NDArray[np.uint32], sizes: NDArray[np.int64], final_ids: Ragged
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the final ids of the texts of a chunk, and the number of final ids of each text.

        `sizes` are the numbers of provisional ids, and `final_ids` the final ids of each provisional id.
        """
        if (np.diff(final_ids.offsets) == 1).all():
            return final_ids.values[ids], sizes
        pieces = final_ids.select(ids)
        whole_sizes = np.diff(pieces.offsets[np.append(0, np.cumsum(sizes))])
        max_size = sys.maxsize if self.max_tokens is None else 1 + self.max_tokens  # with the start token
        positions = np.arange(len(pieces.values)) - np.repeat(np.cumsum(whole_sizes) - whole_sizes, whole_sizes)
        return pieces.values[positions < max_size], np.minimum(whole_sizes, max_size)

    def _count_tokens(self) -> dict[str, int]:
        """Return how often each token occurs in all texts, including the parts after cuts."""
        counts = np.zeros(len(self.id_by_token) + END + 1, dtype=np.int64)
        for ids, _ in self.chunks:
            counts += np.bincount(ids, minlength=len(counts))
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
    cache: str | Path | None = None,
    truncate: bool = True,
) -> Corpus:
    """Read a table and return its texts and contexts as a corpus.

    The corpus of a file is cached under a digest of the file and the options, unless `schema` is set or `truncate` is
    false. Doubtful properties of the table are reported (`table_findings`).

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
    if table.row_count == 0:
        raise EmptyTableError(f"{table.name}: no rows")
    if schema is None and data_config.text not in table.columns:
        raise table.missing_column_error(data_config.text, (("text", "COLUMN"),), "to name the column of the texts")
    if schema is None:
        data_config = with_kinds(table, data_config)  # reports doubts also if the corpus is in the cache

    def read_corpus() -> Corpus:
        columns = ContextColumns(table, data_config, schema, unknown, optional, text_tokenizer)
        texts = TokenizedTexts(text_tokenizer, data_config.max_tokens if truncate else None)
        _read_chunks(table, data_config.text, texts, columns)
        text_fields = texts.corpus_fields(train=tokenizer is None)
        return Corpus(**text_fields, **columns.corpus_fields(text_fields))

    if table.digest is None or schema is not None or not truncate:
        corpus = read_corpus()
    else:
        is_trained = tokenizer is not None or isinstance(text_tokenizer, PretrainedTokenizer)
        entry_name = _entry_name(table, config, text_tokenizer if is_trained else None)
        corpus = _cached_corpus(cache, entry_name, config, read_corpus)
    report(*table_findings(corpus, table.name, data_config, None if schema is None else unknown, optional))
    if schema is not None:
        report(*number_findings(schema, corpus.numbers, table.name))
    return corpus


def _read_chunks(table: Table, text_column: str, texts: TokenizedTexts, columns: ContextColumns) -> None:
    """Read all chunks of a table into `texts` and `columns`."""
    total, unit = (table.row_count, "rows") if table.file is None else (table.file.size, "bytes")
    is_table = table.name != CONTEXTS
    with progress_bar(total=total, desc="reading", unit=unit, unit_scale=True, show=is_table) as bar:
        for chunk in table.chunks([text_column, *columns.names]):
            chunk_texts = chunk[text_column]
            for row, text in enumerate(chunk_texts, columns.row_count + 1):
                if not isinstance(text, str):
                    raise UserError(f"{table.place(row)}: {text_column} is {text!r}, not a text")
            columns.add(chunk, len(chunk_texts))
            texts.add(chunk_texts)
            bar.update(len(chunk_texts) if table.file is None else table.file.bytes_read - bar.n)


def _cached_corpus(cache: str | Path | None, entry_name: str, config: Config, read: Callable[[], Corpus]) -> Corpus:
    """Return the corpus of a cache entry; if it does not exist or is damaged, read the corpus and write the entry."""
    corpus = None
    try:
        folder = Path(cache or cache_folder()) / entry_name
        if (cached := load_entry(folder, config)) is not None:
            return cached
        corpus = read()
        write_entry(corpus, folder)
        return load_entry(folder, config) or corpus
    except OSError as error:
        reason = f"{error.filename or 'the cache'}: {error.strerror or error}"
        report(Finding("no cache", f"the cache cannot be written ({reason}); the table is kept in memory"))
        return read() if corpus is None else corpus


def write_entry(corpus: Corpus, folder: Path) -> None:
    """Write a cache entry; a damaged entry of the same name is replaced."""
    new_folder = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder.mkdir()
    try:
        for name, values in corpus.arrays().items():
            np.save(new_folder / f"{name}.npy", values, allow_pickle=False)
        for name, content in corpus.tokenizer.contents().items():
            (new_folder / name).write_bytes(content)
        (new_folder / "schema.json").write_text(json.dumps(corpus.schema.to_dict()), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # renaming fails if another process has created the same entry meanwhile
            new_folder.rename(folder)
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


def load_entry(folder: Path, config: Config) -> Corpus | None:
    """Return the corpus of an entry, whose arrays are memory-mapped; None if it does not exist or is damaged."""
    try:
        paths = folder.glob("*.npy")
        arrays = {path.stem: np.load(path, None if "offsets" in path.name else "r") for path in paths}
        schema = ContextSchema.load(folder / "schema.json")
        return Corpus.from_arrays(arrays, load_tokenizer(config, folder), schema)
    except (OSError, EOFError, ValueError, LookupError, TypeError):  # errors of damaged files
        return None


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
        raise OSError("there is no home folder; set FACTORCELL_CACHE") from None
