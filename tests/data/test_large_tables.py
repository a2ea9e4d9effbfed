"""Tables larger than memory: files have the results of arrays in memory, whatever the format and the processes."""

import gc
import multiprocessing
import os
import signal
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv
from pyarrow import parquet as pq

from factorcell.config import Config, WordOptions
from factorcell.data import counts, tokenizing
from factorcell.data.columns.context import Ragged
from factorcell.data.corpus import Corpus, target_frequencies, target_offsets, text_hashes
from factorcell.data.counts import SharedTargets, TextCounts, are_shared, shared_hashes
from factorcell.data.preparation import prepare
from factorcell.data.tables import chunks, tables
from factorcell.data.tokenizers.tokenizer import WordTokenizer
from factorcell.errors import UserError
from factorcell.io import arrays, memory
from tests.processes import requires_fork, run_and_kill

TEXTS = ("", "the sea is cold", "the sun", "sand and sand and sea", "the the the the the the the", "zebra", "the sun")
ROWS = [
    {
        "text": TEXTS[n % 7] if n % 3 else f"{TEXTS[n % 7]} {n % 11}",
        "city": "ABC"[n % 3],
        "price": n / 7 if n % 5 else None,
        "hour": n % 24,
        "title": TEXTS[n % 4],
        "user": f"user {n % 9}",
        "day": n * 37 % 50,
    }
    for n in range(120)
]
COLUMNS = ("city", "price:number", "hour:cyclic=24", "title:text")
WORDS = {"context": COLUMNS, "min_count": 2, "max_tokens": 5, "min_context_count": 2}
USERS = {"context": ("city",), "user": "user", "time": "day", "prompt_history": 2, "tokenizer": "char"}
FULL_DEVICE = Path("/dev/full")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every array is a file, and is computed in blocks of a few rows."""
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "MAX_BYTES", 0)
        patch.setattr(arrays, "BLOCK", 7)
        patch.setattr(chunks, "CHUNK_ROWS", 8)
        patch.setattr(tables, "CHUNK_ROWS", 8)
        yield


def assert_equal(value: Any, expected: Any, name: str = "") -> None:
    """Compare arrays, and tuples of arrays, with their types."""
    if isinstance(expected, np.ndarray):
        assert value.dtype == expected.dtype, name
        np.testing.assert_array_equal(value, expected, name)
    elif isinstance(expected, tuple) and not isinstance(expected, Ragged | str):
        assert len(value) == len(expected), name
        for part, expected_part in zip(value, expected, strict=True):
            assert_equal(part, expected_part, name)
    elif isinstance(expected, Ragged):
        assert_equal(tuple(value), tuple(expected), name)
    elif not hasattr(expected, "tokens"):
        assert value == expected, name


def assert_same_corpus(corpus: Corpus, expected: Corpus) -> None:
    for field in fields(Corpus):
        assert_equal(getattr(corpus, field.name), getattr(expected, field.name), field.name)
    assert corpus.tokenizer.tokens == expected.tokenizer.tokens


def results(source: Any, options: dict[str, Any]) -> tuple[list[Corpus], list[Any]]:
    """Return the corpora and the arrays that a training makes of a table."""
    corpus = prepare(source, Config.of(**options))
    corpora = [corpus, *corpus.split(0.2, seed=1), corpus.select(np.arange(0, len(corpus), 9))]
    values: list[Any] = [corpus.read_lengths, corpus.truncated, target_offsets(corpus), target_frequencies(corpus)]
    values += [text_hashes(corpus), *corpus.batches(20, seed=1), *corpus.batches(20)]
    if len(corpus.users):
        corpora += corpus.split_users(0.3, 1, "user")
        values += [SharedTargets.of(corpus, 3).is_learned.numpy(), TextCounts.of_corpus(corpus, 3)]
    return corpora, values


@pytest.mark.parametrize("options", [WORDS, USERS])
def test_files_have_the_results_of_memory(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    expected_corpora, expected_values = results(ROWS, options)
    request.getfixturevalue("small_blocks")
    corpora, values = results(ROWS, options)
    for corpus, expected in zip(corpora, expected_corpora, strict=True):
        assert_same_corpus(corpus, expected)
        assert isinstance(corpus.tokens.base, np.memmap)
    for value, expected_value in zip(values, expected_values, strict=True):
        assert_equal(value, expected_value)


def write_parts(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for number, begin in enumerate(range(0, len(rows), 35)):
        table = pa.Table.from_pylist(rows[begin : begin + 35])
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=16)
    return folder


@pytest.mark.usefixtures("small_blocks")
def test_a_folder_of_parquet_files_and_a_csv_file_are_the_same_corpus(tmp_path: Path) -> None:
    csv.write_csv(pa.Table.from_pylist(ROWS), tmp_path / "rows.csv")
    config = Config.of(**WORDS)
    corpus = prepare(tmp_path / "rows.csv", config)
    assert_same_corpus(prepare(write_parts(tmp_path / "parts", ROWS), config), corpus)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_the_number_of_processes_does_not_change_the_corpus(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.of(**WORDS, tokenizer=tokenizer)
    expected = prepare(ROWS, config)
    monkeypatch.setattr(tokenizing, "SEQUENTIAL_CHUNKS", 1)
    monkeypatch.setattr(memory, "usable_cores", lambda: 3)
    monkeypatch.setenv(memory.PROCESSES_VARIABLE, "3")
    assert tokenizing.ChunkTokenizer(WordTokenizer(config.tokenizer), None).worker_count == 3
    assert_same_corpus(prepare(ROWS, config), expected)


class DyingTokenizer(WordTokenizer):
    """Ends every process except the first one."""

    def split_all(self, texts: Sequence[str]) -> list[list[str]]:
        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().split_all(texts)


def test_the_death_of_a_process_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "SEQUENTIAL_CHUNKS", 0)
    monkeypatch.setattr(memory, "usable_cores", lambda: 2)
    monkeypatch.setenv(memory.PROCESSES_VARIABLE, "2")
    with tokenizing.ChunkTokenizer(DyingTokenizer(WordOptions()), None) as tokenizer:
        assert list(tokenizer.add(["a text"])) == []
        with pytest.raises(UserError, match=r"^a process that splits texts has died, .*; FACTORCELL_PROCESSES=1 uses"):
            list(tokenizer.finish())


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_an_invalid_number_of_processes_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.PROCESSES_VARIABLE, value)
    with pytest.raises(UserError, match=r"^FACTORCELL_PROCESSES: expected a number of processes, got"):
        prepare(ROWS, Config.of(**WORDS))


@requires_fork
@pytest.mark.usefixtures("small_blocks")
def test_a_killed_preparation_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prepare(ROWS, Config.of(**WORDS))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    write, files_before = arrays.GrowingArray.append, len(os.listdir("/proc/self/fd"))

    def append(self: arrays.GrowingArray, rows: Any) -> None:
        write(self, rows)
        if len(self) == 48:
            assert len(os.listdir("/proc/self/fd")) > files_before
            os.kill(os.getpid(), signal.SIGKILL)

    def prepare_and_die() -> None:
        monkeypatch.setattr(arrays.GrowingArray, "append", append)
        prepare(ROWS, Config.of(**WORDS))

    assert run_and_kill(prepare_and_die)
    assert list(tmp_path.iterdir()) == []
    assert_same_corpus(prepare(ROWS, Config.of(**WORDS)), expected)


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="needs /dev/full")
@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: FULL_DEVICE.open("r+b", buffering=0))
    problem = r"cannot write 0 MiB of a table that is larger than memory \(No space left on device\)"
    with pytest.raises(UserError, match=rf"^{tmp_path}: {problem}; set TMPDIR to a folder on a disk with more space$"):
        prepare(ROWS, Config.of(**WORDS))


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6), min_size=1), st.integers(1, 3))
def test_shared_items_are_those_of_enough_users(parts: list[list[tuple[int, int]]], min_users: int) -> None:
    hashes = [0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    users_by_item = defaultdict[int, set[int]](set)
    for item, user in (pair for part in parts for pair in part):
        users_by_item[item] |= {user} - {0}
    columns = [
        (np.array([hashes[item] for item, _ in part], np.uint64), np.array([user for _, user in part], np.int32))
        for part in parts
    ]
    expected = [len(users_by_item[item]) >= min_users for part in parts for item, _ in part]
    shared = shared_hashes(columns, min_users)
    assert [value for part, _ in columns for value in are_shared(part, shared).tolist()] == expected


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_a_permutation_is_that_of_the_generator(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.random.default_rng(3).permutation(count)
    monkeypatch.setattr(arrays, "MAX_BYTES", 1000)
    assert_equal(arrays.permutation(np.random.default_rng(3), count), expected)


def test_a_selection_from_few_lists_takes_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of characters is short lists of ids, from which the ids of all texts are selected."""
    lists, rows, sizes = Ragged.of([[0], [1, 2], [], [3]], np.int32), np.arange(1000) % 4, list[int]()
    monkeypatch.setattr(arrays, "BLOCK", 300)
    original = Ragged._select

    def recorded_select(ragged: Ragged, block: np.ndarray) -> Ragged:
        sizes.append(len(block))
        return original(ragged, block)

    monkeypatch.setattr(Ragged, "_select", recorded_select)
    selected = lists.select(rows)
    assert sizes == [300, 300, 300, 100]
    assert selected.values.tolist() == [0, 1, 2, 3] * 250
    assert np.diff(selected.offsets).tolist() == [1, 2, 0, 1] * 250


def test_a_large_array_can_be_changed_and_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 100)
    growing = arrays.GrowingArray()
    for begin in range(0, 90, 30):
        growing.append(np.arange(begin, begin + 30).reshape(10, 3))
        assert growing.array().tolist() == np.arange(begin + 30).reshape(-1, 3).tolist()
    array = growing.array()
    array[4] = -1
    assert array[3:6].tolist() == [[9, 10, 11], [-1, -1, -1], [15, 16, 17]]


def peak_bytes(count: int, options: dict[str, Any]) -> int:
    """Return the peak of the memory in which a training prepares `count` texts, of the same words and users."""
    columns = {name: pa.array([ROWS[n % len(ROWS)][name] for n in range(count)]) for name in ROWS[0]}
    table = pa.table(columns)
    gc.collect()
    tracemalloc.start()
    corpus, _ = prepare(table, Config.of(**options)).split(0.1, seed=0)
    text_hashes(corpus)
    for rows in corpus.batches(200, seed=0):
        corpus.batch(rows)
    if len(corpus.users):
        SharedTargets.of(corpus, 3)
        TextCounts.of_corpus(corpus, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("options", [WORDS, {name: USERS[name] for name in ("user", "tokenizer")}])
def test_memory_does_not_grow_with_the_number_of_texts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 12)
    monkeypatch.setattr(arrays, "BLOCK", 1 << 9)
    monkeypatch.setattr(counts, "BLOCK_TARGETS", 1 << 12)
    for module in (chunks, tables):
        monkeypatch.setattr(module, "CHUNK_ROWS", 1 << 8)
    peak_bytes(500, options)  # fills caches
    small, large = peak_bytes(1_000, options), peak_bytes(5_000, options)
    assert (large - small) / 4_000 < 40  # bytes per text; arrays in memory would have more than 300
