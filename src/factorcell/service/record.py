"""What is kept of one person: a value of one piece, so that it is written whole or not at all.

The person's id stands inside it and is checked wherever it is read, so that no fault of a store or of a connection can
hand one person what belongs to another. What the model has learned can be computed again from the texts at any time.
"""

import hashlib
import secrets
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from factorcell.completion.texts import size
from factorcell.config import UserError, check_format

MARK, FORMAT = b"fcp", 1  # which the bytes begin with, and the number of their format, one byte
CHECK = 4  # bytes of the CRC-32 that they end with
LONGEST_ID = 256  # bytes of a person's id in UTF-8
LONGEST_KEY = 256  # characters of an idempotency key
MOST_KEYS = 200  # idempotency keys that are remembered, the newest
MOST_STATES = 2  # states of different models, the newest: of a model and of the one that takes its place
DIGEST = 16  # bytes of what stands for a key
LONGEST_VALUE, LARGEST_VALUE = 1000, 1e15  # of a context: characters of a text, and what no number reaches
LATEST = 253_402_300_799  # the last second of the year 9999, after which there is no calendar
FIRST_VERSIONS = 1 << 52  # the first version of a person is a random number below; JSON's numbers hold all that follow


ContextValue = str | bool | int | float  # of a column of a context, as a client sends it and a store has it


class StoreError(RuntimeError):
    """The store cannot be reached or cannot do its work now: nothing that the caller gave is at fault."""


class DamagedRecordError(StoreError):
    """What the store has of a person is not what was written there."""


class KeptText(msgspec.Struct, frozen=True, array_like=True):
    """A text (NFC) that a person accepted as the `number`th one, when (Unix seconds), and in which context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue] = {}


class LearnedState(msgspec.Struct, frozen=True, array_like=True):
    """What a `model` (its identity) has learned of the kept texts up to the one of number `through`.

    `user`: the bytes of a `User` without history, for that is in the kept texts.
    """

    model: bytes
    through: int
    user: bytes


class AppliedKey(msgspec.Struct, frozen=True, array_like=True):
    """A digest of an idempotency key, and the number of the text that was accepted with it."""

    digest: bytes
    number: int


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that is kept of the person `user`, as it was after its `version`th writing.

    `accepted`: the number of the last text that was ever accepted; `texts`: those that are kept, by number; `states`:
    what models have learned of them, the newest last; `keys`: the newest idempotency keys; `touched`: when the person
    last did something (Unix seconds).
    """

    user: str
    version: int
    touched: int
    accepted: int = 0
    texts: tuple[KeptText, ...] = ()
    states: tuple[LearnedState, ...] = ()
    keys: tuple[AppliedKey, ...] = ()
    paused: bool = False

    @classmethod
    def new(cls, user: str, now: int) -> "Record":
        """Of a person of whom nothing is kept.

        Its version is random: whoever read the person before a deletion can never write over who came after it.
        """
        return cls(user=checked_id(user), version=secrets.randbelow(FIRST_VERSIONS), touched=now)

    @property
    def oldest(self) -> int:
        """The time of the oldest text that is kept, or without texts when the person last did something."""
        return min((text.time for text in self.texts), default=self.touched)

    def state(self, model: bytes) -> LearnedState | None:
        """What the `model` has learned, if anything."""
        return next((state for state in self.states if state.model == model), None)

    def with_state(self, state: LearnedState) -> tuple[LearnedState, ...]:
        """The states with this one as that of its model."""
        return (*(other for other in self.states if other.model != state.model), state)[-MOST_STATES:]

    def number_of(self, key: str) -> int | None:
        """The number of the text that was accepted with an idempotency key, None if none of those remembered was."""
        digest = key_digest(key)
        return next((one.number for one in self.keys if one.digest == digest), None)

    def with_key(self, key: str, number: int) -> tuple[AppliedKey, ...]:
        """The keys, and that of the text of this number."""
        return (*self.keys, AppliedKey(key_digest(key), number))[-MOST_KEYS:]

    def to_bytes(self) -> bytes:
        """All of it, with a CRC-32."""
        content = MARK + bytes([FORMAT]) + msgspec.msgpack.encode(self)
        return content + zlib.crc32(content).to_bytes(CHECK, "little")

    @classmethod
    def from_bytes(cls, content: bytes, user: str) -> "Record":
        """What `to_bytes` made of the person `user`.

        `DamagedRecordError` for all else: one bit that was altered, anything cut off, another person. `UserError` for a
        later format.
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
    """The id of a person, or a `UserError`: any printable characters, at most `LONGEST_ID` bytes of UTF-8."""
    if not isinstance(user, str) or not user or not user.isprintable() or len(user.encode()) > LONGEST_ID:
        raise UserError(f"a user's id is 1 to {LONGEST_ID} bytes of printable characters")
    return user


def decoded_id(content: bytes) -> str:
    """The id of a person from the bytes of a store, or a `DamagedRecordError`: not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedRecordError("what the store has as the id of a person is not UTF-8 text") from None


def checked_key(key: str) -> str:
    """An idempotency key, or a `UserError`: 1 to `LONGEST_KEY` characters."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise UserError(f"an idempotency key has 1 to {LONGEST_KEY} characters")
    return key


def checked_context(context: Mapping[str, Any] | None) -> dict[str, ContextValue]:
    """The context of a text as it is kept, or a `UserError`: short texts, finite numbers and booleans by column."""
    checked: dict[str, ContextValue] = {}
    for name, value in (context or {}).items():
        known = isinstance(value, ContextValue)
        if not known or (len(value) > LONGEST_VALUE if isinstance(value, str) else not abs(value) < LARGEST_VALUE):
            raise UserError(
                f"context {name!s:.50}: expected a text of at most {LONGEST_VALUE} characters, a finite number or a "
                f"boolean, got {_described(value)}"
            )
        size(f"{name}{value}", "context")  # Unicode
        checked[name] = value
    return checked


def _described(value: Any) -> str:
    """A value as an error describes it, without a text of a person."""
    if isinstance(value, str):
        return f"{len(value):,} characters"
    return f"{value:g}" if isinstance(value, float) else type(value).__name__


def key_digest(key: str) -> bytes:
    """What stands for an idempotency key, which may itself say something of the person."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
