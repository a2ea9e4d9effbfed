"""Arguments of compiled functions: signatures equal native/kernels.h, and wrong arguments are refused; fuzzing."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from factorcell.nn.kernels import library, recurrence, softmax
from factorcell.nn.kernels.recurrence import PackedWeight, RecurrenceInputs
from factorcell.nn.kernels.signatures import (
    BLEND,
    DRAWING,
    LEARNING,
    RECURRENCE,
    REQUEST,
    ROWS,
    SEARCH,
    SOFTMAX,
    UPDATE,
    Signature,
)
from factorcell.training.adam import RowAdam
from tests.kernels import VARIANTS, compiled
from tests.nn.kernels import fuzz
from tests.nn.kernels.test_recurrence import Arrays, arrays

NATIVE = Path(library.__file__).parent / "native"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("Recurrence", RECURRENCE),
        ("Softmax", SOFTMAX),
        ("Drawing", DRAWING),
        ("Rows", ROWS),
        ("Search", SEARCH),
        ("Request", REQUEST),
        ("Learning", LEARNING),
        ("Update", UPDATE),
        ("Blend", BLEND),
    ],
)
def test_signatures_have_the_fields_of_the_header(name: str, signature: Signature) -> None:
    body = (NATIVE / "kernels.h").read_text().split(f"struct {name} {{")[1].split("};")[0]
    fields = []
    for line in re.sub(r"//.*", "", body).split(";"):
        kind, _, names = line.strip().replace("const ", "").partition(" ")
        fields += [("pointer" if "*" in name else kind, name.strip(" *")) for name in names.split(",") if name]
    kinds = {"c_double": "double", "c_long": "int64_t", "c_longlong": "int64_t", "c_void_p": "pointer"}
    assert [(kinds[kind.__name__], field) for field, kind in signature.structure._fields_] == fields


def call_recurrence(**changed: Any) -> Callable[[], object]:
    arguments: Arrays = {**arrays(3, 4, 10, 2, norm=True, ragged=True, scale=True, feed=True, drop=True), **changed}
    return lambda: recurrence.run(RecurrenceInputs(**arguments))  # type: ignore[arg-type]


def call_softmax(**changed: Tensor) -> Callable[[], object]:
    arguments = {"values": torch.zeros(6, 4), "table": torch.zeros(9, 4), "bias": torch.zeros(9), **changed}
    return lambda: softmax.log_sums(**arguments)


def call_rows(rows: Tensor, gradient: Tensor) -> Callable[[], object]:
    adam = RowAdam([nn.Parameter(torch.zeros(5, 3))], 1, 0.0)
    return lambda: adam.step(0.1, rows, [gradient])


WRONG = [
    (call_recurrence(lengths=torch.tensor([4, 5, 0])), r"lengths contains 5; expected 0 to 4"),
    (call_recurrence(lengths=torch.tensor([4, -1, 0])), r"lengths contains -1; expected 0 to 4"),
    (
        call_recurrence(lengths=torch.tensor([4, 1, 0]).int()),
        r"lengths is torch.int32 \(3,\) .* expected torch.int64 \(3,\)",
    ),
    (call_recurrence(lengths=torch.tensor([4, 1])), r"lengths is torch.int64 \(2,\) .* B\?$"),
    (call_recurrence(bias=torch.zeros(2, 30)), r"bias is torch.float32 \(2, 30\) .* torch.float32 \(3, 30\), B 3H"),
    (call_recurrence(input_gates=torch.zeros(0, 4, 30)), r"sequences is 0; expected 1 to"),
    (call_recurrence(input_gates=torch.zeros(4, 30)), r"unpack"),
    (
        call_recurrence(input_gates=torch.zeros(3, 4, 30).double()),
        r"input_gates is torch.float64 .* expected torch.float32",
    ),
    (call_recurrence(right=None), r"right is missing; expected \(3, 2, 30\)"),
    (call_recurrence(left=None), r"input_reduced is .* expected torch.float32 \(3, 4, 0\)"),
    (call_recurrence(packed=PackedWeight(torch.zeros(9), torch.zeros(9), 0, False)), r"packed is torch.float32 \(9,\)"),
    (call_softmax(bias=torch.zeros(4, 9)), r"values is torch.float32 \(6, 4\) .*\(4, 4\)"),
    (call_softmax(bias=torch.zeros(7, 9)), r"values is torch.float32 \(6, 4\) .*\(0, 4\)"),
    (call_softmax(bias=torch.zeros(0, 9)), r"texts is 0"),
    (call_softmax(table=torch.zeros(9, 3)), r"values is torch.float32 \(6, 4\) .*\(6, 3\)"),
    (call_softmax(values=torch.zeros(6, 4, device="meta")), r"values is .* on meta"),
    (call_rows(torch.tensor([0, 5]), torch.zeros(2, 3)), r"index contains 5; expected 0 to 4"),
    (call_rows(torch.tensor([0, -1]), torch.zeros(2, 3)), r"index contains -1; expected 0 to 4"),
    (call_rows(torch.tensor([0, 1]).int(), torch.zeros(2, 3)), r"index is torch.int32"),
    (call_rows(torch.tensor([0, 1]), torch.zeros(1, 3)), r"gradient is torch.float32 \(1, 3\)"),
]


@compiled
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_errors_name_the_wrong_argument(
    call: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", "plain")
    with pytest.raises(ValueError, match=message):
        call()


@compiled
def test_no_more_threads_than_jobs_are_started() -> None:
    torch.set_num_threads(3)
    assert [library.thread_count(jobs) for jobs in (0, 1, 2, 3, 99)] == [1, 1, 2, 3, 3]


@compiled
def test_log_sum_of_impossible_tokens_is_minus_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    for variant in VARIANTS:
        monkeypatch.setenv("FACTORCELL_KERNEL", variant)
        sums = softmax.log_sums(torch.tensor([[1.0], [torch.nan]]), torch.ones(50, 1), torch.full((50,), -torch.inf))
        assert sums[0] == -torch.inf
        assert sums[1].isnan()


LOW_MEMORY = """
import resource, torch
from factorcell.nn.kernels import library, softmax
values, table, bias = torch.zeros(512, 200_000), torch.zeros(2, 200_000), torch.zeros(2)
softmax.log_sums(values[:1], table, bias)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    softmax.log_sums(values, table, bias)
except MemoryError as error:
    print(error)
print(softmax.log_sums(values[:1], table, bias).shape)
"""


@compiled
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
def test_too_little_memory_is_an_error_that_the_process_survives() -> None:
    process = subprocess.run([sys.executable, "-c", LOW_MEMORY], capture_output=True, text=True)
    assert process.stdout == "not enough memory for the compiled softmax\ntorch.Size([1])\n", process.stderr[-2000:]


@compiled
@pytest.mark.parametrize("function", fuzz.SHARES)
def test_arrays_of_any_shape(function: Callable[[st.DataObject], None]) -> None:
    fuzz.counts.clear()
    fuzz.fuzz(function, 90)
    assert sum(fuzz.counts.values()) >= 60


def build_with_sanitizers(folder: Path) -> tuple[Path, str]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    flags = ["-std=c++17", "-shared", "-fPIC", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    trial = folder / "trial.cpp"
    trial.write_text("int main() { return 0; }")
    trial_process = subprocess.run(
        ["g++", *flags, "-o", str(folder / "trial.so"), str(trial)], capture_output=True, text=True
    )
    names = ("libasan.so", "libstdc++.so.6")
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    if trial_process.returncode or not all(Path(name).is_absolute() for name in paths):
        pytest.skip(f"g++ has no sanitizers: {trial_process.stderr[-200:]}")
    sources = sorted(map(str, NATIVE.glob("*.cpp")))
    subprocess.run(["g++", "-O1", "-g1", *flags, "-o", str(folder / "_kernels.so"), *sources], check=True)
    return folder / "_kernels.so", " ".join(paths)


@compiled
@pytest.mark.slow
def test_ten_thousand_cases_under_sanitizers(tmp_path: Path) -> None:
    path, preload = build_with_sanitizers(tmp_path)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "experiments")])
    settings = {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.nn.kernels.fuzz", str(path), "10000"]
    process = subprocess.run(command, env={**os.environ, **settings}, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-4000:]
    assert process.stderr == "", process.stderr[-4000:]
    counts = [int(count) for count in re.findall(r"'\w+': (\d+)", process.stdout)]
    assert len(counts) == len(fuzz.SHARES)
    assert sum(counts) >= 9_000
