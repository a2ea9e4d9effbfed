"""Commands and scripts that refuse a table end with exit code 2 or 1, and never abort while Python shuts down."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.tables import PARQUET, PLAIN

READER = """
import sys
from factorcell.config import UserError
from factorcell.data.tables.tables import open_table

chunks = open_table(sys.argv[1]).chunks(["text"])
try:
    next(chunks)
    list(chunks) if sys.argv[2] == "all" else sys.exit(2)
except UserError:
    sys.exit(2)
"""
ROWS = b"".join(PLAIN.splitlines(keepends=True)[1:])
TABLES = {
    "ragged.csv": PLAIN + ROWS * 40_000 + b"a,b\n",
    "ragged-at-once.csv": PLAIN + b"a,b\n" + ROWS * 40_000,
    "quote.csv": PLAIN + ROWS * 40_000 + b'"a" b\n',
    "latin.csv": PLAIN + ROWS * 40_000 + b"\xff\n",
    "damaged.parquet": PARQUET[:4] + b"\xff" * 400 + PARQUET[404:],
}


@pytest.mark.slow
@pytest.mark.parametrize("extent", ["all", "first"])
@pytest.mark.parametrize("name", TABLES)
def test_a_reader_that_ends_early_does_not_abort(name: str, extent: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TABLES[name])
    for _ in range(20):
        done = subprocess.run(
            [sys.executable, "-c", READER, str(path), extent], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (2, "")
