"""Perplexity and bits per byte of texts, overall and by the values of columns, with gains over a baseline.

    perplexity = exp(sum of nats / number of targets)        bits per byte = sum of nats / (ln 2 * number of bytes)

The sums are over a whole table; the end of each text is a target. Perplexity is computed over all targets, and over
in-vocabulary targets only. The bytes are those of the original texts, so that bits per byte compare models with
different tokenizers and vocabularies.

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
RANGES = 5  # number of quantile ranges of a numeric column
MISSING_GROUP = "(missing)"

Row = dict[str, Any]


class Evaluation(NamedTuple):
    """The figures of a table (`row`), the rows `by` the values of columns, and the per-text figures (`texts`)."""

    row: Row
    by: dict[str, list[Row]]
    texts: Figures


def evaluate(run: Scorer, source: Any, *, baseline: Scorer | None = None, unknown: str = "error") -> Row:
    """Compute the perplexity and the bits per byte of texts.

    Texts are cut after `max_tokens` tokens, as in training.

    Args:
        run: A run, an n-gram model, a mixture or separate runs.
        source: A path, rows, a data frame, or a corpus that `run` has prepared.
        baseline: A model over which the gain is measured.
        unknown: How to read context values that training never saw: "error", "group" or "expected".

    Returns:
        A row with `perplexity` over all targets and `perplexity_known` over in-vocabulary targets; the counts `texts`,
        `truncated`, `targets` and `unknown_targets`, and the share `unknown_share`; `bits_per_byte` with `_low` and
        `_high`, `_texts` (the number of texts that were not truncated) and `_bound` (whether it is only a lower bound).
        With a `baseline` also `gain` (if the vocabularies are equal) and `bits_per_byte_difference`, with intervals.

    Raises:
        UserError: The baseline reads other texts, or the table has an invalid context value.
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
    """Compute the row of `evaluate`, and rows by the values of the columns `by` of the table `source`.

    If there are columns or a baseline, gains are measured: over the baseline, or over the same model with the expected
    context (then `over` is None). A baseline with another vocabulary is compared by bits per byte only.
    """
    if baseline is not None and by:  # fail before the table is read
        check_vocabularies(run, baseline)
    columns = {column: column_groups(source, column) for column in by}
    corpus = source if isinstance(source, Corpus) else run.prepare(source, unknown=unknown)
    nats = run.nats(corpus)
    texts, row, groups = text_figures.figures_from_nats(nats, corpus), summary_row(nats, corpus), dict[str, list[Row]]()
    if baseline is not None and baseline.tokenizer.tokens != run.tokenizer.tokens:
        baseline_corpus = baseline.prepare(source, unknown=unknown)
        figures = text_figures.figures_from_nats(baseline.nats(baseline_corpus), baseline_corpus)
        row |= _bits_difference_row(texts, figures, baseline_corpus, baseline)
    elif by or baseline is not None:
        figures = _baseline_figures(run, baseline, corpus, source, unknown)
        model_sums, baseline_sums = texts["perplexity"], figures["perplexity"]
        row |= gain(model_sums, baseline_sums).to_row("gain")
        over = None if baseline is None else baseline.folder.name
        row |= {"perplexity_without": _perplexity(baseline_sums), "over": over}
        row |= {} if baseline is None else _bits_difference_row(texts, figures, corpus, baseline)
        row |= {"only_unknown_users": True} if only_unknown_users(run, corpus) else {}
        groups = {column: gains(model_sums, baseline_sums, values) for column, values in columns.items()}
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
    """Return bits per byte from the nats (N,) of texts: None if no bytes are counted, empty without original texts."""
    sums = text_figures.bits_per_byte("", nats, corpus)
    if sums is None:
        return {}
    included = sums.is_included
    ratios = Ratios.from_sums([[sums]]) if sums.denominator[included].any() else None
    figure = ratios.interval(0).to_row(BITS) if ratios else dict.fromkeys(Interval(0.0).to_row(BITS))
    bound = bool((text_figures.has_lower_bound(corpus) & included).any())
    return {**figure, f"{BITS}_bound": bound, f"{BITS}_texts": int(included.sum())}


def evaluate_by(run: Scorer, corpus: Corpus, values: Sequence[Any], baseline: Scorer | None = None) -> list[Row]:
    """Compute the perplexity of groups of texts, and the gain over a baseline in each group.

    Args:
        run: The model.
        corpus: The texts, as `run` has prepared them.
        values: The group of every text (N,); texts without one are in the group "(missing)".
        baseline: An n-gram model or unadapted run with the same vocabulary; by default `run` with the expected context.

    Returns:
        A row per group, the largest first, with `value`, `count`, `targets`, `perplexity`, `perplexity_without` (the
        perplexity of the baseline) and `gain`, the relative reduction, with `gain_low` and `gain_high`.

    Raises:
        UserError: The number of values is not the number of texts, or the vocabularies differ.
    """
    names = [label or MISSING_GROUP for label in category_names(values, "values", len(corpus))]
    if baseline is not None:
        check_vocabularies(run, baseline)
    model_figures = text_figures.figures_from_nats(run.nats(corpus), corpus)
    return gains(model_figures["perplexity"], without_context(baseline or run, corpus)["perplexity"], names)


def without_context(model: Scorer, corpus: Corpus) -> Figures:
    """Return the figures of every text under `model` with the expected context."""
    return text_figures.figures_from_nats(model.nats(corpus.without_context(model.schema)), corpus)


def check_vocabularies(run: Scorer, baseline: Scorer) -> None:
    """Raise a `UserError` unless both models predict the same tokens."""
    if baseline.tokenizer.tokens != run.tokenizer.tokens:
        both = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{both}: the vocabularies differ, so perplexities cannot be compared; compare bits per byte")


def _baseline_figures(run: Scorer, baseline: Scorer | None, corpus: Corpus, source: Any, unknown: str) -> Figures:
    """Return the figures of every text under the baseline; an adapted baseline reads its own context columns."""
    if not (isinstance(baseline, Run) and baseline.model.adapted):
        return without_context(baseline or run, corpus)
    baseline_corpus = baseline.prepare(source, unknown=unknown)
    if text_figures.texts_digest(baseline_corpus) != text_figures.texts_digest(corpus):
        both = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{both}: the models read the texts differently, so perplexities cannot be compared")
    return text_figures.figures_from_nats(baseline.nats(baseline_corpus), baseline_corpus)


def gains(model: TextSums, baseline: TextSums, values: Sequence[str]) -> list[Row]:
    """Return the rows of `evaluate_by` from the perplexity figures of the model and the baseline."""
    groups: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(value, []).append(place)
    rows = []
    for value, members in groups.items():
        model_group, baseline_group = (sums.select(np.array(members)) for sums in (model, baseline))
        row: Row = {"value": value, "count": len(members), "targets": int(model_group.denominator.sum())}
        row |= {"perplexity": _perplexity(model_group), "perplexity_without": _perplexity(baseline_group)}
        rows.append({**row, **gain(model_group, baseline_group).to_row("gain")})
    return sorted(rows, key=lambda row: (-row["count"], row["value"]))


def _perplexity(sums: TextSums) -> float:
    return Tally(float(sums.numerator.sum()), int(sums.denominator.sum())).perplexity


def gain(model: TextSums, baseline: TextSums) -> Interval:
    """Return the relative reduction of the perplexity from `baseline` to `model`, which must be of the same texts."""
    ratios = Ratios.from_sums([[baseline], [model]])
    assert ratios is not None
    return statistics.gain_from_nats(ratios.difference(0, 1))


def bits_difference(model: TextSums, baseline: TextSums) -> Interval | None:
    """Return the bits per byte of `model` minus `baseline` over texts that neither truncated; None if there are none.

    The tokenizers and vocabularies may differ. Raises a `UserError` if the original texts differ.
    """
    if model.texts != baseline.texts:
        raise UserError("bits per byte: expected two models that read the same texts, got different original texts")
    ratios = Ratios.from_sums([[model], [baseline]])
    return None if ratios is None else ratios.difference(0, 1)


def _bits_difference_row(model: Figures, baseline_figures: Figures, corpus: Corpus, baseline: Scorer) -> Row:
    """Return the difference in bits per byte to `baseline`, which read the texts as `corpus`."""
    difference = bits_difference(model[BITS], baseline_figures[BITS])
    if difference is None:
        return {}
    return {
        **difference.to_row(f"{BITS}_difference"),
        f"{BITS}_baseline": baseline_figures[BITS].ratio,
        f"{BITS}_baseline_bound": bool(
            (text_figures.has_lower_bound(corpus) & baseline_figures[BITS].is_included).any()
        ),
        f"{BITS}_over": baseline.folder.name,
    }


def only_unknown_users(run: Scorer, corpus: Corpus) -> bool:
    """Return whether `run` distinguishes users but no text of `corpus` is by a known user.

    Then all texts are read as the unknown user, and the gain does not include the gain from users.
    """
    if not isinstance(run, Run) or not run.config.data.user or run.model.encoder is None:
        return False
    user = run.schema.categories.index(run.schema.variable(run.config.data.user))
    return not (corpus.categories[:, user] > 0).any()


def text_tallies(run: Scorer, corpus: Corpus) -> list[Tally]:
    sums = text_figures.sum_per_text(run.nats(corpus), corpus)
    return [Tally(float(total), int(count)) for total, count in zip(sums, corpus.lengths, strict=True)]


def column_groups(source: Any, column: str) -> list[str]:
    """Return the group of each row of a table by its value in `column`."""
    return value_groups([value for chunk in open_table(source).chunks([column]) for value in chunk[column]])


def value_groups(values: Sequence[Any]) -> list[str]:
    """Return the group of each value: its name, one of `RANGES` quantile ranges, or `MISSING_GROUP`.

    Ranges are used if all present values are numbers and more than 4 * `RANGES` of them are distinct.
    """
    numbers = {row: to_number(value) for row, value in enumerate(values) if not is_missing(value)}
    if None in numbers.values() or len(set(numbers.values())) <= 4 * RANGES:
        return [category_name_or_none(value) or MISSING_GROUP for value in values]
    array = np.array(list(numbers.values()), dtype=np.float64)
    edges = np.unique(np.quantile(array, np.linspace(0, 1, RANGES + 1)))
    indices = np.clip(np.searchsorted(edges, array, side="right") - 1, 0, len(edges) - 2)
    groups = [MISSING_GROUP] * len(values)
    for row, index in zip(numbers, indices.tolist(), strict=True):
        groups[row] = f"{edges[index]:.4g} to {edges[index + 1]:.4g}"
    return groups
