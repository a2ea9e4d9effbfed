"""What is kept of late, and who is learned again in the background."""

import threading

from factorcell.service.lru_cache import LRUCache
from factorcell.service.record import StoreError
from factorcell.service.relearning import Relearner


def test_who_was_not_asked_for_longest_goes_first() -> None:
    recent: LRUCache[str, int] = LRUCache(2)
    for number, key in enumerate("abab"):
        recent.put(key, number)
    assert recent.get("a") == 2
    recent.put("c", 4)
    assert [recent.get(key) for key in "abc"] == [2, None, 4]
    recent.drop(lambda key: key == "a")
    assert [recent.get(key) for key in "abc"] == [None, None, 4]
    recent.drop()
    assert recent.get("c") is None


def test_each_who_waits_is_learned_once_and_an_error_stops_nobody() -> None:
    begun, go_on, learned = threading.Event(), threading.Event(), list[str]()

    def learn(user: str) -> None:
        learned.append(user)
        begun.set()
        assert go_on.wait(10)
        if user == "ann":
            raise StoreError("out of order")

    relearner = Relearner(learn)
    assert relearner.wait_until_idle(0)
    relearner.add("ann")
    assert begun.wait(10)
    for user in ("bob", "bob", "ann", "eve"):  # ann anew: she may have changed since it began
        relearner.add(user)
    assert not relearner.wait_until_idle(0.01)
    go_on.set()
    assert relearner.wait_until_idle(10)
    assert learned == ["ann", "bob", "ann", "eve"]
    relearner.close()
