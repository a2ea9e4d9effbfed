"""The operations of the API: their handlers, and the table that defines routes, scopes and the OpenAPI description."""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TypeVar

import msgspec
import numpy as np

from factorcell.config import UserError, choose
from factorcell.evaluation.bayes_rule import apply_bayes_rule
from factorcell.evaluation.classification import log_likelihoods
from factorcell.evaluation.perplexity import text_tallies
from factorcell.evaluation.rescoring import rescore as rescoring
from factorcell.evaluation.rescoring.nbest import NBest, Utterance
from factorcell.evaluation.rescoring.rescore import ScoreWeights
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.service.engine import CompletionRequest, UserExistsError
from factorcell.service.http import messages
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Call, Operation, Site
from factorcell.service.learning import UNKNOWN_POLICY, ServedModel
from factorcell.service.record import ContextValue

MAX_PAIRS = 10_000  # maximum number of pairs of text and candidate value, or of hypotheses, per request
MAX_EXPORT_BYTES = 4 << 20  # maximum size of an import

T = TypeVar("T")


def complete(site: Site, call: Call) -> messages.CompleteAnswer:
    """Suggest texts that continue the text before the cursor."""
    request: messages.CompleteRequest = call.message
    completions = site.service.complete(
        CompletionRequest(
            request.query,
            user=request.user,
            cursor=request.cursor,
            context=request.context,
            limit=request.limit,
            deadline=call.time_limit.deadline,
            private=not request.learn,
            stop=call.time_limit.stop,
        )
    )
    if completions.degraded:
        site.metrics.degraded.labels(completions.degraded).inc()
    results = [
        messages.Result(
            text=suggestion.text,
            source=suggestion.source,
            score=suggestion.log_probability,
            typos=suggestion.typos,
            parts=dict(suggestion.parts) if request.explain else None,
        )
        for suggestion in completions.results
    ]
    return messages.CompleteAnswer(
        results=results, degraded=completions.degraded, user_version=completions.user_version
    )


def accept(site: Site, call: Call) -> messages.AcceptAnswer:
    """Save and learn a text that a user accepted. A saved text is on disk before the response is sent."""
    request: messages.AcceptRequest = call.message
    result = site.service.accept(request.user, request.text, context=request.context, key=request.idempotency_key)
    site.metrics.accepts.labels(result.outcome).inc()
    return msgspec.convert(result, messages.AcceptAnswer, from_attributes=True)


def ready(site: Site, call: Call) -> messages.Health:
    """Check that requests can be answered: the model is loaded, and the store can be written."""
    site.service.check()
    return messages.Health()


def show(site: Site, call: Call) -> messages.ProfileAnswer:
    """Return all saved data of a user."""
    return msgspec.convert(_existing(site.service.show(call.user)), messages.ProfileAnswer, from_attributes=True)


def export(site: Site, call: Call) -> messages.Export:
    """Return the texts and settings of a user; `POST /v1/users` imports them."""
    return msgspec.convert(_existing(site.service.export(call.user)), messages.Export)


def restore(site: Site, call: Call) -> messages.UserAnswer:
    """Import an exported user. The model learns the texts in the background."""
    try:
        return messages.UserAnswer(user=site.service.restore(msgspec.to_builtins(call.message)))
    except UserExistsError as error:
        raise ProblemError("conflict", str(error)) from None


def delete(site: Site, call: Call) -> messages.DeletedAnswer:
    """Delete all data of a user."""
    return messages.DeletedAnswer(deleted=site.service.delete(call.user))


def forget(site: Site, call: Call) -> messages.RemovedAnswer:
    """Delete all copies of a text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=site.service.forget(call.user, call.message.text))


def undo(site: Site, call: Call) -> messages.RemovedAnswer:
    """Delete the newest text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=site.service.undo(call.user))


def pause(site: Site, call: Call) -> messages.PausedAnswer:
    """Pause learning: no text of the user is saved or learned until learning is resumed."""
    site.service.pause(call.user)
    return messages.PausedAnswer(paused=True)


def resume(site: Site, call: Call) -> messages.PausedAnswer:
    """Resume learning: texts that the user accepts are saved and learned again."""
    site.service.pause(call.user, False)
    return messages.PausedAnswer(paused=False)


def score(site: Site, call: Call) -> messages.ScoreAnswer:
    """Return how well the model predicts each text, without truncating it."""
    model = site.service.model
    corpus = model.run.read(*_texts_and_contexts(call.message.texts), unknown=UNKNOWN_POLICY, truncate=False)
    results = [
        messages.TextScore(nats=tally.nats, targets=tally.targets, perplexity=tally.perplexity)
        for tally in text_tallies(model.run, corpus)
    ]
    return messages.ScoreAnswer(results=results)


def classify(site: Site, call: Call) -> messages.ClassifyAnswer:
    """Return the most probable value of a context column for each text, by Bayes' rule with a uniform prior."""
    request: messages.ClassifyRequest = call.message
    model = site.service.model
    names = _candidates(model, request)
    texts, contexts = _texts_and_contexts(request.texts)
    if any(request.target in context for context in contexts):
        raise UserError(f"context {request.target}: it is the target column; remove it from the contexts")
    corpus = model.run.read(texts, contexts, unknown=UNKNOWN_POLICY)
    likelihoods = log_likelihoods(model.run, corpus, [{request.target: name} for name in names])
    probabilities = apply_bayes_rule(names, likelihoods, corpus.lengths, [None] * len(corpus)).probabilities
    results = [
        messages.TextClass(
            value=names[int(row.argmax())],
            probabilities=dict(zip(names, row.tolist(), strict=True)),
            truncated=is_truncated,
        )
        for row, is_truncated in zip(probabilities, corpus.truncated.tolist(), strict=True)
    ]
    return messages.ClassifyAnswer(results=results)


def rescore(site: Site, call: Call) -> messages.RescoreAnswer:
    """Choose the best hypothesis of each n-best list of a recognizer, given the context of the list."""
    request: messages.RescoreRequest = call.message
    model = site.service.model
    _check_count(sum(len(item.hypotheses) for item in request.lists), "hypotheses")
    names = tuple(request.lists[0].hypotheses[0].scores)
    nbest = NBest(names, tuple(_utterance(str(number), item, names) for number, item in enumerate(request.lists, 1)))
    weights = ScoreWeights(request.weights) if request.weights else ScoreWeights.with_model_share(names)
    rows = rescoring.rescore(rescoring.score_hypotheses(model.run, nbest, unknown=UNKNOWN_POLICY), weights)
    return messages.RescoreAnswer(results=[messages.Rescored(text=row["text"], place=row["place"]) for row in rows])


def generate(site: Site, call: Call) -> Iterator[messages.TextChunk]:
    """Generate a text and stream it as server-sent events."""
    request: messages.GenerateRequest = call.message
    model = site.service.model
    options = GenerationOptions(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        max_tokens=request.max_tokens,
        seed=request.seed,
        seconds=max(0.0, call.time_limit.deadline - monotonic()),
    )
    for text in stream(model.run, request.context, options=options, prompt=request.prompt, unknown=UNKNOWN_POLICY):
        yield messages.TextChunk(text=text)
    yield messages.TextChunk(text="", done=True)


def _existing(value: T | None) -> T:
    if value is None:
        raise ProblemError("not-found", "no data is saved for this user")
    return value


def _texts_and_contexts(texts: Sequence[messages.ContextText]) -> tuple[list[str], list[dict[str, ContextValue]]]:
    return [item.text for item in texts], [item.context for item in texts]


def _candidates(model: ServedModel, request: messages.ClassifyRequest) -> tuple[str, ...]:
    """Return the values among which a request lets the model choose.

    A request for the user column is refused, because its values would reveal the users in the training table.
    """
    variable = model.run.schema.variable(request.target)
    if variable.kind != "category" or variable.source_column == model.run.config.data.user:
        raise UserError(f"target {request.target}: expected a category column other than the column of users")
    for name in request.values:
        choose(f"value of {request.target}", name, variable.values[1:])
    names = tuple(dict.fromkeys(request.values)) or variable.values[1:]
    _check_count(len(names) * len(request.texts), "pairs of text and value")
    return names


def _check_count(count: int, noun: str) -> None:
    if count > MAX_PAIRS:
        raise UserError(f"request: expected at most {MAX_PAIRS} {noun}, got {count}; send several requests")


def _utterance(number: str, request: messages.HypothesisList, names: tuple[str, ...]) -> Utterance:
    if any(set(hypothesis.scores) != set(names) for hypothesis in request.hypotheses):
        raise UserError("hypotheses: expected the same names of scores in all hypotheses, got different names")
    scores = np.array(
        [[hypothesis.scores[name] for name in names] for hypothesis in request.hypotheses], dtype=np.float64
    )
    texts = tuple(hypothesis.text for hypothesis in request.hypotheses)
    return Utterance(number, texts, scores.reshape(len(texts), len(names)), columns=request.context)


# fmt: off
OPERATIONS = (
    Operation("complete", "POST", "/v1/complete", "complete", "search",
              messages.CompleteRequest, messages.CompleteAnswer, complete),
    Operation("accept", "POST", "/v1/accept", "learn", "change", messages.AcceptRequest, messages.AcceptAnswer, accept),
    Operation("show", "GET", "/v1/users/{user}", "users", "change", None, messages.ProfileAnswer, show),
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
