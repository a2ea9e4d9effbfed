"""Perplexity and bits per byte of texts, for a whole table and for groups of texts, with differences to a baseline.

    perplexity = exp(sum of nats / number of targets)        bits per byte = sum of nats / (ln 2 * number of bytes)

The sums are over all texts of a table or group; the end of each text is a target. Shapes: N texts.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.data.columns.rows import ResultRows
from factorcell.data.columns.values import category_name_or_none, is_missing, natural_order, to_number
from factorcell.data.corpus import Corpus, is_known_target
from factorcell.data.tables.tables import open_table, table_name
from factorcell.errors import UserError
from factorcell.evaluation import text_figures
from factorcell.evaluation.comparison import difference_to_baseline
from factorcell.evaluation.diagnostics import report_evaluation, report_run
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums, prediction_fields
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.runs.saved_results import BASELINE_BITS, BASELINE_GAIN, UNKNOWN_CONTEXT_GAIN

QUANTILE_RANGES = 5  # number of ranges with about equally many values into which a numeric column is divided
MISSING_GROUP = "(missing)"
MAX_EFFECT_TEXTS = 1000  # development texts on which the effect of the context is measured
MAX_COLUMN_TARGETS = 20_000  # about the number of development targets on which the effect of a column is measured
# For each gain, the key of the perplexity that it refers to.
PERPLEXITY_OF = {BASELINE_GAIN: "perplexity_baseline", UNKNOWN_CONTEXT_GAIN: "perplexity_unknown_context"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        row: All figures of the table by their names. `unit`, such as "word", is that of both perplexities. `texts` and
            `truncated` are the numbers of all and of truncated texts, `targets` and `unknown_targets` those of all and
            of out-of-vocabulary targets; `unknown_share` is `unknown_targets` / `targets`.
        by: For each column, a row of figures for each group of texts with the same value: `value`, `count`, `targets`,
            `perplexity`, and the gain with its interval. Numbers, ranges, months and weekdays are in their natural
            order; other groups, the largest first.
        figures: The contribution of each text to each figure.
        baseline: The evaluation of the baseline on the same texts, if there is a baseline.
    """

    row: Row
    by: dict[str, ResultRows]
    figures: Figures = field(repr=False)
    baseline: "Evaluation | None" = None

    @property
    def perplexity(self) -> float:
        """The perplexity of all targets."""
        return float(self.row["perplexity"])

    @property
    def perplexity_known(self) -> float:
        """The perplexity of the in-vocabulary targets."""
        return float(self.row["perplexity_known"])

    @property
    def bits_per_byte(self) -> Interval | None:
        """The bits per byte of the texts that were not truncated; None if the tokens do not determine the texts."""
        return Interval.from_row(self.row, "bits_per_byte")

    @property
    def gain(self) -> Interval | None:
        """The relative reduction of the perplexity of the baseline, or else of an unknown context; positive is better.

        It is None without a baseline and columns, and if the vocabularies differ.
        """
        return Interval.from_row(self.row, BASELINE_GAIN) or Interval.from_row(self.row, UNKNOWN_CONTEXT_GAIN)

    def result_row(self, model: Scorer, table: Any) -> Row:
        """Return the row of this evaluation of a model on a table, which `save_result` saves."""
        row = {"kind": "evaluate", "table": table_name(table), **prediction_fields(model), **self.row}
        return {**row, "by": self.by} if self.by else row

    def to_pandas(self) -> Any:
        """Return the figures of the table as a `pandas.DataFrame` with one row."""
        return ResultRows([self.row]).to_pandas()


def evaluate(
    run: Scorer, source: Any, *, by: Sequence[str] = (), baseline: Scorer | None = None, unknown: str = "group"
) -> Evaluation:
    """Compute the perplexity and the bits per byte of texts, and of groups of the texts by the columns `by`.

    Texts are cut after `max_tokens` tokens, as in training.

    Args:
        run: A run, an n-gram model or a mixture.
        source: A path, rows, a data frame, or a corpus that `run` has prepared.
        by: Columns of the table.
        baseline: A model over which the gain is measured. With columns but no baseline, the gain is that over the same
            model with the expected context; a model that reads no context has no such gain.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The evaluation. Its row has `bits_per_byte` with an interval if the tokens determine the texts. With a
        `baseline`, it has `gain_over_baseline` (if the vocabularies are equal) and `bits_per_byte_below_baseline` (if
        both have bits per byte), both with intervals; positive means better than the baseline.

    Raises:
        UserError: The baseline reads the texts differently, or the table has an invalid context value.
    """
    if baseline is not None and baseline.tokenizer.tokens != run.tokenizer.tokens:  # before reading
        _check_comparable(run, baseline, by)
    numbers = run.schema.of_kinds("number") if isinstance(run, Run) else ()
    notations = {variable.source_column: variable.notation for variable in numbers}
    categories = {variable.source_column for variable in run.schema.categories}
    groups_by_column = {
        column: column_groups(source, column, notations.get(column, ""), has_ranges=column not in categories)
        for column in by
    }
    corpus = source if isinstance(source, Corpus) else run.prepare(source, unknown=unknown)
    report_evaluation(run, corpus)
    report_run(baseline)
    result = evaluate_corpus(run, corpus)
    row, sums = result.row, result.figures["perplexity"]
    other_sums, evaluated_baseline, key = None, None, BASELINE_GAIN
    if baseline is not None:
        evaluated_baseline = evaluate_corpus(baseline, _read_for_baseline(run, baseline, corpus, source, unknown))
        other_sums = evaluated_baseline.figures["perplexity"]
        row |= {"baseline": baseline.folder.name, **difference_to_baseline(result.figures, evaluated_baseline.figures)}
        if not {BASELINE_GAIN, BASELINE_BITS} & row.keys():
            problem = "neither perplexities nor bits per byte can be compared, because one model has only cut texts"
            raise UserError(f"{baseline.folder} and {run.folder}: {problem}")
        if BASELINE_BITS in row:
            row["bits_per_byte_baseline"] = evaluated_baseline.row["bits_per_byte"]
    elif by and run.reads_context:
        other_sums, key = sums_without_context(run, corpus), UNKNOWN_CONTEXT_GAIN
        row |= gain(sums, other_sums).to_row(key)
    if other_sums is not None and key in row:
        row[PERPLEXITY_OF[key]] = _perplexity(other_sums)
        row |= {"only_unknown_users": True} if has_only_unknown_users(run, corpus) else {}
    rows_by_column = {column: value_rows(sums, other_sums, groups, key) for column, groups in groups_by_column.items()}
    return Evaluation(row, rows_by_column, result.figures, evaluated_baseline)


def _check_comparable(run: Scorer, baseline: Scorer, by: Sequence[str]) -> None:
    """Raise a `UserError` unless a baseline with another vocabulary has figures that can be compared."""
    folders, problem = f"{baseline.folder} and {run.folder}", "the vocabularies differ, so gains in perplexity cannot"
    if not (baseline.tokenizer.is_lossless and run.tokenizer.is_lossless):
        raise UserError(f"{folders}: {problem} be computed, nor bits per byte, because tokens do not restore the texts")
    if by:
        raise UserError(f"{folders}: {problem} be computed; remove --by to compare the whole table in bits per byte")


def evaluate_corpus(model: Scorer, corpus: Corpus) -> Evaluation:
    """Evaluate a model on texts that it has prepared."""
    nats, is_known = model.nats(corpus).astype(np.float64), is_known_target(corpus)
    figures = text_figures.figures_from_nats(nats, corpus)
    row: Row = {
        "unit": model.tokenizer.unit,
        "texts": len(corpus),
        "truncated": int(corpus.truncated.sum()),
        "targets": len(nats),
        "unknown_targets": int((~is_known).sum()),
        "unknown_share": float(1 - is_known.mean()),
        "perplexity": perplexity_of(float(nats.sum()), len(nats)),
        "perplexity_known": perplexity_of(float(nats[is_known].sum()), int(is_known.sum())),
    }
    bits = figures.get("bits_per_byte")
    if bits is not None and bits.denominator[bits.is_included].any() and (ratios := Ratios.from_sums([[bits]])):
        row |= {**ratios.interval(0).to_row("bits_per_byte"), "bits_per_byte_texts": int(bits.is_included.sum())}
    return Evaluation(row, {}, figures)


def perplexity_of(nats: float, targets: int) -> float:
    """Return exp(nats / targets), or NaN without targets; infinity if it is too large for a number."""
    with np.errstate(over="ignore"):
        return float(np.exp(nats / targets)) if targets else math.nan


def sums_without_context(model: Scorer, corpus: Corpus) -> TextSums:
    """Return the contributions of every text to the perplexity of `model` with the expected context."""
    return text_figures.figures_from_nats(model.nats(corpus.without_context(model.schema)), corpus)["perplexity"]


def _read_for_baseline(run: Scorer, baseline: Scorer, corpus: Corpus, source: Any, unknown: str) -> Corpus:
    """Return the texts of `corpus`, which `run` has prepared, as the baseline reads them."""
    has_same_tokens = baseline.tokenizer.tokens == run.tokenizer.tokens
    if has_same_tokens and not baseline.reads_context:
        return corpus.without_context(baseline.schema)
    baseline_corpus = baseline.prepare(source, unknown=unknown)
    if has_same_tokens and text_figures.texts_digest(baseline_corpus) != text_figures.texts_digest(corpus):
        folders = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{folders}: the models read the texts differently, so perplexities cannot be compared")
    return baseline_corpus


def value_rows(model: TextSums, baseline: TextSums | None, groups: Sequence[str], key: str) -> ResultRows:
    """Return a row of figures for each group of texts; with a baseline, the rows have the gain `key`."""
    names, group_of_text = np.unique(np.array(groups, dtype=object), return_inverse=True)
    rows = []
    for index, name in enumerate(names):
        members = np.flatnonzero(group_of_text == index)
        model_sums = model.select(members)
        row: Row = {"value": name, "count": len(members), "targets": int(model_sums.denominator.sum())}
        row["perplexity"] = _perplexity(model_sums)
        if baseline is not None:
            baseline_sums = baseline.select(members)
            row |= {PERPLEXITY_OF[key]: _perplexity(baseline_sums), **gain(model_sums, baseline_sums).to_row(key)}
        rows.append(row)
    rows.sort(key=lambda row: (-row["count"], row["value"]))
    order = natural_order([row["value"] for row in rows])
    return ResultRows(rows if order is None else [rows[index] for index in order])


def _perplexity(sums: TextSums) -> float:
    return perplexity_of(float(sums.numerator.sum()), int(sums.denominator.sum()))


def gain(model: TextSums, baseline: TextSums) -> Interval:
    """Return the relative reduction of the perplexity from `baseline` to `model`, two models of the same texts."""
    ratios = Ratios.from_sums([[baseline], [model._replace(key=baseline.key)]])
    assert ratios is not None
    return text_figures.gain_from_nats(ratios.difference(0, 1))


def has_only_unknown_users(run: Scorer, corpus: Corpus) -> bool:
    """Return whether `run` distinguishes users but no text of `corpus` is by a known user."""
    if not isinstance(run, Run) or not run.config.data.user or run.model.encoder is None:
        return False
    user_index = run.schema.categories.index(run.schema.variable(run.config.data.user))
    return not (corpus.categories[:, user_index] > 0).any()


def column_groups(source: Any, column: str, notation: str = "", *, has_ranges: bool = True) -> list[str]:
    """Return the group of each row of a table by its value in `column`, with the other arguments of `value_groups`."""
    values = [value for chunk in open_table(source).chunks([column]) for value in chunk[column]]
    try:
        return value_groups(values, notation, has_ranges=has_ranges)
    except UserError as error:  # about a list
        raise UserError(f"{column}: {error.message}") from None


def value_groups(values: Sequence[Any], notation: str = "", *, has_ranges: bool = True) -> list[str]:
    """Return the name of the group of each value, in which numbers have a notation (`to_number`).

    A missing value is in `MISSING_GROUP`. If all other values are numbers, and more than 4 * `QUANTILE_RANGES` of them
    are distinct, the groups are `QUANTILE_RANGES` ranges with about equally many values, such as "1996 to 2005". The
    ends of a range are the lowest and the highest number in it. Otherwise, or unless `has_ranges`, there is a group for
    each distinct value, named after the value.
    """
    number_by_row = {row: to_number(value, notation) for row, value in enumerate(values) if not is_missing(value)}
    if not has_ranges or None in number_by_row.values() or len(set(number_by_row.values())) <= 4 * QUANTILE_RANGES:
        return [category_name_or_none(value) or MISSING_GROUP for value in values]
    numbers = np.array(list(number_by_row.values()), dtype=np.float64)
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, QUANTILE_RANGES + 1)))
    range_of_number = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    ranges = np.unique(range_of_number).tolist()
    members = [numbers[range_of_number == index] for index in ranges]
    names = _range_names([(float(numbers.min()), float(numbers.max())) for numbers in members])
    groups = [MISSING_GROUP] * len(values)
    for row, index in zip(number_by_row, range_of_number.tolist(), strict=True):
        groups[row] = names[ranges.index(index)]
    return groups


def _range_names(ranges: Sequence[tuple[float, float]]) -> list[str]:
    """Return a name such as "1996 to 2005" for each range (lowest number, highest number), in ascending order."""
    names: list[list[str]] = []
    for digits in range(4, 18):
        names = [[f"{end:.0f}" if end.is_integer() else f"{end:.{digits}g}" for end in ends] for ends in ranges]
        if all(float(high) < float(low) for (_, high), (low, _) in itertools.pairwise(names)):
            break
    return [low if low == high else f"{low} to {high}" for low, high in names]


def measure_context_effect(run: Run, held_out: Corpus) -> Row | None:
    """Measure the gain over an unknown context on held-out texts, with its interval; None for an unadapted run.

    The row says if no known user wrote any of the texts, and has the gain of each of several columns alone.
    """
    if not run.model.is_adapted:
        return None
    indices = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held_out))[:MAX_EFFECT_TEXTS])
    sample, saved_sums = held_out.select(indices), None
    if run.mixture is None:  # training saved the figures of the neural model alone
        saved_sums = text_figures.load(run.folder, text_figures.DEVELOPMENT_RESULT).get("perplexity")
    if saved_sums is None or saved_sums.key != text_figures.texts_digest(held_out):
        adapted_sums = text_figures.figures_from_nats(run.nats(sample), sample)["perplexity"]
    else:
        adapted_sums = saved_sums.select(indices)
    baseline_sums = sums_without_context(run, sample)
    row: Row = {"texts": len(sample), **gain(adapted_sums, baseline_sums).to_row(UNKNOWN_CONTEXT_GAIN)}
    if columns := _measure_columns(run, sample, baseline_sums):
        row["columns"] = columns
    return {**row, "only_unknown_users": True} if has_only_unknown_users(run, held_out) else row


def _measure_columns(run: Run, sample: Corpus, baseline_sums: TextSums) -> dict[str, Row]:
    if len(run.schema.columns()) < 2:
        return {}
    count = min(len(sample), len(sample) * MAX_COLUMN_TARGETS // sample.target_count + 1)
    rows = np.linspace(0, len(sample) - 1, count).astype(np.int64)
    texts, baseline_sums = sample.select(rows), baseline_sums.select(rows)
    effects, categories = {}, {variable.source_column for variable in run.schema.categories}
    for column in run.schema.embedded.columns():
        corpus = texts.without_context(run.schema, keep=column)
        if column not in categories or (corpus.categories > 0).any():  # 0 is the unknown value
            sums = text_figures.figures_from_nats(run.nats(corpus), texts)["perplexity"]
            effects[column] = {"texts": len(texts), **gain(sums, baseline_sums).to_row(UNKNOWN_CONTEXT_GAIN)}
    return effects
