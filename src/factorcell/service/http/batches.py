"""What is asked of the model alone, about many texts at once: scores, classes, choices; and a text that it writes."""

from collections.abc import Iterator, Sequence

import numpy as np

from factorcell.config import UserError, choose
from factorcell.evaluation.bayes_rule import judge
from factorcell.evaluation.classification import log_likelihoods
from factorcell.evaluation.perplexity import text_tallies
from factorcell.evaluation.rescoring import rescore as rescoring
from factorcell.evaluation.rescoring.nbest import NBest, Utterance
from factorcell.evaluation.rescoring.rescore import ScoreWeights
from factorcell.generation.generate import GenerationOptions, stream
from factorcell.service.http.messages import (
    ClassifyAnswer,
    ClassifyRequest,
    ContextText,
    GenerateRequest,
    HypothesisList,
    Piece,
    RescoreAnswer,
    Rescored,
    RescoreRequest,
    ScoreAnswer,
    ScoreRequest,
    TextClass,
    TextScore,
)
from factorcell.service.http.site import Call, Site
from factorcell.service.learning import ServedModel
from factorcell.service.record import ContextValue

MOST_PAIRS = 10_000  # of a text and a candidate, or of a list and a hypothesis


def score(site: Site, call: Call) -> ScoreAnswer:
    """How well the model predicts each text, which is read whole."""
    asked: ScoreRequest = call.asked
    model = site.service.model
    corpus = model.run.read(*_parts(asked.texts), unknown=model.unknown, truncate=False)
    tallies = text_tallies(model.run, corpus)
    return ScoreAnswer(
        results=[TextScore(nats=one.nats, targets=one.tokens, perplexity=one.perplexity) for one in tallies]
    )


def classify(site: Site, call: Call) -> ClassifyAnswer:
    """Which value of a column each text has, by Bayes' rule; all values are as likely beforehand."""
    asked: ClassifyRequest = call.asked
    model = site.service.model
    names = _candidates(model, asked)
    texts, contexts = _parts(asked.texts)
    if any(asked.target in context for context in contexts):
        raise UserError(f"the column {asked.target} is what is asked for; leave it out of the contexts")
    corpus = model.run.read(texts, contexts, unknown=model.unknown)
    likelihoods = log_likelihoods(model.run, corpus, [{asked.target: name} for name in names])
    found = judge(names, likelihoods, corpus.lengths, [None] * len(corpus)).probabilities
    return ClassifyAnswer(
        results=[
            TextClass(
                value=names[int(row.argmax())],
                probabilities=dict(zip(names, row.tolist(), strict=True)),
                truncated=cut,
            )
            for row, cut in zip(found, corpus.truncated.tolist(), strict=True)
        ]
    )


def rescore(site: Site, call: Call) -> RescoreAnswer:
    """Choose anew from a recogniser's lists, in context."""
    asked: RescoreRequest = call.asked
    model = site.service.model
    _check_pairs(sum(len(one.hypotheses) for one in asked.lists), f"{len(asked.lists)} lists of hypotheses")
    names = tuple(asked.lists[0].hypotheses[0].scores)
    nbest = NBest(names, tuple(_utterance(str(number), one, names) for number, one in enumerate(asked.lists, 1)))
    weights = ScoreWeights(asked.weights) if asked.weights else ScoreWeights.shared(names)
    scored = rescoring.score(model.run, nbest, unknown=model.unknown)
    rows = rescoring.rescore(scored, weights)
    return RescoreAnswer(results=[Rescored(text=row["text"], place=row["place"]) for row in rows])


def generate(site: Site, call: Call) -> Iterator[Piece]:
    """Write a text, sent piece by piece as server-sent events."""
    asked: GenerateRequest = call.asked
    model = site.service.model
    options = GenerationOptions(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        seconds=call.turn.seconds,
    )
    for text in stream(model.run, asked.context, options=options, prompt=asked.prompt, unknown=model.unknown):
        yield Piece(text=text)
    yield Piece(text="", done=True)


def _parts(texts: Sequence[ContextText]) -> tuple[list[str], list[dict[str, ContextValue]]]:
    return [one.text for one in texts], [one.context for one in texts]


def _candidates(model: ServedModel, asked: ClassifyRequest) -> tuple[str, ...]:
    """The values to choose from; people of training are told to nobody."""
    variable = model.run.schema.variable(asked.target)
    if variable.kind != "category" or variable.source == model.run.config.data.user:
        raise UserError(f"target {asked.target}: only the values of a category that is no person can be told apart")
    for name in asked.values:
        choose(f"value of {asked.target}", name, variable.values[1:])
    names = tuple(dict.fromkeys(asked.values)) or variable.values[1:]
    _check_pairs(len(names) * len(asked.texts), f"{len(asked.texts)} texts of {len(names)} values")
    return names


def _check_pairs(count: int, what: str) -> None:
    if count > MOST_PAIRS:
        raise UserError(f"{what}: these are {count} pairs, of which at most {MOST_PAIRS} are judged at once")


def _utterance(number: str, asked: HypothesisList, names: tuple[str, ...]) -> Utterance:
    for one in asked.hypotheses:
        if set(one.scores) != set(names):
            raise UserError("all hypotheses must have the scores of the first")
    scores = np.array([[one.scores[name] for name in names] for one in asked.hypotheses], dtype=np.float64)
    texts = tuple(one.text for one in asked.hypotheses)
    return Utterance(number, texts, scores.reshape(len(texts), len(names)), columns=asked.context)
