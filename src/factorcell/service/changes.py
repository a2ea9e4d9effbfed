"""What happens to a person, as values: a record before, a record after.

A record that is returned as it came is one that need not be written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from factorcell.completion.texts import clean_text
from factorcell.config import UserError
from factorcell.data.canonical import canonical
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.record import LATEST, KeptText, Record, checked_context, checked_id

Change = Callable[[Record], Record]
Outcome = Literal["learned", "kept", "repeated", "paused", "withheld", "private"]

EXPORT_FORMAT = 1


@dataclass(frozen=True)
class Accepted:
    """What came of a text that was accepted: its `number` if it is kept, and the person's version since then.

    `learned` at once; `kept`, to be learned in a moment, since the model has to catch up; `repeated`: the idempotency
    key was there already; nothing of it was kept: `paused` by the person, `withheld` since it looks like `why`, or
    `private`. `truncated`: it is kept whole, but only its first `max_tokens` tokens are learned.
    """

    outcome: Outcome
    number: int | None = None
    user_version: int | None = None
    why: str | None = None
    truncated: bool = False


def changed(record: Record, **values: Any) -> Record:
    """The record with other values."""
    return msgspec.structs.replace(record, **values)


def repeated(record: Record, key: str | None, text: str) -> int | None:
    """The number of the text that was accepted with the key, if any; `UserError` if it is known to be another text."""
    number = record.number_of(key) if key else None
    kept = next((one.text for one in record.texts if one.number == number), text)
    if kept != text:
        raise UserError("this idempotency key came before, with another text; valid is a new key for each text")
    return number


def with_text(record: Record, text: KeptText, key: str | None, model: ServedModel, privacy: Privacy) -> Record:
    """The person after one more text, which is learned if the model has learned all before."""
    texts = (*record.texts, text)
    states = record.states
    if model.has_learned(record):
        states = record.with_state(model.learn(record.state(model.identity), texts[-1:], text.number))
    return changed(
        record,
        accepted=text.number,
        texts=privacy.fitting(texts),
        states=states,
        keys=record.with_key(key, text.number) if key else record.keys,
    )


def with_texts(record: Record, texts: tuple[KeptText, ...]) -> Record:
    """The person with fewer texts, of whom nothing is learned: it has to be learned again from those that stay."""
    return record if texts == record.texts else changed(record, texts=texts, states=())


def without(record: Record, text: str) -> Record:
    """The person without a text, however often it was accepted and however its white space is written.

    If it may be among texts that are no longer kept, the person is learned again from those that are.
    """
    text = canonical(text)
    texts = tuple(one for one in record.texts if canonical(one.text) != text)
    return record if len(texts) == record.accepted else changed(record, texts=texts, states=())


def undone(record: Record) -> Record:
    """The person without the newest text."""
    return with_texts(record, record.texts[:-1])


def exported(record: Record) -> dict[str, Any]:
    """All that a person gave, as plain values: what a model has learned follows from it."""
    texts = [
        {"text": one.text, "time": one.time} | ({"context": one.context} if one.context else {}) for one in record.texts
    ]
    return {"format": EXPORT_FORMAT, "user": record.user, "paused": record.paused, "texts": texts}


def imported(values: Any, now: int) -> Record:
    """The person that was exported, of whom nothing is learned yet. `UserError` for what is no export."""
    try:
        if values["format"] != EXPORT_FORMAT:
            raise UserError(f"an export of format {values['format']!r:.20}; valid is {EXPORT_FORMAT}")
        texts = tuple(_imported(number, one) for number, one in enumerate(values["texts"], 1))
        paused, user = values["paused"], checked_id(values["user"])
    except (KeyError, TypeError, AttributeError):
        raise UserError("not a person as they were exported") from None
    return changed(Record.new(user, now), accepted=len(texts), texts=texts, paused=paused is True)


def _imported(number: int, values: Any) -> KeptText:
    time = values["time"]
    if type(time) is not int or not 0 <= time <= LATEST:
        raise UserError(f"time {time!r:.30}: valid are whole seconds from 1970 to 9999")
    return KeptText(number, clean_text(values["text"]), time, checked_context(values.get("context")))
