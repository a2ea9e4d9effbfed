"""Perplexity of texts, overall and by the values of columns; gains over a baseline.

Perplexity is exp(sum of nats / number of targets) over a whole table, where the end of each text is a target. It is
given for all targets, and without out-of-vocabulary ones. Bits per byte, sum of nats / (ln 2 * bytes of the original
texts), compare models with different targets.

Shapes: N texts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.config import UserError
from factorcell.data.corpus import Corpus, is_known_target
from factorcell.data.rows import category_names
from factorcell.data.tables import open_table
from factorcell.data.values import category_name_or_none, is_missing, to_number
from factorcell.evaluation import statistics, text_figures
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer, Tally

BITS = "bits_per_byte"
RANGES = 5  # quantile ranges of a numeric column
MISSING_GROUP = "(missing)"

Row = dict[str, Any]


class Evaluation(NamedTuple):
    """The figures of a table, those `by` the values of columns, and what each text adds to the figures."""

    row: Row
    by: dict[str, list[Row]]
    texts: Figures


def evaluate(run: Scorer, source: Any, *, baseline: Scorer | None = None, unknown: str = "error") -> Row:
    """Compute the perplexity of texts, and their bits per byte.

    Texts are cut after `max_tokens` tokens, as in training.

    Args:
        run: A run, an n-gram model, a mixture or separate runs.
        source: A path, rows, a data frame, or a corpus that `run` has prepared.
        baseline: A model to measure the gain over.
        unknown: How to read context values that training never saw, as in `Run.prepare`.

    Returns:
        `perplexity` of all targets and `perplexity_known` without out-of-vocabulary ones; the counts `texts`,
        `truncated`, `targets`, `unknown_targets` and `unknown_share`; `bits_per_byte` with `_low` and `_high`, `_texts`
        (texts that were read whole) and `_bound` (whether it is only a lower bound). With a `baseline` also `gain`
        (if the vocabularies are the same) and `bits_per_byte_difference`, with their intervals.

    Raises:
        UserError: The baseline reads other texts.
    """
    return evaluate_by_columns(run, source, baseline=baseline, unknown=unknown).row


def evaluate_by_columns(
    run: Scorer,
    source: Any,
    *,
    by: Sequence[str] = (),
    baseline: Scorer | None = None,
    unknown: str = "error",
) -> Evaluation:
    """Evaluate a model as `evaluate` does, also by the values of the columns `by` of the table `source`.

    With columns or a baseline there are gains: over the baseline, or over the same model with the expected context
    (then `over` is None). A baseline with another vocabulary is compared by bits per byte only.
    """
    if baseline is not None and by:  # before the columns are read: the baseline may need other ones
        check_vocabularies(run, baseline)
    columns = {column: column_groups(source, column) for column in by}
    corpus = source if isinstance(source, Corpus) else run.prepare(source, unknown=unknown)
    nats = run.nats(corpus)
    texts, row, groups = text_figures.figures_from_nats(nats, corpus), summary_row(nats, corpus), dict[str, list[Row]]()
    if baseline is not None and baseline.tokenizer.tokens != run.tokenizer.tokens:
        other = baseline.prepare(source, unknown=unknown)
        row |= _bits_above(texts, text_figures.figures_from_nats(baseline.nats(other), other), other, baseline)
    elif by or baseline is not None:
        figures = _baseline_figures(run, baseline, corpus, source, unknown)
        ours, plain = texts["perplexity"], figures["perplexity"]
        row |= gain(ours, plain).to_row("gain")
        row |= {"perplexity_without": _perplexity(plain), "over": None if baseline is None else baseline.folder.name}
        row |= {} if baseline is None else _bits_above(texts, figures, corpus, baseline)
        row |= {"strangers": True} if only_unknown_users(run, corpus) else {}
        groups = {column: gains(ours, plain, values) for column, values in columns.items()}
    return Evaluation(row, groups, texts)


def summary_row(nats: NDArray[Any], corpus: Corpus) -> Row:
    """Return the row of `evaluate` from the nats of all targets of `corpus`."""
    nats, known = nats.astype(np.float64), is_known_target(corpus)
    return {
        "texts": len(corpus),
        "truncated": int(corpus.truncated.sum()),
        "targets": len(nats),
        "unknown_targets": int((~known).sum()),
        "unknown_share": float(1 - known.mean()),
        "perplexity": Tally(float(nats.sum()), len(nats)).perplexity,
        "perplexity_known": Tally(float(nats[known].sum()), int(known.sum())).perplexity,
        **_bits_per_byte(text_figures.sum_per_text(nats, corpus), corpus),
    }


def _bits_per_byte(nats: NDArray[np.float64], corpus: Corpus) -> Row:
    """Return the bits per byte from the nats (N,) of texts: None if no byte counts; empty without original texts."""
    sums = text_figures.bits_per_byte("", nats, corpus)
    if sums is None:
        return {}
    counted = sums.is_included
    ratios = Ratios.from_sums([[sums]]) if sums.denominator[counted].any() else None
    figure = ratios.interval(0).to_row(BITS) if ratios else dict.fromkeys(Interval(0.0).to_row(BITS))
    bound = bool((text_figures.has_lower_bound(corpus) & counted).any())
    return {**figure, f"{BITS}_bound": bound, f"{BITS}_texts": int(counted.sum())}


def evaluate_by(run: Scorer, corpus: Corpus, values: Sequence[Any], baseline: Scorer | None = None) -> list[Row]:
    """Compute the perplexity of groups of texts, and the gain of each over a baseline.

    Args:
        run: The model.
        corpus: The texts, as `run` has prepared them.
        values: The group of every text (N,); texts without one are in the group "(missing)".
        baseline: An n-gram model or unadapted run with the same vocabulary; else `run` with the expected context.

    Returns:
        A row per group, the largest first: `value`, `count`, `targets`, `perplexity`, `perplexity_without` (that of
        the baseline) and `gain`, the relative reduction, with `gain_low` and `gain_high`.

    Raises:
        UserError: There is not one value per text, or the vocabularies differ.
    """
    names = [label or MISSING_GROUP for label in category_names(values, "values", len(corpus))]
    if baseline is not None:
        check_vocabularies(run, baseline)
    ours, plain = text_figures.figures_from_nats(run.nats(corpus), corpus), without_context(baseline or run, corpus)
    return gains(ours["perplexity"], plain["perplexity"], names)


def without_context(model: Scorer, corpus: Corpus) -> Figures:
    """Return what every text costs `model` in the expected context."""
    return text_figures.figures_from_nats(model.nats(corpus.without_context(model.schema)), corpus)


def check_vocabularies(run: Scorer, baseline: Scorer) -> None:
    """Raise a `UserError` unless both models predict the same tokens."""
    if baseline.tokenizer.tokens != run.tokenizer.tokens:
        both = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{both} have different vocabularies: no gain can be computed; compare bits per byte")


def _baseline_figures(run: Scorer, baseline: Scorer | None, corpus: Corpus, source: Any, unknown: str) -> Figures:
    """Return what every text of `source` costs the baseline; an adapted baseline reads its own context."""
    if not (isinstance(baseline, Run) and baseline.model.adapted):
        return without_context(baseline or run, corpus)
    own = baseline.prepare(source, unknown=unknown)
    if text_figures.texts_digest(own) != text_figures.texts_digest(corpus):
        raise UserError(f"{baseline.folder} and {run.folder} read these texts differently: no gain can be computed")
    return text_figures.figures_from_nats(baseline.nats(own), own)


def gains(ours: TextSums, plain: TextSums, values: Sequence[str]) -> list[Row]:
    """Return the rows of `evaluate_by` from what each text adds to both perplexities."""
    groups: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(value, []).append(place)
    rows = []
    for value, members in groups.items():
        own, other = (sums.select(np.array(members)) for sums in (ours, plain))
        row: Row = {"value": value, "count": len(members), "targets": int(own.denominator.sum())}
        row |= {"perplexity": _perplexity(own), "perplexity_without": _perplexity(other)}
        rows.append({**row, **gain(own, other).to_row("gain")})
    return sorted(rows, key=lambda row: (-row["count"], row["value"]))


def _perplexity(sums: TextSums) -> float:
    return Tally(float(sums.numerator.sum()), int(sums.denominator.sum())).perplexity


def gain(ours: TextSums, plain: TextSums) -> Interval:
    """Return the relative reduction of the perplexity of the same texts from `plain` to `ours`."""
    both = Ratios.from_sums([[plain], [ours]])
    assert both is not None  # they are of the same texts
    return statistics.gain_from_nats(both.difference(0, 1))


def bits_difference(ours: TextSums, other: TextSums) -> Interval | None:
    """Return how many bits per byte `ours` lies above `other`, over the texts that both read whole; None without any.

    The models may have different units and vocabularies. `UserError` if their original texts differ.
    """
    if ours.texts != other.texts:
        raise UserError("bits per byte: expected two models that read the same texts, got different original texts")
    both = Ratios.from_sums([[ours], [other]])
    return None if both is None else both.difference(0, 1)


def _bits_above(ours: Figures, other: Figures, corpus: Corpus, baseline: Scorer) -> Row:
    """Return the difference in bits per byte to `baseline`, which read `corpus` and has the figures `other`."""
    difference = bits_difference(ours[BITS], other[BITS])
    if difference is None:
        return {}
    return {
        **difference.to_row(f"{BITS}_difference"),
        f"{BITS}_baseline": other[BITS].ratio,
        f"{BITS}_baseline_bound": bool((text_figures.has_lower_bound(corpus) & other[BITS].is_included).any()),
        f"{BITS}_over": baseline.folder.name,
    }


def only_unknown_users(run: Scorer, corpus: Corpus) -> bool:
    """Return whether `run` distinguishes users but knows none of those who wrote `corpus`.

    All are then read as the unknown user, so that the gain does not show what users bring.
    """
    if not isinstance(run, Run) or not run.config.data.user or run.model.encoder is None:
        return False
    user = run.schema.categories.index(run.schema.variable(run.config.data.user))
    return not (corpus.categories[:, user] > 0).any()


def text_tallies(run: Scorer, corpus: Corpus) -> list[Tally]:
    sums = text_figures.sum_per_text(run.nats(corpus), corpus)
    return [Tally(float(total), int(count)) for total, count in zip(sums, corpus.lengths, strict=True)]


def column_groups(source: Any, column: str) -> list[str]:
    """Return the group of each row of a table by `value_groups` of one column."""
    return value_groups([value for chunk in open_table(source).chunks([column]) for value in chunk[column]])


def value_groups(values: Sequence[Any]) -> list[str]:
    """Return the group of each value: its name, or one of `RANGES` quantile ranges; `MISSING_GROUP` if it is missing.

    Ranges are used where all values that are present are numbers, and more than 4 * `RANGES` of them are distinct.
    """
    numbers = {row: to_number(value) for row, value in enumerate(values) if not is_missing(value)}
    if None in numbers.values() or len(set(numbers.values())) <= 4 * RANGES:
        return [category_name_or_none(value) or MISSING_GROUP for value in values]
    array = np.array(list(numbers.values()), dtype=np.float64)
    edges = np.unique(np.quantile(array, np.linspace(0, 1, RANGES + 1)))
    which = np.clip(np.searchsorted(edges, array, side="right") - 1, 0, len(edges) - 2)
    groups = [MISSING_GROUP] * len(values)
    for row, index in zip(numbers, which.tolist(), strict=True):
        groups[row] = f"{edges[index]:.4g} to {edges[index + 1]:.4g}"
    return groups
