"""Floats or bfloat16: what is faster is measured, and taken only where it is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell.commands.main import main
from factorcell.model import precision
from factorcell.model.kernels import library
from factorcell.model.precision import is_supported  # itself, which no test replaces
from factorcell.model.run import Run
from tests.small_runs import CONTEXT, ROWS, make_run

CPU = torch.device("cpu")


class Work:
    """Takes the seconds that its precision has, the first time ten times as many."""

    def __init__(self, single: float, half: float) -> None:
        self.seconds, self.now, self.done = {"float32": single, "bfloat16": half}, 0.0, list[str]()

    def __call__(self, name: str) -> None:
        self.now += self.seconds[name] * (1 if name in self.done else 10)
        self.done.append(name)

    def clock(self) -> float:
        return self.now


def trained(folder: Path) -> None:
    make_run(folder).save_weights({})


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_supported", lambda device: True)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("single", "half", "chosen"), [(1.0, 0.5, "bfloat16"), (1.0, 1.8, "float32"), (1.0, 0.95, "float32")]
)
def test_the_faster_one_is_taken(single: float, half: float, chosen: str) -> None:
    work = Work(single, half)
    gain = precision.measure_speedup(work, CPU, work.clock)
    assert gain == pytest.approx(single / half)
    assert precision.choose_precision(gain) == chosen
    assert work.done == ["float32", "bfloat16"] * (1 + precision.TIMES)
    (line,) = precision.describe_speedup(gain)
    assert chosen in line.split(":")[0]
    assert f"{gain:.1f} times" in line


def test_nothing_is_tried_where_it_is_not_possible() -> None:
    work = Work(1.0, 0.1)
    assert precision.measure_speedup(work, CPU, work.clock) == 1.0
    assert not work.done
    assert precision.describe_speedup(1.0) == []


@pytest.mark.usefixtures("there")
def test_little_work_stays_with_floats() -> None:
    work = Work(precision.LITTLE / 2, precision.LITTLE / 20)
    assert precision.measure_speedup(work, CPU, work.clock) == 1.0


@pytest.mark.parametrize("kernel", ["off", "triton", "plain", ""])
def test_a_processor_needs_the_instructions(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
    assert is_supported(CPU) == (library.variant() in library.WITH_SHORT)
    if kernel:
        assert not is_supported(CPU)


@pytest.mark.parametrize(("gain", "chosen"), [(2.0, "bfloat16"), (0.6, "float32")])
def test_a_run_scores_by_the_faster_one(
    gain: float, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained(tmp_path / "run")
    tried: list[str] = []

    def measured(work: Any, device: torch.device) -> float:
        for name in ("float32", "bfloat16"):
            work(name)
            tried.append(name)
        return gain

    monkeypatch.setattr("factorcell.model.run.measure_speedup", measured)
    run = Run.open(tmp_path / "run", precision="auto")
    assert (run.precision, run.bfloat16_speedup, tried) == (chosen, gain, ["float32", "bfloat16"])
    said = Run.open(tmp_path / "run", precision=chosen)
    assert (run.nats(run.prepare(ROWS)) == said.nats(said.prepare(ROWS))).all()
    assert said.bfloat16_speedup == 1.0
    assert len(tried) == 2


def test_models_that_are_compared_have_one_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run")
    trained(tmp_path / "other")
    gains, opened = iter([2.0, 0.5]), list[str]()
    monkeypatch.setattr("factorcell.model.run.measure_speedup", lambda work, device: next(gains))
    real = Run.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Run], *given: Any, **options: Any) -> Run:
        run: Run = real(cls, *given, **options)
        opened.append(run.precision)
        return run

    monkeypatch.setattr(Run, "open", classmethod(noted))
    table = tmp_path / "table.csv"
    columns = ["text", *(name.split(":")[0] for name in CONTEXT)]
    lines = [",".join(str(row[name]) for name in columns) for row in ROWS]
    table.write_text("\n".join([",".join(columns), *lines, ""]))
    assert main(["evaluate", str(tmp_path / "run"), str(table), "--baseline", str(tmp_path / "other")]) == 0
    assert opened == ["bfloat16", "bfloat16"]
    assert capsys.readouterr().err.count("bfloat16 is 2.0 times as fast here") == 1
