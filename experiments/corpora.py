"""The texts of every experiment, in three parts: to train on, to choose models by (dev), and to report on, once (test).

A data set is a folder with train.parquet, dev.parquet and test.parquet, as `python -m experiments.datasets` builds it
out of public repositories. Where there is no test.parquet, the test comes out of the training texts. All that is by a
hash of the text: whoever has the same texts has the same test, and a text that is there twice is in one part only.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from factorcell.config import UserError

TEST = 2000  # texts at least; a quarter of a training table at most
MAX_SHARE = 0.25
PARTS = ("train", "dev", "test")

Tables = dict[str, Path]  # the parts, and what else is measured on


def text_hash(text: str) -> int:
    """A number of 64 bits that follows from the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def select_test(texts: Sequence[str], least: int = TEST) -> NDArray[np.bool_]:
    """Which texts (N,) are kept for the test: those of the smallest places, until there are `least`.

    Equal texts have one place, so all of them are kept or none.
    """
    places = np.array([text_hash(text) for text in texts], dtype=np.uint64)
    count = min(least, int(len(places) * MAX_SHARE))
    if count == 0:
        return np.zeros(len(places), dtype=bool)
    selected: NDArray[np.bool_] = places <= np.partition(places, count - 1)[count - 1]
    return selected


def split(
    table: pa.Table, by: str = "text", least: int = TEST, counted: range = range(1, sys.maxsize)
) -> dict[str, pa.Table]:
    """All rows of a data set in three parts by a hash of the column `by`.

    The test has the smallest places, dev the next. Both have `least` rows at least, of values that have as many rows
    as `counted` allows; all others are trained on.
    """
    values = table[by].to_pylist()
    rows = Counter(values)
    part = np.array(["train" if rows[value] in counted else "always" for value in values], dtype=object)
    for name in ("test", "dev"):
        free = np.flatnonzero(part == "train")
        part[free[select_test([values[place] for place in free], least)]] = name
    part[part == "always"] = "train"
    return {name: table.filter(pa.array(part == name)) for name in PARTS}


def split_test(train: pa.Table) -> tuple[pa.Table, pa.Table]:
    """A training table without its test texts, and those."""
    selected = select_test(train["text"].to_pylist())
    return train.filter(pa.array(~selected)), train.filter(pa.array(selected))


def parts(data: Path, folder: Path, name: str, share: float = 1.0) -> Tables:
    """The three parts of a data set as files in `folder`, written at the first call.

    Of a `share` below 1 they are the first rows of the training texts, and of the others the first ten times as many.
    """
    tables: Tables = {}
    for part in PARTS:
        rows = share if part == "train" else min(1.0, 10 * share)
        path = folder / f"{name}-{part}-{rows:g}.parquet"
        tables[part] = create_once(path, partial(_part, data / name, part, rows))
    return tables


def _part(source: Path, part: str, share: float = 1.0) -> pa.Table:
    """The first `share` of the rows of a part of the data set in the folder `source`."""
    carved = part != "dev" and not (source / "test.parquet").exists()
    table = read(source / f"{'train' if carved else part}.parquet")
    if carved:
        table = dict(zip(("train", "test"), split_test(table), strict=True))[part]
    return table.slice(0, max(1, round(share * len(table))))


def first(path: Path, count: int) -> Path:
    """A file of the first `count` texts of another one, beside it."""
    return create_once(path.with_name(f"{path.stem}-first-{count}.parquet"), lambda: read(path).slice(0, count))


def create_once(path: Path, make: Callable[[], pa.Table]) -> Path:
    """`path`, a Parquet file that is made at the first call and stays as it is."""
    return path if path.exists() else write_table(path, make())


def write_table(path: Path, table: pa.Table) -> Path:
    """`path` with the table in it: it is whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".partial")
    pq.write_table(table, half, compression="zstd")
    half.replace(path)
    return path


def read(path: Path) -> pa.Table:
    """A Parquet file."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file (--data names the folder of all data sets)")
    return pq.read_table(path)
