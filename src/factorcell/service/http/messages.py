"""What is asked and answered over HTTP: the one definition, from which reading, checking and the OpenAPI are made."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from factorcell.completion.texts import LONGEST
from factorcell.service.record import LONGEST_ID, LONGEST_KEY, LONGEST_VALUE

MOST_RESULTS = 100
LONGEST_WAIT = 10_000  # milliseconds that a completion may take
LARGEST = (1 << 53) - 1  # which all clients' numbers hold

UserId = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_ID, description="any printable text, by which one is known")
]
Text = Annotated[str, Meta(min_length=1, max_length=LONGEST, description="a whole text")]
Value = Annotated[str, Meta(max_length=LONGEST_VALUE)] | int | float
Context = Annotated[dict[str, Value], Meta(description="column of the model's context -> value", max_length=100)]
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]


class Message(Struct, kw_only=True):
    """What is answered."""


class Asked(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is asked: a field that nobody knows is a mistake."""


class CompleteRequest(Asked):
    """What somebody has typed."""

    query: Annotated[
        str, Meta(max_length=LONGEST, description="what is typed, of which the part before the cursor is completed")
    ]
    user: Annotated[UserId | None, Meta(description="who types; nobody known unless given")] = None
    cursor: Annotated[Whole | None, Meta(description="place in the query, in characters; its end unless given")] = None
    context: Context = {}
    limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS, description="suggestions at most")] = 10
    session: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(description="names one input box: of its requests that wait, the one of the highest seq is answered"),
    ] = None
    seq: Annotated[Whole | None, Meta(description="number of the keystroke, which the answer repeats")] = None
    deadline_ms: Annotated[
        Annotated[int, Meta(ge=1, le=LONGEST_WAIT)] | None,
        Meta(description="milliseconds within which to answer with the best so far; as the server is set unless given"),
    ] = None
    learn: Annotated[bool, Meta(description="false: a private session, as if nobody typed")] = True
    explain: Annotated[bool, Meta(description="with what each source adds to the score")] = False


class Result(Message):
    """A suggestion: a whole text that goes on from what stands before the cursor."""

    text: str
    source: Annotated[str, Meta(description="who proposes it: model, popular, history, or several with +")]
    score: Annotated[float, Meta(description="log probability of the text given what is typed")]
    slips: Annotated[int, Meta(ge=0, description="typing errors that it takes for granted")]
    parts: Annotated[dict[str, float] | None, Meta(description="what each source adds to the score, if asked for")] = (
        None
    )


class CompleteAnswer(Message):
    """The best suggestions first."""

    results: list[Result]
    degraded: Annotated[
        Literal["time", "store", "superseded"] | None,
        Meta(description="why they are not all that they could be; superseded: a later seq of the session came"),
    ] = None
    user_version: Annotated[int | None, Meta(description="the version of the person they were made for")] = None
    seq: int | None = None


class AcceptRequest(Asked):
    """A text that somebody chose or wrote."""

    user: UserId
    text: Text
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)] | None,
        Meta(description="the same for each try to send one accept, which then counts once"),
    ] = None
    context: Context = {}


class AcceptAnswer(Message):
    """What came of a text; it is on disk, and so is all that was learned of it."""

    outcome: Literal["learned", "kept", "repeated", "paused", "withheld", "private"]
    number: Annotated[int | None, Meta(description="the place among all texts of the person")] = None
    user_version: int | None = None
    why: Annotated[str | None, Meta(description="what a text that was withheld looks like")] = None


class Health(Message):
    """The server is there."""

    status: Literal["ok"] = "ok"


class Problem(Message, omit_defaults=True):
    """Why a request was not answered (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
