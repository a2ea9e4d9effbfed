"""Tuning of the online learning rule, and of the weights of the blend, on users who were not in training.

The chosen rule has the lowest *progressive* perplexity: each text is scored before it is learned (thesis 2018, section
5.4.1). The weights of the blend are fitted to the candidates for prefixes that a replay draws. Intervals are 95 %
bootstrap intervals over users.

Shapes: U users, D draws of users.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.completion.blend import DEFAULT_WEIGHTS, Blend, BlendWeights, Candidate
from factorcell.completion.completer import Completer
from factorcell.completion.online import BATCH_SIZE, Learner, LearningRule
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import SUGGESTION_COUNT, Stream, rank_of
from factorcell.completion.suggestions import MIN_PROPOSALS
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.progress import progress_bar

Row = dict[str, Any]
Floats = NDArray[np.float64]
Example = tuple[list[Candidate], str]  # the candidates for a prefix, and the text that the user entered

INITIAL_RATES = {"adagrad": 0.1, "adadelta": 5.0, "sgd": 0.003}
FOLD_COUNT = 5  # folds of users for the comparison of the blend with the model
FACTORS = (3.0, math.sqrt(3.0))  # ratio of neighbouring rates, in the coarse search and in the fine search


def progressive_sums(learner: Learner, streams: Sequence[Stream]) -> Floats:
    """Return the nats and the targets of the texts of each stream (U, 2); each text is scored before it is learned.

    The texts that have the same position in up to `BATCH_SIZE` streams are learned at once.
    """
    text_column, columns = learner.run.config.data.text, learner.columns
    users, sums = {stream.user: learner.new() for stream in streams}, np.zeros((len(streams), 2))
    indices = {stream.user: index for index, stream in enumerate(streams)}
    longest = max((len(stream.rows) for stream in streams), default=0)
    title = str(learner.rule) if learner.rule.rate else "without learning"
    positions = progress_bar(range(longest), desc=title, unit="texts of each user", leave=False)
    for position in positions:
        remaining = [stream for stream in streams if len(stream.rows) > position]
        for start in range(0, len(remaining), BATCH_SIZE):
            batch = remaining[start : start + BATCH_SIZE]
            rows = [stream.rows[position] for stream in batch]
            texts = [row[text_column] for row in rows]
            contexts = [{name: row[name] for name in columns} for row in rows]
            batch_users = [users[stream.user] for stream in batch]
            learned_users, nats = learner.learn(batch_users, texts, contexts)
            if learner.run.mixture is not None:
                nats = learner.nats(np.stack([user.vector for user in batch_users]), texts, contexts)
            users |= {stream.user: user for stream, user in zip(batch, learned_users, strict=True)}
            corpus = learner.run.read(texts, contexts, unknown=learner.unknown_policy)
            sums[[indices[stream.user] for stream in batch]] += np.stack([nats, corpus.lengths], axis=1)
    return sums


def _perplexities(sums: Floats) -> Floats:
    """Return the perplexity (1 + D,) from nats and targets (U, 2), for all users and for draws of users."""
    nats, targets = bootstrap.resampled_sums(sums).T
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        perplexities: Floats = np.exp(nats / targets)
    return perplexities


def try_rates(
    run: Run,
    streams: Sequence[Stream],
    optimizers: Sequence[str],
    max_norm: float = LearningRule.max_norm,
    unknown: str = "error",
) -> Generator[Row]:
    """Return a generator that searches for the optimizer and learning rate with the lowest progressive perplexity.

    Args:
        run: The run.
        streams: Texts of users who were not in training.
        optimizers: Optimizers to try.
        max_norm: Limit of the norm of user vectors, as in `LearningRule`.
        unknown: How to read context values that training never saw, as in `Run.prepare`.

    Returns:
        A generator of a row (`optimizer`, `rate`, `perplexity`) for each rule that is tried; in the first row, the rate
        is 0. All other rows have the relative `change` of the perplexity from the first row. The ends of the intervals
        have the suffixes `_low` and `_high`.

    Raises:
        UserError: `max_norm` is out of range, or there is no text.
    """
    if not any(stream.rows for stream in streams):
        raise UserError("tuning: the table has no texts; choosing a learning rate requires texts of at least one user")
    not_learning = Learner(run, LearningRule("sgd", 0.0), unknown)
    rules = [LearningRule(name, INITIAL_RATES.get(name, 0.0), max_norm) for name in optimizers]

    def search() -> Generator[Row]:
        base_points = _perplexities(progressive_sums(not_learning, streams))
        yield {
            "optimizer": "none",
            "rate": 0.0,
            **bootstrap.percentile_interval(base_points, len(streams)).to_row("perplexity"),
        }
        for initial_rule in rules:
            yield from _search_rates(Learner(run, initial_rule, unknown), streams, base_points)

    return search()


def _search_rates(learner: Learner, streams: Sequence[Stream], base_points: Floats) -> Iterator[Row]:
    """Try the two rates next to the best one until neither is better, first in coarse and then in fine steps.

    Yield a row for each rate that is tried; the first is the rate of `learner`. The perplexities `base_points` (1 + D,)
    are those without learning.
    """
    initial_rule = learner.rule
    perplexities: dict[float, float] = {}

    def try_rate(rate: float) -> Iterator[Row]:
        """Yield the row of a rate unless it has been tried before."""
        if rate not in perplexities:
            other_learner = Learner(learner.run, replace(initial_rule, rate=rate), learner.unknown_policy)
            points = _perplexities(progressive_sums(other_learner, streams))
            perplexities[rate] = float(points[0])
            yield {
                "optimizer": initial_rule.optimizer,
                "rate": rate,
                **bootstrap.percentile_interval(points, len(streams)).to_row("perplexity"),
                **bootstrap.percentile_interval(points / base_points - 1, len(streams)).to_row("change"),
            }

    yield from try_rate(initial_rule.rate)
    for factor in FACTORS:
        previous_best: float | None = None
        best = min(perplexities, key=perplexities.__getitem__)
        while best != previous_best:
            yield from try_rate(float(f"{best * factor:.3g}"))
            yield from try_rate(float(f"{best / factor:.3g}"))
            previous_best, best = best, min(perplexities, key=perplexities.__getitem__)


def candidate_lists(
    completer: Completer, learner: Learner, popularity: Popularity, streams: Sequence[Stream]
) -> Iterator[list[Example]]:
    """Yield, for each stream, the candidates of all sources and the entered text of each judged text."""
    blend = Blend(completer, popularity)
    text_column, columns = learner.run.config.data.text, learner.columns
    total = sum(len(stream.rows) for stream in streams)
    with progress_bar(total=total, desc="blend", unit="texts") as bar:
        for stream in streams:
            user, examples = learner.new(), list[Example]()
            for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
                context = {name: row[name] for name in columns}
                if prefix is not None and completer.fits(prefix):
                    typed_text = completer.type_text(completer.begin(user, context), prefix)
                    model_suggestions = completer.suggest(typed_text, MIN_PROPOSALS)
                    candidates = blend.candidates(typed_text.text, model_suggestions, user.history, MIN_PROPOSALS)
                    examples.append((candidates, row[text_column]))
                (user,), _ = learner.learn([user], [row[text_column]], [context])
                bar.update()
            yield examples


def compare_with_model(
    completer: Completer, popularity: Popularity, examples_of_users: Sequence[Sequence[Example]]
) -> Row:
    """Compare the blend with the model alone, on users to whom the weights of the blend were not fitted.

    The users are divided into `FOLD_COUNT` folds. The texts of a fold are ranked with weights that are fitted to the
    users of the other folds, or with the default weights if these users have no text that a source proposes.

    Args:
        completer: The completer of the model.
        popularity: The popular texts.
        examples_of_users: For each user, the candidates for each prefix, and the text that the user entered.

    Returns:
        A row with `queries`, `users`, and the mean reciprocal ranks of the entered texts: `mrr` of the blend,
        `mrr_model` and `mrr_difference`. The ends of the intervals have the suffixes `_low` and `_high`.
    """
    sums = np.zeros((len(examples_of_users), 3))
    for fold in range(FOLD_COUNT):
        other_users = (examples for index, examples in enumerate(examples_of_users) if index % FOLD_COUNT != fold)
        blend = Blend(completer, popularity, _fit_or_default(list(chain.from_iterable(other_users))))
        for index in range(fold, len(examples_of_users), FOLD_COUNT):
            for candidates, entered_text in examples_of_users[index]:
                blended_texts = [suggestion.text for suggestion in blend.merge(candidates, SUGGESTION_COUNT)]
                model_texts = [candidate.text for candidate in candidates if candidate.is_proposed_by_model]
                ranks = (_reciprocal_rank(entered_text, texts) for texts in (blended_texts, model_texts))
                sums[index] += *ranks, 1
    blended, model, queries = bootstrap.resampled_sums(sums).T
    user_count = int((sums[:, 2] > 0).sum())
    row: Row = {"queries": int(queries[0]), "users": user_count}
    figures = {"mrr": blended, "mrr_model": model, "mrr_difference": blended - model}
    for name, totals in figures.items():
        points = np.divide(totals, queries, out=np.zeros_like(totals), where=queries > 0)
        row |= bootstrap.percentile_interval(points, user_count).to_row(name)
    return row


def _fit_or_default(examples: Sequence[Example]) -> BlendWeights:
    """Return weights fitted to `examples`, or the default weights if no entered text is a candidate."""
    try:
        return BlendWeights.fit(examples)
    except UserError:
        return DEFAULT_WEIGHTS


def _reciprocal_rank(text: str, suggested_texts: Sequence[str]) -> float:
    """Return the reciprocal rank of `text`; 0 if it is not among the first `SUGGESTION_COUNT` texts."""
    rank = rank_of(text, suggested_texts[:SUGGESTION_COUNT])
    return 0.0 if rank is None else 1 / rank
