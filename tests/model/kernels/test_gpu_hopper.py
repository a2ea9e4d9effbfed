"""The GPU kernels compile for the processor they are written for, and fit it: no GPU is needed to see that."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorcell.model.kernels import gpu
from tests import ROOT

pytestmark = pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")
SCRIPT = ROOT / "tests" / "hopper.py"
SHARED = 227 * 1024  # bytes of shared memory that a program can have on a processor of the H100 and H200


def compiled(cases: list[str], cache: Path) -> list[dict[str, Any]]:
    """What tests/hopper.py says of `cases`."""
    setting = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    setting |= {"TRITON_CACHE_DIR": str(cache)}
    ran = subprocess.run([sys.executable, SCRIPT, *cases], env=setting, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["shared"] <= SHARED, row
        assert row["products"], f"{row}: no tensor cores"


@pytest.mark.slow
def test_the_usual_sizes_fit(tmp_path: Path) -> None:
    rows = compiled(["words"], tmp_path)
    assert len(rows) == 2
    check(rows)


@pytest.mark.slow
def test_every_size_fits(tmp_path: Path) -> None:
    cases = ["words float32", "characters", "small", "large", "large float32", "high rank"]
    rows = compiled(cases, tmp_path)
    assert {row["case"] for row in rows} == set(cases)
    check(rows)
