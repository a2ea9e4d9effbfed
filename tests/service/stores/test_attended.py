"""A store that fails is asked by one thread, and by everybody again once it answers."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from factorcell.service.record import DamagedRecordError, Record, StoreError
from factorcell.service.stores import attended
from factorcell.service.stores.attended import AttendedStore

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
    monkeypatch.setattr(attended, "RETRY", 0.01)
    return Fragile()


def ask(store: AttendedStore, name: str) -> Any:
    return getattr(store, name)(*(READING | WRITING)[name])


def answer(name: str) -> str | None:
    return None if name == "check" else f"answer to {name}"


def until_answered(store: AttendedStore, name: str) -> Any:
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        try:
            return ask(store, name)
        except StoreError:
            time.sleep(0.005)
    pytest.fail(f"{name} is never answered")


@pytest.mark.parametrize(("kind", "other", "probe"), [(READING, WRITING, "version"), (WRITING, READING, "check")])
def test_what_fails_is_tried_by_one_thread(fragile: Fragile, kind: Any, other: Any, probe: str) -> None:
    store = AttendedStore(cast(Any, fragile))
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


def test_a_probe_that_fails_otherwise_is_tried_on(fragile: Fragile, caplog: pytest.LogCaptureFixture) -> None:
    store = AttendedStore(cast(Any, fragile))

    def strange() -> None:
        raise ValueError("ann")

    fragile.does = {"read": fails, "version": strange}
    with pytest.raises(StoreError, match="out of order"):
        store.read("a")
    time.sleep(0.05)
    fragile.does = {}
    assert until_answered(store, "read") == answer("read")
    assert caplog.messages[0].startswith("ValueError at factorcell.service.stores.attended:")
    assert "ann" not in caplog.text
    store.close()


def test_one_persons_damage_is_no_failure(fragile: Fragile) -> None:
    store = AttendedStore(cast(Any, fragile))

    def damaged() -> None:
        raise DamagedRecordError("altered")

    fragile.does["read"] = damaged
    for _ in range(2):
        with pytest.raises(DamagedRecordError):
            store.read("a")
    assert store.version("b") == "answer to version"  # type: ignore[comparison-overlap]


def test_nobody_else_waits_for_what_hangs(fragile: Fragile) -> None:
    event, store = threading.Event(), AttendedStore(cast(Any, fragile))

    def hangs() -> None:
        event.wait(10)
        fails()

    fragile.does["version"] = fails
    with pytest.raises(StoreError):
        store.version("a")
    fragile.does["version"] = hangs
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(StoreError):
            store.version("a")
    assert time.monotonic() - began < 5
    event.set()
    fragile.does = {}
    assert until_answered(store, "version") == "answer to version"


def test_what_fails_again_and_again_is_left_alone_longer(fragile: Fragile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attended, "RETRY", 0.1)
    store = AttendedStore(cast(Any, fragile))
    fragile.does["write"] = fails
    stop, ready, asked = time.monotonic() + 0.5, 0, 0
    while time.monotonic() < stop:
        asked += 1
        for name in ("write", "check"):
            try:
                ask(store, name)
                ready += 1
            except StoreError:
                pass
        time.sleep(0.002)
    assert ready < asked / 4
    assert len([one for one in fragile.asked if one[0] == "write"]) <= 7
    monkeypatch.setattr(attended, "RETRY", 100.0)
    monkeypatch.setattr(attended, "CALM", 0.0)
    until_answered(store, "check")
    with pytest.raises(StoreError):
        ask(store, "write")
    assert until_answered(store, "check") is None, "what fails for the first time in a while is tried at once"


def test_closed_store_is_tried_no_more(fragile: Fragile) -> None:
    store = AttendedStore(cast(Any, fragile))
    fragile.does = {"version": fails, "read": fails}
    with pytest.raises(StoreError):
        store.read("a")
    store.close()
    time.sleep(0.05)
    fragile.asked.clear()
    time.sleep(0.05)
    assert fragile.asked == []
