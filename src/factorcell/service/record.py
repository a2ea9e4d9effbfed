"""The record of a user: a single value, which is written completely or not at all; and the errors of stores.

The record contains the user's id. Every read checks the id, because a faulty store or connection could return the
record of another user. Learned states can be computed again from the texts at any time.
"""

import hashlib
import logging
import secrets
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from factorcell.data.text_folds import byte_length, same_text, screening
from factorcell.errors import UserError, check_format

LOG = logging.getLogger("factorcell.service")
DAMAGED = "the record of a user is damaged", "`factorcell users export` names all users with damaged records"
MAX_FRAMES = 4  # number of logged locations of an unexpected error
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


def log_unexpected_error(error: BaseException) -> None:
    """Log the type and the innermost locations of an error; its message may contain the text or the id of a user."""
    frames = list(traceback.walk_tb(error.__traceback__))[-MAX_FRAMES:]
    locations = (f"{frame.f_globals.get('__name__')}:{line}" for frame, line in frames)
    LOG.error("%s at %s", type(error).__name__, " > ".join(locations))


class StoredText(msgspec.Struct, frozen=True, array_like=True):
    """An accepted text (NFC), its number counted from 1, its time in Unix seconds, and its context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue] = {}


class LearnedState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a user after the model `ServedModel.identity` learned the texts up to `last_number`."""

    model_identity: bytes
    last_number: int
    user_bytes: bytes


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything that is stored about a user."""

    user: str
    version: int  # grows with each write
    updated_at: int  # Unix seconds of the last change by a request or by expiry; learning does not change it
    last_number: int = 0  # number of the last saved text, even if that text was deleted later
    texts: tuple[StoredText, ...] = ()  # in the order of their numbers
    states: tuple[LearnedState, ...] = ()  # one per model, newest last
    keys: dict[bytes, int] = {}  # digest of an idempotency key -> number of the accepted text, newest last
    paused: bool = False
    oldest_learned: int = 0  # time of the oldest text that may be learned but is no longer saved; 0: there is none

    @classmethod
    def new(cls, user: str, now: int) -> "Record":
        """Return an empty record."""
        # The version is random: a request that read a user before a deletion must not overwrite the record created
        # after the deletion.
        return cls(user=checked_id(user), version=secrets.randbelow(FIRST_VERSION_BOUND), updated_at=now)

    @property
    def oldest_time(self) -> int:
        """The time of the oldest text, saved or learned, or `updated_at` if there are none, in Unix seconds."""
        times = [text.time for text in self.texts] + [self.oldest_learned] * bool(self.oldest_learned)
        return min(times, default=self.updated_at)

    def state(self, model_identity: bytes) -> LearnedState | None:
        """Return the learned state of the model with an identity, or None."""
        return next((state for state in self.states if state.model_identity == model_identity), None)

    def with_state(self, new_state: LearnedState) -> "Record":
        """Return the record with a learned state, which replaces the older state of its model, the newest last."""
        other_models = (state for state in self.states if state.model_identity != new_state.model_identity)
        return replace(self, states=(*other_models, new_state)[-MAX_STATES:])

    def number_of(self, idempotency_key: str) -> int | None:
        """Return the number of the text that was accepted with an idempotency key, or None."""
        return self.keys.get(_digest(idempotency_key))

    def with_text(self, saved: StoredText, idempotency_key: str | None = None) -> "Record":
        """Return the record with a new text, and the key with which it was accepted."""
        keys = self.keys
        if idempotency_key is not None:
            keys = dict([*keys.items(), (_digest(idempotency_key), saved.number)][-MAX_KEYS:])
        return replace(self, last_number=saved.number, texts=(*self.texts, saved), keys=keys)

    def with_texts(self, texts: tuple[StoredText, ...]) -> "Record":
        """Return the record with a subset of its texts, without the learned states, which depend on removed texts."""
        return self if texts == self.texts else self._without_states(texts)

    def with_newest(self, texts: tuple[StoredText, ...]) -> "Record":
        """Return the record with its newest `texts`; the learned states still depend on the older ones."""
        times = [saved.time for saved in self.texts[: len(self.texts) - len(texts)]]
        oldest = min(times + [self.oldest_learned] * bool(self.oldest_learned), default=0)
        return replace(self, texts=texts, oldest_learned=oldest)

    def since(self, cutoff: int) -> "Record":
        """Return the record without the texts before `cutoff`; if one of them was learned, without learned states."""
        texts = tuple(saved for saved in self.texts if saved.time >= cutoff)
        has_learned_older = 0 < self.oldest_learned < cutoff
        return self if texts == self.texts and not has_learned_older else self._without_states(texts)

    def _without_states(self, texts: tuple[StoredText, ...]) -> "Record":
        return replace(self, texts=texts, states=(), oldest_learned=0)

    def without_text(self, text: str, normalize: Callable[[str], str] = str) -> "Record":
        """Return the record without all texts that look like `text` after `normalize`, in any case.

        The learned states are also removed if no saved text looks like it but some accepted texts are no longer saved,
        because one of these may have looked like it.
        """

        def form(text: str) -> str:
            return screening(same_text(normalize(text)), ignore_case=True)

        removed_form = form(text)
        remaining = tuple(saved for saved in self.texts if form(saved.text) != removed_form)
        was_never_accepted = len(remaining) == self.last_number  # all are saved, and none looks like it
        return self if was_never_accepted else self._without_states(remaining)

    def to_bytes(self) -> bytes:
        body = MAGIC + bytes([FORMAT]) + msgspec.msgpack.encode(self)
        return body + zlib.crc32(body).to_bytes(CHECKSUM_SIZE, "little")

    @classmethod
    def from_bytes(cls, content: bytes, user: str) -> "Record":
        """Return the record of `user` from the bytes of `to_bytes`; raise a `DamagedRecordError` if they are others."""
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
    """Return a user id of 1 to `MAX_ID_BYTES` bytes of printable characters; raise a `UserError` for others."""
    if not isinstance(user, str) or not user or not user.isprintable() or len(user.encode()) > MAX_ID_BYTES:
        raise UserError(f"user id: expected 1 to {MAX_ID_BYTES} bytes of printable characters")
    return user


def check_key(key: str | None) -> None:
    """Raise a `UserError` unless the idempotency key is None or has 1 to `MAX_KEY_LENGTH` characters."""
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH):
        raise UserError(f"idempotency key: expected 1 to {MAX_KEY_LENGTH} characters")


def checked_context(context: Mapping[str, Any] | None) -> dict[str, ContextValue]:
    """Return a context as a dict of short texts, finite numbers and booleans; raise a `UserError` for others."""
    checked: dict[str, ContextValue] = {}
    for name, value in (context or {}).items():
        if isinstance(value, str):
            is_valid, actual = len(value) <= MAX_VALUE_LENGTH, f"{len(value):,} characters"
        else:
            is_valid = isinstance(value, bool | int | float) and abs(value) < MAX_NUMBER  # False for NaN
            actual = f"{value:g}" if isinstance(value, float) else type(value).__name__
        if not is_valid:
            raise UserError(
                f"context {name!s:.50}: expected a text of at most {MAX_VALUE_LENGTH} characters, a finite number or a "
                f"boolean, got {actual}"
            )
        byte_length(f"{name}{value}", "context")  # checks that the text is valid Unicode
        checked[name] = value
    return checked


def _digest(idempotency_key: str) -> bytes:
    return hashlib.blake2b(idempotency_key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE).digest()
