"""A store that fails is asked by one thread, and by everybody again once it answers."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores import circuit_breaker
from factorcell.service.stores.circuit_breaker import CircuitBreakerStore

READING: dict[str, tuple[object, ...]] = {"read": ("a",), "version": ("a",), "users": (), "aged": (1,)}
WRITING: dict[str, tuple[object, ...]] = {"write": (Record.new("a", 1), None), "delete": ("a",), "check": ()}


class Fragile:
    """A store that does, by the name of what is asked, what it is told to; and who asked it for what."""

    def __init__(self) -> None:
        self.does: dict[str, Callable[[], Any]] = {}
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> Any:
            self.asked.append((name, threading.current_thread().name))
            return self.does.get(name, lambda: f"answer to {name}")()

        return ask


def fails() -> None:
    raise StoreError("out of order")


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Fragile:
    monkeypatch.setattr(circuit_breaker, "RETRY", 0.01)
    monkeypatch.setattr(circuit_breaker, "CHECK", 0.0)
    return Fragile()


def ask(store: CircuitBreakerStore, name: str) -> Any:
    return getattr(store, name)(*(READING | WRITING)[name])


def answer(name: str) -> str | None:
    return None if name == "check" else f"answer to {name}"


def until_answered(store: CircuitBreakerStore, name: str) -> Any:
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        try:
            return ask(store, name)
        except StoreError:
            time.sleep(0.005)
    pytest.fail(f"{name} is never answered")


@pytest.mark.parametrize(("kind", "other", "probe"), [(READING, WRITING, "version"), (WRITING, READING, "check")])
def test_what_fails_is_tried_by_one_thread(fragile: Fragile, kind: Any, other: Any, probe: str) -> None:
    store = CircuitBreakerStore(cast(Any, fragile))
    for name in kind:
        assert ask(store, name) == answer(name)
        fragile.does = dict.fromkeys(kind, fails)
        with pytest.raises(StoreError, match="out of order"):
            ask(store, name)
        fragile.asked.clear()
        for _ in range(20):
            with pytest.raises(StoreError, match="does not answer yet"):
                ask(store, name)
            for one in other:
                assert ask(store, one) == answer(one)
            time.sleep(0.002)
        tried = [asked for asked in fragile.asked if asked[0] in kind]
        assert set(tried) == {(probe, "factorcell-trying")}
        assert len(tried) > 1
        fragile.does = {}
        assert until_answered(store, name) == answer(name)
        time.sleep(0.03)
        fragile.asked.clear()
        time.sleep(0.03)
        assert fragile.asked == [], "what answers is not tried"
    store.close()


def test_one_persons_damage_is_no_failure(fragile: Fragile) -> None:
    store = CircuitBreakerStore(cast(Any, fragile))

    def damaged() -> None:
        raise DamagedRecordError("altered")

    fragile.does["read"] = damaged
    for _ in range(2):
        with pytest.raises(DamagedRecordError):
            store.read("a")
    assert store.version("b") == "answer to version"  # type: ignore[comparison-overlap]
