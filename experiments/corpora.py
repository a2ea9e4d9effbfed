"""The texts of all experiments in three parts: training, development (to choose models) and test (to report).

A data set is a folder with train.parquet, dev.parquet and test.parquet, as `python -m experiments.datasets` builds it
from public repositories. Without test.parquet, the test texts are split off the training texts. All splits are by a
hash of the text, so they are the same everywhere, and equal texts are in the same part.
"""

import hashlib
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from factorcell.errors import UserError

TEST_TEXTS = 2000  # minimum number of test texts, unless `MAX_SHARE` of the training table is less
MAX_SHARE = 0.25
PARTS = ("train", "dev", "test")

Tables = dict[str, Path]  # the three parts, and other tables that are measured on


def text_hash(text: str) -> int:
    """Return a hash of 64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def select_test(texts: Sequence[str], min_texts: int = TEST_TEXTS) -> NDArray[np.bool_]:
    """Return a mask (N,) of the test texts: those with the lowest hashes, at least `min_texts` of them."""
    hashes = np.array([text_hash(text) for text in texts], dtype=np.uint64)
    count = min(min_texts, int(len(hashes) * MAX_SHARE))
    if count == 0:
        return np.zeros(len(hashes), dtype=bool)
    selected: NDArray[np.bool_] = hashes <= np.partition(hashes, count - 1)[count - 1]
    return selected


def split(
    table: pa.Table, by: str = "text", min_rows: int = TEST_TEXTS, rows_per_value: range = range(1, sys.maxsize)
) -> dict[str, pa.Table]:
    """Split the rows of a data set into three parts by a hash of the column `by`.

    The test part has the lowest hashes, the development part the next. Both have at least `min_rows` rows, of values
    whose number of rows is in `rows_per_value`; all other values are training data.
    """
    values = table[by].to_pylist()
    rows = Counter(values)
    part = np.array(["train" if rows[value] in rows_per_value else "always" for value in values], dtype=object)
    for name in ("test", "dev"):
        free = np.flatnonzero(part == "train")
        part[free[select_test([values[place] for place in free], min_rows)]] = name
    part[part == "always"] = "train"
    return {name: table.filter(pa.array(part == name)) for name in PARTS}


def split_test(train: pa.Table) -> tuple[pa.Table, pa.Table]:
    selected = select_test(train["text"].to_pylist())
    return train.filter(pa.array(~selected)), train.filter(pa.array(selected))


def parts(data: Path, folder: Path, name: str, share: float = 1.0) -> Tables:
    """Write the first `share` of the training texts of a data set, and ten times that share of the others, once."""
    tables: Tables = {}
    for part in PARTS:
        rows = share if part == "train" else min(1.0, 10 * share)
        path = folder / f"{name}-{part}-{rows:g}.parquet"
        tables[part] = create_once(path, partial(_part, data / name, part, rows))
    return tables


def _part(source: Path, part: str, share: float = 1.0) -> pa.Table:
    is_split = part != "dev" and not (source / "test.parquet").exists()
    table = read(source / f"{'train' if is_split else part}.parquet")
    if is_split:
        table = dict(zip(("train", "test"), split_test(table), strict=True))[part]
    return table.slice(0, max(1, round(share * len(table))))


def first(path: Path, count: int) -> Path:
    """Write the first `count` texts of a file to another file."""
    return create_once(path.with_name(f"{path.stem}-first-{count}.parquet"), lambda: read(path).slice(0, count))


def create_once(path: Path, make: Callable[[], pa.Table]) -> Path:
    """Return `path`, a Parquet file that is written at the first call."""
    return path if path.exists() else write_table(path, make())


def write_table(path: Path, table: pa.Table) -> Path:
    """Write a table atomically and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")  # others may write the same table
    try:
        pq.write_table(table, partial_path, compression="zstd")
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)
    return path


def read(path: Path) -> pa.Table:
    if not path.is_file():
        raise UserError(f"{path}: no such file; --data must name the folder of all data sets")
    return pq.read_table(path)
