"""The messages of HTTP: the one definition from which reading, checking and the OpenAPI description are made."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from factorcell.completion.texts import MAX_BYTES
from factorcell.service.record import MAX_ID_BYTES, MAX_KEY_LENGTH, MAX_TIME, MAX_VALUE_LENGTH, ContextValue

MOST_RESULTS = 100
LONGEST_WAIT = 10_000  # milliseconds that a completion may take
LARGEST = (1 << 53) - 1  # the largest whole number that all clients can hold
MOST_IMPORTED = 10_000  # texts of one user
MOST_TEXTS, MOST_CANDIDATES, MOST_HYPOTHESES, MOST_TOKENS = 256, 1000, 1000, 1000  # of one batch
LONGEST_PROMPT = 1000  # characters, each of which the model reads one after the other
LARGEST_SCORE = 1e30

UserId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="an id of printable characters")]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_BYTES, description="a whole text")]
Value = Annotated[str, Meta(max_length=MAX_VALUE_LENGTH)] | bool | int | float
Context = Annotated[
    dict[str, Value],
    Meta(description='column of the context -> value; a boolean is the category "true" or "false"', max_length=100),
]
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Score = Annotated[float, Meta(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]


class Message(Struct, kw_only=True):
    """A response."""


class Asked(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request; unknown fields are errors."""


class CompleteRequest(Asked):
    """What a user has typed."""

    query: Annotated[str, Meta(max_length=MAX_BYTES, description="the typed text, completed at the cursor")]
    user: Annotated[UserId | None, Meta(description="who types; an unknown user unless given")] = None
    cursor: Annotated[Whole | None, Meta(description="place in the query, in characters; its end unless given")] = None
    context: Context = {}
    limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS, description="suggestions at most")] = 10
    deadline_ms: Annotated[
        Annotated[int, Meta(ge=1, le=LONGEST_WAIT)] | None,
        Meta(description="milliseconds within which to answer with the best so far; as the server is set unless given"),
    ] = None
    learn: Annotated[bool, Meta(description="false: a private session, as of an unknown user")] = True
    explain: Annotated[bool, Meta(description="with what each source adds to the score")] = False


class Result(Message):
    """A suggestion: a whole text that continues what is before the cursor."""

    text: str
    source: Annotated[str, Meta(description="who proposes it: model, popularity, history, or several with +")]
    score: Annotated[float, Meta(description="log probability of the text given what is typed")]
    typos: Annotated[int, Meta(ge=0, description="typing errors that it assumes")]
    parts: Annotated[dict[str, float] | None, Meta(description="what each source adds, if asked for")] = None


class CompleteAnswer(Message):
    """The best suggestions first."""

    results: list[Result]
    degraded: Annotated[Literal["time", "store"] | None, Meta(description="why they may not be the best")] = None
    user_version: Annotated[int | None, Meta(description="version of the user they were made for")] = None


class AcceptRequest(Asked):
    """A text that a user chose or wrote."""

    user: UserId
    text: Text
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)] | None,
        Meta(description="the same for each try to send one accept, which then counts once"),
    ] = None
    context: Context = {}


class AcceptAnswer(Message):
    """What became of a text; it is on disk, and so is what was learned of it."""

    outcome: Literal["learned", "kept", "repeated", "paused", "withheld"]
    number: Annotated[int | None, Meta(description="the place among all texts of the user")] = None
    user_version: int | None = None
    why: Annotated[str | None, Meta(description="what a withheld text looks like")] = None
    truncated: Annotated[bool, Meta(description="whether only the first max_tokens tokens are learned")] = False


class Kept(Message):
    """A text of a user: its `number` among all that they accepted, when (Unix seconds), in which context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue]


class ProfileAnswer(Message):
    """Everything that is kept of a user, the oldest text first; `learned`: whether the model has learned all texts."""

    user: str
    version: int
    accepted: Annotated[int, Meta(description="texts that were ever accepted")]
    paused: bool
    learned: bool
    texts: list[Kept]


class ExportedText(Struct, kw_only=True, omit_defaults=True):
    """A text of a user in an export."""

    text: Text
    time: Annotated[int, Meta(ge=0, le=MAX_TIME, description="Unix seconds")]
    context: Context = {}


class Export(Struct, kw_only=True):
    """Everything that a user gave; what a model has learned follows from it."""

    format: Literal[1]
    user: UserId
    paused: bool
    texts: Annotated[list[ExportedText], Meta(max_length=MOST_IMPORTED)]


class ForgetRequest(Asked):
    """A text to delete."""

    text: Text


class RemovedAnswer(Message):
    """How many texts of a user were deleted; the others are learned again in a moment."""

    removed: Annotated[int, Meta(ge=0)]


class DeletedAnswer(Message):
    """Whether there was such a user, of whom nothing is left now."""

    deleted: bool


class PausedAnswer(Message):
    """Whether nothing of a user is kept and learned now."""

    paused: bool


class UserAnswer(Message):
    """The id of a user."""

    user: str


class ContextText(Asked):
    """A text and its context."""

    text: Annotated[str, Meta(max_length=MAX_BYTES)]
    context: Context = {}


class ScoreRequest(Asked):
    """Texts to score as wholes, all with the same columns of context."""

    texts: Annotated[list[ContextText], Meta(min_length=1, max_length=MOST_TEXTS)]


class TextScore(Message):
    """How well the model predicts a text, its end included: -log p in nats, the tokens predicted, and perplexity."""

    nats: float
    targets: int
    perplexity: float


class ScoreAnswer(Message):
    """One score per text, in their order."""

    results: list[TextScore]


class ClassifyRequest(Asked):
    """Texts whose value of the column `target` is asked for, among `values`, or all known ones."""

    target: Annotated[str, Meta(min_length=1, max_length=MAX_VALUE_LENGTH)]
    texts: Annotated[list[ContextText], Meta(min_length=1, max_length=MOST_TEXTS)]
    values: Annotated[list[str], Meta(max_length=MOST_CANDIDATES)] = []


class TextClass(Message):
    """The most probable value of a text, and the probability of each candidate."""

    value: str
    probabilities: dict[str, float]
    truncated: Annotated[bool, Meta(description="whether only the first max_tokens tokens were read")]


class ClassifyAnswer(Message):
    """One value per text, in their order."""

    results: list[TextClass]


class Hypothesis(Asked):
    """A hypothesis of a recogniser, with its scores in nats by name; `lm` is that of its language model."""

    text: Annotated[str, Meta(max_length=MAX_BYTES)]
    scores: dict[str, Score] = {}


class HypothesisList(Asked):
    """The hypotheses of one utterance, the recogniser's best first; each is scored as a whole."""

    hypotheses: Annotated[list[Hypothesis], Meta(min_length=1, max_length=MOST_HYPOTHESES)]
    context: Context = {}


class RescoreRequest(Asked):
    """Lists to choose from anew, by `weights` of the scores, of the `model` and of the number of `words`.

    Unless weights are given, the model takes half of the weight of `lm`, and other scores have a weight of 1.
    """

    lists: Annotated[list[HypothesisList], Meta(min_length=1, max_length=MOST_TEXTS)]
    weights: dict[str, Score] = {}


class Rescored(Message):
    """The chosen hypothesis of a list, and the place that it had, 1 the first."""

    text: str
    place: int


class RescoreAnswer(Message):
    """One choice per list, in their order."""

    results: list[Rescored]


class GenerateRequest(Asked):
    """A text to write in a context, token by token."""

    context: Context = {}
    prompt: Annotated[str, Meta(max_length=LONGEST_PROMPT, description="the beginning of the text")] = ""
    temperature: Annotated[float, Meta(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=1_000_000, description="0: all tokens")] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 100
    seed: Whole = 0


class TextChunk(Message):
    """The next piece of a text that is written; `done` with the last one, which is empty."""

    text: str
    done: bool = False


class Health(Message):
    """The server is there."""

    status: Literal["ok"] = "ok"


class Problem(Message, omit_defaults=True):
    """Why a request was not answered (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
