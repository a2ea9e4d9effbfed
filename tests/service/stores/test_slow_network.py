"""Late or missing responses of a server: an error within the timeout, and never the response to another request."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from factorcell.service.record import DamagedRecordError, StoreError
from factorcell.service.stores import postgres, redis
from factorcell.service.stores.store import open_store
from tests.service.stores.proxy import Proxy
from tests.service.stores.servers import Server
from tests.service.stores.test_contract import new_record

pytestmark = pytest.mark.parametrize("started", ["postgresql", "redis"], indirect=True)
WAIT = 0.3  # seconds that the stores wait in these tests


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(redis, "TIMEOUT", WAIT)
    monkeypatch.setattr(postgres, "TIMEOUT", WAIT)
    tcp_proxy = Proxy(server.url)
    yield tcp_proxy
    tcp_proxy.close()


def test_silent_server_is_an_error_within_the_timeout(proxy: Proxy) -> None:
    store, ann = open_store(proxy.url), new_record("Ann")
    store.write(ann, None)
    proxy.delay = lambda: 2.0
    for call in (lambda: store.version("Ann"), lambda: store.read("Ann"), lambda: store.delete("Ann", 1), store.check):
        start = time.monotonic()
        with pytest.raises(StoreError):
            call()
        assert time.monotonic() - start < 1.5
    proxy.delay = lambda: 0.0
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            assert store.read("Ann") == ann
            break
        except DamagedRecordError:
            raise
        except StoreError:
            time.sleep(0.05)
    else:
        pytest.fail("the store did not recover")
    store.close()


def test_late_response_is_never_taken_for_another(proxy: Proxy) -> None:
    store, records = open_store(proxy.url), [new_record(f"user {number}", 2) for number in range(20)]
    for record in records:
        store.write(record, None)
    generator = random.Random(0)
    proxy.delay = lambda: 2 * WAIT if generator.random() < 0.125 else 0.0

    def ask(number: int) -> str:
        record = records[number * 7 % len(records)]
        try:
            assert store.read(record.user) == record
            assert store.version(record.user) == record.version
        except DamagedRecordError:
            return "wrong"
        except StoreError:
            return "late"
        return "correct"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(ask, range(120)))
    assert outcomes.count("wrong") == 0
    assert outcomes.count("correct") > 10
    assert outcomes.count("late") > 5
    store.close()
