"""Memorization: the exposure of canaries, random texts that were planted among the training texts of a few users.

    exposure = log2 |R| - log2 rank,    |R| = A + 1

The canary and A random alternatives of the same form are ranked by their probability; together they are the set R
(Carlini, Liu, Erlingsson, Kos and Song 2019, "The Secret Sharer", equation 1). The rank of a canary that is not
memorized is uniformly distributed, and the mean of such exposures is 1.44 bits. A one-sided Kolmogorov-Smirnov test
gives the probability that uniformly distributed ranks are as low as the observed ones.

A canary is ranked for three readers, which are contexts of the model. The `owner` is the user among whose texts
the canary was planted. The `stranger` is the unknown user in an otherwise equal context. The `others` are the owners of
all other canaries; here the nats of a text are the lowest over these owners.

Shapes: N canaries, A alternatives, C distinct contexts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import ALTERNATIVES, check_unknown
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, distinguishes_users
from factorcell.completion.popularity import Popularity
from factorcell.completion.suggestions import Suggestion
from factorcell.config import UserError
from factorcell.data.canaries import CANARIES_FILE, MAX_REPETITIONS, Canaries, replace_texts
from factorcell.data.counts import POPULARITY
from factorcell.data.tables import table_name
from factorcell.evaluation import perplexity
from factorcell.evaluation.statistics import NORMAL_QUANTILE
from factorcell.model.run import Run
from factorcell.progress import progress_bar

READERS = ("stranger", "others", "owner")
COMPLETION_SOURCES = ("model", "popularity", "blend")
SUGGESTIONS = 10  # number of completions in which a canary is searched
ALTERNATIVES_KEY = 0xA17E  # makes the random numbers of the alternatives differ from those of the canaries
SIGNIFICANCE_LEVEL = 0.01  # of the Kolmogorov-Smirnov test

Row = dict[str, Any]
Floats = NDArray[np.float64]


def audit(
    run: Run | str | Path,
    table: Any,
    *,
    alternatives: int = ALTERNATIVES,
    unknown: str = "group",
    seed: int = 0,
) -> Row:
    """Measure how much a run has memorized the canaries with which it was trained.

    Args:
        run: The run or its folder.
        table: Held-out texts, for the perplexity.
        alternatives: The number of random texts among which each canary is ranked.
        unknown: How to read context values that training never saw: "error" (raise), "group" (as the unknown value) or
            "expected" (as the expected value).
        seed: The seed of the alternatives.

    Returns:
        A row with five entries. `texts` is the row of `evaluate` for `table`. `canaries` has a row per canary: its
        exposure in bits for each reader, and whether each source of completions suggests it to an unseen user who has
        typed its first half. `exposure` has means by number of repetitions, with intervals and tests. `chance` is the
        mean exposure at chance level and `most` the largest possible exposure, both in bits.

    Raises:
        UserError: The run was trained without canaries.

    References:
        Carlini et al. 2019, "The Secret Sharer", equation 1.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    alternatives, seed = limits.check(alternatives=alternatives, seed=seed)
    check_unknown(unknown)
    if not (run.folder / CANARIES_FILE).exists():
        raise UserError(f"{run.folder}: expected a file {CANARIES_FILE}; train the run with --canaries N to audit it")
    canaries = Canaries.open(run.folder / CANARIES_FILE, run.tokenizer, run.schema)
    ranks = _rank_canaries(run, canaries, alternatives, seed)
    suggestions = _find_suggestions(run, canaries)
    rows = [
        {
            "canary": run.tokenizer.join(text),
            "times": int(repetitions),
            **{reader: exposure(ranks[reader][index], alternatives) for reader in READERS},
            **suggestions[index],
        }
        for index, (text, repetitions) in enumerate(zip(canaries.texts, canaries.repetitions, strict=True))
    ]
    groups = [("all", list(range(len(rows))))]
    groups += [
        (str(repetitions), np.flatnonzero(canaries.repetitions == repetitions).tolist())
        for repetitions in range(1, MAX_REPETITIONS + 1)
    ]
    return {
        "texts": {"table": table_name(table), **perplexity.evaluate(run, table, unknown=unknown)},
        "exposure": [_summarize(name, rows, members, alternatives) for name, members in groups if members],
        "canaries": rows,
        "chance": chance_exposure(alternatives),
        "most": math.log2(alternatives + 1),
    }


def exposure(rank: float, alternatives: int) -> float | None:
    """Return the exposure in bits of a canary with this rank among `alternatives` other texts; None for rank NaN."""
    return None if math.isnan(rank) else math.log2((alternatives + 1) / rank)


def chance_exposure(alternatives: int) -> float:
    """Return the mean exposure of uniformly distributed ranks, which is about log2 e = 1.44 bits."""
    return float(np.log2((alternatives + 1) / np.arange(1, alternatives + 2)).mean())


def uniformity_p_value(ranks: Floats, alternatives: int) -> float:
    """Return the p-value of the exact one-sided Kolmogorov-Smirnov test that ranks are uniformly distributed.

    p = d sum_{j <= n (1 - d)} C(n, j) (d + j / n)^(j - 1) (1 - d - j / n)^(n - j)      (Birnbaum and Tingey 1951)

    d is the largest difference by which the distribution function of the n ranks exceeds the uniform distribution.
    """
    count, shares = len(ranks), np.sort(ranks) / (alternatives + 1)
    d = float(np.max(np.arange(1, count + 1) / count - shares))
    if d <= 0:
        return 1.0
    terms = []
    for j in range(math.floor(count * (1 - d)) + 1):
        remainder = 1 - d - j / count
        if remainder > 0:
            log_binomial = math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
            terms.append(log_binomial + (j - 1) * math.log(d + j / count) + (count - j) * math.log(remainder))
    return min(1.0, d * math.fsum(map(math.exp, terms)))


def _rank_canaries(run: Run, canaries: Canaries, alternatives: int, seed: int) -> dict[str, Floats]:
    """Return for each of `READERS` the rank (N,) of every canary, 1 for the most likely text.

    The rank for `others` is NaN if all other canaries have the same owner as the canary.
    """
    count, owner_corpus, user_column = len(canaries.texts), canaries.corpus, run.config.data.user
    texts = [*canaries.texts, *canaries.form.draw(run.tokenizer, alternatives, (seed, ALTERNATIVES_KEY))]
    columns = [variable.source_column for variable in run.schema.categories]
    user_index = columns.index(user_column) if user_column and user_column in columns else None
    if user_index is None:
        unknown_user_corpus = owner_corpus.without_context(owner_corpus.schema)
    else:
        unknown_user_corpus = replace(owner_corpus, categories=owner_corpus.categories.copy())
        unknown_user_corpus.categories[:, user_index] = 0  # the unknown user
    both_corpora = owner_corpus.concatenate(unknown_user_corpus)
    _, context_indices = both_corpora.context(np.arange(2 * count)).distinct()
    context_of_row = context_indices.numpy()  # index of the distinct context of each row
    first_rows = [np.flatnonzero(context_of_row == context)[0] for context in range(context_of_row.max() + 1)]
    nats_by_context = []
    for row in progress_bar(first_rows, desc="exposure", unit="contexts"):
        corpus = replace_texts(both_corpora.select(np.full(len(texts), row)), texts)
        nats_by_context.append(run.nats(corpus).astype(np.float64).reshape(len(texts), -1).sum(1))
    nats = np.stack(nats_by_context)  # (C, N + A)
    owner_contexts, unknown_user_contexts = context_of_row[:count], context_of_row[count:]
    # Without a user column, each distinct context counts as an owner.
    owner_ids = owner_contexts + 1 if user_index is None else owner_corpus.categories[:, user_index]
    nats_of_others = np.full((count, len(texts)), np.nan)
    for canary, owner in enumerate(owner_ids):
        if len(contexts := owner_contexts[(owner_ids != owner) & (owner_ids > 0)]):
            nats_of_others[canary] = nats[np.unique(contexts)].min(0)
    by_reader = {"stranger": nats[unknown_user_contexts], "others": nats_of_others, "owner": nats[owner_contexts]}
    return {reader: _ranks_from_nats(reader_nats, count) for reader, reader_nats in by_reader.items()}


def _ranks_from_nats(nats: Floats, count: int) -> Floats:
    """Return the ranks (N,) of `count` = N canaries among A alternatives for one reader; tied texts have a mean rank.

    Row n of `nats` (N, N + A) holds the nats of all canaries and then of all alternatives, in the context with which
    canary n is ranked; for `others`, they are the minimum over several contexts.
    """
    canary_nats, alternative_nats = np.diagonal(nats)[:, None], nats[:, count:]
    ranks: Floats = 1 + (alternative_nats < canary_nats).sum(1) + (alternative_nats == canary_nats).sum(1) / 2
    ranks[np.isnan(canary_nats[:, 0])] = np.nan
    return ranks


def _find_suggestions(run: Run, canaries: Canaries) -> list[Row]:
    """Return for each canary which sources of completions suggest it to an unseen user.

    A row has an entry (true or false) for each source. The user has typed the first half of the canary. The rows are
    empty unless the tokenizer of the run can complete texts.
    """
    if not run.tokenizer.restores_texts:
        return [{} for _ in canaries.texts]
    completer = Completer(run, unknown="group")
    user = User.new(run) if distinguishes_users(run) else None
    sources: dict[str, Callable[[str], Sequence[Suggestion]]] = {
        "model": lambda prefix: completer.complete(prefix, user, k=SUGGESTIONS)
    }
    if (run.folder / POPULARITY).exists():
        popularity = Popularity.from_run(run)
        sources["popularity"] = lambda prefix: popularity.complete(prefix, SUGGESTIONS)
        if user is not None:
            blend = Blend(completer, popularity)
            sources["blend"] = lambda prefix: blend.complete(prefix, user, k=SUGGESTIONS) if blend.fits(prefix) else []
    rows = []
    for text in progress_bar(canaries.texts, desc="completion", unit="canaries"):
        canary, prefix = run.tokenizer.join(text), run.tokenizer.join(text[: (len(text) + 1) // 2])
        suggestions = {name: suggest(prefix) for name, suggest in sources.items()}
        rows.append({name: canary in [item.text for item in items] for name, items in suggestions.items()})
    return rows


def _summarize(repetitions: str, rows: Sequence[Row], members: Sequence[int], alternatives: int) -> Row:
    """Summarize the `rows` with the indices `members`; per reader: mean exposure, its interval, maximum and p-value.

    `repetitions` is the number of times that these canaries were planted, or "all".
    """
    group_rows = [rows[index] for index in members]
    summary: Row = {"times": repetitions, "canaries": len(group_rows)}
    for reader in READERS:
        bits = np.array([row[reader] for row in group_rows if row[reader] is not None])
        if len(bits):
            half_width = NORMAL_QUANTILE * float(bits.std(ddof=1)) / math.sqrt(len(bits)) if len(bits) > 1 else math.nan
            mean, ranks = float(bits.mean()), (alternatives + 1) / 2**bits
            p_value = uniformity_p_value(ranks, alternatives)
            summary |= {
                reader: mean,
                f"{reader}_low": mean - half_width,
                f"{reader}_high": mean + half_width,
                f"{reader}_largest": float(bits.max()),
                f"{reader}_p": p_value,
                f"{reader}_at_chance": p_value >= SIGNIFICANCE_LEVEL,
            }
    for source in COMPLETION_SOURCES:
        if source in group_rows[0]:
            summary[source] = sum(row[source] for row in group_rows)
    return summary
