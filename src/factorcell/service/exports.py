"""Exports of users as JSON values, and their import as new records."""

import math
from collections import Counter
from typing import Any

import msgspec
from msgspec.structs import replace

from factorcell.completion.texts import clean_text
from factorcell.data.columns.values import to_seconds
from factorcell.errors import UserError
from factorcell.service.messages import Export, ExportedText
from factorcell.service.privacy import MAX_USER_BYTES, Privacy
from factorcell.service.record import MAX_TIME, Record, StoredText, checked_context, checked_id


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
        export = msgspec.convert(exported_user, Export, from_attributes=True)
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
