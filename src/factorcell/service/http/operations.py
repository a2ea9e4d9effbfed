"""The operations of the API: their handlers, and the table that defines routes, scopes and the OpenAPI description."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import msgspec
import numpy as np

from factorcell.errors import UserError, check_choice
from factorcell.evaluation.bayes_rule import apply_bayes_rule
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.linear_classifier import applicable_prior, training_log_prior
from factorcell.evaluation.perplexity import text_tallies
from factorcell.evaluation.rescoring import rescore as rescoring
from factorcell.evaluation.rescoring.nbest import NBest, Utterance
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.nn.scoring import check_lengths
from factorcell.service import messages
from factorcell.service.engine import Service
from factorcell.service.http.lanes import TimeLimit
from factorcell.service.http.problems import ProblemError
from factorcell.service.learning import ServedModel

MAX_PAIRS = 10_000  # maximum number of pairs of text and candidate value, or of hypotheses, per request
MAX_EXPORT_BYTES = 4 << 20  # maximum size of an imported export

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A request for the service: its `message`, the `user` in its path, and its time limit."""

    service: Service
    message: Any
    user: str
    time_limit: TimeLimit


@dataclass(frozen=True)
class Operation:
    """An operation of the API."""

    name: str  # in metrics and in the OpenAPI description
    method: str
    path: str  # with `{user}` for the id of a user
    scope: str  # that the key of a request must have; empty if the operation needs no key
    lane: str  # the name of the thread pool that runs the handler
    request_type: type[msgspec.Struct] | None  # None if the request has no body
    response_type: type[msgspec.Struct]  # of the response, or of each event of a stream
    handler: Callable[[Call], Any]
    is_streaming: bool = False  # whether the response is a stream of server-sent events
    max_body_bytes: int = 1 << 20


def complete(call: Call) -> messages.Completions:
    """Suggest texts that continue the text before the cursor."""
    return call.service.complete(call.message, call.time_limit.deadline, call.time_limit.stop)


def accept(call: Call) -> messages.AcceptResult:
    """Save and learn a text that a user accepted. A saved text is on disk before the response is sent."""
    request: messages.AcceptRequest = call.message
    return call.service.accept(
        request.user, request.text, context=request.context, key=request.idempotency_key, unknown=request.unknown
    )


def ready(call: Call) -> messages.Health:
    """Check that requests can be answered: the model is loaded, and the store can be written."""
    call.service.check()
    return messages.Health()


def show(call: Call) -> messages.Profile:
    """Return all saved data of a user."""
    return _require_record(call.service.show(call.user))


def export(call: Call) -> dict[str, Any]:
    """Return the texts and settings of a user; `POST /v1/users` imports them."""
    return _require_record(call.service.export(call.user))


def restore(call: Call) -> messages.UserAnswer:
    """Import an exported user. The model learns the texts in the background."""
    return messages.UserAnswer(user=call.service.restore(call.message))


def delete(call: Call) -> messages.DeletedAnswer:
    """Delete all data of a user."""
    return messages.DeletedAnswer(deleted=call.service.delete(call.user))


def forget(call: Call) -> messages.RemovedAnswer:
    """Delete all texts of a user that are suggested as this text, and everything that was learned from them."""
    return messages.RemovedAnswer(removed=call.service.forget(call.user, call.message.text))


def undo(call: Call) -> messages.RemovedAnswer:
    """Delete the newest text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=call.service.undo(call.user))


def pause(call: Call) -> messages.PausedAnswer:
    """Pause learning: no text of the user is saved or learned until learning is resumed."""
    call.service.pause(call.user)
    return messages.PausedAnswer(paused=True)


def resume(call: Call) -> messages.PausedAnswer:
    """Resume learning: texts that the user accepts are saved and learned again."""
    call.service.pause(call.user, paused=False)
    return messages.PausedAnswer(paused=False)


def score(call: Call) -> messages.ScoreAnswer:
    """Return how well the model predicts each text, without truncating it."""
    request: messages.ScoreRequest = call.message
    model = call.service.model
    texts, contexts = [item.text for item in request.texts], [item.context for item in request.texts]
    corpus = model.run.read(texts, contexts, unknown=request.unknown, truncate=False)
    check_lengths(corpus, model.run.model.max_tokens, lambda row: f"text {row + 1:,}")
    results = [
        messages.TextScore(nats=tally.nats, targets=tally.targets, perplexity=tally.perplexity)
        for tally in text_tallies(model.run, corpus)
    ]
    return messages.ScoreAnswer(results=results)


def classify(call: Call) -> messages.ClassifyAnswer:
    """Return the most probable value of a context column for each text, by Bayes' rule.

    The prior is conditional on the contexts of the texts, or the training frequencies if there are none.
    """
    request: messages.ClassifyRequest = call.message
    model = call.service.model
    candidates = _candidate_values(model, request)
    texts, contexts = [item.text for item in request.texts], [item.context for item in request.texts]
    if any(request.target in context for context in contexts):
        raise UserError(f"context {request.target}: it is the target column; remove it from the contexts")
    corpus = model.run.read(texts, contexts, unknown=request.unknown)
    text_log_likelihoods = log_likelihoods(model.run, corpus, [{request.target: value} for value in candidates])
    classification = apply_bayes_rule(candidates, text_log_likelihoods, truth=[None] * len(corpus))
    columns = {column for context in contexts for column in context}
    if (prior := applicable_prior(model.priors, request.target, columns)) is not None:
        classification = classification.with_log_prior(prior.candidate_log_probs(corpus, candidates), "conditional")
    else:
        log_prior = training_log_prior(model.run.schema.variable(request.target), candidates)
        classification = classification.with_log_prior(log_prior, "training")
    results = [
        messages.TextClass(
            value=candidates[int(probabilities.argmax())],
            probabilities=dict(zip(candidates, probabilities.tolist(), strict=True)),
            truncated=is_truncated,
        )
        for probabilities, is_truncated in zip(classification.probabilities, corpus.truncated.tolist(), strict=True)
    ]
    return messages.ClassifyAnswer(results=results)


def rescore(call: Call) -> messages.RescoreAnswer:
    """Choose the best hypothesis of each n-best list of a recognizer, given the context of the list."""
    request: messages.RescoreRequest = call.message
    model = call.service.model
    _check_count(sum(len(nbest_list.hypotheses) for nbest_list in request.lists), "hypotheses")
    score_names = tuple(request.lists[0].hypotheses[0].scores)
    utterances = tuple(
        _utterance(str(number), nbest_list, score_names) for number, nbest_list in enumerate(request.lists, 1)
    )
    weights = request.weights or rescoring.share_weights(score_names)
    for column in dict.fromkeys(column for nbest_list in request.lists for column in nbest_list.context):
        check_choice("context column", column, model.run.schema.columns())
    scored = rescoring.score_hypotheses(model.run, NBest(score_names, utterances), unknown=request.unknown)
    rows = rescoring.rescore(scored, weights)
    return messages.RescoreAnswer(results=[messages.Rescored(text=row["text"], place=row["place"]) for row in rows])


def generate(call: Call) -> Iterator[messages.TextChunk]:
    """Generate a text and stream it as server-sent events."""
    request: messages.GenerateRequest = call.message
    model = call.service.model
    options = GenerationOptions(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        max_tokens=request.max_tokens,
        seed=request.seed,
        seconds=max(0.0, call.time_limit.deadline - monotonic()),
    )
    for text in stream(model.run, request.context, options=options, prompt=request.prompt, unknown=request.unknown):
        yield messages.TextChunk(text=text)
    yield messages.TextChunk(text="", done=True)


def _require_record(data: T | None) -> T:
    """Return the data of a user; raise a `ProblemError` if the store has no record of the user."""
    if data is None:
        raise ProblemError("not-found", "no data is saved for this user")
    return data


def _candidate_values(model: ServedModel, request: messages.ClassifyRequest) -> tuple[str, ...]:
    """Return the values of the target column among which a request lets the model choose.

    Raises:
        UserError: The target is unsuitable, a value is unknown, or there are too many pairs of text and value. The
            column of users is unsuitable, because its values would reveal the users in the training table.
    """
    variable = model.run.schema.variable(request.target)
    if variable.kind != "category" or variable.source_column == model.run.config.data.user:
        raise UserError(f"target {request.target}: expected a category column other than the column of users")
    known_values = variable.values[1:]  # without the first one, which stands for rare values
    for value in request.values:
        check_choice(f"value of {request.target}", value, known_values)
    candidates = tuple(dict.fromkeys(request.values)) or known_values
    _check_count(len(candidates) * len(request.texts), "pairs of text and value")
    return candidates


def _check_count(count: int, noun: str) -> None:
    if count > MAX_PAIRS:
        raise UserError(f"request: expected at most {MAX_PAIRS} {noun}, got {count}; send several requests")


def _utterance(utterance_id: str, nbest_list: messages.HypothesisList, score_names: tuple[str, ...]) -> Utterance:
    """Return an n-best list of a request; raise a `UserError` if a hypothesis has other scores than `score_names`."""
    hypotheses = nbest_list.hypotheses
    if any(set(hypothesis.scores) != set(score_names) for hypothesis in hypotheses):
        raise UserError("hypotheses: expected the same names of scores in all hypotheses, got different names")
    texts = tuple(hypothesis.text for hypothesis in hypotheses)
    rows = [[hypothesis.scores[name] for name in score_names] for hypothesis in hypotheses]
    scores = np.array(rows, dtype=np.float64).reshape(len(texts), len(score_names))  # there may be no scores
    return Utterance(utterance_id, texts, scores, columns=nbest_list.context)


# Routes, scopes, metrics and the OpenAPI description follow from this table.
# fmt: off
OPERATIONS = (
    Operation("complete", "POST", "/v1/complete", "complete", "search",
              messages.CompletionRequest, messages.Completions, complete),
    Operation("accept", "POST", "/v1/accept", "learn", "change", messages.AcceptRequest, messages.AcceptResult, accept),
    Operation("show", "GET", "/v1/users/{user}", "users", "change", None, messages.Profile, show),
    Operation("delete", "DELETE", "/v1/users/{user}", "users", "change", None, messages.DeletedAnswer, delete),
    Operation("export", "GET", "/v1/users/{user}/export", "users", "change", None, messages.Export, export),
    Operation("forget", "POST", "/v1/users/{user}/forget", "users", "change",
              messages.ForgetRequest, messages.RemovedAnswer, forget),
    Operation("undo", "POST", "/v1/users/{user}/undo", "users", "change", None, messages.RemovedAnswer, undo),
    Operation("pause", "POST", "/v1/users/{user}/pause", "users", "change", None, messages.PausedAnswer, pause),
    Operation("resume", "POST", "/v1/users/{user}/resume", "users", "change", None, messages.PausedAnswer, resume),
    Operation("import", "POST", "/v1/users", "admin", "change", messages.Export, messages.UserAnswer, restore,
              max_body_bytes=MAX_EXPORT_BYTES),
    Operation("score", "POST", "/v1/score", "complete", "batch", messages.ScoreRequest, messages.ScoreAnswer, score),
    Operation("classify", "POST", "/v1/classify", "complete", "batch",
              messages.ClassifyRequest, messages.ClassifyAnswer, classify),
    Operation("rescore", "POST", "/v1/rescore", "complete", "batch",
              messages.RescoreRequest, messages.RescoreAnswer, rescore),
    Operation("generate", "POST", "/v1/generate", "complete", "batch",
              messages.GenerateRequest, messages.TextChunk, generate, is_streaming=True),
    Operation("ready", "GET", "/readyz", "", "change", None, messages.Health, ready),
)
# fmt: on
