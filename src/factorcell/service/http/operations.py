"""What can be asked: the handlers, and the table from which routes, scopes and the OpenAPI description are made."""

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

MOST_PAIRS = 10_000  # of a text and a candidate, or of a list and a hypothesis
LARGEST_EXPORT = 4 << 20  # bytes

T = TypeVar("T")


def complete(site: Site, call: Call) -> messages.CompleteAnswer:
    """Suggest texts that continue what is typed."""
    asked: messages.CompleteRequest = call.message
    found = site.service.complete(
        CompletionRequest(
            asked.query,
            user=asked.user,
            cursor=asked.cursor,
            context=asked.context,
            limit=asked.limit,
            deadline=call.time_limit.deadline,
            private=not asked.learn,
            stop=call.time_limit.stop,
        )
    )
    if found.degraded:
        site.metrics.degraded.labels(found.degraded).inc()
    results = [
        messages.Result(
            text=one.text,
            source=one.source,
            score=one.log_probability,
            typos=one.typos,
            parts=dict(one.parts) if asked.explain else None,
        )
        for one in found.results
    ]
    return messages.CompleteAnswer(results=results, degraded=found.degraded, user_version=found.user_version)


def accept(site: Site, call: Call) -> messages.AcceptAnswer:
    """Learn and keep a text that a user accepted; it is on disk when this is answered."""
    asked: messages.AcceptRequest = call.message
    done = site.service.accept(asked.user, asked.text, context=asked.context, key=asked.idempotency_key)
    site.metrics.accepts.labels(done.outcome).inc()
    return msgspec.convert(done, messages.AcceptAnswer, from_attributes=True)


def ready(site: Site, call: Call) -> messages.Health:
    """Check that requests can be answered: the model was tested, and the store can be written."""
    site.service.check()
    return messages.Health()


def show(site: Site, call: Call) -> messages.ProfileAnswer:
    """Return everything that is kept of a user."""
    return msgspec.convert(_found(site.service.show(call.user)), messages.ProfileAnswer, from_attributes=True)


def export(site: Site, call: Call) -> messages.Export:
    """Return everything that a user gave; `POST /v1/users` takes it back."""
    return msgspec.convert(_found(site.service.export(call.user)), messages.Export)


def restore(site: Site, call: Call) -> messages.UserAnswer:
    """Keep a user as exported, and learn them soon."""
    try:
        return messages.UserAnswer(user=site.service.restore(msgspec.to_builtins(call.message)))
    except UserExistsError as error:
        raise ProblemError("conflict", str(error)) from None


def delete(site: Site, call: Call) -> messages.DeletedAnswer:
    """Delete everything of a user."""
    return messages.DeletedAnswer(deleted=site.service.delete(call.user))


def forget(site: Site, call: Call) -> messages.RemovedAnswer:
    """Delete every copy of a text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=site.service.forget(call.user, call.message.text))


def undo(site: Site, call: Call) -> messages.RemovedAnswer:
    """Delete the newest text of a user, and everything that was learned from it."""
    return messages.RemovedAnswer(removed=site.service.undo(call.user))


def pause(site: Site, call: Call) -> messages.PausedAnswer:
    """Keep and learn nothing of a user until it is resumed."""
    site.service.pause(call.user)
    return messages.PausedAnswer(paused=True)


def resume(site: Site, call: Call) -> messages.PausedAnswer:
    """Keep and learn what a user accepts, again."""
    site.service.pause(call.user, False)
    return messages.PausedAnswer(paused=False)


def score(site: Site, call: Call) -> messages.ScoreAnswer:
    """Return how well the model predicts each text, which is read whole."""
    model = site.service.model
    corpus = model.run.read(*_parts(call.message.texts), unknown=UNKNOWN_POLICY, truncate=False)
    results = [
        messages.TextScore(nats=one.nats, targets=one.targets, perplexity=one.perplexity)
        for one in text_tallies(model.run, corpus)
    ]
    return messages.ScoreAnswer(results=results)


def classify(site: Site, call: Call) -> messages.ClassifyAnswer:
    """Return the value of a column of each text, by Bayes' rule with a uniform prior."""
    asked: messages.ClassifyRequest = call.message
    model = site.service.model
    names = _candidates(model, asked)
    texts, contexts = _parts(asked.texts)
    if any(asked.target in context for context in contexts):
        raise UserError(f"the column {asked.target} is what is asked for; leave it out of the contexts")
    corpus = model.run.read(texts, contexts, unknown=UNKNOWN_POLICY)
    likelihoods = log_likelihoods(model.run, corpus, [{asked.target: name} for name in names])
    found = apply_bayes_rule(names, likelihoods, corpus.lengths, [None] * len(corpus)).probabilities
    results = [
        messages.TextClass(
            value=names[int(row.argmax())], probabilities=dict(zip(names, row.tolist(), strict=True)), truncated=cut
        )
        for row, cut in zip(found, corpus.truncated.tolist(), strict=True)
    ]
    return messages.ClassifyAnswer(results=results)


def rescore(site: Site, call: Call) -> messages.RescoreAnswer:
    """Choose from the lists of a recogniser, in context."""
    asked: messages.RescoreRequest = call.message
    model = site.service.model
    _check_pairs(sum(len(one.hypotheses) for one in asked.lists), f"{len(asked.lists)} lists of hypotheses")
    names = tuple(asked.lists[0].hypotheses[0].scores)
    nbest = NBest(names, tuple(_utterance(str(number), one, names) for number, one in enumerate(asked.lists, 1)))
    weights = ScoreWeights(asked.weights) if asked.weights else ScoreWeights.with_model_share(names)
    rows = rescoring.rescore(rescoring.score_hypotheses(model.run, nbest, unknown=UNKNOWN_POLICY), weights)
    return messages.RescoreAnswer(results=[messages.Rescored(text=row["text"], place=row["place"]) for row in rows])


def generate(site: Site, call: Call) -> Iterator[messages.TextChunk]:
    """Write a text, piece by piece, as server-sent events."""
    asked: messages.GenerateRequest = call.message
    model = site.service.model
    options = GenerationOptions(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        seconds=max(0.0, call.time_limit.deadline - monotonic()),
    )
    for text in stream(model.run, asked.context, options=options, prompt=asked.prompt, unknown=UNKNOWN_POLICY):
        yield messages.TextChunk(text=text)
    yield messages.TextChunk(text="", done=True)


def _found(value: T | None) -> T:
    if value is None:
        raise ProblemError("not-found", "nothing is kept of this person")
    return value


def _parts(texts: Sequence[messages.ContextText]) -> tuple[list[str], list[dict[str, ContextValue]]]:
    return [one.text for one in texts], [one.context for one in texts]


def _candidates(model: ServedModel, asked: messages.ClassifyRequest) -> tuple[str, ...]:
    """Return the values to choose from; the users of training are shown to nobody."""
    variable = model.run.schema.variable(asked.target)
    if variable.kind != "category" or variable.source_column == model.run.config.data.user:
        raise UserError(f"target {asked.target}: expected a column of categories other than the column of users")
    for name in asked.values:
        choose(f"value of {asked.target}", name, variable.values[1:])
    names = tuple(dict.fromkeys(asked.values)) or variable.values[1:]
    _check_pairs(len(names) * len(asked.texts), f"{len(asked.texts)} texts of {len(names)} values")
    return names


def _check_pairs(count: int, what: str) -> None:
    if count > MOST_PAIRS:
        raise UserError(f"{what}: these are {count} pairs, of which at most {MOST_PAIRS} are judged at once")


def _utterance(number: str, asked: messages.HypothesisList, names: tuple[str, ...]) -> Utterance:
    if any(set(one.scores) != set(names) for one in asked.hypotheses):
        raise UserError("all hypotheses must have the scores of the first")
    scores = np.array([[one.scores[name] for name in names] for one in asked.hypotheses], dtype=np.float64)
    texts = tuple(one.text for one in asked.hypotheses)
    return Utterance(number, texts, scores.reshape(len(texts), len(names)), columns=asked.context)


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
              largest=LARGEST_EXPORT),
    Operation("score", "POST", "/v1/score", "complete", "batch", messages.ScoreRequest, messages.ScoreAnswer, score),
    Operation("classify", "POST", "/v1/classify", "complete", "batch",
              messages.ClassifyRequest, messages.ClassifyAnswer, classify),
    Operation("rescore", "POST", "/v1/rescore", "complete", "batch",
              messages.RescoreRequest, messages.RescoreAnswer, rescore),
    Operation("generate", "POST", "/v1/generate", "complete", "batch",
              messages.GenerateRequest, messages.TextChunk, generate, streams=True),
    Operation("ready", "GET", "/readyz", "", "change", None, messages.Health, ready),
)
# fmt: on
