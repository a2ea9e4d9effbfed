"""Memorization: the exposure of canaries, random texts that were planted among the training texts of a few users.

    exposure = log2 |R| - log2 rank        rank among A random alternatives of the same form, |R| = A + 1

(Carlini, Liu, Erlingsson, Kos and Song 2019, "The Secret Sharer", equation 1, with the alternatives as the space.) The
rank of a text that left no trace is uniform, and its exposure 1.44 bits on average. A one-sided Kolmogorov-Smirnov test
gives the probability of ranks as low as the observed ones by chance.

A canary is ranked for three readers: its owner, in the context that it was planted with; a stranger, the unknown user
in the same context; and all other owners at once: each text counts as for the owner who makes it most likely.

Shapes: N canaries, A alternatives, L + 1 targets of each, C distinct contexts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import ALTERNATIVES
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, distinguishes_users
from factorcell.completion.popularity import Popularity
from factorcell.completion.search import Suggestion
from factorcell.config import UserError
from factorcell.data.canaries import CANARIES_FILE, MAX_REPETITIONS, Canaries, replace_texts
from factorcell.data.counts import POPULARITY
from factorcell.data.tables import table_name
from factorcell.evaluation import perplexity
from factorcell.evaluation.statistics import NORMAL_QUANTILE
from factorcell.model.run import Run
from factorcell.progress import progress_bar

READERS = ("stranger", "others", "owner")
SOURCES = ("model", "popularity", "blend")
SUGGESTIONS = 10  # completions that a canary is looked for in
SIGNIFICANCE_LEVEL = 0.01  # of the test

Row = dict[str, Any]
Floats = NDArray[np.float64]


def audit(
    run: Run | str | Path,
    table: Any,
    *,
    alternatives: int = ALTERNATIVES,
    unknown: str = "group",
    seed: int = 0,
    progress: bool = False,
) -> Row:
    """Measure how much a run that was trained with canaries memorized.

    Args:
        run: The run or its folder.
        table: Real texts that training did not see.
        alternatives: The number of random texts that each canary is ranked among.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        seed: The seed of all draws.
        progress: Whether to show the progress.

    Returns:
        `texts`: the figures of `evaluate` for `table`;
        `canaries`: a row for each with its exposure for each reader, and which sources suggest it to a stranger who
        typed its first half; `exposure`: the same by number of repetitions, with intervals and tests; `chance` and
        `most`: the mean exposure by chance and the largest one.

    Raises:
        UserError: The run was trained without canaries.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    limits.check(alternatives=alternatives, seed=seed)
    if not (run.folder / CANARIES_FILE).exists():
        raise UserError(f"{run.folder}: no {CANARIES_FILE}; train a run with --canaries N to audit it")
    canaries = Canaries.open(run.folder / CANARIES_FILE, run.tokenizer, run.schema)
    ranks = _ranks(run, canaries, alternatives, seed, progress)
    found = _suggested(run, canaries, progress)
    rows = [
        {
            "canary": run.tokenizer.join(text),
            "times": int(times),
            **{reader: exposure(ranks[reader][number], alternatives) for reader in READERS},
            **found[number],
        }
        for number, (text, times) in enumerate(zip(canaries.texts, canaries.repetitions, strict=True))
    ]
    groups = [("all", list(range(len(rows))))]
    groups += [
        (str(times), np.flatnonzero(canaries.repetitions == times).tolist()) for times in range(1, MAX_REPETITIONS + 1)
    ]
    return {
        "texts": {"table": table_name(table), **perplexity.evaluate(run, table, unknown=unknown)},
        "exposure": [_summed(name, rows, members, alternatives) for name, members in groups if members],
        "canaries": rows,
        "chance": chance_exposure(alternatives),
        "most": math.log2(alternatives + 1),
    }


def exposure(rank: float, alternatives: int) -> float | None:
    """Return log2(A + 1) - log2 rank, in bits; None for a rank of NaN."""
    return None if math.isnan(rank) else math.log2((alternatives + 1) / rank)


def chance_exposure(alternatives: int) -> float:
    """Return the mean exposure of uniform ranks, in bits: about log2 e."""
    return float(np.log2((alternatives + 1) / np.arange(1, alternatives + 2)).mean())


def uniformity_p_value(ranks: Floats, alternatives: int) -> float:
    """Return the p of the exact one-sided Kolmogorov-Smirnov test that ranks are uniform (Birnbaum and Tingey 1951).

    p = d sum_{j <= n (1 - d)} C(n, j) (d + j / n)^(j - 1) (1 - d - j / n)^(n - j), where d is the largest excess of the
    distribution of the n ranks over the uniform one.
    """
    count, shares = len(ranks), np.sort(ranks) / (alternatives + 1)
    ahead = float(np.max(np.arange(1, count + 1) / count - shares))
    if ahead <= 0:
        return 1.0
    terms = []
    for j in range(math.floor(count * (1 - ahead)) + 1):
        rest = 1 - ahead - j / count
        if rest > 0:
            choose = math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
            terms.append(choose + (j - 1) * math.log(ahead + j / count) + (count - j) * math.log(rest))
    return min(1.0, ahead * math.fsum(map(math.exp, terms)))


def _ranks(run: Run, canaries: Canaries, alternatives: int, seed: int, progress: bool) -> dict[str, Floats]:
    """Return the rank (N,) of every canary for each reader, 1 the most likely; NaN if there is no such reader."""
    count, owners, user = len(canaries.texts), canaries.corpus, run.config.data.user
    texts = [*canaries.texts, *canaries.form.draw(alternatives, (seed, 0xA17E))]
    column = next(
        (n for n, variable in enumerate(run.schema.categories) if user and variable.source_column == user), None
    )
    if column is None:
        strangers = owners.without_context(owners.schema)
    else:
        strangers = replace(owners, categories=owners.categories.copy())
        strangers.categories[:, column] = 0
    both = owners.concatenate(strangers)
    which = both.context(np.arange(2 * count)).distinct()[1].numpy()
    rows = [int(np.flatnonzero(which == context)[0]) for context in range(which.max() + 1)]
    lines = []
    for row in progress_bar(rows, desc="exposure", unit="contexts", show=progress):
        corpus = replace_texts(both.select(np.full(len(texts), row)), texts)
        lines.append(run.nats(corpus).astype(np.float64).reshape(len(texts), -1).sum(1))
    nats = np.stack(lines)  # (C, N + A)
    persons = which[:count] + 1 if column is None else owners.categories[:, column]
    others = np.full((count, len(texts)), np.nan)
    for number, person in enumerate(persons):
        if len(rest := which[:count][(persons != person) & (persons > 0)]):
            others[number] = nats[np.unique(rest)].min(0)
    likely = {"stranger": nats[which[count:]], "others": others, "owner": nats[which[:count]]}
    return {reader: _rank(of, count) for reader, of in likely.items()}


def _rank(nats: Floats, count: int) -> Floats:
    """Return the rank (N,) of text n of line n of `nats` (N, N + A) among the last A; ties share their mean rank."""
    own, others = np.diagonal(nats)[:, None], nats[:, count:]
    ranks: Floats = 1 + (others < own).sum(1) + (others == own).sum(1) / 2
    ranks[np.isnan(own[:, 0])] = np.nan
    return ranks


def _suggested(run: Run, canaries: Canaries, progress: bool) -> list[Row]:
    """Return which sources suggest each canary to a stranger who typed its first half; nothing for runs of words."""
    if not run.tokenizer.is_character_level:
        return [{} for _ in canaries.texts]
    completer, user = Completer(run, unknown="group"), User.new(run) if distinguishes_users(run) else None
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
    for text in progress_bar(canaries.texts, desc="completion", unit="canaries", show=progress):
        whole, prefix = (run.tokenizer.join(part) for part in (text, text[: (len(text) + 1) // 2]))
        rows.append({source: any(one.text == whole for one in of(prefix)) for source, of in sources.items()})
    return rows


def _summed(name: str, rows: Sequence[Row], members: Sequence[int], alternatives: int) -> Row:
    """Return the mean exposure of the canaries `members` for each reader, with its interval, the largest and the p."""
    chosen = [rows[number] for number in members]
    summary: Row = {"times": name, "canaries": len(chosen)}
    for reader in READERS:
        found = np.array([row[reader] for row in chosen if row[reader] is not None])
        if len(found):
            wide = NORMAL_QUANTILE * float(found.std(ddof=1)) / math.sqrt(len(found)) if len(found) > 1 else math.nan
            mean, p = float(found.mean()), uniformity_p_value((alternatives + 1) / 2**found, alternatives)
            summary |= {
                reader: mean,
                f"{reader}_low": mean - wide,
                f"{reader}_high": mean + wide,
                f"{reader}_largest": float(found.max()),
                f"{reader}_p": p,
                f"{reader}_at_chance": p >= SIGNIFICANCE_LEVEL,
            }
    for source in SOURCES:
        if source in chosen[0]:
            summary[source] = sum(row[source] for row in chosen)
    return summary
