"""Changes of one user's record: functions from a record to a record, and their application to a store.

A change that returns its argument writes nothing.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from factorcell.completion.texts import clean_text
from factorcell.config import UserError
from factorcell.data.canonical import canonical
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.record import MAX_TIME, Record, StoredText, StoreError, checked_context, checked_id
from factorcell.service.stores.store import Store

Change = Callable[[Record], Record]
Outcome = Literal["learned", "kept", "repeated", "paused", "withheld"]

EXPORT_FORMAT = 1
WRITE_TIMEOUT = 10.0  # seconds within which a change is written, whoever else writes
PAUSE = 0.01  # seconds at most before a change that came second is tried again


@dataclass(frozen=True)
class AcceptResult:
    """What became of an accepted text.

    A text is "learned"; "kept", to be learned in a moment, since the model has to catch up; or "repeated", if the
    idempotency key was used before. Nothing is stored if the user has "paused", or the text is "withheld".

    Attributes:
        outcome: "learned", "kept", "repeated", "paused" or "withheld".
        number: The number of the text among all that the user accepted, if it is stored.
        user_version: The version of the user's record afterwards.
        why: What a withheld text looks like.
        truncated: Whether only the first `max_tokens` tokens are learned. The text is stored whole.
    """

    outcome: Outcome
    number: int | None = None
    user_version: int | None = None
    why: str | None = None
    truncated: bool = False


def apply(store: Store, user: str, change: Change, now: Callable[[], int]) -> tuple[Record, Record]:
    """Apply a change by compare-and-swap to the stored record, or to a new one; return it before and after."""
    stop = time.monotonic() + WRITE_TIMEOUT
    while True:
        before = store.read(user)
        record = before or Record.new(user, now())
        after = change(record)
        if after is record:
            return record, record
        after = replace_fields(after, version=record.version + 1, updated_at=now())
        if store.write(after, before.version if before else None):
            return record, after
        if time.monotonic() > stop:
            raise StoreError(f"other writers changed this user for {WRITE_TIMEOUT:g} seconds; try again later")
        time.sleep(random.uniform(0, PAUSE))  # another writer was first


def replace_fields(record: Record, **values: Any) -> Record:
    return msgspec.structs.replace(record, **values)


def number_for_key(record: Record, key: str | None, text: str) -> int | None:
    """Return the number of the text that was accepted with `key`; `UserError` if it is known to be another text."""
    number = record.number_of(key) if key else None
    kept = next((one.text for one in record.texts if one.number == number), text)
    if kept != text:
        raise UserError("this idempotency key came before, with another text; valid is a new key for each text")
    return number


def add_text(record: Record, text: StoredText, key: str | None, model: ServedModel, privacy: Privacy) -> Record:
    """Add a text, and learn it if the model has learned all before it."""
    states = record.states
    if model.has_learned(record):
        states = record.with_state(model.learn(record.state(model.identity), (text,), text.number))
    return replace_fields(
        record,
        accepted=text.number,
        texts=privacy.newest((*record.texts, text)),
        states=states,
        keys=record.with_key(key, text.number) if key else record.keys,
    )


def keep_texts(record: Record, texts: tuple[StoredText, ...]) -> Record:
    """Keep fewer texts, and forget what was learned: it has to be learned again from those that stay."""
    return record if texts == record.texts else replace_fields(record, texts=texts, states=())


def remove_text(record: Record, text: str) -> Record:
    """Remove every copy of a text, however its white space is written.

    If it may be among texts that are no longer kept, what was learned is forgotten too.
    """
    text = canonical(text)
    texts = tuple(one for one in record.texts if canonical(one.text) != text)
    return record if len(texts) == record.accepted else replace_fields(record, texts=texts, states=())


def export_record(record: Record) -> dict[str, Any]:
    """Return everything that a user gave, as plain values."""
    texts = [
        {"text": one.text, "time": one.time} | ({"context": one.context} if one.context else {}) for one in record.texts
    ]
    return {"format": EXPORT_FORMAT, "user": record.user, "paused": record.paused, "texts": texts}


def import_record(values: Any, now: int) -> Record:
    """Return the record of an export, of which nothing is learned yet. `UserError` for anything but an export."""
    try:
        if values["format"] != EXPORT_FORMAT:
            raise UserError(f"an export of format {values['format']!r:.20}; valid is {EXPORT_FORMAT}")
        texts = tuple(_imported(number, one) for number, one in enumerate(values["texts"], 1))
        paused, user = values["paused"], checked_id(values["user"])
    except (KeyError, TypeError, AttributeError):
        raise UserError("not a person as they were exported") from None
    return replace_fields(Record.new(user, now), accepted=len(texts), texts=texts, paused=paused is True)


def _imported(number: int, values: Any) -> StoredText:
    time = values["time"]
    if type(time) is not int or not 0 <= time <= MAX_TIME:
        raise UserError(f"time {time!r:.30}: valid are whole seconds from 1970 to 9999")
    return StoredText(number, clean_text(values["text"]), time, checked_context(values.get("context")))
