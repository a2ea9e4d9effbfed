"""One contract for all stores, tested with real servers."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from factorcell.service.record import DamagedRecordError, LearnedState, Record, StoredText, StoreError
from factorcell.service.stores.store import Store
from tests.service.stores.servers import Server

replace = msgspec.structs.replace


def new_record(user: str, texts: int = 1, time: int = 100) -> Record:
    saved = tuple(StoredText(number, f"text {number} of {user}", time + number) for number in range(1, texts + 1))
    state = LearnedState(b"m" * 16, texts, bytes(range(256)))
    return replace(Record.new(user, time), last_number=texts, texts=saved, states=(state,))


def updated(record: Record, **values: object) -> Record:
    return replace(record, version=record.version + 1, **values)


@pytest.mark.parametrize("user", ["Ann", "é \U0001f600", "a'; DROP TABLE users; --", "%", "*", "{x}:y", "a" * 256])
def test_written_record_is_read(store: Store, user: str) -> None:
    assert (store.read(user), store.version(user)) == (None, None)
    first = new_record(user, 3)
    assert store.write(first, None)
    assert (store.read(user), store.version(user)) == (first, first.version)
    assert store.read(user + "x" if len(user) < 256 else "x") is None
    large = updated(first, texts=tuple(StoredText(number, "x" * 60_000, 1) for number in range(1, 20)))
    assert store.write(large, first.version)
    assert store.read(user) == large


def test_only_the_expected_version_is_replaced(store: Store) -> None:
    first, other = new_record("Ann"), new_record("Ann", 2)
    assert not store.write(updated(first), first.version), "there is no record"
    assert store.write(first, None)
    assert not store.write(other, None), "there is a record"
    assert not store.write(other, first.version + 1)
    assert store.read("Ann") == first
    second = updated(first, paused=True)
    assert store.write(second, first.version)
    assert not store.write(updated(first), first.version)
    assert store.read("Ann") == second


def test_deleted_record_does_not_exist(store: Store) -> None:
    first = new_record("Ann")
    assert not store.delete("Ann")
    store.write(first, None)
    store.write(new_record("Bob"), None)
    assert not store.delete("Ann", first.version + 1)
    assert store.read("Ann") == first
    assert store.delete("Ann", first.version)
    assert (store.read("Ann"), store.version("Ann"), store.users()) == (None, None, ["Bob"])
    assert not store.write(updated(first), first.version), "a writer that read before the deletion must not undo it"
    assert store.write(new_record("Ann"), None)
    assert store.delete("Ann")
    assert store.delete("Bob")
    assert (store.users(), store.users_older_than(10**9)) == ([], [])


def test_users_are_listed_in_pages(store: Store) -> None:
    names = sorted(["a", "B", "b", "é", "\uffee", "\U0001f600", "10", "9", "a b", "aa"], key=str.encode)
    for name in random.sample(names, len(names)):
        store.write(new_record(name), None)
    assert store.users() == names
    listed, last = list[str](), ""
    while page := store.users(last, 3):
        assert len(page) <= 3
        listed, last = listed + page, page[-1]
    assert listed == names
    assert store.users("zzz", 2) == [name for name in names if name.encode() > b"zzz"][:2]


def test_users_are_sorted_by_oldest_text(store: Store) -> None:
    for time, name in enumerate("cab"):
        store.write(new_record(name, 2, 10 * time), None)
    store.write(replace(Record.new("idle", 15), paused=True), None)
    assert store.users_older_than(1) == []
    assert store.users_older_than(2) == ["c"]
    assert store.users_older_than(100) == ["c", "a", "idle", "b"]
    assert store.users_older_than(100, 2) == ["c", "a"]
    first = store.read("c")
    assert first is not None
    store.write(updated(first, texts=(StoredText(3, "new", 50),)), first.version)
    assert store.users_older_than(100) == ["a", "idle", "b", "c"]


def test_concurrent_writers_lose_no_update(store: Store) -> None:
    store.write(new_record("Ann"), None)
    refused = []

    def increment(_: int) -> None:
        while True:
            current = store.read("Ann")
            assert current is not None
            if store.write(updated(current, last_number=current.last_number + 1), current.version):
                return
            refused.append(current.version)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(increment, range(200)))
    last = store.read("Ann")
    assert last is not None
    assert last.last_number == 201


def test_damaged_record_is_refused_and_can_be_deleted(store: Store, server: Server) -> None:
    ann, bob = new_record("Ann"), new_record("Bob")
    store.write(ann, None)
    store.write(bob, None)
    content = bytearray(ann.to_bytes())
    content[len(content) // 2] ^= 4
    for damaged in (bytes(content), bob.to_bytes(), b""):
        server.tamper("Ann", damaged)
        with pytest.raises(DamagedRecordError):
            store.read("Ann")
    assert store.read("Bob") == bob
    assert store.delete("Ann")
    assert store.read("Ann") is None


def test_data_survives_closing(server: Server) -> None:
    first, second = server.open(), new_record("Ann")
    first.check()
    first.write(second, None)
    first.close()
    for call in (lambda: first.read("Ann"), lambda: first.write(second, None), first.check):
        with pytest.raises(StoreError):
            call()
    reopened = server.open()
    reopened.check()
    assert reopened.read("Ann") == second
    reopened.close()


def test_documented_commands_remove_deleted_data_from_the_files(store: Store, server: Server) -> None:
    secret = b"my very own secret"
    for number in range(90):
        first = new_record(f"user-{number:03}", number % 50)
        before = replace(first, texts=(*first.texts, StoredText(99, f"{secret.decode()} {number}", 3)))
        assert store.write(before, None)
        assert store.write(updated(first), before.version) if number % 3 == 0 else store.delete(first.user)
    assert secret in server.raw(), "raw() reads the files of the store"
    server.clean()
    raw = server.raw()
    assert secret not in raw
    assert {int(number) for number in re.findall(rb"user-(\d{3})", raw)} == set(range(0, 90, 3))
