"""The record of one user: one value, so that it is written whole or not at all.

The id is inside it and is checked at every read, so that no fault of a store or of a connection can return the record
of another user. What a model has learned can be computed again from the texts at any time.
"""

import hashlib
import secrets
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from factorcell.completion.texts import byte_length
from factorcell.config import UserError, check_format

MARK, FORMAT = b"fcp", 1  # the first bytes, and the number of the format, one byte
CHECK = 4  # bytes of the CRC-32 at the end
MAX_ID_BYTES = 256  # bytes of an id in UTF-8
MAX_KEY_LENGTH = 256  # characters of an idempotency key
MAX_KEYS = 200  # idempotency keys that are kept, the newest
MAX_STATES = 2  # states that are kept: of a model and of the one that replaces it
DIGEST = 16  # bytes of the digest of a key
MAX_VALUE_LENGTH, LARGEST_VALUE = 1000, 1e15  # of a context: characters of a text, bound of a number
MAX_TIME = 253_402_300_799  # the last second of the year 9999
FIRST_VERSIONS = 1 << 52  # bound of the random first version; JSON's numbers hold all that follow

ContextValue = str | bool | int | float  # of a column of a context


class StoreError(RuntimeError):
    """The store cannot be reached or cannot do its work now."""


class DamagedRecordError(StoreError):
    """The store returned other bytes than those that were written."""


class StoredText(msgspec.Struct, frozen=True, array_like=True):
    """The `number`th text (NFC) that a user accepted, when (Unix seconds), and in which context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue] = {}


class LearnedState(msgspec.Struct, frozen=True, array_like=True):
    """What a `model` (its identity) has learned up to the text `through`: the bytes of a `User` without history."""

    model: bytes
    last_number: int
    user: bytes


class AppliedKey(msgspec.Struct, frozen=True, array_like=True):
    """A digest of an idempotency key, and the number of the text that was accepted with it."""

    digest: bytes
    number: int


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything that is kept of a user.

    `version` grows with each write; `touched`: the time of the last one (Unix seconds); `accepted`: the number of the
    last text that was ever accepted; `texts` that are kept, by number; `states`: what models have learned of them, the
    newest last; `keys`: the newest idempotency keys.
    """

    user: str
    version: int
    updated_at: int
    accepted: int = 0
    texts: tuple[StoredText, ...] = ()
    states: tuple[LearnedState, ...] = ()
    keys: tuple[AppliedKey, ...] = ()
    paused: bool = False

    @classmethod
    def new(cls, user: str, now: int) -> "Record":
        """Return an empty record.

        Its version is random: a request that read a user before a deletion must not overwrite the record created
        after it.
        """
        return cls(user=checked_id(user), version=secrets.randbelow(FIRST_VERSIONS), updated_at=now)

    @property
    def oldest(self) -> int:
        """The time of the oldest text, or without texts that of the last write."""
        return min((text.time for text in self.texts), default=self.updated_at)

    def state(self, model: bytes) -> LearnedState | None:
        return next((state for state in self.states if state.model == model), None)

    def with_state(self, state: LearnedState) -> tuple[LearnedState, ...]:
        """Return the states with this one as that of its model."""
        return (*(other for other in self.states if other.model != state.model), state)[-MAX_STATES:]

    def number_of(self, key: str) -> int | None:
        """Return the number of the text that was accepted with an idempotency key, if it is remembered."""
        digest = key_digest(key)
        return next((one.number for one in self.keys if one.digest == digest), None)

    def with_key(self, key: str, number: int) -> tuple[AppliedKey, ...]:
        return (*self.keys, AppliedKey(key_digest(key), number))[-MAX_KEYS:]

    def to_bytes(self) -> bytes:
        content = MARK + bytes([FORMAT]) + msgspec.msgpack.encode(self)
        return content + zlib.crc32(content).to_bytes(CHECK, "little")

    @classmethod
    def from_bytes(cls, content: bytes, user: str) -> "Record":
        """Return the record of `user` from `to_bytes`.

        `DamagedRecordError` if a bit was altered, anything cut off, or the record is that of another user; `UserError`
        for a later format.
        """
        checked, check = content[:-CHECK], content[-CHECK:]
        if content[: len(MARK)] != MARK or zlib.crc32(checked).to_bytes(CHECK, "little") != check:
            raise DamagedRecordError("what the store has of a person is truncated or altered")
        check_format(checked[len(MARK)], FORMAT, "a person in the store")
        try:
            record = _DECODER.decode(memoryview(checked)[len(MARK) + 1 :])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedRecordError(f"what the store has of a person cannot be read ({error})") from None
        if record.user != user:
            raise DamagedRecordError("the store answered with another person than the one asked for")
        return record


_DECODER = msgspec.msgpack.Decoder(Record)


def checked_id(user: str) -> str:
    """Return an id; `UserError` unless it is printable characters, at most `LONGEST_ID` bytes of UTF-8."""
    if not isinstance(user, str) or not user or not user.isprintable() or len(user.encode()) > MAX_ID_BYTES:
        raise UserError(f"a user's id is 1 to {MAX_ID_BYTES} bytes of printable characters")
    return user


def decoded_id(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedRecordError("what the store has as the id of a person is not UTF-8 text") from None


def check_key(key: str | None) -> None:
    """Raise a `UserError` unless an idempotency key is None or has 1 to `LONGEST_KEY` characters."""
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH):
        raise UserError(f"an idempotency key has 1 to {MAX_KEY_LENGTH} characters")


def checked_context(context: Mapping[str, Any] | None) -> dict[str, ContextValue]:
    """Return a context as it is kept; `UserError` unless it has short texts, finite numbers and booleans by column."""
    checked: dict[str, ContextValue] = {}
    for name, value in (context or {}).items():
        known = isinstance(value, ContextValue)
        if not known or (len(value) > MAX_VALUE_LENGTH if isinstance(value, str) else not abs(value) < LARGEST_VALUE):
            raise UserError(
                f"context {name!s:.50}: expected a text of at most {MAX_VALUE_LENGTH} characters, a finite number or a "
                f"boolean, got {_described(value)}"
            )
        byte_length(f"{name}{value}", "context")  # Unicode
        checked[name] = value
    return checked


def _described(value: Any) -> str:
    if isinstance(value, str):
        return f"{len(value):,} characters"
    return f"{value:g}" if isinstance(value, float) else type(value).__name__


def key_digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
