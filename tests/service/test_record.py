"""The record of a user as bytes: complete and of that user, or refused."""

import zlib
from typing import Any

import msgspec
import pytest

from factorcell.errors import UserError
from factorcell.service.record import (
    MAX_KEYS,
    MAX_STATES,
    DamagedRecordError,
    LearnedState,
    Record,
    StoredText,
    check_key,
    checked_context,
    checked_id,
)

TEXTS = (
    StoredText(1, "how to ba", 10, {"city": "Oslo", "stars": 5, "lat": 59.5}),
    StoredText(3, "é\x00 \U0001f600", 7),
)
FULL = msgspec.structs.replace(
    Record.new("Ann 1", 5),
    last_number=3,
    texts=TEXTS,
    states=(LearnedState(b"m" * 16, 3, b"\x00\xff"),),
    paused=True,
)


def test_bytes_contain_the_whole_record() -> None:
    full = FULL.with_text(StoredText(4, "b", 8), "a")
    assert Record.from_bytes(full.to_bytes(), "Ann 1") == full
    assert full.oldest_time == 7
    assert Record.new("Bob", 5).oldest_time == 5
    assert (full.number_of("a"), full.number_of("b"), full.last_number) == (4, None, 4)
    assert full.state(b"m" * 16) == full.states[0]
    assert full.state(b"n" * 16) is None


def test_every_flipped_bit_is_detected() -> None:
    content = FULL.to_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecordError, match="truncated or altered"):
            Record.from_bytes(bytes(flipped), "Ann 1")


@pytest.mark.parametrize("content", [b"", b"fcp", b"fcp\x01", FULL.to_bytes()[:-1], FULL.to_bytes() + b"\0"], ids=len)
def test_truncated_or_extended_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(DamagedRecordError, match="truncated or altered"):
        Record.from_bytes(content, "Ann 1")


def test_record_of_another_user_is_refused_without_naming_the_user() -> None:
    with pytest.raises(DamagedRecordError, match="another user") as caught:
        Record.from_bytes(FULL.to_bytes(), "Bob")
    assert "Ann" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"fcp\x02" + FULL.to_bytes()[4:-4], UserError, "its format is 2, but this version reads up to 1"),
        (b"fcp\x01" + b"\xc1", DamagedRecordError, "cannot be decoded"),
        (b"fcp\x01" + msgspec.msgpack.encode(["Ann 1", "1"]), DamagedRecordError, "cannot be decoded"),
        (FULL.to_bytes()[:-4].replace(b"Oslo", b"Osl\xff"), DamagedRecordError, "cannot be decoded"),
        (FULL.to_bytes()[:-4].replace(b"city", b"\xed\xa0\x80y"), DamagedRecordError, "cannot be decoded"),
        (FULL.to_bytes()[:-4].replace("é".encode(), b"\xf0\x9f"), DamagedRecordError, "cannot be decoded"),
    ],
)
def test_invalid_content_with_a_valid_checksum_is_refused(body: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Record.from_bytes(body + zlib.crc32(body).to_bytes(4, "little"), "Ann 1")


def test_number_of_keys_and_states_is_bounded() -> None:
    record = Record.new("Ann", 0)
    for number in range(MAX_KEYS + 5):
        record = record.with_text(StoredText(number, "a", 1), f"k{number}")
    assert len(record.keys) == MAX_KEYS
    assert (record.number_of("k4"), record.number_of("k5")) == (None, 5)
    for number in range(MAX_STATES + 1):
        state = LearnedState(bytes([number]) * 16, 1, b"")
        record = record.with_state(state)
    assert [state.model_identity[0] for state in record.states] == list(range(1, MAX_STATES + 1))
    again = LearnedState(bytes([1]) * 16, 2, b"")
    states = record.with_state(again).states
    assert [(state.model_identity[0], state.last_number) for state in states] == [(2, 1), (1, 2)]


def test_idempotency_key_is_stored_as_a_digest() -> None:
    record = FULL.with_text(TEXTS[0], "my secret")
    assert b"my secret" not in record.to_bytes()


@pytest.mark.parametrize("user", ["", "a" * 257, "é" * 129, "a\nb", "a\0", "\ud800", "a\u202eb", 7, None])
def test_invalid_ids_are_refused(user: Any) -> None:
    with pytest.raises(UserError, match="user id: expected 1 to 256 bytes of printable characters"):
        checked_id(user)


@pytest.mark.parametrize("user", ["a", "Ann 1", "é" * 128, "\U0001f600", "a'; --", "%", "*", "../x"])
def test_ids_may_be_any_printable_text(user: str) -> None:
    assert checked_id(user) == user


@pytest.mark.parametrize("key", ["", "k" * 257, 5])
def test_invalid_keys_are_refused(key: Any) -> None:
    with pytest.raises(UserError, match="idempotency key: expected 1 to 256 characters"):
        check_key(key)


@pytest.mark.parametrize(
    "value", [None, [1], "x" * 1001, float("nan"), float("inf"), 10**30, "\ud800", b"x"], ids=ascii
)
def test_invalid_contexts_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="context"):
        checked_context({"city": value})


def test_contexts_are_restored_exactly() -> None:
    context = {"city": "Oslo", "stars": 5, "lat": 1e14, "member": True, "new": False}
    record = msgspec.structs.replace(FULL, texts=(StoredText(1, "a", 0, checked_context(context)),))
    restored = Record.from_bytes(record.to_bytes(), "Ann 1").texts[0].context
    assert [(name, value, type(value)) for name, value in restored.items()] == [
        (name, value, type(value)) for name, value in context.items()
    ]
    assert checked_context(None) == {}
