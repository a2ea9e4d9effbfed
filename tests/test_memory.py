"""The number of processor cores that a process may use, which can be smaller than that of the machine."""

import pytest

from factorcell.io import memory


def test_a_pinned_process_counts_only_its_allowed_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 9, 11}, raising=False)
    assert memory.usable_cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    assert memory.usable_cores() == 64
