"""Fit the rule of online learning and the weights of the blend to users who were not in training.

The rate with the lowest progressive perplexity is chosen: every text is scored, then learned (thesis 2018, section
5.4.1). The weights of the blend are fitted to the texts of the prefixes that a replay draws.
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

STARTS = {"adagrad": 0.1, "adadelta": 5.0, "sgd": 0.003}  # where the search for a rate begins
FACTORS = (3.0, math.sqrt(3.0))  # steps of the search, on a scale of logarithms


def progressive_perplexity(learner: Learner, streams: Sequence[Stream], progress: bool = False) -> float:
    """Return the progressive perplexity of all streams, whose users are independent and learned in batches."""
    text, others = learner.run.config.data.text, learner.columns
    users, total = {stream.user: learner.new() for stream in streams}, Tally()
    longest = max((len(stream.rows) for stream in streams), default=0)
    for place in progress_bar(range(longest), desc=str(learner.rule), unit="texts each", show=progress, leave=False):
        here = [stream for stream in streams if len(stream.rows) > place]
        for at in range(0, len(here), BATCH_SIZE):
            part = here[at : at + BATCH_SIZE]
            rows = [stream.rows[place] for stream in part]
            texts, contexts = [row[text] for row in rows], [{name: row[name] for name in others} for row in rows]
            after, nats = learner.learn([users[stream.user] for stream in part], texts, contexts)
            users |= {stream.user: user for stream, user in zip(part, after, strict=True)}
            total += Tally(
                float(nats.sum()), learner.run.read(texts, contexts, unknown=learner.unknown_policy).target_count
            )
    return total.perplexity


def try_rates(
    run: Run,
    streams: Sequence[Stream],
    optimisers: Sequence[str],
    progress: bool = False,
    reach: float = LearningRule.reach,
    unknown: str = "error",
) -> Generator[Row]:
    """Yield a row for every rule that is tried: `optimiser`, `rate`, `perplexity`; the first learns nothing.

    `reach` is that of all rules, `unknown` as in `Learner`.

    Raises:
        UserError: The reach is out of range, or there is no text.
    """
    if not any(stream.rows for stream in streams):
        raise UserError("no stream has a text: nothing to find a rate on")
    yield {
        "optimiser": "none",
        "rate": 0.0,
        "perplexity": progressive_perplexity(Learner(run, LearningRule("sgd", 0.0), unknown), streams, progress),
    }
    for name in optimisers:
        yield from _climb(Learner(run, LearningRule(name, STARTS[name], reach), unknown), streams, progress)


def _climb(learner: Learner, streams: Sequence[Stream], progress: bool) -> Iterator[Row]:
    """Try rates one step above and below the best; take smaller steps when neither is better."""
    start = learner.rule
    tried: dict[float, float] = {}

    def attempt(rate: float) -> Iterator[Row]:
        if rate not in tried:
            other = Learner(learner.run, replace(start, rate=rate), learner.unknown_policy)
            tried[rate] = progressive_perplexity(other, streams, progress)
            yield {"optimiser": start.optimiser, "rate": rate, "perplexity": tried[rate]}

    yield from attempt(start.rate)
    for factor in FACTORS:
        best = None
        while best != (best := min(tried, key=tried.__getitem__)):
            yield from attempt(float(f"{best * factor:.3g}"))
            yield from attempt(float(f"{best / factor:.3g}"))


def candidate_lists(
    completer: Completer, learner: Learner, popularity: Popularity, streams: Sequence[Stream], progress: bool = False
) -> Iterator[tuple[list[Candidate], str]]:
    """Yield what the sources propose for every judged text of the streams, and the text."""
    blend = Blend(completer, popularity)
    text, others = learner.run.config.data.text, learner.columns
    with progress_bar(total=sum(len(s.rows) for s in streams), desc="blend", unit="texts", show=progress) as bar:
        for stream in streams:
            user = learner.new()
            for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
                context = {name: row[name] for name in others}
                if prefix is not None and completer.fits(prefix):
                    written = completer.type(completer.begin(user, context), prefix)
                    found = completer.suggest(written, MIN_PROPOSALS)
                    yield blend.candidates(written.text, found, user.history, MIN_PROPOSALS), row[text]
                (user,), _ = learner.learn([user], [row[text]], [context])
                bar.update()


def mean_reciprocal_rank(blend: Blend, lists: Sequence[tuple[list[Candidate], str]]) -> float:
    """Return the mean reciprocal rank of the texts among the best candidates of their `lists`."""
    ranks = (rank_of(text, [one.text for one in blend.merge(found, SUGGESTION_COUNT)]) for found, text in lists)
    return sum(1 / rank for rank in ranks if rank) / max(1, len(lists))
