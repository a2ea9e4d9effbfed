"""Tuning of the online learning rule, and of the weights of the blend, on users who were not in training.

The chosen rule has the lowest *progressive* perplexity: each text is scored before it is learned (thesis 2018, section
5.4.1). The weights of the blend are fitted to the candidates for prefixes that a replay draws.

Shapes: U users.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.completion.blend import BASELINES, Blend, BlendWeights, Example, rank_of
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.popularity import MIN_PROPOSALS, Popularity
from factorcell.completion.replay import SUGGESTION_COUNT, Stream
from factorcell.io.progress import progress_bar
from factorcell.runs.run import Run

Row = dict[str, Any]
Floats = NDArray[np.float64]

# Optimizer -> the learning rates that are tried, the default first
RATES = {"adagrad": (LearningRule.rate, 0.03, 0.3), "adadelta": (5.0, 1.5, 15.0), "sgd": (0.003, 0.001, 0.01)}
BATCH_SIZE = 200  # maximum number of texts that are learned at once
FOLD_COUNT = 5  # folds of users for the comparison of the blend with its baselines
MIN_CHANGE = 1e-3  # relative difference of perplexities that matters
MIN_TEXTS, TEXTS_PER_MINUTE = 100, 2000  # largest numbers of texts of `tune-online`: in any time, and per minute
MIN_BLEND_SHARE = 0.25  # least share of the time for the weights of the blend, if the rules took longer
RULE_SHARE = 0.5  # share of the time after which no further learning rule is tried
MIN_STREAM_TEXTS = 10  # texts of a user to which weights are fitted, if so many users have texts
MAX_EXPANDED = 2000  # hypotheses of a search for the candidates to which weights are fitted


def progressive_sums(learner: Learner, streams: Sequence[Stream]) -> Floats:
    """Return the nats and targets of each stream (U, 2), whose texts are scored before they are learned."""
    text_column, columns = learner.run.config.data.text, learner.columns
    users, sums = [learner.new()] * len(streams), np.zeros((len(streams), 2))
    longest = max((len(stream.rows) for stream in streams), default=0)
    title = str(learner.rule) if learner.rule.rate else "without learning"
    for position in progress_bar(range(longest), desc=title, unit="texts of each user"):
        remaining = [index for index, stream in enumerate(streams) if len(stream.rows) > position]
        for start in range(0, len(remaining), BATCH_SIZE):
            batch = remaining[start : start + BATCH_SIZE]
            rows = [streams[index].rows[position] for index in batch]
            texts = [row[text_column] for row in rows]
            contexts = [{name: row[name] for name in columns} for row in rows]
            learned_users, nats = learner.learn([users[index] for index in batch], texts, contexts)
            if learner.run.mixture is not None:
                nats = learner.nats(np.stack([users[index].vector for index in batch]), texts, contexts)
            for index, user in zip(batch, learned_users, strict=True):
                users[index] = user
            corpus = learner.run.read(texts, contexts, unknown=learner.unknown_policy)
            sums[batch] += np.stack([nats, corpus.lengths], axis=1)
    return sums


def fit_rule(
    run: Run,
    streams: Sequence[Stream],
    optimizers: Sequence[str] = (LearningRule.optimizer,),
    max_norm: float = LearningRule.max_norm,
    *,
    unknown: str = "error",
    deadline: float = math.inf,
) -> tuple[LearningRule, list[Row]]:
    """Choose the learning rule with the lowest progressive perplexity, among the rates of `RATES`.

    The first rule stays unless another one lowers the perplexity by more than `MIN_CHANGE`. After `deadline`, a value
    of `time.monotonic()`, no further rule is tried. Also return a row (`optimizer`, `rate`, `perplexity`) for each rule
    that was tried, first for users who are not learned; the others have the relative `change` of the perplexity.
    """

    def perplexity(rule: LearningRule) -> float:
        nats, targets = progressive_sums(Learner(run, rule, unknown), streams).sum(axis=0)
        with np.errstate(over="ignore"):
            return float(np.exp(nats / targets))

    rules = [LearningRule(name, rate, max_norm) for name in optimizers for rate in RATES[name]]
    base, tried = perplexity(replace(rules[0], rate=0.0)), dict[LearningRule, float]()
    for rule in rules:
        if not tried or time.monotonic() < deadline:
            tried[rule] = perplexity(rule)
    best = min(tried, key=tried.__getitem__)
    if tried[best] > (1 - MIN_CHANGE) * tried[rules[0]]:
        best = rules[0]
    rows: list[Row] = [{"optimizer": "none", "rate": 0.0, "perplexity": base}]
    for rule, value in tried.items():
        rows.append({"optimizer": rule.optimizer, "rate": rule.rate, "perplexity": value, "change": value / base - 1})
    return best, rows


def candidate_lists(blend: Blend, learner: Learner, streams: Sequence[Stream]) -> Iterator[list[Example]]:
    """Yield, for each stream, the candidates of all sources and the entered text of each completed text."""
    text_column, columns = learner.run.config.data.text, learner.columns
    total = sum(len(stream.rows) for stream in streams)
    with progress_bar(total=total, desc="blend", unit="texts") as bar:
        for stream in streams:
            user, examples = learner.new(), list[Example]()
            for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
                context = {name: row[name] for name in columns}
                typed_text = None if prefix is None else blend.type_text(blend.begin(user, context), prefix)
                if typed_text is not None and typed_text.fits:
                    proposed = Completer.suggest(blend, typed_text, MIN_PROPOSALS).suggestions  # of the model alone
                    candidates = blend.candidates(typed_text.text, proposed, user.history, MIN_PROPOSALS)
                    examples.append((candidates, row[text_column]))
                (user,), _ = learner.learn([user], [row[text_column]], [context])
                bar.update()
            yield examples


def fit_settings(
    run: Run, streams: Sequence[Stream], max_texts: int, seconds: float = math.inf
) -> tuple[LearningRule, BlendWeights, Row] | None:
    """Fit the learning rule (`fit_rule`) and the weights of the blend to about `max_texts` texts, in about `seconds`.

    Values of the context that training never saw are read as rare values. Return the rule, the weights, and a row for
    training.json: `learning_rule`, the relative `perplexity_change` by learning users, and the figures of
    `measure_blend`; or None if no text can be completed.
    """
    part, start = first_texts(streams, max_texts), time.monotonic()
    if all(prefix is None for stream in part for prefix in stream.prefixes):
        return None
    rule, tried = fit_rule(run, part, unknown="group", deadline=start + RULE_SHARE * seconds)
    blend = Blend(run, Popularity.from_run(run), unknown="group", max_expanded=MAX_EXPANDED)
    weights, ranks = fit_blend(blend, Learner(run, rule, "group"), part, blend_deadline(start, seconds))
    change = next(row["change"] for row in tried if (row["optimizer"], row["rate"]) == (rule.optimizer, rule.rate))
    return rule, weights, {"learning_rule": str(rule), "perplexity_change": change, **ranks}


def fit_blend(
    blend: Blend, learner: Learner, streams: Sequence[Stream], deadline: float = math.inf
) -> tuple[BlendWeights, Row]:
    """Fit the weights of a blend, to no further users after `deadline`; also return `measure_blend`."""
    examples = list[list[Example]]()
    for examples_of_user in candidate_lists(blend, learner, streams):
        examples.append(examples_of_user)
        if time.monotonic() > deadline:
            break
    weights = BlendWeights.fit(list(chain.from_iterable(examples)))
    return weights, measure_blend(examples)


def blend_deadline(start: float, seconds: float) -> float:
    """Return when the fit of the blend ends, if all began at `start`: it has a part of the `seconds` in any case."""
    return max(start + seconds, time.monotonic() + MIN_BLEND_SHARE * seconds)


def first_texts(streams: Sequence[Stream], max_texts: int) -> list[Stream]:
    """Return the first texts of streams, the same number of each or all, with at most about `max_texts` in total."""
    lengths = [len(stream.rows) for stream in streams]

    def total(count: int) -> int:
        return sum(min(count, length) for length in lengths)

    longest = max(lengths, default=0)
    count = bisect_right(range(longest + 1), max_texts, key=total) - 1  # the largest number of each that fits
    count = min(longest, max(MIN_STREAM_TEXTS, count))
    step = max(1, math.ceil(total(count) / max_texts))  # of many users, every `step`-th is used
    return [replace(stream, rows=stream.rows[:count], prefixes=stream.prefixes[:count]) for stream in streams[::step]]


def measure_blend(examples_of_users: Sequence[Sequence[Example]]) -> Row:
    """Compare the blend with its baselines, on users to whom the weights of the blend were not fitted.

    The users are divided into `FOLD_COUNT` folds. The texts of a fold are ranked with weights that are fitted to the
    users of the other folds.

    Returns:
        A row with `queries`, `users`, and the mean reciprocal ranks of the entered texts: `mrr` of the blend,
        `mrr_model` of the model alone, `mrr_known` of known texts (the user's own, then popular ones), and
        `gain_over_known`, the difference of the blend and known texts.
    """
    sums = np.zeros((len(examples_of_users), len(BASELINES) + 2))
    for fold in range(FOLD_COUNT):
        other_users = (examples for index, examples in enumerate(examples_of_users) if index % FOLD_COUNT != fold)
        weights = BlendWeights.fit(list(chain.from_iterable(other_users)))
        for index in range(fold, len(examples_of_users), FOLD_COUNT):
            for candidates, entered_text in examples_of_users[index]:
                blended_texts = [suggestion.text for suggestion in weights.merge(candidates, SUGGESTION_COUNT)]
                baseline_ranks = (candidates.rank_alone(entered_text, sources) for sources in BASELINES.values())
                ranks = [rank_of(entered_text, blended_texts), *baseline_ranks]
                sums[index] += *(1 / rank if rank and rank <= SUGGESTION_COUNT else 0.0 for rank in ranks), 1
    blended, *baselines, queries = bootstrap.resampled_sums(sums).T
    user_count = int((sums[:, -1] > 0).sum())
    row: Row = {"queries": int(queries[0]), "users": user_count}
    figures = {"mrr": blended, **{f"mrr_{name}": totals for name, totals in zip(BASELINES, baselines, strict=True)}}
    figures["gain_over_known"] = blended - figures["mrr_known"]
    for name, totals in figures.items():
        points = np.divide(totals, queries, out=np.zeros_like(totals), where=queries > 0)
        row |= bootstrap.percentile_interval(points, user_count).to_row(name)
    return row
