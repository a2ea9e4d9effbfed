"""Tuning of the online learning rule, and of the weights of the blend, on users who were not in training.

The chosen rule has the lowest *progressive* perplexity: each text is scored before it is learned (thesis 2018, section
5.4.1). The weights of the blend are fitted to the candidates for prefixes that a replay draws.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from factorcell.completion.blend import Blend, Candidate
from factorcell.completion.completer import Completer
from factorcell.completion.online import BATCH_SIZE, Learner, LearningRule
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import SUGGESTION_COUNT, Stream, rank_of
from factorcell.completion.search import MIN_PROPOSALS
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.model.scoring import Tally
from factorcell.progress import progress_bar

Row = dict[str, Any]

INITIAL_RATES = {"adagrad": 0.1, "adadelta": 5.0, "sgd": 0.003}
FACTORS = (3.0, math.sqrt(3.0))  # ratio of neighbouring rates, in the coarse search and in the fine search


def progressive_perplexity(learner: Learner, streams: Sequence[Stream], progress: bool = False) -> float:
    """Return the perplexity of the texts of all streams, each scored before it is learned.

    The texts that have the same position in up to `BATCH_SIZE` streams are learned at once.
    """
    text_column, columns = learner.run.config.data.text, learner.columns
    users, tally = {stream.user: learner.new() for stream in streams}, Tally()
    longest = max((len(stream.rows) for stream in streams), default=0)
    positions = progress_bar(range(longest), desc=str(learner.rule), unit="texts each", show=progress, leave=False)
    for position in positions:
        remaining = [stream for stream in streams if len(stream.rows) > position]
        for start in range(0, len(remaining), BATCH_SIZE):
            batch = remaining[start : start + BATCH_SIZE]
            rows = [stream.rows[position] for stream in batch]
            texts = [row[text_column] for row in rows]
            contexts = [{name: row[name] for name in columns} for row in rows]
            learned_users, nats = learner.learn([users[stream.user] for stream in batch], texts, contexts)
            users |= {stream.user: user for stream, user in zip(batch, learned_users, strict=True)}
            corpus = learner.run.read(texts, contexts, unknown=learner.unknown_policy)
            tally += Tally(float(nats.sum()), corpus.target_count)
    return tally.perplexity


def try_rates(
    run: Run,
    streams: Sequence[Stream],
    optimizers: Sequence[str],
    progress: bool = False,
    max_norm: float = LearningRule.max_norm,
    unknown: str = "error",
) -> Generator[Row]:
    """Search for the optimizer and the learning rate with the lowest progressive perplexity.

    Args:
        run: The run.
        streams: Texts of users who were not in training.
        optimizers: Optimizers to try.
        progress: Whether to show progress bars.
        max_norm: Limit of the norm of user vectors, as in `LearningRule`.
        unknown: How to read context values that training never saw, as in `Run.prepare`.

    Yields:
        A row (`optimizer`, `rate`, `perplexity`) for each rule that is tried; in the first row, the rate is 0.

    Raises:
        UserError: `max_norm` is out of range, or there is no text.
    """
    if not any(stream.rows for stream in streams):
        raise UserError("tuning: the table has no texts; choosing a learning rate requires texts of at least one user")
    yield {
        "optimizer": "none",
        "rate": 0.0,
        "perplexity": progressive_perplexity(Learner(run, LearningRule("sgd", 0.0), unknown), streams, progress),
    }
    for name in optimizers:
        initial_rule = LearningRule(name, INITIAL_RATES[name], max_norm)
        yield from _search_rates(Learner(run, initial_rule, unknown), streams, progress)


def _search_rates(learner: Learner, streams: Sequence[Stream], progress: bool) -> Iterator[Row]:
    """Try the two rates next to the best one until neither is better, first in coarse and then in fine steps.

    Yield a row for each rate that is tried; the first is the rate of `learner`.
    """
    initial_rule = learner.rule
    perplexities: dict[float, float] = {}

    def try_rate(rate: float) -> Iterator[Row]:
        """Yield the row of a rate unless it has been tried before."""
        if rate not in perplexities:
            other_learner = Learner(learner.run, replace(initial_rule, rate=rate), learner.unknown_policy)
            perplexities[rate] = progressive_perplexity(other_learner, streams, progress)
            yield {"optimizer": initial_rule.optimizer, "rate": rate, "perplexity": perplexities[rate]}

    yield from try_rate(initial_rule.rate)
    for factor in FACTORS:
        previous_best: float | None = None
        best = min(perplexities, key=perplexities.__getitem__)
        while best != previous_best:
            yield from try_rate(float(f"{best * factor:.3g}"))
            yield from try_rate(float(f"{best / factor:.3g}"))
            previous_best, best = best, min(perplexities, key=perplexities.__getitem__)


def candidate_lists(
    completer: Completer, learner: Learner, popularity: Popularity, streams: Sequence[Stream], progress: bool = False
) -> Iterator[tuple[list[Candidate], str]]:
    """Yield the candidates of all sources and the entered text, for each judged text of the streams."""
    blend = Blend(completer, popularity)
    text_column, columns = learner.run.config.data.text, learner.columns
    total = sum(len(stream.rows) for stream in streams)
    with progress_bar(total=total, desc="blend", unit="texts", show=progress) as bar:
        for stream in streams:
            user = learner.new()
            for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
                context = {name: row[name] for name in columns}
                if prefix is not None and completer.fits(prefix):
                    typed_text = completer.type_text(completer.begin(user, context), prefix)
                    model_suggestions = completer.suggest(typed_text, MIN_PROPOSALS)
                    candidates = blend.candidates(typed_text.text, model_suggestions, user.history, MIN_PROPOSALS)
                    yield candidates, row[text_column]
                (user,), _ = learner.learn([user], [row[text_column]], [context])
                bar.update()


def mean_reciprocal_rank(blend: Blend, examples: Sequence[tuple[list[Candidate], str]]) -> float:
    """Return the mean reciprocal rank of the entered texts among the suggestions of `blend`.

    Args:
        blend: The blend.
        examples: For each prefix, the candidates and the text that the user entered.
    """
    reciprocal_ranks = []
    for candidates, entered_text in examples:
        suggestions = blend.merge(candidates, SUGGESTION_COUNT)
        rank = rank_of(entered_text, [suggestion.text for suggestion in suggestions])
        reciprocal_ranks.append(0.0 if rank is None else 1 / rank)
    return sum(reciprocal_ranks) / max(1, len(examples))
