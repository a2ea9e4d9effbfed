"""A failing store is probed by one thread, and used again once it answers."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores import store as stores
from factorcell.service.stores.store import CircuitBreakerStore

READING: dict[str, tuple[object, ...]] = {"read": ("a",), "version": ("a",), "users": (), "users_older_than": (1,)}
WRITING: dict[str, tuple[object, ...]] = {"write": (Record.new("a", 1), None), "delete": ("a",), "check": ()}


class Fragile:
    """A store with scripted behavior per method, which records its calls and their threads."""

    def __init__(self) -> None:
        self.behavior: dict[str, Callable[[], Any]] = {}
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, threading.current_thread().name))
            return self.behavior.get(name, lambda: f"answer to {name}")()

        return call


def fail() -> None:
    raise StoreError("out of order")


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Fragile:
    monkeypatch.setattr(stores, "PROBE_INTERVAL", 0.01)
    monkeypatch.setattr(stores, "CHECK_INTERVAL", 0.0)
    return Fragile()


def call(store: CircuitBreakerStore, name: str) -> Any:
    return getattr(store, name)(*(READING | WRITING)[name])


def expected_answer(name: str) -> str | None:
    return None if name == "check" else f"answer to {name}"


def until_answered(store: CircuitBreakerStore, name: str) -> Any:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            return call(store, name)
        except StoreError:
            time.sleep(0.005)
    pytest.fail(f"{name} was never answered")


@pytest.mark.parametrize(("kind", "other", "probe"), [(READING, WRITING, "version"), (WRITING, READING, "check")])
def test_failing_operations_are_probed_by_one_thread(fragile: Fragile, kind: Any, other: Any, probe: str) -> None:
    store = CircuitBreakerStore(cast(Any, fragile))
    for name in kind:
        assert call(store, name) == expected_answer(name)
        fragile.behavior = dict.fromkeys(kind, fail)
        with pytest.raises(StoreError, match="out of order"):
            call(store, name)
        fragile.calls.clear()
        for _ in range(20):
            with pytest.raises(StoreError, match="does not answer yet"):
                call(store, name)
            for other_name in other:
                assert call(store, other_name) == expected_answer(other_name)
            time.sleep(0.002)
        probes = [event for event in fragile.calls if event[0] in kind]
        assert set(probes) == {(probe, "factorcell-store-probe")}
        assert len(probes) > 1
        fragile.behavior = {}
        assert until_answered(store, name) == expected_answer(name)
        time.sleep(0.03)
        fragile.calls.clear()
        time.sleep(0.03)
        assert fragile.calls == [], "a working store is not probed"
    store.close()


def test_damaged_record_is_not_a_failure_of_the_store(fragile: Fragile) -> None:
    store = CircuitBreakerStore(cast(Any, fragile))

    def damaged() -> None:
        raise DamagedRecordError("altered")

    fragile.behavior["read"] = damaged
    for _ in range(2):
        with pytest.raises(DamagedRecordError):
            store.read("a")
    assert store.version("b") == "answer to version"  # type: ignore[comparison-overlap]
