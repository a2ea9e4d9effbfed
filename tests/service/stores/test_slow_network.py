"""Answers that come late or never: an error in time, and never the answer to another question."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from factorcell.service.record import DamagedRecordError, StoreError
from factorcell.service.stores import postgres, redis
from factorcell.service.stores.opening import open_store
from tests.service.stores.proxy import Proxy
from tests.service.stores.servers import Server
from tests.service.stores.test_contract import person

pytestmark = pytest.mark.parametrize("started", ["postgresql", "redis"], indirect=True)
WAIT = 0.3  # seconds that a store waits here


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(redis, "WAIT", WAIT)
    monkeypatch.setattr(postgres, "WAIT", WAIT)
    monkeypatch.setattr(postgres.BoundedConnection, "patience", WAIT)
    made = Proxy(server.url)
    yield made
    made.close()


def test_a_server_that_does_not_answer_is_an_error_in_time(proxy: Proxy) -> None:
    store, ann = open_store(proxy.url), person("Ann")
    store.write(ann, None)
    proxy.delay = lambda: 2.0
    for ask in (lambda: store.version("Ann"), lambda: store.read("Ann"), lambda: store.delete("Ann", 1), store.check):
        begun = time.monotonic()
        with pytest.raises(StoreError):
            ask()
        assert time.monotonic() - begun < 1.5
    proxy.delay = lambda: 0.0
    stop = time.monotonic() + 20
    while time.monotonic() < stop:
        try:
            assert store.read("Ann") == ann
            break
        except DamagedRecordError:
            raise
        except StoreError:
            time.sleep(0.05)
    else:
        pytest.fail("it does not come back")
    store.close()


def test_late_answers_reach_nobody_else(proxy: Proxy) -> None:
    store, people = open_store(proxy.url), [person(f"user {number}", 2) for number in range(20)]
    for one in people:
        store.write(one, None)
    draw = random.Random(0)
    proxy.delay = lambda: 2 * WAIT if draw.random() < 0.125 else 0.0

    def ask(number: int) -> str:
        one = people[number * 7 % len(people)]
        try:
            assert store.read(one.user) == one
            assert store.version(one.user) == one.version
        except DamagedRecordError:
            return "another's"
        except StoreError:
            return "late"
        return "own"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(120)))
    assert found.count("another's") == 0
    assert found.count("own") > 10
    assert found.count("late") > 5
    store.close()
