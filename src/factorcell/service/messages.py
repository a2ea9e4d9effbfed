"""The types of messages and results. They define which HTTP requests are valid and what OpenAPI describes."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from factorcell.config import HISTORY_COLUMN
from factorcell.data.columns.values import to_seconds
from factorcell.data.text_folds import MAX_BYTES, clean_text
from factorcell.errors import UserError
from factorcell.service.privacy import MAX_USER_BYTES, Privacy
from factorcell.service.record import (
    MAX_ID_BYTES,
    MAX_KEY_LENGTH,
    MAX_TIME,
    MAX_VALUE_LENGTH,
    Record,
    StoredText,
    checked_context,
    checked_id,
)

MAX_RESULTS = 100  # suggestions per request
MAX_DEADLINE = 10_000  # maximum milliseconds for a completion

UserId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="user id of printable characters")]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_BYTES, description="the whole text")]
Value = Annotated[str, Meta(max_length=MAX_VALUE_LENGTH)] | bool | int | float
Context = Annotated[Mapping[str, Value], Meta(description="context values by column", max_length=100)]
UNKNOWN_HELP = "rare and unseen context values: refuse (error), read as rare (group) or missing (expected)"
Unknown = Annotated[Literal["error", "group", "expected"], Meta(description=UNKNOWN_HELP)]
Milliseconds = Annotated[int, Meta(ge=1, le=MAX_DEADLINE)]
Outcome = Literal["learned", "kept", "repeated", "paused", "withheld"]


class Message(Struct, kw_only=True):
    """A message in a response."""


class RequestMessage(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message in a request; the service refuses a request with an unknown field."""


class CompletionRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A text that a user is typing."""

    query: Annotated[str, Meta(max_length=MAX_BYTES, description="the text before the cursor")]
    user: Annotated[UserId | None, Meta(description="id of the user; by default an unknown user")] = None
    context: Context = {}
    unknown: Unknown = "error"
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="maximum number of suggestions")] = 10
    deadline_ms: Annotated[Milliseconds | None, Meta(description="milliseconds for the search")] = None
    learn: Annotated[bool, Meta(description="false: suggest as for an unknown user, in a private session")] = True
    explain: Annotated[bool, Meta(description="whether to return the contribution of each source to the score")] = False


class Result(Message):
    """A suggestion: a whole text that continues the query."""

    text: str
    source: Annotated[str, Meta(description="model, popularity, history, or several joined by +")]
    score: Annotated[float, Meta(description="log probability of the text given the typed prefix, in nats")]
    typos: Annotated[int, Meta(ge=0, description="number of corrected typing errors")]
    parts: Annotated[dict[str, float] | None, Meta(description="contribution of each source, with `explain`")] = None


class Completions(Message):
    """Suggestions for a typed text, best first.

    Attributes:
        results: The suggestions.
        degraded: Why better suggestions may exist, or None. "time": the search ended at its deadline. "store": the
            store failed, and the suggestions are those for an unknown user.
        user_version: The version of the user's record that the suggestions are based on, or None without a record.
    """

    results: list[Result]
    degraded: Literal["time", "store"] | None = None
    user_version: int | None = None


class AcceptRequest(RequestMessage):
    """A text that a user accepted."""

    user: UserId
    text: Text
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)] | None,
        Meta(description="the same key in all attempts to send one text, so that the text counts once"),
    ] = None
    context: Context = {}
    unknown: Unknown = "error"


class AcceptResult(Message):
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


class ExportedText(Struct, kw_only=True):
    """A saved text of a user."""

    text: Annotated[str, Meta(max_length=MAX_BYTES)]
    time: Annotated[int | float | str, Meta(description="Unix seconds, or a time such as 2026-11-21T18:30")]
    context: Context = {}


class Export(Struct, kw_only=True):
    """The texts, oldest first, and settings of a user. A model can learn the texts again."""

    format: Literal[1]
    user: UserId
    paused: bool
    texts: list[ExportedText]


class Profile(Export):
    """The saved data of a user, which can be imported as an `Export`.

    Attributes:
        user: The id of the user.
        paused: Whether learning is paused.
        texts: The saved texts, oldest first.
        version: The version of the record.
        accepted: Number of texts saved since the record was created, including deleted ones.
        learned: Whether the model has learned all saved texts.
    """

    version: int
    accepted: int
    learned: bool


class ForgetRequest(RequestMessage):
    """A text to delete."""

    text: Text


class RemovedAnswer(Message):
    """The number of deleted texts. The model then learns the remaining texts again in the background."""

    removed: Annotated[int, Meta(ge=0)]


class DeletedAnswer(Message):
    """Whether the service had data of the user before the deletion."""

    deleted: bool


class PausedAnswer(Message):
    """Whether learning is paused. During a pause, texts of the user are neither saved nor learned."""

    paused: bool


class Health(Message):
    """Confirmation that the server answers."""

    status: Literal["ok"] = "ok"


class Problem(Message, omit_defaults=True):
    """Why a request failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def export_record(record: Record) -> dict[str, Any]:
    """Return the texts and settings of a record as values that JSON can represent."""
    exported_texts = [
        {"text": saved.text, "time": saved.time} | ({"context": saved.context} if saved.context else {})
        for saved in record.texts
    ]
    return {"format": 1, "user": record.user, "paused": record.paused, "texts": exported_texts}


def import_record(exported_user: Any, privacy: Privacy, now: int) -> tuple[Record, Counter[str]]:
    """Return a record from `export_record`, without a learned state, and the numbers of omitted texts by reason."""
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
    context.pop(HISTORY_COLUMN, None)  # as in `Service.accept`
    return StoredText(number, clean_text(exported_text.text), math.floor(seconds), context)
