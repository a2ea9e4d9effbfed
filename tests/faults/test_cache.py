"""Faults between a table and its corpus: files that change while they are read, and caches that fail."""

import json
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data import cache as caching
from factorcell.data.cache import TokenizedTexts, prepare
from factorcell.data.corpus import Corpus
from factorcell.data.tables import chunks
from factorcell.errors import UserError
from tests.findings import expected_finding
from tests.processes import requires_fork, run_and_kill

CONFIG = Config.of(
    context=("city:category", "lat:number", "said:text", "place:vector"),
    user="who",
    tokenizer="char",
    min_count=1,
    min_context_count=1,
    min_user_count=1,
)
ROWS = [
    {
        "text": f"text {number % 7} of many",
        "city": "AB"[number % 2],
        "lat": number,
        "said": "the sea",
        "place": [number, 1.5],
        "who": f"user {number % 5}",
    }
    for number in range(400)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write `rows` as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """`ROWS` as a file."""
    return write(tmp_path / "rows.jsonl", ROWS)


def assert_same_corpus(corpus: Corpus, expected: Corpus) -> None:
    """Check that all arrays and names are equal."""
    for name in ("tokens", "offsets", "categories", "numbers", "users", "originals"):
        np.testing.assert_array_equal(getattr(corpus, name), getattr(expected, name))
    for vectors, others in zip(corpus.vectors, expected.vectors, strict=True):
        np.testing.assert_array_equal(vectors, others)
    for bags, words in zip(corpus.words, expected.words, strict=True):
        np.testing.assert_array_equal(bags.values, words.values)
        np.testing.assert_array_equal(bags.offsets, words.offsets)
    assert (corpus.tokenizer.tokens, corpus.schema) == (expected.tokenizer.tokens, expected.schema)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "rewritten": lambda path: write(path, [{**row, "text": "other"} for row in ROWS]),
    "replaced": lambda path: write(path.with_name("new"), ROWS[::-1]).replace(path),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["after its hash", "after a chunk"])
def test_a_table_that_changes_while_it_is_read_is_not_cached(
    change: str,
    moment: str,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 16)
    cache = tmp_path / "cache"
    owner, name = (caching, "ContextColumns") if moment == "after its hash" else (TokenizedTexts, "add")
    original = getattr(owner, name)

    def change_table(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        result = original(*arguments)
        CHANGES[change](table)
        return result

    monkeypatch.setattr(owner, name, change_table)
    with pytest.raises(
        UserError, match=r"rows\.jsonl" if moment == "after a chunk" else r"No such file|changed while it"
    ) as error:
        prepare(table, CONFIG, cache=cache)
    assert "\n" not in str(error.value)
    assert not cache.exists()
    rows = ROWS if change == "gone" else [json.loads(line) for line in table.read_text().splitlines()[:100]]
    write(table, rows)
    for _ in range(2):
        assert_same_corpus(prepare(table, CONFIG, cache=cache), prepare(rows, CONFIG))


def test_a_damaged_cache_entry_is_replaced(table: Path, tmp_path: Path) -> None:
    cache, expected = tmp_path / "cache", prepare(ROWS, CONFIG)
    prepare(table, CONFIG, cache=cache)
    (folder,) = cache.iterdir()
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(contents) == 13
    for name, whole in contents.items():
        for damaged in (whole[: len(whole) // 2] if name != "vocabulary.txt" else b"a", b"", None):
            if name == "originals.npy" and damaged is None:
                continue
            (folder / name).unlink()
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            assert caching.load_entry(folder, CONFIG) is None, name
            assert_same_corpus(prepare(table, CONFIG, cache=cache), expected)
            assert caching.load_entry(folder, CONFIG) is not None


def raise_no_space(*arguments: Any, **options: Any) -> None:
    """Fail like a full disk."""
    raise OSError(28, "No space left on device")


def raise_no_home() -> Path:
    """Fail like `Path.home` for an unknown user."""
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("fault", ["a file", "below a file", "full", "no home", "not writable"])
def test_an_unwritable_cache_gives_a_notice_in_one_line(
    fault: str,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    cache: Path | None = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "below"}.get(
        fault, tmp_path / "cache"
    )
    if fault == "full":
        monkeypatch.setattr(np, "save", raise_no_space)
    elif fault == "no home":
        for name in ("FACTORCELL_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", raise_no_home)
        cache = None
    elif fault == "not writable":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        (tmp_path / "cache").mkdir(mode=0o500)
    with expected_finding("no cache"):
        corpus = prepare(table, CONFIG, cache=cache)
    assert not isinstance(corpus.tokens, np.memmap)
    assert_same_corpus(corpus, prepare(ROWS, CONFIG))
    if fault == "full":
        assert list((tmp_path / "cache").iterdir()) == []


def test_a_command_prints_the_warning_in_one_line(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FACTORCELL_CACHE", str(tmp_path / "file"))
    out = tmp_path / "model"
    assert main(["baseline", "ngram", str(table), "--out", str(out), "--order", "2", "--verbose"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "cache" in line]
    (line,) = lines
    assert f"{tmp_path}/file: File exists" in line


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_cache_entries_have_the_permissions_of_other_files(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for mask, others in ((0o022, 0o55), (0o002, 0o75), (0o077, 0o00)):
        old = os.umask(mask)
        try:
            prepare(table, CONFIG, cache=cache)
        finally:
            os.umask(old)
        (folder,) = cache.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) & 0o77 == others
        assert {stat.S_IMODE(path.stat().st_mode) & 0o77 for path in folder.iterdir()} == {others & 0o66}
        shutil.rmtree(cache)


def fill_caches(table: Path, cache: Path) -> None:
    """Write one cache after the other."""
    for number in range(1000):
        prepare(table, CONFIG, cache=cache / str(number))


@pytest.mark.slow
@requires_fork
def test_a_kill_at_any_moment_leaves_no_damaged_entry(table: Path, tmp_path: Path) -> None:
    write(table, ROWS * 20)
    expected, generator = prepare(ROWS * 20, CONFIG), random.Random(0)
    for trial in range(40):
        cache = tmp_path / f"cache {trial}"
        assert run_and_kill(partial(fill_caches, table, cache), generator.uniform(0, 1))
        folders = sorted(cache.iterdir(), key=lambda path: int(path.name)) if cache.exists() else []
        for folder in folders[-2:]:
            for entry in folder.glob("*"):
                assert entry.suffix == ".partial" or caching.load_entry(entry, CONFIG) is not None
            assert_same_corpus(prepare(table, CONFIG, cache=folder), expected)
            assert_same_corpus(prepare(table, CONFIG, cache=folder), expected)
