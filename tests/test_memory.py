"""The number of processor cores that a process may use, which can be smaller than that of the machine."""

from pathlib import Path

import pytest

from factorcell.io import memory


def test_a_pinned_process_counts_only_its_allowed_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 9, 11}, raising=False)
    assert memory.usable_cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    assert memory.usable_cores() == 64


def test_a_container_counts_the_cores_whose_time_it_may_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "CONTROL_GROUP_OF_PROCESS", tmp_path / "group")
    (tmp_path / "group").write_text("0::/outer/inner\n")
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    limits = {"max 100000": 16, "350000 100000": 4, "50000 100000": 1, "": 16, "damaged": 16}
    for text, cores in limits.items():
        (tmp_path / "outer" / "cpu.max").write_text(text + "\n")
        assert memory.usable_cores() == cores
    (tmp_path / "outer" / "inner" / "cpu.max").write_text("200000 100000\n")
    assert memory.usable_cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory.usable_cores() == 1
