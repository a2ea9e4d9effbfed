"""The cache and the background thread that learns users."""

import threading

from factorcell.service.lru_cache import LRUCache
from factorcell.service.record import StoreError
from factorcell.service.relearning import Relearner


def test_cache_drops_the_least_recently_used_value() -> None:
    cache: LRUCache[str, int] = LRUCache(2)
    for number, key in enumerate("abab"):
        cache.put(key, number)
    assert cache.get("a") == 2
    cache.put("c", 4)
    assert [cache.get(key) for key in "abc"] == [2, None, 4]
    cache.drop(lambda key: key == "a")
    assert [cache.get(key) for key in "abc"] == [None, None, 4]
    cache.drop()
    assert cache.get("c") is None


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
