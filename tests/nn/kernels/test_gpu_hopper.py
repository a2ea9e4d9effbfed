"""The GPU kernels compile for a Hopper processor and fit its shared memory; the test needs no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorcell.nn.kernels import gpu
from tests import ROOT

pytestmark = pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")
SCRIPT = ROOT / "tests" / "hopper.py"
SHARED = 227 * 1024  # bytes of shared memory per program on an H100 or H200


def compile_cases(cases: list[str], cache: Path) -> list[dict[str, Any]]:
    """Return the rows that tests/hopper.py prints for `cases`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    process = subprocess.run([sys.executable, SCRIPT, *cases], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.slow
def test_kernels_of_a_step_fit_shared_memory(tmp_path: Path) -> None:
    rows = compile_cases(["step", "large step"], tmp_path)
    assert [row["kernel"] for row in rows] == ["_forward_kernel", "_backward_kernel"] * 2
    for row in rows:
        assert row["shared"] <= SHARED, row


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["shared"] <= SHARED, row
        assert row["products"], f"{row}: no tensor cores"


@pytest.mark.slow
def test_usual_sizes_fit_shared_memory(tmp_path: Path) -> None:
    rows = compile_cases(["words"], tmp_path)
    assert len(rows) == 2
    check(rows)


@pytest.mark.slow
def test_all_sizes_fit_shared_memory(tmp_path: Path) -> None:
    cases = ["words float32", "characters", "small", "large", "large float32", "high rank"]
    rows = compile_cases(cases, tmp_path)
    assert {row["case"] for row in rows} == set(cases)
    check(rows)
