"""The record of a user: a single value, which is written completely or not at all.

The record contains the user's id. Every read checks the id, because a faulty store or connection could return the
record of another user. Learned states can be computed again from the texts at any time.
"""

import hashlib
import secrets
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from factorcell.completion.texts import byte_length
from factorcell.errors import UserError, check_format

MAGIC, FORMAT = b"fcp", 1  # the first bytes of each stored record, and the format number in the next byte
CHECKSUM_SIZE = 4  # bytes of the CRC-32 at the end
MAX_ID_BYTES = 256  # bytes of an id in UTF-8
MAX_KEY_LENGTH = 256  # characters of an idempotency key
MAX_KEYS = 200  # maximum number of saved idempotency keys per user
MAX_STATES = 2  # learned states per user: one of the served model, and one of the model that replaces it
DIGEST_SIZE = 16  # bytes of the digest of a key or a model
MAX_VALUE_LENGTH, MAX_NUMBER = 1000, 1e15  # limits of a context value: characters of a text, absolute value of a number
MAX_TIME = 253_402_300_799  # the last second of the year 9999
FIRST_VERSION_BOUND = 1 << 52  # upper bound of the random first version; JSON numbers below 2^53 are exact

ContextValue = str | bool | int | float  # the value of a context column


class StoreError(RuntimeError):
    """The store cannot be reached, or cannot read or write now."""


class DamagedRecordError(StoreError):
    """The store returned bytes that differ from those written."""


class StoredText(msgspec.Struct, frozen=True, array_like=True):
    """An accepted text (NFC), its number counted from 1, its time in Unix seconds, and its context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue] = {}


class LearnedState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a user after a model learned the texts up to `last_number`.

    `model_identity` is `ServedModel.identity`; `user_bytes` has the bytes of a `User` without history.
    """

    model_identity: bytes
    last_number: int
    user_bytes: bytes


class AppliedKey(msgspec.Struct, frozen=True, array_like=True):
    """The digest of an idempotency key, and the number of the text that was accepted with it."""

    digest: bytes
    number: int


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything that is stored about a user.

    Attributes:
        user: The id.
        version: Grows with each write.
        updated_at: Time of the last change by a request or by expiry, in Unix seconds; learning does not change it.
        last_number: Number of the last saved text, even if that text was deleted later.
        texts: The saved texts, in the order of their numbers.
        states: Learned states, one per model, newest last.
        keys: The newest idempotency keys, newest last.
        paused: Whether learning is paused.
    """

    user: str
    version: int
    updated_at: int
    last_number: int = 0
    texts: tuple[StoredText, ...] = ()
    states: tuple[LearnedState, ...] = ()
    keys: tuple[AppliedKey, ...] = ()
    paused: bool = False

    @classmethod
    def new(cls, user: str, now: int) -> "Record":
        """Return an empty record.

        Its version is random: a request that read a user before a deletion must not overwrite the record created
        after the deletion.
        """
        return cls(user=checked_id(user), version=secrets.randbelow(FIRST_VERSION_BOUND), updated_at=now)

    @property
    def oldest_time(self) -> int:
        """The time of the oldest text, or `updated_at` if there are no texts, in Unix seconds."""
        return min((text.time for text in self.texts), default=self.updated_at)

    def state(self, model_identity: bytes) -> LearnedState | None:
        """Return the learned state of the model with an identity, or None."""
        return next((state for state in self.states if state.model_identity == model_identity), None)

    def states_with(self, new_state: LearnedState) -> tuple[LearnedState, ...]:
        """Return the newest `MAX_STATES` learned states, in which `new_state` replaces the older state of its model.

        The record does not change.
        """
        other_models = (state for state in self.states if state.model_identity != new_state.model_identity)
        return (*other_models, new_state)[-MAX_STATES:]

    def texts_up_to(self, last_number: int) -> tuple[StoredText, ...]:
        """Return the saved texts whose numbers are not above `last_number`."""
        return tuple(saved for saved in self.texts if saved.number <= last_number)

    def number_of(self, idempotency_key: str) -> int | None:
        """Return the number of the text that was accepted with an idempotency key, or None."""
        digest = key_digest(idempotency_key)
        return next((key.number for key in self.keys if key.digest == digest), None)

    def keys_with(self, idempotency_key: str, number: int) -> tuple[AppliedKey, ...]:
        """Return the newest `MAX_KEYS` idempotency keys, including the new key of the text `number`."""
        return (*self.keys, AppliedKey(key_digest(idempotency_key), number))[-MAX_KEYS:]

    def to_bytes(self) -> bytes:
        body = MAGIC + bytes([FORMAT]) + msgspec.msgpack.encode(self)
        return body + zlib.crc32(body).to_bytes(CHECKSUM_SIZE, "little")

    @classmethod
    def from_bytes(cls, content: bytes, user: str) -> "Record":
        """Return the record of `user` from the bytes of `to_bytes`.

        Raises:
            DamagedRecordError: The bytes are altered or truncated, or belong to another user.
            UserError: The format is newer than this version supports.
        """
        body, checksum = content[:-CHECKSUM_SIZE], content[-CHECKSUM_SIZE:]
        if content[: len(MAGIC)] != MAGIC or zlib.crc32(body).to_bytes(CHECKSUM_SIZE, "little") != checksum:
            raise DamagedRecordError("user record: truncated or altered")
        check_format(body[len(MAGIC)], FORMAT, "user record")
        try:
            record = _DECODER.decode(memoryview(body)[len(MAGIC) + 1 :])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedRecordError(f"user record: cannot be decoded ({error})") from None
        if record.user != user:
            raise DamagedRecordError("user record: the store returned the record of another user")
        return record


_DECODER = msgspec.msgpack.Decoder(Record)


def checked_id(user: str) -> str:
    """Return a user id unchanged.

    Raises:
        UserError: The id is empty, has unprintable characters, or is longer than `MAX_ID_BYTES` in UTF-8.
    """
    if not isinstance(user, str) or not user or not user.isprintable() or len(user.encode()) > MAX_ID_BYTES:
        raise UserError(f"user id: expected 1 to {MAX_ID_BYTES} bytes of printable characters")
    return user


def decoded_id(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedRecordError("user id in the store: not UTF-8 text") from None


def check_key(key: str | None) -> None:
    """Raise a `UserError` unless the idempotency key is None or has 1 to `MAX_KEY_LENGTH` characters."""
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH):
        raise UserError(f"idempotency key: expected 1 to {MAX_KEY_LENGTH} characters")


def checked_context(context: Mapping[str, Any] | None) -> dict[str, ContextValue]:
    """Return a context as a new dict.

    Raises:
        UserError: A value is neither a short text nor a finite number nor a boolean.
    """
    checked: dict[str, ContextValue] = {}
    for name, value in (context or {}).items():
        if isinstance(value, str):
            is_valid = len(value) <= MAX_VALUE_LENGTH
        else:
            is_valid = isinstance(value, bool | int | float) and abs(value) < MAX_NUMBER  # False for NaN
        if not is_valid:
            raise UserError(
                f"context {name!s:.50}: expected a text of at most {MAX_VALUE_LENGTH} characters, a finite number or a "
                f"boolean, got {_describe(value)}"
            )
        byte_length(f"{name}{value}", "context")  # checks that the text is valid Unicode
        checked[name] = value
    return checked


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return f"{len(value):,} characters"
    return f"{value:g}" if isinstance(value, float) else type(value).__name__


def key_digest(idempotency_key: str) -> bytes:
    return hashlib.blake2b(idempotency_key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE).digest()
