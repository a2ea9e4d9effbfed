"""How well a model predicts texts: perplexity of a table, whole and by the values of any column; next-token accuracy.

Perplexity is exp(sum of nats / number of targets) over a whole file, the end of each text counted, in two figures: of
all targets, and without out-of-vocabulary targets (the papers' tables have the second). Bits per byte, sum of nats /
(ln 2 * bytes of the original texts), compare models with different targets.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.config import UserError
from factorcell.data.corpus import Corpus, known_targets
from factorcell.data.rows import labels_of
from factorcell.evaluation import statistics, text_figures
from factorcell.evaluation.groups import MISSING_GROUP
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model.run import Run
from factorcell.model.scoring import Ranker, Scorer, Tally

BITS = "bits_per_byte"
TOP = (1, 3, 5)  # a prediction is right if the target is among so many most probable tokens

Row = dict[str, Any]


def evaluate(run: Scorer, source: Any, *, unknown: str = "error") -> Row:
    """Perplexity of texts, of all targets and of known ones, with the counts behind it.

    Texts are cut after `max_tokens` tokens, as in training; `truncated` counts those. The row also has the bits per
    byte of the original texts that were read whole, with their interval (see `bits_per_byte`).

    `source` is a corpus, or whatever training reads: a path, rows, a data frame. `unknown` says what of context values
    that training never saw, as `Run.prepare`.
    """
    corpus = source if isinstance(source, Corpus) else run.prepare(source, unknown=unknown)
    return summarised(run.nats(corpus), corpus)


def summarised(nats: NDArray[Any], corpus: Corpus) -> Row:
    """Return the row of `evaluate` from the nats of all targets of `corpus`."""
    nats, known = nats.astype(np.float64), known_targets(corpus)
    everything = Tally(float(nats.sum()), len(nats))
    return {
        "texts": len(corpus),
        "truncated": int(corpus.truncated.sum()),
        "targets": len(nats),
        "unknown_targets": int((~known).sum()),
        "unknown_share": float(1 - known.mean()),
        "perplexity": everything.perplexity,
        "perplexity_known": Tally(float(nats[known].sum()), int(known.sum())).perplexity,
        **bits_per_byte(text_figures.per_text(nats, corpus), corpus),
    }


def bits_per_byte(nats: NDArray[np.float64], corpus: Corpus) -> Row:
    """Return the bits per byte of the original texts with their interval, from the nats (N,) of the texts of `corpus`.

    `bits_per_byte_bound` says whether the figure is only a lower bound, and `bits_per_byte_texts` how many texts were
    read whole: only these are counted. The figure is None if these have no bytes. The row is empty if the corpus lacks
    the original texts.
    """
    sums = text_figures.bits_per_byte("", nats, corpus)
    if sums is None:
        return {}
    counted = sums.counted
    ratios = Ratios.of([[sums]]) if sums.below[counted].any() else None
    figure = Interval.row(ratios.interval(0), BITS) if ratios else dict.fromkeys(Interval(0.0).row(BITS))
    bound = bool((text_figures.lower_bounds(corpus) & counted).any())
    return {**figure, f"{BITS}_bound": bound, f"{BITS}_texts": int(counted.sum())}


def top_accuracy(model: Ranker, corpus: Corpus) -> Row:
    """How often the target is among the 1, 3 and 5 most probable tokens: of all targets, and of known ones."""
    ranks = model.ranks(corpus)
    known = ranks[known_targets(corpus)]
    everything = {f"top_{count}": float((ranks <= count).mean()) for count in TOP}
    without = {f"top_{count}_known": float((known <= count).mean()) if len(known) else math.nan for count in TOP}
    return everything | without


def evaluate_by(run: Scorer, corpus: Corpus, values: Sequence[Any], baseline: Scorer | None = None) -> list[Row]:
    """Perplexity per value, and `gain`: by what share it lies below that without context, with its interval over texts.

    `values` has the group of every text; texts without one are the group "(missing)". The gain is over `baseline`, an
    n-gram model or an unadapted run with the same vocabulary, or, without one, over the same model when it must do with
    the expected context.
    """
    names = [label or MISSING_GROUP for label in labels_of(values, "values", len(corpus))]
    ours, plain = text_figures.of_nats(run.nats(corpus), corpus), without_context(run, corpus, baseline)
    return gains(ours["perplexity"], plain["perplexity"], names)


def without_context(run: Scorer, corpus: Corpus, baseline: Scorer | None = None) -> Figures:
    """What every text costs `baseline`, or else `run` itself when it must do with the expected context."""
    if baseline is None:
        return text_figures.of_nats(run.nats(corpus.without_context(run.schema)), corpus)
    check_vocabularies(run, baseline)
    return text_figures.of_nats(baseline.nats(corpus.without_context(baseline.schema)), corpus)


def check_vocabularies(run: Scorer, baseline: Scorer) -> None:
    """`UserError` unless both predict the same tokens."""
    if baseline.tokenizer.tokens != run.tokenizer.tokens:
        both = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{both} have different vocabularies: no gain can be told; compare bits per byte")


def beside(run: Scorer, corpus: Corpus, baseline: Scorer | None, source: Any, unknown: str) -> Figures:
    """What every text of `source`, which is `corpus`, costs what a run is compared with, as `without_context`.

    A baseline that is adapted reads its own context. `UserError` where the two read texts differently.
    """
    if not (isinstance(baseline, Run) and baseline.model.adapted):
        return without_context(run, corpus, baseline)
    own = baseline.prepare(source, unknown=unknown)
    if text_figures.key_of(own) != text_figures.key_of(corpus):
        raise UserError(f"{baseline.folder} and {run.folder} read these texts differently: no gain can be told")
    return text_figures.of_nats(baseline.nats(own), own)


def gains(ours: TextSums, plain: TextSums, values: Sequence[str]) -> list[Row]:
    """Rows of `evaluate_by`, the most frequent value first."""
    groups: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    rows = []
    for value, members in groups.items():
        own, other = (sums.select(np.array(members)) for sums in (ours, plain))
        perplexities = [Tally(float(sums.above.sum()), int(sums.below.sum())).perplexity for sums in (own, other)]
        found: Row = {"value": value, "count": len(members), "targets": int(own.below.sum())}
        found |= dict(zip(("perplexity", "perplexity_without"), perplexities, strict=True))
        rows.append({**found, **gain(own, other).row("gain")})
    return sorted(rows, key=lambda row: (-row["count"], row["value"]))


def bits_difference(ours: TextSums, other: TextSums) -> Interval | None:
    """Return how many bits per byte `ours` lies above `other`, over the texts that both read whole; None without any.

    The two may be of models with different units and vocabularies. `UserError` if their original texts differ.
    """
    if ours.texts != other.texts:
        raise UserError("bits per byte: expected two models that read the same texts, got different original texts")
    both = Ratios.of([[ours], [other]])
    return None if both is None else both.difference(0, 1)


def gain(ours: TextSums, plain: TextSums) -> Interval:
    """By what share the perplexity of the same texts is lower with `ours` than with `plain`."""
    both = Ratios.of([[plain], [ours]])
    assert both is not None  # of the same texts
    return statistics.gain(both.difference(0, 1))


def strangers(run: Scorer, corpus: Corpus) -> bool:
    """Whether `run` tells users apart, but nobody of those who wrote the texts of `corpus`: it knows none of them.

    They are all the unknown user then, and without context the expected one: the gain says nothing of what users bring.
    """
    if not isinstance(run, Run) or not run.config.data.user or run.model.encoder is None:
        return False
    user = run.schema.categories.index(run.schema.variable(run.config.data.user))
    return not (corpus.categories[:, user] > 0).any()


def text_tallies(run: Scorer, corpus: Corpus) -> list[Tally]:
    """One tally per text."""
    sums = text_figures.per_text(run.nats(corpus), corpus)
    return [Tally(float(total), int(count)) for total, count in zip(sums, corpus.lengths, strict=True)]
