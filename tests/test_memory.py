"""The cores of the processor: those that a process may run on, not all that the machine has."""

import pytest

from factorcell import memory


def test_a_pinned_process_uses_its_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 9, 11}, raising=False)
    assert memory.usable_cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    assert memory.usable_cores() == 64
