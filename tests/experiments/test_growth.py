"""Curves of time and memory against sizes: exponents, tiny points, resumed measurements, and the documented table."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth
from benchmarks.processes import Figures
from factorcell.io import files
from factorcell.service.stores.store import all_users, open_store
from tests import ROOT

NAMES = {
    "vocabulary": {"training step", "scoring a text", "files"},
    **{
        axis: {"training step", "scoring a text", "completion", "files"} for axis in ("hidden size", "rank", "contexts")
    },
    "users": {"lookup of a user", "learning a text", "files"},
}


def row_of(axis: str, size: int, **figures: float) -> dict[str, Any]:
    return {"axis": axis, "size": size, "figures": figures}


def test_the_exponent_is_the_slope_over_the_upper_half_of_the_sizes() -> None:
    sizes = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
    assert growth.exponent({size: 7.0 if size < 1_000 else 3 * size**0.8 for size in sizes}) == pytest.approx(0.8)
    assert growth.exponent(dict.fromkeys(sizes, 5.0)) == pytest.approx(0)
    noisy = {1: 1.0, 2: 1.0, 4: 1.0, 8: 8.0, 16: 32.0, 32: 32.0}  # the logarithms of the last three: 3, 5, 5
    assert growth.exponent(noisy) == pytest.approx(1)


def test_the_table_has_the_first_and_the_last_value_and_the_exponent_of_each_curve() -> None:
    sizes = (1000, 10, 100)  # rows are in the order of their measurement
    rows = [row_of("rank", size, **{"training step": size / 1e4, "files": 2e6 * size**2}) for size in sizes]
    assert growth.table(rows).splitlines()[2:] == [
        "| rank, 10 to 1,000 | training step | 1 ms | 100 ms | 1.00 |",
        "| rank, 10 to 1,000 | files | 200 MB | 2,000,000 MB | 2.00 |",
    ]


@pytest.mark.parametrize("axis", growth.AXES)
def test_both_stages_of_a_tiny_point_measure_all_figures(
    axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(growth, "HYPOTHESES", 20)
    monkeypatch.setattr(growth, "BATCH", 2)
    size = {"vocabulary": 50}.get(axis, 8)
    figures = growth.train(axis, size, tmp_path) | growth.serve(axis, size, tmp_path)
    assert figures.keys() == NAMES[axis]
    assert all(value > 0 for value in figures.values())
    if axis == "users":
        store = open_store(f"sqlite:///{tmp_path / growth.STORE}")
        assert set(all_users(store)) == {growth.user_id(number) for number in range(size)}
        store.close()


def test_a_stage_prints_the_memory_that_it_takes(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def stage(*_: object) -> Figures:
        return {"files": float(len(bytearray(b"x") * 300_000_000))}

    monkeypatch.setattr(growth, "STAGES", {"training": stage})
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)  # later tests use the threads of this process
    growth.main(["--stage", "training", "rank", "1", "folder"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["files"] == 300_000_000
    assert figures["memory of training"] > 0.99 * 300_000_000  # the system counts the peak approximately


def test_a_resumed_measurement_omits_points_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, int]] = []

    def measure_point(axis: str, size: int) -> dict[str, Any]:
        measured.append((axis, size))
        return row_of(axis, size, files=float(size))

    monkeypatch.setattr(growth, "AXES", {"rank": (1, 2, 4, 8)})
    monkeypatch.setattr(growth, "measure_point", measure_point)
    out, docs = tmp_path / "growth.jsonl", tmp_path / "docs"
    docs.mkdir()
    (docs / "speed.md").write_text("before\n<!-- growth -->\nold\n<!-- end of growth -->\nafter\n")
    files.write_rows(out, [row_of("rank", size, files=float(size)) for size in (1, 4)])
    for _ in range(2):
        growth.main(["--out", str(out), "--docs", str(docs)])
    assert sorted(measured) == [("rank", 2), ("rank", 8)]
    rows = files.read_rows(out)
    assert growth.exponent(growth.curves(rows, "rank")["files"]) == pytest.approx(1)
    page = (docs / "speed.md").read_text()
    assert page == f"before\n<!-- growth -->\n\n{growth.table(rows)}\n<!-- end of growth -->\nafter\n"
    assert {path.name for path in docs.glob("*.svg")} == {"growth-time.svg", "growth-memory.svg"}


def test_the_documented_table_is_that_of_the_saved_rows() -> None:
    rows = files.read_rows(growth.ROWS)
    points = [(axis, size) for axis, sizes in growth.AXES.items() for size in sizes]
    assert sorted((row["axis"], row["size"]) for row in rows) == sorted(points)
    assert growth.table(rows) in (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
