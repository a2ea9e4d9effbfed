"""Measurements of the studies of completion besides ranks: seen prefixes, nats of texts, a search for rates."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from factorcell.completion.online import Learner, LearningRule, distinguishes_users
from factorcell.completion.replay import Stream, context_columns
from factorcell.completion.tuning import MIN_CHANGE, RATES, progressive_sums
from factorcell.config import Config
from factorcell.data.tables.tables import open_table
from factorcell.data.text_folds import same_text
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.runs.run import Run

FACTORS = (3.0, math.sqrt(3.0))  # ratio of neighbouring rates, in the coarse search and in the fine search

Row = dict[str, Any]
Nats = dict[tuple[str, int], tuple[float, int]]  # user and position of a text -> its nats and number of targets


def find_seen_prefixes(streams: Sequence[Stream], source: Any, config: Config) -> set[str]:
    """Return those prefixes of the streams with which at least one text of the table `source` begins."""
    data, table, tokenizer = config.data, open_table(source), new_tokenizer(config)
    prefixes = {prefix for stream in streams for prefix in stream.prefixes if prefix is not None}
    lengths = sorted({len(prefix) for prefix in prefixes})
    seen_prefixes: set[str] = set()
    for chunk in table.chunks([data.text]):
        for value in chunk[data.text]:
            text = same_text(tokenizer.normalize(str(value)))
            seen_prefixes.update(text[:length] for length in lengths if text[:length] in prefixes)
    return seen_prefixes


def nats_of_completed_texts(
    run: Run, streams: Sequence[Stream], user_column: str = "user", unknown: str = "error", *, learns: bool = True
) -> Nats:
    """Return the nats of each completed text, before the run learns the text of its user."""
    learner = Learner(run, unknown=unknown) if distinguishes_users(run) else None
    columns, figures = context_columns(run, user_column), Nats()
    for stream in streams:
        user = None if learner is None else learner.new()
        for position, (row, prefix) in enumerate(zip(stream.rows, stream.prefixes, strict=True)):
            texts, contexts = [row[run.config.data.text]], [{name: row[name] for name in columns}]
            if prefix is not None:
                corpus = run.read(texts, contexts, unknown=unknown)
                if learner is None or user is None:
                    nats = run.nats(corpus).sum(dtype="float64")
                else:
                    nats = learner.nats(user.vector[None], texts, contexts)[0]
                figures[stream.user, position] = float(nats), corpus.target_count
            if learns and learner is not None and user is not None:
                (user,), _ = learner.learn([user], texts, contexts)
    return figures


def try_rates(
    run: Run,
    streams: Sequence[Stream],
    optimizers: Sequence[str],
    max_norm: float = LearningRule.max_norm,
    unknown: str = "error",
) -> Iterator[Row]:
    """Search for the optimizer and learning rate with the lowest progressive perplexity.

    The search tries an initial rate of each optimizer, and then the two rates next to the best one until neither is
    clearly better, first in coarse and then in fine steps. Yield a row (`optimizer`, `rate`, `perplexity`) for each
    rule that is tried; in the first row, the rate is 0.
    """
    tried = dict[LearningRule, float]()

    def try_rules(rules: Iterable[LearningRule]) -> Iterator[Row]:
        for rule in rules:
            if rule not in tried:
                nats, targets = progressive_sums(Learner(run, rule, unknown), streams).sum(axis=0)
                tried[rule] = float(np.exp(nats / targets))
                yield {"optimizer": rule.optimizer, "rate": rule.rate, "perplexity": tried[rule]}

    (base,) = try_rules([LearningRule(optimizers[0], 0.0, max_norm)])
    yield {**base, "optimizer": "none"}
    tried.clear()
    yield from try_rules(LearningRule(name, RATES[name][0], max_norm) for name in optimizers)
    if all(abs(perplexity / base["perplexity"] - 1) <= MIN_CHANGE for perplexity in tried.values()):
        return
    for factor in FACTORS:
        previous, best = math.inf, min(tried, key=tried.__getitem__)
        while tried[best] < (1 - MIN_CHANGE) * previous:
            previous = tried[best]
            yield from try_rules(
                replace(best, rate=float(f"{rate:.3g}")) for rate in (best.rate * factor, best.rate / factor)
            )
            best = min(tried, key=tried.__getitem__)
