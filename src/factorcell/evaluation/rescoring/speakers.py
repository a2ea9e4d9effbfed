"""Rescoring that learns who speaks: after each utterance the speaker's vector moves by the gradient of the chosen text.

No reference is read. The i-th utterances of all speakers are rescored together, for a speaker's vector depends on
nothing but the speaker's own earlier utterances. All of it is computed by floats, as `Learner` does.

Shapes: B utterances, H hypotheses of an utterance, N hypotheses of all of them, k numbers of a speaker's vector.
"""

from collections.abc import Mapping, Sequence
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
    parts,
    read,
)
from factorcell.model.run import TOKENS, Run
from factorcell.progress import progress_bar

Ids = NDArray[np.int64]


def without_new(run: Run, nbest: NBest) -> NBest:
    """The lists with nobody in place of speakers that training never saw, as those who begin are not known yet."""
    variable = user_variable(run)
    name, known = variable.source, set(variable.values)

    def fits(one: Utterance) -> bool:
        value = one.columns.get(name)
        return run.config.data.anonymous or is_missing(value) or category_name(value) in known

    kept = (one if fits(one) else replace(one, columns={**one.columns, name: None}) for one in nbest.utterances)
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
    """The lists with log p as `rescore.score` gives it, but by vectors learned from what `weights` chose before.

    Hypotheses are scored whole; a speaker learns from a choice as it is read in training, cut after `max_tokens`.
    Somebody of training starts as training left them, others as the unknown user, whatever `unknown` says. An
    utterance of nobody is scored by the expected vector and teaches nothing. `UserError` for a run without users.
    """
    learner = Learner(run, rule)
    rows, column = contexts(run, nbest, context or {}), learner.variable.source
    names = [name_or_none(row[column]) for row in rows]
    rows = [{**row, column: None} for row in rows]
    optional = checked(run, nbest, rows, unknown)
    places = {name: place for place, name in enumerate(learner.variable.values)}
    ids = np.array([MISSING if name is None else places.get(name, 0) for name in names])
    people = {name: begin(learner, int(one)) for name, one in zip(names, ids, strict=True)}
    wanted = weights.array((*nbest.names, MODEL, WORDS))
    found: dict[int, Floats] = {}
    with progress_bar(total=len(rows), desc="learning", unit="utterances", show=progress) as bar:
        for part in (part for turn in turns(names) for part in parts(nbest, turn)):
            utterances = [nbest.utterances[place] for place in part]
            corpus = read(run, utterances, [rows[place] for place in part], optional, unknown)
            sizes = [len(one.texts) for one in utterances]
            corpus = of_people(learner, corpus, np.repeat(ids[part], sizes))
            vectors = np.stack([people[names[place]].vector for place in part])
            lists = np.split(-_nats(learner, corpus, np.repeat(vectors, sizes, axis=0)), np.cumsum(sizes)[:-1])
            found |= zip(part, lists, strict=True)
            pairs = zip(utterances, lists, strict=True)
            best = [int((features_of(one, values) @ wanted).argmax()) for one, values in pairs]
            choices = corpus.select(np.cumsum([0, *sizes[:-1]], dtype=np.int64) + best)
            slopes = _gradients(learner, choices.truncate(run.config.data.max_tokens), vectors)
            for place, one, choice, slope in zip(part, utterances, best, slopes, strict=True):
                if (name := names[place]) is not None:
                    people[name] = learner.moved(people[name], one.texts[choice], slope)
            bar.update(len(part))
    return Scored(nbest, tuple(found[place] for place in range(len(rows))))


def begin(learner: Learner, row: int) -> User:
    """Somebody as training left the value `row` of who speaks: 0 the unknown user, `MISSING` the expected one."""
    encoder = learner.run.model.encoder
    assert encoder is not None
    column = learner.run.schema.categories.index(learner.variable)
    with torch.inference_mode():
        vector = encoder.embed(column, torch.tensor([row], device=learner.run.device))[0]
    return replace(learner.new(), vector=vector.float().cpu().numpy())


def turns(names: Sequence[str | None]) -> list[list[int]]:
    """Places of utterances in turns, in each of which a speaker has one at most; those of nobody are in the first."""
    found: list[list[int]] = [[]]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        turn = 0 if name is None else seen.get(name, 0)
        if name is not None:
            seen[name] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found


def of_people(learner: Learner, corpus: Corpus, ids: Ids) -> Corpus:
    """The corpus with who speaks (N,), which biases of single values go by."""
    categories = np.array(corpus.categories)
    categories[:, learner.run.schema.categories.index(learner.variable)] = ids
    return replace(corpus, categories=categories)


def _nats(learner: Learner, corpus: Corpus, vectors: NDArray[np.float32]) -> Floats:
    """Nats (N,) of the texts of people with `vectors` (N, k)."""
    found = np.zeros(len(corpus))
    with torch.inference_mode():
        for rows in corpus.batches(TOKENS):
            found[rows] = _of(learner, corpus, rows, torch.from_numpy(vectors[rows])).double().cpu().numpy()
    return found


def _gradients(learner: Learner, corpus: Corpus, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Gradients (B, k) of the nats of each text by the vector of who speaks."""
    with torch.enable_grad():
        own = torch.tensor(vectors, device=learner.run.device, requires_grad=True)
        (slopes,) = torch.autograd.grad(_of(learner, corpus, np.arange(len(corpus)), own).sum(), own)
    gradients: NDArray[np.float32] = slopes.cpu().numpy()
    return gradients


def _of(learner: Learner, corpus: Corpus, rows: Ids, vectors: Tensor) -> Tensor:
    batch = learner.run.batch(corpus, rows)
    own = {learner.variable.name: vectors.to(learner.run.device)}
    conditioned = learner.run.model.condition(batch.context, own, learner.packed)
    nats: Tensor = learner.run.model(batch, conditioned)
    return nats.sum(1)
