"""Tests of the choice between float32 and bfloat16 by measurement."""

from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell.commands.main import main
from factorcell.model import precision
from factorcell.model.kernels import library
from factorcell.model.precision import is_supported  # the function itself, because fixtures replace the attribute
from factorcell.model.run import Run
from tests.small_runs import CONTEXT, ROWS, make_run

CPU = torch.device("cpu")


class Work:
    """Simulated work that takes the given seconds per precision, and ten times as long in the first call."""

    def __init__(self, float32: float, bfloat16: float) -> None:
        self.seconds, self.now, self.calls = {"float32": float32, "bfloat16": bfloat16}, 0.0, list[str]()

    def __call__(self, name: str) -> None:
        self.now += self.seconds[name] * (1 if name in self.calls else 10)
        self.calls.append(name)

    def clock(self) -> float:
        return self.now


def save_run(folder: Path) -> None:
    make_run(folder).save_weights({})


@pytest.fixture
def bfloat16_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_supported", lambda device: True)


@pytest.mark.usefixtures("bfloat16_supported")
@pytest.mark.parametrize(
    ("float32", "bfloat16", "expected"), [(1.0, 0.5, "bfloat16"), (1.0, 1.8, "float32"), (1.0, 0.95, "float32")]
)
def test_faster_precision_is_chosen(float32: float, bfloat16: float, expected: str) -> None:
    work = Work(float32, bfloat16)
    speedup = precision.measure_speedup(work, CPU, work.clock)
    assert speedup == pytest.approx(float32 / bfloat16)
    assert precision.choose_precision(speedup) == expected
    assert work.calls == ["float32", "bfloat16"] * (1 + precision.REPETITIONS)
    (line,) = precision.describe_speedup(speedup)
    assert f"computed in {expected}," in line


def test_nothing_is_measured_without_bfloat16_instructions() -> None:
    work = Work(1.0, 0.1)
    assert precision.measure_speedup(work, CPU, work.clock) == 1.0
    assert not work.calls
    assert precision.describe_speedup(1.0) == []


@pytest.mark.usefixtures("bfloat16_supported")
def test_long_work_is_timed_once() -> None:
    work = Work(precision.MAX_SECONDS * 2, precision.MAX_SECONDS)
    assert precision.measure_speedup(work, CPU, work.clock) == pytest.approx(2.0)
    assert work.calls == ["float32", "bfloat16"] * 2


@pytest.mark.usefixtures("bfloat16_supported")
def test_short_work_uses_float32() -> None:
    work = Work(precision.MIN_SECONDS / 2, precision.MIN_SECONDS / 20)
    assert precision.measure_speedup(work, CPU, work.clock) == 1.0


@pytest.mark.parametrize("kernel", ["off", "triton", "plain", ""])
def test_processor_without_bfloat16_instructions_is_not_supported(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
    assert is_supported(CPU) == (library.variant() in library.BFLOAT16_VARIANTS)
    if kernel:
        assert not is_supported(CPU)


@pytest.mark.parametrize(("speedup", "expected"), [(2.0, "bfloat16"), (0.6, "float32")])
def test_run_scores_in_the_faster_precision(
    speedup: float, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save_run(tmp_path / "run")
    calls: list[str] = []

    def measure(work: Any, device: torch.device) -> float:
        for name in ("float32", "bfloat16"):
            work(name)
            calls.append(name)
        return speedup

    monkeypatch.setattr("factorcell.model.run.measure_speedup", measure)
    run = Run.open(tmp_path / "run", precision="auto")
    assert (run.precision, run.bfloat16_speedup, calls) == (expected, speedup, ["float32", "bfloat16"])
    explicit = Run.open(tmp_path / "run", precision=expected)
    assert (run.nats(run.prepare(ROWS)) == explicit.nats(explicit.prepare(ROWS))).all()
    assert explicit.bfloat16_speedup == 1.0
    assert len(calls) == 2


def test_compared_models_have_the_same_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "run")
    save_run(tmp_path / "other")
    speedups, precisions = iter([2.0, 0.5]), list[str]()
    monkeypatch.setattr("factorcell.model.run.measure_speedup", lambda work, device: next(speedups))
    original = Run.open.__func__  # type: ignore[attr-defined]

    def recording_open(cls: type[Run], *arguments: Any, **options: Any) -> Run:
        run: Run = original(cls, *arguments, **options)
        precisions.append(run.precision)
        return run

    monkeypatch.setattr(Run, "open", classmethod(recording_open))
    table = tmp_path / "table.csv"
    columns = ["text", *(name.split(":")[0] for name in CONTEXT)]
    lines = [",".join(str(row[name]) for name in columns) for row in ROWS]
    table.write_text("\n".join([",".join(columns), *lines, ""]))
    assert main(["evaluate", str(tmp_path / "run"), str(table), "--baseline", str(tmp_path / "other")]) == 0
    assert precisions == ["bfloat16", "bfloat16"]
    assert capsys.readouterr().err.count("computed in bfloat16, the faster format") == 1
