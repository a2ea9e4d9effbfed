"""Rescoring that learns speakers: after each utterance, the speaker's vector moves by the gradient of the chosen text.

References are not read. Everything is computed in float32, as in `Learner`.

Shapes: H hypotheses of an utterance, k numbers of a speaker's vector.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.completion.online import Learner, LearningRule, User, user_variable
from factorcell.data.corpus import Corpus
from factorcell.data.schema import MISSING
from factorcell.data.values import category_name, is_missing, name_or_none
from factorcell.evaluation.rescoring.nbest import MODEL, WORDS, NBest, Utterance
from factorcell.evaluation.rescoring.rescore import (
    Floats,
    Scored,
    ScoreWeights,
    checked,
    contexts,
    features_of,
    read,
)
from factorcell.model.run import TOKENS, Run
from factorcell.progress import progress_bar


def without_new(run: Run, nbest: NBest) -> NBest:
    """Return the lists with a missing speaker in place of those that training never saw."""
    variable = user_variable(run)
    name, known = variable.source, set(variable.values)

    def is_known(one: Utterance) -> bool:
        value = one.columns.get(name)
        return run.config.data.anonymous or is_missing(value) or category_name(value) in known

    kept = (one if is_known(one) else replace(one, columns={**one.columns, name: None}) for one in nbest.utterances)
    return replace(nbest, utterances=tuple(kept))


def learn(
    run: Run,
    nbest: NBest,
    weights: ScoreWeights,
    *,
    context: Mapping[str, Any] | None = None,
    unknown: str = "error",
    rule: LearningRule | None = None,
    progress: bool = False,
) -> Scored:
    """Score every hypothesis by speaker vectors learned from the earlier choices of `weights`, in order of the lists.

    Hypotheses are scored whole; a speaker learns from a choice as it is read in training, cut after `max_tokens`.
    Speakers of training start from their vectors, others as the unknown user, whatever `unknown` says. An utterance
    without a speaker is scored by the expected vector. `context` and `unknown` as in `score`; the default `rule` is
    that of the run. `UserError` for a run without users.
    """
    learner = Learner(run, rule)
    rows, column = contexts(run, nbest, context or {}), learner.variable.source
    names = [name_or_none(row[column]) for row in rows]
    rows = [{**row, column: None} for row in rows]
    optional = checked(run, nbest, rows, unknown)
    places = {name: place for place, name in enumerate(learner.variable.values)}
    wanted = weights.array((*nbest.names, MODEL, WORDS))
    position = run.schema.categories.index(learner.variable)
    users: dict[str | None, User] = {}
    scores: list[Floats] = []
    lists = list(zip(nbest.utterances, rows, names, strict=True))
    for utterance, row, name in progress_bar(lists, desc="learning", unit="utterances", show=progress):
        place = MISSING if name is None else places.get(name, 0)
        user = users[name] if name in users else begin(learner, place)
        corpus = read(run, [utterance], [row], optional, unknown)
        corpus.categories[:, position] = place  # biases of single values depend on it
        scores.append(-_nats(learner, corpus, user.vector))
        best = int((features_of(utterance, scores[-1]) @ wanted).argmax())
        if name is not None:
            choice = corpus.select(np.array([best])).truncate(run.config.data.max_tokens)
            users[name] = learner.moved(user, utterance.texts[best], _gradient(learner, choice, user.vector))
    return Scored(nbest, tuple(scores))


def begin(learner: Learner, place: int) -> User:
    """Return the user with the trained vector of a value: 0 the unknown user, `MISSING` the expected one."""
    encoder = learner.run.model.encoder
    assert encoder is not None
    column = learner.run.schema.categories.index(learner.variable)
    with torch.inference_mode():
        vector = encoder.embed(column, torch.tensor([place], device=learner.run.device))[0]
    return replace(learner.new(), vector=vector.float().cpu().numpy())


def _nats(learner: Learner, corpus: Corpus, vector: NDArray[np.float32]) -> Floats:
    nats = np.zeros(len(corpus))
    with torch.inference_mode():
        for rows in corpus.batches(TOKENS):
            vectors = torch.from_numpy(np.tile(vector, (len(rows), 1))).to(learner.run.device)
            nats[rows] = _read(learner, corpus, rows, vectors).double().cpu().numpy()
    return nats


def _gradient(learner: Learner, corpus: Corpus, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.enable_grad():
        own = torch.tensor(vector[None], device=learner.run.device, requires_grad=True)
        (slopes,) = torch.autograd.grad(_read(learner, corpus, np.arange(1), own).sum(), own)
    gradient: NDArray[np.float32] = slopes[0].cpu().numpy()
    return gradient


def _read(learner: Learner, corpus: Corpus, rows: NDArray[np.int64], vectors: Tensor) -> Tensor:
    batch = learner.run.batch(corpus, rows)
    conditioned = learner.run.model.condition(batch.context, {learner.variable.name: vectors}, learner.packed)
    nats: Tensor = learner.run.model(batch, conditioned)
    return nats.sum(1)
