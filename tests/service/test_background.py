"""The background thread that learns users."""

import threading

from factorcell.service.learning import Relearner
from factorcell.service.record import StoreError


def test_queued_users_are_learned_once_and_an_error_does_not_stop_the_queue() -> None:
    has_begun, may_continue, learned = threading.Event(), threading.Event(), list[str]()

    def learn(user: str) -> None:
        learned.append(user)
        has_begun.set()
        assert may_continue.wait(10)
        if user == "ann":
            raise StoreError("out of order")

    relearner = Relearner(learn)
    assert relearner.wait_until_idle(10)
    relearner.add("ann")
    assert has_begun.wait(10)
    for user in ("bob", "bob", "ann", "eve"):  # ann again: her record may have changed since she was read
        relearner.add(user)
    assert not relearner.wait_until_idle(0.01)
    may_continue.set()
    assert relearner.wait_until_idle(10)
    assert learned == ["ann", "bob", "ann", "eve"]
    relearner.close()
