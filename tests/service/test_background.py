"""The cache and the background thread that learns users."""

import threading
from typing import Any, cast

from factorcell.service.engine import TypedTextCache
from factorcell.service.learning import Relearner
from factorcell.service.record import StoreError


def test_cache_drops_the_least_recently_used_value() -> None:
    cache, values = TypedTextCache(2), [cast(Any, object()) for _ in range(4)]
    for key, value in zip("abac", values, strict=True):  # the service puts a value back after each use
        cache.put(key, value)
    assert [cache.get(key) for key in "abc"] == [values[2], None, values[3]]
    cache.clear()
    assert [cache.get(key) for key in "abc"] == [None] * 3


def test_queued_users_are_learned_once_and_an_error_does_not_stop_the_queue() -> None:
    has_begun, may_continue, learned = threading.Event(), threading.Event(), list[str]()

    def learn(user: str) -> None:
        learned.append(user)
        has_begun.set()
        assert may_continue.wait(10)
        if user == "ann":
            raise StoreError("out of order")

    relearner = Relearner(learn)
    assert relearner.wait_until_idle(0)
    relearner.add("ann")
    assert has_begun.wait(10)
    for user in ("bob", "bob", "ann", "eve"):  # ann again: her record may have changed since she was read
        relearner.add(user)
    assert not relearner.wait_until_idle(0.01)
    may_continue.set()
    assert relearner.wait_until_idle(10)
    assert learned == ["ann", "bob", "ann", "eve"]
    relearner.close()
