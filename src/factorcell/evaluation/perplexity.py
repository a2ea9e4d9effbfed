"""Perplexity and bits per byte of texts, for a whole table and for groups of texts, with differences to a baseline.

    perplexity = exp(sum of nats / number of targets)        bits per byte = sum of nats / (ln 2 * number of bytes)

The sums are over all texts of a table or group; the end of each text is a target. There are two perplexities: over all
targets, and over in-vocabulary targets only. The bytes are those of the normalized texts in UTF-8. Therefore bits per
byte are comparable between models with different tokenizers and vocabularies; models whose tokens do not determine the
texts, such as words, have none.

Shapes: N texts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval
from factorcell.data.columns.rows import ResultRows
from factorcell.data.columns.values import category_name_or_none, is_missing, natural_order, to_number
from factorcell.data.corpus import Corpus, is_known_target
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation import text_figures
from factorcell.evaluation.comparison import difference_to_baseline
from factorcell.evaluation.diagnostics import report_repeated_texts, report_run
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums
from factorcell.io.lazy import LazyMethod
from factorcell.nn.scoring import Scorer, Tally
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
    figures: Figures
    baseline: "Evaluation | None" = None

    _repr_html_ = LazyMethod("evaluation_html", "factorcell.reports.notebook")

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

    def to_pandas(self) -> Any:
        """Return the figures of the table as a `pandas.DataFrame` with one row."""
        return ResultRows([self.row]).to_pandas()


def evaluate(
    run: Scorer,
    source: Any,
    *,
    by: Sequence[str] = (),
    baseline: Scorer | None = None,
    unknown: str = "group",
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
    if baseline is not None and by:
        check_vocabularies(run, baseline)  # before reading
    numbers = run.schema.of_kinds("number") if isinstance(run, Run) else ()
    notations = {variable.source_column: variable.notation for variable in numbers}
    groups_by_column = {column: column_groups(source, column, notations.get(column, "")) for column in by}
    corpus = source if isinstance(source, Corpus) else run.prepare(source, unknown=unknown)
    report_repeated_texts(run, corpus)
    for model in (run, baseline):
        report_run(model)
    result = _evaluate_corpus(run, corpus)
    row, figures = result.row, result.figures
    other_figures, evaluated_baseline, key = None, None, BASELINE_GAIN
    if baseline is not None:
        evaluated_baseline = _evaluate_corpus(baseline, _read_for_baseline(run, baseline, corpus, source, unknown))
        other_figures = evaluated_baseline.figures
        row |= {"baseline": baseline.folder.name, **difference_to_baseline(figures, other_figures)}
        if BASELINE_BITS in row:
            row["bits_per_byte_baseline"] = evaluated_baseline.row["bits_per_byte"]
    elif by and reads_context(run):
        other_figures, key = without_context(run, corpus), UNKNOWN_CONTEXT_GAIN
        row |= gain(figures["perplexity"], other_figures["perplexity"]).to_row(key)
    if other_figures is not None and key in row:
        row[PERPLEXITY_OF[key]] = _perplexity(other_figures["perplexity"])
        row |= {"only_unknown_users": True} if has_only_unknown_users(run, corpus) else {}
    other_sums = None if other_figures is None else other_figures["perplexity"]
    rows_by_column = {
        column: value_rows(figures["perplexity"], other_sums, groups, key)
        for column, groups in groups_by_column.items()
    }
    return Evaluation(row, rows_by_column, figures, evaluated_baseline)


def _evaluate_corpus(model: Scorer, corpus: Corpus) -> Evaluation:
    nats = model.nats(corpus)
    row = {"unit": model.tokenizer.unit, **summary_row(nats, corpus)}
    return Evaluation(row, {}, text_figures.figures_from_nats(nats, corpus))


def summary_row(nats: NDArray[Any], corpus: Corpus) -> Row:
    """Return the figures of a table from the nats of all targets of `corpus`."""
    bits = text_figures.figures_from_nats(nats, corpus).get("bits_per_byte")
    nats, is_known = nats.astype(np.float64), is_known_target(corpus)
    row: Row = {
        "texts": len(corpus),
        "truncated": int(corpus.truncated.sum()),
        "targets": len(nats),
        "unknown_targets": int((~is_known).sum()),
        "unknown_share": float(1 - is_known.mean()),
        "perplexity": Tally(float(nats.sum()), len(nats)).perplexity,
        "perplexity_known": Tally(float(nats[is_known].sum()), int(is_known.sum())).perplexity,
    }
    if bits is not None and bits.denominator[bits.is_included].any():
        ratios = Ratios.from_sums([[bits]])
        assert ratios is not None
        row |= {**ratios.interval(0).to_row("bits_per_byte"), "bits_per_byte_texts": int(bits.is_included.sum())}
    return row


def reads_context(model: Scorer) -> bool:
    """Return whether the predictions of a model depend on a context."""
    return model.reads_context if isinstance(model, Run) else bool(model.schema.variables)


def without_context(model: Scorer, corpus: Corpus) -> Figures:
    """Return the figures of every text under `model` with the expected context."""
    return text_figures.figures_from_nats(model.nats(corpus.without_context(model.schema)), corpus)


def check_vocabularies(run: Scorer, baseline: Scorer) -> None:
    """Raise a `UserError` unless both models predict the same tokens."""
    if baseline.tokenizer.tokens != run.tokenizer.tokens:
        problem = "the vocabularies differ, so gains in perplexity cannot be computed"
        remedy = "remove --by to compare the whole table in bits per byte"
        raise UserError(f"{baseline.folder} and {run.folder}: {problem}; {remedy}")


def _read_for_baseline(run: Scorer, baseline: Scorer, corpus: Corpus, source: Any, unknown: str) -> Corpus:
    """Return the texts of `corpus`, which `run` has prepared, as the baseline reads them."""
    has_same_tokens = baseline.tokenizer.tokens == run.tokenizer.tokens
    if has_same_tokens and not reads_context(baseline):
        return corpus.without_context(baseline.schema)
    baseline_corpus = baseline.prepare(source, unknown=unknown)
    if has_same_tokens and text_figures.texts_digest(baseline_corpus) != text_figures.texts_digest(corpus):
        folders = f"{baseline.folder} and {run.folder}"
        raise UserError(f"{folders}: the models read the texts differently, so perplexities cannot be compared")
    return baseline_corpus


def value_rows(model: TextSums, baseline: TextSums | None, groups: Sequence[str], key: str) -> ResultRows:
    """Return a row of figures for each group of texts; with a baseline, the rows have the gain `key`."""
    members_by_group: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members_by_group.setdefault(group, []).append(index)
    rows = []
    for group, members in members_by_group.items():
        model_sums = model.select(np.array(members))
        row: Row = {"value": group, "count": len(members), "targets": int(model_sums.denominator.sum())}
        row["perplexity"] = _perplexity(model_sums)
        if baseline is not None:
            baseline_sums = baseline.select(np.array(members))
            row |= {PERPLEXITY_OF[key]: _perplexity(baseline_sums), **gain(model_sums, baseline_sums).to_row(key)}
        rows.append(row)
    rows.sort(key=lambda row: (-row["count"], row["value"]))
    order = natural_order([row["value"] for row in rows])
    return ResultRows(rows if order is None else [rows[index] for index in order])


def _perplexity(sums: TextSums) -> float:
    return Tally(float(sums.numerator.sum()), int(sums.denominator.sum())).perplexity


def gain(model: TextSums, baseline: TextSums) -> Interval:
    """Return the relative reduction of the perplexity from `baseline` to `model`; both must have the same texts."""
    ratios = Ratios.from_sums([[baseline], [model]])
    assert ratios is not None
    return text_figures.gain_from_nats(ratios.difference(0, 1))


def has_only_unknown_users(run: Scorer, corpus: Corpus) -> bool:
    """Return whether `run` distinguishes users but no text of `corpus` is by a known user."""
    if not isinstance(run, Run) or not run.config.data.user or run.model.encoder is None:
        return False
    user_index = run.schema.categories.index(run.schema.variable(run.config.data.user))
    return not (corpus.categories[:, user_index] > 0).any()


def text_tallies(run: Scorer, corpus: Corpus) -> list[Tally]:
    """Return the nats and the number of targets of each text."""
    sums = text_figures.sum_per_text(run.nats(corpus), corpus)
    return [Tally(float(total), int(count)) for total, count in zip(sums, corpus.lengths, strict=True)]


def column_groups(source: Any, column: str, notation: str = "") -> list[str]:
    """Return the group of each row of a table by its value in `column`, whose numbers have a notation."""
    values = [value for chunk in open_table(source).chunks([column]) for value in chunk[column]]
    return value_groups(values, notation)


def value_groups(values: Sequence[Any], notation: str = "") -> list[str]:
    """Return the name of the group of each value, in which numbers have a notation (`to_number`).

    A missing value is in `MISSING_GROUP`. If all other values are numbers, and more than 4 * `QUANTILE_RANGES` of them
    are distinct, the groups are `QUANTILE_RANGES` ranges with about equally many values, such as "1996 to 2005". The
    ends of a range are the lowest and the highest number in it. Otherwise, there is a group for each distinct value,
    named after the value.
    """
    number_by_row = {row: to_number(value, notation) for row, value in enumerate(values) if not is_missing(value)}
    if None in number_by_row.values() or len(set(number_by_row.values())) <= 4 * QUANTILE_RANGES:
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

    The row also has `only_unknown_users` (true) if the run distinguishes users but no known user wrote any of the
    texts. If the run has several columns, `columns` has the gain of each column without the others.
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
    baseline_sums = without_context(run, sample)["perplexity"]
    row: Row = {"texts": len(sample), **_gain_of_same_texts(adapted_sums, baseline_sums)}
    if columns := _measure_columns(run, sample, baseline_sums):
        row["columns"] = columns
    return {**row, "only_unknown_users": True} if has_only_unknown_users(run, held_out) else row


def _gain_of_same_texts(model: TextSums, baseline: TextSums) -> Row:
    """Return a gain over an unknown context; both figures have the same texts, although their keys may differ."""
    return gain(model._replace(key=baseline.key), baseline).to_row(UNKNOWN_CONTEXT_GAIN)


def _measure_columns(run: Run, sample: Corpus, baseline_sums: TextSums) -> dict[str, Row]:
    """Measure the gain of each column of a run with several columns, while the others have their expected values."""
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
            effects[column] = {"texts": len(texts), **_gain_of_same_texts(sums, baseline_sums)}
    return effects
