"""What is kept of late, and who is learned again in the background."""

import threading

import pytest

from factorcell.config import UserError
from factorcell.service.recent import Recent
from factorcell.service.record import StoreError
from factorcell.service.relearning import Relearner


def test_who_was_not_asked_for_longest_goes_first() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate("abab"):
        recent.put(key, number)
    assert recent.get("a") == 2
    recent.put("c", 4)
    assert [recent.get(key) for key in "abc"] == [2, None, 4]
    recent.drop(lambda key: key == "a")
    assert [recent.get(key) for key in "abc"] == [None, None, 4]
    recent.drop()
    assert len(recent) == 0


def test_each_who_waits_is_learned_once_and_an_error_stops_nobody() -> None:
    begun, go_on, learned = threading.Event(), threading.Event(), list[str]()

    def learn(user: str) -> None:
        learned.append(user)
        begun.set()
        assert go_on.wait(10)
        if user == "ann":
            raise StoreError("out of order")

    relearner = Relearner(learn)
    assert relearner.settle(0)
    relearner.add("ann")
    assert begun.wait(10)
    for user in ("bob", "bob", "ann", "eve"):  # ann anew: she may have changed since it began
        relearner.add(user)
    assert not relearner.settle(0.01)
    go_on.set()
    assert relearner.settle(10)
    assert learned == ["ann", "bob", "ann", "eve"]
    relearner.close()
    relearner.add("zoe")
    assert relearner.settle(10), "it begins again"
    relearner.close()


def test_who_cannot_be_learned_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    learned = list[str]()

    def learn(user: str) -> None:
        if user == "ann":
            raise UserError("ann wrote what nobody reads")
        learned.append(user)

    relearner = Relearner(learn)
    for user in ("ann", "bob"):
        relearner.add(user)
    assert relearner.settle(10)
    relearner.close()
    assert learned == ["bob"]
    (line,) = caplog.messages
    assert line.startswith("UserError at factorcell.service.relearning:")
    assert "ann" not in line


def test_who_waits_at_the_end_is_left() -> None:
    begun, go_on, learned = threading.Event(), threading.Event(), list[str]()

    def learn(user: str) -> None:
        learned.append(user)
        begun.set()
        assert go_on.wait(10)

    relearner = Relearner(learn)
    for user in ("ann", "bob"):
        relearner.add(user)
    assert begun.wait(10)
    closing = threading.Thread(target=relearner.close)
    closing.start()
    go_on.set()
    closing.join(10)
    assert learned in (["ann"], ["ann", "bob"]), "bob may have begun before the end"
    assert not closing.is_alive()
