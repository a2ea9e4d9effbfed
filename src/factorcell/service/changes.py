"""Changes of a user's record, and their application to a store.

A change is a function that takes a record and returns the new record. If it returns its argument, nothing is written.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from factorcell.completion.texts import clean_text
from factorcell.data.columns.values import to_seconds
from factorcell.data.text_folds import same_text
from factorcell.errors import UserError
from factorcell.service.learning import ServedModel
from factorcell.service.messages import Export, ExportedText
from factorcell.service.privacy import MAX_USER_BYTES, Privacy
from factorcell.service.record import MAX_TIME, Record, StoredText, StoreError, checked_context, checked_id
from factorcell.service.stores.store import Store

Change = Callable[[Record], Record]

WRITE_TIMEOUT = 10.0  # seconds for which a change is retried while other writers are faster
MAX_PAUSE = 0.01  # maximum number of seconds before the next attempt


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
        after = replace(after, version=before.version + 1, updated_at=now())
        if store.write(after, expected_version=stored.version if stored else None):
            return before, after
        if time.monotonic() > deadline:
            raise StoreError(f"user record: other writers changed it for {WRITE_TIMEOUT:g} seconds; try again later")
        time.sleep(random.uniform(0, MAX_PAUSE))  # another writer was first


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
    keys = record.keys_with(idempotency_key, new_text.number) if idempotency_key else record.keys
    after = replace(record, last_number=new_text.number, texts=(*record.texts, new_text), keys=keys)
    if model.has_learned(record):
        after = model.learn(after)
    return replace(after, texts=privacy.newest(after.texts))


def set_paused(record: Record, paused: bool) -> Record:
    """Pause or resume learning; renew the record of a paused user.

    Without this renewal, the pause of an active user would end: expiry deletes a paused record without texts once its
    last change is older than the retention time.
    """
    return replace(record, paused=paused) if paused or record.paused else record


def keep_texts(record: Record, texts: tuple[StoredText, ...]) -> Record:
    """Replace the texts of a record by a subset; discard the learned states, because they depend on removed texts."""
    return record if texts == record.texts else replace(record, texts=texts, states=())


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
    return record if was_never_accepted else replace(record, texts=remaining_texts, states=())


def export_record(record: Record) -> dict[str, Any]:
    """Return the texts and settings of a record as values that JSON can represent."""
    exported_texts = [
        {"text": saved.text, "time": saved.time} | ({"context": saved.context} if saved.context else {})
        for saved in record.texts
    ]
    return {"format": 1, "user": record.user, "paused": record.paused, "texts": exported_texts}


def import_record(exported_user: Any, privacy: Privacy, now: int) -> tuple[Record, Counter[str]]:
    """Return a new record from the result of `export_record`, without a learned state.

    The record omits empty texts and texts that the privacy rules do not allow; `Record.last_number` counts them.

    Returns:
        The record, and the number of omitted texts by the reason of their omission.

    Raises:
        UserError: `exported_user` does not have the form of such a result.
    """
    try:
        export = msgspec.convert(exported_user, Export)
    except msgspec.ValidationError as error:
        raise UserError(f"export: {error}; expected the result of `users export`") from None
    user, texts = checked_id(export.user), [_import_text(*item) for item in enumerate(export.texts, 1)]
    omissions, allowed_texts = Counter[str](), list[StoredText]()
    for saved in texts:
        if not saved.text:
            omissions["they are empty"] += 1
        elif (content := privacy.withhold_reason(saved.text, saved.context)) is not None:
            omissions[f"they seem to contain {content}"] += 1
        elif privacy.is_expired(saved, now):
            omissions["they are older than the retention time"] += 1
        else:
            allowed_texts.append(saved)
    newest_texts = privacy.newest(tuple(allowed_texts))
    if surplus_count := len(allowed_texts) - len(newest_texts):
        limit = f"{privacy.max_texts:,} texts of a user, of {MAX_USER_BYTES >> 10} KiB in total"
        omissions[f"only the newest {limit}, are stored"] = surplus_count
    record = replace(Record.new(user, now), last_number=len(texts), texts=newest_texts, paused=export.paused)
    return record, omissions


def _import_text(number: int, exported_text: ExportedText) -> StoredText:
    seconds = to_seconds(exported_text.time)  # "2026-01-01" is midnight in UTC
    if seconds is None or not 0 <= math.floor(seconds) <= MAX_TIME:
        expected = "expected Unix seconds or a time such as 2026-11-21T18:30, from 1970 to 9999"
        raise UserError(f"export: text {number:,}: {expected}, got {exported_text.time!r:.30}")
    context = checked_context(exported_text.context)
    return StoredText(number, clean_text(exported_text.text), math.floor(seconds), context)
