"""Changes of a user's record, and their application to a store.

A change is a function that takes a record and returns the new record. If it returns its argument, nothing is written.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from factorcell.completion.texts import clean_text
from factorcell.data.columns.values import to_seconds
from factorcell.data.text_folds import same_text
from factorcell.errors import UserError
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import MAX_USER_BYTES, Privacy
from factorcell.service.record import MAX_TIME, Record, StoredText, StoreError, checked_context, checked_id
from factorcell.service.stores.store import Store

Change = Callable[[Record], Record]
Outcome = Literal["learned", "kept", "repeated", "paused", "withheld"]

EXPORT_FORMAT = 1
PAUSE_RENEWAL = 86_400  # a request renews a paused record whose last change is more than this many seconds old
WRITE_TIMEOUT = 10.0  # seconds for which a change is retried while other writers are faster
MAX_PAUSE = 0.01  # maximum number of seconds before the next attempt


@dataclass(frozen=True)
class AcceptResult:
    """The result of accepting a text.

    Attributes:
        outcome: "learned": the text is saved and learned. "kept": the text is saved, and the model learns it later,
            after the texts before it. "repeated": the idempotency key was used before, so nothing was changed.
            "paused": the text is not saved, because learning is paused. "withheld": the text is not saved, because it
            seems to contain private data.
        number: The number of the saved text, counted from 1 over all texts ever saved in the record; None if not saved.
        user_version: The version of the user's record after the call.
        why: What a withheld text seems to contain, such as "a password".
        truncated: Whether the model learns only the first `max_tokens` tokens. The whole text is saved.
    """

    outcome: Outcome
    number: int | None = None
    user_version: int | None = None
    why: str | None = None
    truncated: bool = False


def apply(store: Store, user: str, change: Change, now: Callable[[], int]) -> tuple[Record, Record]:
    """Apply a change to the stored record of a user, or to a new record, with compare-and-swap.

    Returns:
        The record before and after the change.

    Raises:
        StoreError: Other writers were faster for `WRITE_TIMEOUT` seconds.
    """
    deadline = time.monotonic() + WRITE_TIMEOUT
    while True:
        stored = store.read(user)
        before = stored or Record.new(user, now())
        after = change(before)
        if after is before:
            return before, before
        after = replace_fields(after, version=before.version + 1, updated_at=now())
        if store.write(after, expected_version=stored.version if stored else None):
            return before, after
        if time.monotonic() > deadline:
            raise StoreError(f"user record: other writers changed it for {WRITE_TIMEOUT:g} seconds; try again later")
        time.sleep(random.uniform(0, MAX_PAUSE))  # another writer was first


def replace_fields(record: Record, **values: Any) -> Record:
    return msgspec.structs.replace(record, **values)


def find_text_number(record: Record, idempotency_key: str | None, text: str) -> int | None:
    """Return the number of the text that was accepted with an idempotency key, or None.

    Raises:
        UserError: The key was used with a text other than `text`.
    """
    number = record.number_of(idempotency_key) if idempotency_key else None
    # A text that is no longer saved cannot be compared; it counts as equal to `text`.
    accepted_text = next((saved.text for saved in record.texts if saved.number == number), text)
    if accepted_text != text:
        raise UserError("idempotency key: it was used before with another text; use a new key for each text")
    return number


def add_text(
    record: Record, new_text: StoredText, idempotency_key: str | None, model: ServedModel, privacy: Privacy
) -> Record:
    """Add a text to a record, and learn the text if the model has learned all earlier texts of the record."""
    states = record.states
    if model.has_learned(record):
        state = model.learn(record.state(model.identity), (*record.texts, new_text), last_number=new_text.number)
        states = record.states_with(state)
    return replace_fields(
        record,
        last_number=new_text.number,
        texts=privacy.newest((*record.texts, new_text)),
        states=states,
        keys=record.keys_with(idempotency_key, new_text.number) if idempotency_key else record.keys,
    )


def set_paused(record: Record, paused: bool, privacy: Privacy, now: int) -> Record:
    """Pause or resume learning; renew the record of an already paused user if its last change is old.

    Without this renewal, the pause of an active user would end: expiry deletes a paused record without texts once its
    last change is older than the retention time.
    """
    if record.paused != paused:
        return replace_fields(record, paused=paused)
    max_age = PAUSE_RENEWAL if privacy.retention is None else min(PAUSE_RENEWAL, privacy.retention // 10)
    return replace_fields(record) if paused and now - record.updated_at > max_age else record


def keep_texts(record: Record, texts: tuple[StoredText, ...]) -> Record:
    """Replace the texts of a record by a subset; discard the learned states, because they depend on removed texts."""
    return record if texts == record.texts else replace_fields(record, texts=texts, states=())


def remove_texts_before(record: Record, cutoff: int) -> Record:
    """Remove the texts that were accepted before the time `cutoff` (Unix seconds)."""
    return keep_texts(record, tuple(saved for saved in record.texts if saved.time >= cutoff))


def remove_text(record: Record, text: str, key: Callable[[str], str] = same_text) -> Record:
    """Remove all copies of a text, that is, texts with the same `key`, and discard the learned states.

    The states are also discarded if no saved text is a copy but some accepted texts are no longer saved, because one
    of these may have been a copy.
    """
    text_key = key(text)
    remaining_texts = tuple(saved for saved in record.texts if key(saved.text) != text_key)
    was_never_accepted = len(remaining_texts) == record.last_number  # all are saved, and none is a copy
    return record if was_never_accepted else replace_fields(record, texts=remaining_texts, states=())


def export_record(record: Record) -> dict[str, Any]:
    """Return the texts and settings of a record as values that JSON can represent."""
    exported_texts = [
        {"text": saved.text, "time": saved.time} | ({"context": saved.context} if saved.context else {})
        for saved in record.texts
    ]
    return {"format": EXPORT_FORMAT, "user": record.user, "paused": record.paused, "texts": exported_texts}


@dataclass(frozen=True)
class ImportedUser:
    """A user whom `import_record` has read.

    Attributes:
        record: The record, without the omitted texts.
        omissions: For each omitted text, its number in the export, counted from 1, and the reason.
    """

    record: Record
    omissions: tuple[tuple[int, str], ...]


def import_record(exported_user: Any, privacy: Privacy, now: int) -> ImportedUser:
    """Return a new record from the result of `export_record`, without a learned state.

    The record omits empty texts and texts that the privacy rules do not allow; `Record.last_number` counts them.

    Raises:
        UserError: `exported_user` does not have the form of such a result.
    """
    try:
        if exported_user["format"] != EXPORT_FORMAT:
            raise UserError(f"export: expected format {EXPORT_FORMAT}, got {exported_user['format']!r:.20}")
        exported_texts = enumerate(exported_user["texts"], 1)
        texts = tuple(_import_text(number, exported_text) for number, exported_text in exported_texts)
        paused, user = exported_user["paused"], checked_id(exported_user["user"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            "export: expected an object with format, user, paused and texts, as `users export` writes it"
        ) from None
    omissions, allowed_texts = list[tuple[int, str]](), list[StoredText]()
    for saved in texts:
        if not saved.text:
            omissions.append((saved.number, "they are empty"))
        elif (content := privacy.withhold_reason(saved.text, saved.context)) is None:
            allowed_texts.append(saved)
        else:
            omissions.append((saved.number, f"they seem to contain {content}"))
    unexpired_texts = privacy.without_expired(allowed_texts, now)
    newest_texts = privacy.newest(unexpired_texts)
    unexpired_numbers = {saved.number for saved in unexpired_texts}
    expired_texts = (saved for saved in allowed_texts if saved.number not in unexpired_numbers)
    omissions += ((saved.number, "they are older than the retention time") for saved in expired_texts)
    limit = f"only the newest {privacy.max_texts:,} texts of a user, of {MAX_USER_BYTES >> 10} KiB in total, are stored"
    omissions += ((saved.number, limit) for saved in unexpired_texts[: len(unexpired_texts) - len(newest_texts)])
    record = replace_fields(Record.new(user, now), last_number=len(texts), texts=newest_texts, paused=paused is True)
    return ImportedUser(record, tuple(omissions))


def _import_text(number: int, exported_text: Any) -> StoredText:
    accepted_at = exported_text["time"]
    seconds = None if isinstance(accepted_at, bool) else to_seconds(accepted_at)  # "2026-01-01" is midnight in UTC
    if seconds is None or not 0 <= math.floor(seconds) <= MAX_TIME:
        expected = "expected Unix seconds or a time such as 2026-11-21T18:30, from 1970 to 9999"
        raise UserError(f"export: text {number:,}: {expected}, got {accepted_at!r:.30}")
    text, context = clean_text(exported_text["text"]), checked_context(exported_text.get("context"))
    return StoredText(number, text, math.floor(seconds), context)
