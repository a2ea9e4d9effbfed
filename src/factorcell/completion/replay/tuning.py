"""Tuning of the online learning rule, and of the weights of the blend, on users who were not in training.

The chosen rule has the lowest *progressive* perplexity: each text is scored before it is learned (thesis 2018, section
5.4.1). The weights of the blend are fitted to the candidates for prefixes that a replay draws. Intervals are 95 %
bootstrap intervals over users.

Shapes: U users, D draws of users.
"""

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.completion.blend import ORDERS, Blend, BlendWeights, Example, rank_alone
from factorcell.completion.completer import Completer
from factorcell.completion.online import BATCH_SIZE, Learner, LearningRule
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import SUGGESTION_COUNT, Stream, rank_of
from factorcell.completion.suggestions import MIN_PROPOSALS
from factorcell.errors import UserError
from factorcell.io.progress import progress_bar
from factorcell.runs.run import Run

Row = dict[str, Any]
Floats = NDArray[np.float64]

INITIAL_RATES = {"adagrad": 0.1, "adadelta": 5.0, "sgd": 0.003}
FOLD_COUNT = 5  # folds of users for the comparison of the blend with the model
FACTORS = (3.0, math.sqrt(3.0))  # ratio of neighbouring rates, in the coarse search and in the fine search
MIN_CHANGE = 1e-3  # relative difference of perplexities that matters
FITTED_RATES = (LearningRule.rate, 0.03, 0.3)  # rates of Adagrad that `fit_settings` tries
RULE_SHARE = 0.5  # share of the time after which no further learning rule is tried
MIN_STREAM_TEXTS = 10  # texts of a user to which weights are fitted, if so many users have texts
MAX_EXPANDED = 2000  # hypotheses of a search for the candidates to which weights are fitted


def progressive_sums(learner: Learner, streams: Sequence[Stream]) -> Floats:
    """Return the nats and the targets of the texts of each stream (U, 2); each text is scored before it is learned.

    The texts that have the same position in up to `BATCH_SIZE` streams are learned at once.
    """
    text_column, columns = learner.run.config.data.text, learner.columns
    users, sums = {stream.user: learner.new() for stream in streams}, np.zeros((len(streams), 2))
    indices = {stream.user: index for index, stream in enumerate(streams)}
    longest = max((len(stream.rows) for stream in streams), default=0)
    title = str(learner.rule) if learner.rule.rate else "without learning"
    positions = progress_bar(range(longest), desc=title, unit="texts of each user")
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
        unknown: The policy for values that training never saw: "group", "expected" or "error".

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
        base = float(base_points[0])
        interval = bootstrap.percentile_interval(base_points, len(streams))
        yield {"optimizer": "none", "rate": 0.0, **interval.to_row("perplexity")}
        perplexities = dict[LearningRule, float]()
        for rule in rules:
            row = _try_rule(Learner(run, rule, unknown), streams, base_points)
            perplexities[rule] = row["perplexity"]
            yield row
        if any(abs(perplexity / base - 1) > MIN_CHANGE for perplexity in perplexities.values()):
            best_rule = min(perplexities, key=perplexities.__getitem__)
            tried = {best_rule.rate: perplexities[best_rule]}
            yield from _search_rates(Learner(run, best_rule, unknown), streams, base_points, tried)

    return search()


def _try_rule(learner: Learner, streams: Sequence[Stream], base_points: Floats) -> Row:
    """Return the row of a rule; the perplexities `base_points` (1 + D,) are those without learning."""
    points = _perplexities(progressive_sums(learner, streams))
    return {
        "optimizer": learner.rule.optimizer,
        "rate": learner.rule.rate,
        **bootstrap.percentile_interval(points, len(streams)).to_row("perplexity"),
        **bootstrap.percentile_interval(points / base_points - 1, len(streams)).to_row("change"),
    }


def _search_rates(
    learner: Learner, streams: Sequence[Stream], base_points: Floats, perplexities: dict[float, float]
) -> Iterator[Row]:
    """Try the two rates next to the best one until neither is clearly better, first in coarse and then in fine steps.

    Yield a row for each rate that is tried. `perplexities` has the rates that were tried before.
    """
    for factor in FACTORS:
        previous, best = math.inf, min(perplexities, key=perplexities.__getitem__)
        while perplexities[best] < (1 - MIN_CHANGE) * previous:
            previous = perplexities[best]
            for rate in (float(f"{best * factor:.3g}"), float(f"{best / factor:.3g}")):
                if rate not in perplexities:
                    rule = replace(learner.rule, rate=rate)
                    row = _try_rule(Learner(learner.run, rule, learner.unknown_policy), streams, base_points)
                    perplexities[rate] = row["perplexity"]
                    yield row
            best = min(perplexities, key=perplexities.__getitem__)


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
                    alternatives = blend.candidates(typed_text.text, model_suggestions, user.history, MIN_PROPOSALS)
                    examples.append((alternatives, row[text_column]))
                (user,), _ = learner.learn([user], [row[text_column]], [context])
                bar.update()
            yield examples


@dataclass(frozen=True)
class Settings:
    """Fitted settings of completion.

    Attributes:
        rule: The rule of online learning.
        weights: The weights of the blend.
        change: The relative change of the perplexity by learning users.
        ranks: The figures of `compare_with_model`.
    """

    rule: LearningRule
    weights: BlendWeights
    change: float
    ranks: Row

    def to_row(self) -> Row:
        """Return the figures as a row for training.json."""
        return {"learning_rule": str(self.rule), "perplexity_change": self.change, **self.ranks}


def fit_settings(run: Run, streams: Sequence[Stream], max_texts: int, seconds: float = math.inf) -> Settings | None:
    """Fit the learning rule and the weights of the blend.

    The rule stays the default unless another rate lowers the perplexity by more than `MIN_CHANGE`. Values of the
    context that training never saw are read as rare values.

    Args:
        run: The run.
        streams: Texts of users who were not in training.
        max_texts: The number of texts that are used, about.
        seconds: The time after which neither a further rule is tried nor the texts of further users are used.

    Returns:
        The settings; None if no text can be completed.
    """
    part, start = _first_texts(streams, max_texts), time.monotonic()
    if not any(stream.judged_prefixes for stream in part):
        return None

    def perplexity(rule: LearningRule) -> float:
        """Return the progressive perplexity of the texts."""
        return float(_perplexities(progressive_sums(Learner(run, rule, "group"), part))[0])

    base, default = perplexity(LearningRule("sgd", 0.0)), LearningRule()
    by_rule = dict[LearningRule, float]()
    for rate in FITTED_RATES:
        if not by_rule or time.monotonic() < start + RULE_SHARE * seconds:
            by_rule[LearningRule(rate=rate)] = perplexity(LearningRule(rate=rate))
    rule = min(by_rule, key=by_rule.__getitem__)
    if by_rule[rule] > (1 - MIN_CHANGE) * by_rule[default]:
        rule = default
    completer = Completer(run, unknown="group", max_expanded=MAX_EXPANDED)
    weights, ranks = fit_blend(completer, Learner(run, rule, "group"), part, start + seconds)
    return Settings(rule, weights, by_rule[rule] / base - 1, ranks)


def fit_blend(
    completer: Completer, learner: Learner, streams: Sequence[Stream], deadline: float = math.inf
) -> tuple[BlendWeights, Row]:
    """Fit the weights of the blend, and compare it with its sources alone.

    Args:
        completer: The completer of a run with popular texts.
        learner: The learner of the run.
        streams: The texts of each user.
        deadline: When to use no more streams, as a value of `time.monotonic()`.

    Returns:
        The weights, and the figures of `compare_with_model`.
    """
    popularity, examples = Popularity.from_run(learner.run), list[list[Example]]()
    for examples_of_user in candidate_lists(completer, learner, popularity, streams):
        examples.append(examples_of_user)
        if time.monotonic() > deadline:
            break
    weights = BlendWeights.fit(list(chain.from_iterable(examples)))
    return weights, compare_with_model(completer, popularity, examples)


def _first_texts(streams: Sequence[Stream], max_texts: int) -> list[Stream]:
    """Return the first texts of streams, the same number of each or all, with at most about `max_texts` in total."""
    lengths = sorted((len(stream.rows) for stream in streams), reverse=True)
    count = lengths[0] if lengths else 0
    while count > MIN_STREAM_TEXTS and sum(min(count, length) for length in lengths) > max_texts:
        count -= 1
    step = max(1, math.ceil(len(streams) * count / max_texts))  # of many users, every `step`-th is used
    return [replace(stream, rows=stream.rows[:count], prefixes=stream.prefixes[:count]) for stream in streams[::step]]


def compare_with_model(
    completer: Completer, popularity: Popularity, examples_of_users: Sequence[Sequence[Example]]
) -> Row:
    """Compare the blend with its sources alone, on users to whom the weights of the blend were not fitted.

    The users are divided into `FOLD_COUNT` folds. The texts of a fold are ranked with weights that are fitted to the
    users of the other folds.

    Args:
        completer: The completer of the model.
        popularity: The popular texts.
        examples_of_users: For each user, the candidates for each prefix, and the text that the user entered.

    Returns:
        A row with `queries`, `users`, and the mean reciprocal ranks of the entered texts: `mrr` of the blend,
        `mrr_model`, `mrr_popularity` and `mrr_history` of a source alone, and `mrr_difference` of blend and model. The
        ends of the intervals have the suffixes `_low` and `_high`.
    """
    sums = np.zeros((len(examples_of_users), len(ORDERS) + 2))
    for fold in range(FOLD_COUNT):
        other_users = (examples for index, examples in enumerate(examples_of_users) if index % FOLD_COUNT != fold)
        blend = Blend(completer, popularity, BlendWeights.fit(list(chain.from_iterable(other_users))))
        for index in range(fold, len(examples_of_users), FOLD_COUNT):
            for alternatives, entered_text in examples_of_users[index]:
                blended_texts = [suggestion.text for suggestion in blend.merge(alternatives, SUGGESTION_COUNT)]
                ranks_alone = (rank_alone(alternatives, entered_text, source) for source in ORDERS)
                ranks = [rank_of(entered_text, blended_texts), *ranks_alone]
                sums[index] += *(1 / rank if rank and rank <= SUGGESTION_COUNT else 0.0 for rank in ranks), 1
    blended, *alone, queries = bootstrap.resampled_sums(sums).T
    user_count = int((sums[:, -1] > 0).sum())
    row: Row = {"queries": int(queries[0]), "users": user_count}
    figures = {"mrr": blended, **{f"mrr_{name}": totals for name, totals in zip(ORDERS, alone, strict=True)}}
    figures["mrr_difference"] = blended - figures["mrr_model"]
    for name, totals in figures.items():
        points = np.divide(totals, queries, out=np.zeros_like(totals), where=queries > 0)
        row |= bootstrap.percentile_interval(points, user_count).to_row(name)
    return row
