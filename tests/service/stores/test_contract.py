"""One contract for every store, against real servers."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from factorcell.service.record import DamagedRecordError, LearnedState, Record, StoredText, StoreError
from factorcell.service.stores.store import Store
from tests.service.stores.servers import Server

replace = msgspec.structs.replace


def person(user: str, texts: int = 1, time: int = 100) -> Record:
    kept = tuple(StoredText(number, f"text {number} of {user}", time + number) for number in range(1, texts + 1))
    state = LearnedState(b"m" * 16, texts, bytes(range(256)))
    return replace(Record.new(user, time), accepted=texts, texts=kept, states=(state,))


def after(record: Record, **values: object) -> Record:
    return replace(record, version=record.version + 1, **values)


@pytest.mark.parametrize("user", ["Ann", "é \U0001f600", "a'; DROP TABLE users; --", "%", "*", "{x}:y", "a" * 256])
def test_what_was_written_is_read(store: Store, user: str) -> None:
    assert (store.read(user), store.version(user)) == (None, None)
    first = person(user, 3)
    assert store.write(first, None)
    assert (store.read(user), store.version(user)) == (first, first.version)
    assert store.read(user + "x" if len(user) < 256 else "x") is None
    large = after(first, texts=tuple(StoredText(number, "x" * 60_000, 1) for number in range(1, 20)))
    assert store.write(large, first.version)
    assert store.read(user) == large


def test_only_the_version_that_was_read_is_replaced(store: Store) -> None:
    first, other = person("Ann"), person("Ann", 2)
    assert not store.write(after(first), first.version), "nobody is there"
    assert store.write(first, None)
    assert not store.write(other, None), "somebody is there"
    assert not store.write(other, first.version + 1)
    assert store.read("Ann") == first
    second = after(first, paused=True)
    assert store.write(second, first.version)
    assert not store.write(after(first), first.version)
    assert store.read("Ann") == second


def test_deletion(store: Store) -> None:
    first = person("Ann")
    assert not store.delete("Ann")
    store.write(first, None)
    store.write(person("Bob"), None)
    assert not store.delete("Ann", first.version + 1)
    assert store.read("Ann") == first
    assert store.delete("Ann", first.version)
    assert (store.read("Ann"), store.version("Ann"), store.users()) == (None, None, ["Bob"])
    assert not store.write(after(first), first.version), "who read before the deletion cannot undo it"
    assert store.write(person("Ann"), None)
    assert store.delete("Ann")
    assert store.delete("Bob")
    assert (store.users(), store.users_older_than(10**9)) == ([], [])


def test_users_come_in_pages(store: Store) -> None:
    names = sorted(["a", "B", "b", "é", "\uffee", "\U0001f600", "10", "9", "a b", "aa"], key=str.encode)
    for name in random.sample(names, len(names)):
        store.write(person(name), None)
    assert store.users() == names
    found, last = list[str](), ""
    while page := store.users(last, 3):
        assert len(page) <= 3
        found, last = found + page, page[-1]
    assert found == names
    assert store.users("zzz", 2) == [name for name in names if name.encode() > b"zzz"][:2]


def test_those_with_old_texts_come_first(store: Store) -> None:
    for time, name in enumerate("cab"):
        store.write(person(name, 2, 10 * time), None)
    store.write(replace(Record.new("idle", 15), paused=True), None)
    assert store.users_older_than(1) == []
    assert store.users_older_than(2) == ["c"]
    assert store.users_older_than(100) == ["c", "a", "idle", "b"]
    assert store.users_older_than(100, 2) == ["c", "a"]
    first = store.read("c")
    assert first is not None
    store.write(after(first, texts=(StoredText(3, "new", 50),)), first.version)
    assert store.users_older_than(100) == ["a", "idle", "b", "c"]


def test_of_many_writers_one_wins_each_time(store: Store) -> None:
    store.write(person("Ann"), None)
    refused = []

    def increment(_: int) -> None:
        while True:
            found = store.read("Ann")
            assert found is not None
            if store.write(after(found, accepted=found.accepted + 1), found.version):
                return
            refused.append(found.version)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(increment, range(200)))
    last = store.read("Ann")
    assert last is not None
    assert last.accepted == 201


def test_damage_is_refused_and_can_be_deleted(store: Store, server: Server) -> None:
    ann, bob = person("Ann"), person("Bob")
    store.write(ann, None)
    store.write(bob, None)
    content = bytearray(ann.to_bytes())
    content[len(content) // 2] ^= 4
    for wrong in (bytes(content), bob.to_bytes(), b""):
        server.tamper("Ann", wrong)
        with pytest.raises(DamagedRecordError):
            store.read("Ann")
    assert store.read("Bob") == bob
    assert store.delete("Ann")
    assert store.read("Ann") is None


def test_it_is_there_again_after_it_was_closed(server: Server) -> None:
    first, second = server.open(), person("Ann")
    first.check()
    first.write(second, None)
    first.close()
    for ask in (lambda: first.read("Ann"), lambda: first.write(second, None), first.check):
        with pytest.raises(StoreError):
            ask()
    again = server.open()
    again.check()
    assert again.read("Ann") == second
    again.close()


def test_what_was_deleted_is_gone_from_the_raw_files(store: Store, server: Server) -> None:
    secret = b"my very own secret"
    for number in range(90):
        first = person(f"person-{number:03}", number % 50)
        before = replace(first, texts=(*first.texts, StoredText(99, f"{secret.decode()} {number}", 3)))
        assert store.write(before, None)
        assert store.write(after(first), before.version) if number % 3 == 0 else store.delete(first.user)
    assert secret in server.raw(), "the raw files are where we look"
    assert store.purge() == []
    raw = server.raw()
    assert secret not in raw
    assert {int(number) for number in re.findall(rb"person-(\d{3})", raw)} == set(range(0, 90, 3))
