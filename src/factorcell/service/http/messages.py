"""What is asked and answered over HTTP: the one definition, from which reading, checking and the OpenAPI are made."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from factorcell.completion.texts import LONGEST
from factorcell.service.record import LATEST, LONGEST_ID, LONGEST_KEY, LONGEST_VALUE, ContextValue

MOST_RESULTS = 100
LONGEST_WAIT = 10_000  # milliseconds that a completion may take
LARGEST = (1 << 53) - 1  # which all clients' numbers hold
MOST_IMPORTED = 10_000  # texts of one person
MOST_TEXTS, MOST_CANDIDATES, MOST_HYPOTHESES, MOST_TOKENS = 256, 1000, 1000, 1000  # of one batch
LONGEST_PROMPT = 1000  # characters, each of which the model reads one after the other
LARGEST_SCORE = 1e30

UserId = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_ID, description="any printable text, by which one is known")
]
Text = Annotated[str, Meta(min_length=1, max_length=LONGEST, description="a whole text")]
Value = Annotated[str, Meta(max_length=LONGEST_VALUE)] | bool | int | float
Context = Annotated[
    dict[str, Value],
    Meta(
        description='column of the model\'s context -> value; a boolean is the category "true" or "false"',
        max_length=100,
    ),
]
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]


class Message(Struct, kw_only=True):
    """What is answered."""


class Asked(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
    source: Annotated[str, Meta(description="who proposes it: model, popularity, history, or several with +")]
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
    truncated: Annotated[
        bool, Meta(description="whether the text is longer than those of training, and only its beginning is learned")
    ] = False


class Kept(Message):
    """A text of a person: its `number` among all that they accepted, when (Unix seconds), in which context."""

    number: int
    text: str
    time: int
    context: dict[str, ContextValue]


class ProfileAnswer(Message):
    """All that is kept of a person, the oldest text first; `learned`: whether the model knows them all."""

    user: str
    version: int
    accepted: Annotated[int, Meta(description="texts that were ever accepted")]
    paused: bool
    learned: bool
    texts: list[Kept]


class GivenText(Struct, kw_only=True, omit_defaults=True):
    """A text of a person as it is exported."""

    text: Text
    time: Annotated[int, Meta(ge=0, le=LATEST, description="Unix seconds")]
    context: Context = {}


class Export(Struct, kw_only=True):
    """All that a person gave; what a model has learned follows from it."""

    format: Literal[1]
    user: UserId
    paused: bool
    texts: Annotated[list[GivenText], Meta(max_length=MOST_IMPORTED)]


class ForgetRequest(Asked):
    """A text that shall never have been."""

    text: Text


class RemovedAnswer(Message):
    """How many texts of a person are gone; the others are learned again in a moment."""

    removed: Annotated[int, Meta(ge=0)]


class DeletedAnswer(Message):
    """Whether there was such a person, of whom nothing is left now."""

    deleted: bool


class PausedAnswer(Message):
    """Whether nothing of a person is kept and learned now."""

    paused: bool


class UserAnswer(Message):
    """Who it is."""

    user: str


class ContextText(Asked):
    """A text and the context that it was written in."""

    text: Annotated[str, Meta(max_length=LONGEST)]
    context: Context = {}


class ScoreRequest(Asked):
    """Texts to score, each as a whole, all with the same columns of context."""

    texts: Annotated[list[ContextText], Meta(min_length=1, max_length=MOST_TEXTS)]


class TextScore(Message):
    """How well the model predicts a text, its end included: -log p in nats, the tokens predicted, and perplexity."""

    nats: float
    targets: int
    perplexity: float


class ScoreAnswer(Message):
    """One score a text, in their order."""

    results: list[TextScore]


class ClassifyRequest(Asked):
    """Texts whose value of the column `target` is asked for, among `values`, or all known ones."""

    target: Annotated[str, Meta(min_length=1, max_length=LONGEST_VALUE)]
    texts: Annotated[list[ContextText], Meta(min_length=1, max_length=MOST_TEXTS)]
    values: Annotated[list[str], Meta(max_length=MOST_CANDIDATES)] = []


class TextClass(Message):
    """The most probable value of a text, and the probability of each candidate."""

    value: str
    probabilities: dict[str, float]
    truncated: Annotated[
        bool, Meta(description="whether the text is longer than those of training, and only its beginning was read")
    ]


class ClassifyAnswer(Message):
    """One value a text, in their order."""

    results: list[TextClass]


class Hypothesis(Asked):
    """What a recogniser may have heard, with its scores in nats by name; `lm` is that of its language model."""

    text: Annotated[str, Meta(max_length=LONGEST)]
    scores: dict[str, Annotated[float, Meta(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]] = {}


class HypothesisList(Asked):
    """The hypotheses of one utterance, the recogniser's best first; each is scored as a whole."""

    hypotheses: Annotated[list[Hypothesis], Meta(min_length=1, max_length=MOST_HYPOTHESES)]
    context: Context = {}


class RescoreRequest(Asked):
    """Lists to choose from anew, by `weights` of the scores, of the `model` and of the number of `words`.

    Unless weights are given, the model takes half of the weight of `lm`, and other scores have a weight of 1.
    """

    lists: Annotated[list[HypothesisList], Meta(min_length=1, max_length=MOST_TEXTS)]
    weights: dict[str, Annotated[float, Meta(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]] = {}


class Rescored(Message):
    """The hypothesis that is chosen of a list, and the place that it had, 1 the first."""

    text: str
    place: int


class RescoreAnswer(Message):
    """One choice a list, in their order."""

    results: list[Rescored]


class GenerateRequest(Asked):
    """A text to write in a context, token by token."""

    context: Context = {}
    prompt: Annotated[str, Meta(max_length=LONGEST_PROMPT, description="what it begins with")] = ""
    temperature: Annotated[float, Meta(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=1_000_000, description="0: all tokens")] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 100
    seed: Whole = 0


class Piece(Message):
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
