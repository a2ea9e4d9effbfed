"""Comparison of figures, such as perplexities, of models that were trained once or with several seeds.

Differences between two models have confidence intervals over texts and trainings (`statistics`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.bootstrap import Interval, format_ends
from factorcell.config import UserError
from factorcell.data.result_rows import ResultRows
from factorcell.escapes import align_columns
from factorcell.evaluation import statistics
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.lazy import LazyMethod

Row = dict[str, Any]

# For each compared figure: the name of its difference to the first model, and whether higher values are better.
COMPARED_FIGURES = {
    "perplexity": ("gain", False),
    "perplexity_known": ("gain_known", False),
    "bits_per_byte": ("bits_per_byte_difference", False),
    "accuracy": ("accuracy_difference", True),
    "specificity": ("specificity_difference", True),
}
FIGURE_FORMATS = {"perplexity": ".2f", "perplexity_known": ".2f", "bits_per_byte": ".3f", "accuracy": ".4f"}
AVERAGED_FIGURES = ("perplexity", "perplexity_known", "bits_per_byte", "accuracy", "macro_f1", "auc", "minutes")
BEST_MARK = "*"  # follows a figure that is significantly better than all others
LOWER_BOUND_MARK = "≥"  # precedes a lower bound
OMITTED_BITS = "the bits that restore original texts from tokens (case, white space)"
LOWER_BOUND_NOTE = f"it omits {OMITTED_BITS}"
BITS, EXACT_BITS, BITS_DIFFERENCE = "bits_per_byte", "bits_per_byte_exact", "bits_per_byte_difference"
AT_MOST, AT_LEAST = "at most", "at least"  # precede a difference that is only a bound


@dataclass(frozen=True)
class ComparedModel:
    """The results of a model: for each of its trainings, a row of figures (`rows`) and the figures per text (`texts`).

    A deterministic model, such as an n-gram model, has one training.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    texts: Sequence[Figures]
    is_deterministic: bool = False


@dataclass(frozen=True)
class Comparison:
    """A sequence of one row per model, with differences to the first model; `str` formats it as a table.

    A row has `model` (the name), `trainings` (their number) and the figures. A figure of several trainings is the
    mean over these, and the standard deviation has the suffix `_deviation`. `gain`, `gain_known`,
    `bits_per_byte_difference` and `accuracy_difference` are differences to the first model that has the figure; the
    ends of their intervals have the suffixes `_low` and `_high`. `ahead` lists the figures in which the model is
    significantly better than every other model. `bits_per_byte_low` and `bits_per_byte_high` are the ends of the
    interval of `bits_per_byte`, and `bits_per_byte_bound` is whether `bits_per_byte` is only a lower bound.
    `bits_per_byte_difference_bound` is "at most" or "at least" if the difference is only a bound. `unit`, such as
    "word", is the unit of the perplexity. If the other context columns predict the target of `accuracy` without the
    text, `accuracy_without_text` is their accuracy, and `accuracy_remark` says so.
    """

    rows: ResultRows

    _repr_html_ = LazyMethod("comparison_html", "factorcell.reports.notebook")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __str__(self) -> str:
        cells_of_rows, columns = self.table()
        header = [name.replace("_", " ") for name in columns]
        cell_texts = [[cells.get(name, "-") for name in columns] for cells in cells_of_rows]
        return "\n".join([*align_columns([header, *cell_texts]), *self.notes()])

    def table(self) -> tuple[list[dict[str, str]], list[str]]:
        """Return a dict from column to text for each row, and the columns in their order.

        The unit of perplexities is in the titles of their columns, or in the cells if it differs between the models.
        """
        titles = self.titles()
        units = {str(row["unit"]) for row in self.rows if row.get("unit") and row.get("perplexity") is not None}
        perplexities = {name: name for name in ("perplexity", "perplexity_known")}
        if len(units) == 1:
            perplexities = {name: f"{name} per {min(units)}" for name in perplexities}
        cells_of_rows = [_cells(row, titles) for row in self.rows]
        for cells, row in zip(cells_of_rows, self.rows, strict=True):
            suffix = f" per {row['unit']}" if len(units) > 1 and row.get("unit") else ""
            cells.update({title: cells.pop(name) + suffix for name, title in perplexities.items() if name in cells})
        gain_title, bits_title, accuracy_title = (
            titles.get(COMPARED_FIGURES[name][0], "") for name in ("perplexity", "bits_per_byte", "accuracy")
        )
        columns = ["model", *perplexities.values(), gain_title, "bits_per_byte", bits_title]
        columns += ["accuracy", "accuracy_without_text", accuracy_title, "parameters", "minutes"]
        return cells_of_rows, [name for name in columns if any(name in cells for cells in cells_of_rows)]

    def titles(self) -> dict[str, str]:
        """Return the column title of each difference, such as "gain over unadapted" for `gain`."""
        first_model_with = {
            name: next((str(row["model"]) for row in self.rows if row.get(name) is not None), "")
            for name in ("perplexity", "bits_per_byte", "accuracy")
        }
        titles = {
            "gain": f"gain over {first_model_with['perplexity']}",
            "bits_per_byte_difference": f"bits per byte above {first_model_with['bits_per_byte']}",
            "accuracy_difference": f"accuracy above {first_model_with['accuracy']}",
        }
        return {name: title for name, title in titles.items() if any(row.get(name) is not None for row in self.rows)}

    def notes(self) -> list[str]:
        """Return the lines of the legend below the table."""
        has_several_trainings = any(row["trainings"] > 1 for row in self.rows)
        notes = ["± is the standard deviation over trainings"] if has_several_trainings else []
        if self.titles():
            sources = "texts and trainings" if has_several_trainings else "texts"
            notes.append(f"brackets hold 95 % confidence intervals over {sources}")
        if any(row["ahead"] for row in self.rows):
            notes.append(f"{BEST_MARK} marks a figure that is significantly better than all others")
        remarks = {str(row["model"]): row.get("accuracy_remark") for row in self.rows}
        notes += [f"{model}: {remark}" for model, remark in remarks.items() if remark]
        rows = [row for row in self.rows if row.get("bits_per_byte") is not None]
        counted = [row for row in rows if "bits_per_byte_texts" in row and "texts" in row]
        if any(row["bits_per_byte_texts"] < row["texts"] for row in counted):
            numbers_of_texts = ", ".join(
                f"{row['model']} {row['bits_per_byte_texts']:,} of {row['texts']:,}" for row in counted
            )
            notes.append(
                f"bits per byte are computed over the texts that were not truncated ({numbers_of_texts}); "
                "differences are computed over the texts that neither model truncated"
            )
        if any(row.get("bits_per_byte_bound") for row in rows):
            notes.append(f"{LOWER_BOUND_MARK} marks a lower bound: {LOWER_BOUND_NOTE}")
        if any(row.get(f"{BITS_DIFFERENCE}_bound") for row in rows):
            notes.append(
                f'a difference of bits per byte "{AT_MOST}" or "{AT_LEAST}" is a bound over the texts that one of '
                f"the two models restores exactly; the other model omits {OMITTED_BITS}"
            )
        return notes


def compare_models(models: Sequence[ComparedModel], seed: int = 0) -> Comparison:
    """Compare each model with the first one, with intervals over texts (bootstrapped with `seed`) and over trainings.

    If all models read the same texts, the intervals use the texts that no model omits; otherwise, those that neither
    the model nor the first one omits.
    """
    rows = [_average_trainings(model) for model in models]
    for name in COMPARED_FIGURES:
        _compare_figure(name, models, rows, seed)
    return Comparison(ResultRows(rows))


def _compare_figure(name: str, models: Sequence[ComparedModel], rows: Sequence[Row], seed: int) -> None:
    """Add to `rows` the differences in one figure to the first model that has it; mark the best model, if any."""
    difference_name, higher_is_better = COMPARED_FIGURES[name]
    compared = [(model, row) for model, row in zip(models, rows, strict=True) if row.get(name) is not None]
    compared_rows = [row for _, row in compared]
    sums_by_model = [_sums(model, name) for model, _ in compared]
    deterministic = {index for index, (model, _) in enumerate(compared) if model.is_deterministic}
    joint_ratios = Ratios.from_sums(sums_by_model, seed, deterministic) if len(compared) > 1 else None
    for index in range(1, len(compared)):
        ratios, second = joint_ratios, index
        if ratios is None:  # not all models read the same texts, but this one and the first one may
            deterministic_in_pair = {side for side, member in enumerate((0, index)) if member in deterministic}
            ratios = Ratios.from_sums([sums_by_model[0], sums_by_model[index]], seed, deterministic_in_pair)
            second = 1
        if ratios is not None:
            if name.startswith("perplexity"):
                interval = statistics.gain_from_nats(ratios.difference(0, second))
            else:
                interval = ratios.difference(second, 0)
            difference_row = interval.to_row(difference_name)
            if name == BITS:
                first_model, model = compared[0][0], compared[index][0]
                bound = _bits_difference_bound(model.texts, first_model.texts)
                difference_row = difference_row if bound is None else bound
            compared_rows[index].update(difference_row)
    best = None if joint_ratios is None else joint_ratios.best_model(higher_is_better)
    if best is not None and _may_be_marked_as_best(compared_rows[best], name, sums_by_model):
        compared_rows[best]["ahead"].append(name)


def bits_per_byte_difference(model: Figures, baseline: Figures) -> Row:
    """Return the bits per byte of `model` minus those of `baseline` over texts that neither of them truncated.

    The row has the difference and its interval. If the models read the texts differently and one of them omits bits
    that restore the original texts, the difference is a bound without an interval, and `bits_per_byte_difference_bound`
    is "at most" or "at least"; it is missing if no direction is known. The row is empty if the models have no
    untruncated text in common. Raises a `UserError` if the original texts differ.
    """
    if model[BITS].texts != baseline[BITS].texts:
        raise UserError("bits per byte: expected two models that read the same texts, got different original texts")
    bound = _bits_difference_bound([model], [baseline])
    if bound is not None:
        return bound
    ratios = Ratios.from_sums([[model[BITS]], [baseline[BITS]]])
    return {} if ratios is None else ratios.difference(0, 1).to_row(BITS_DIFFERENCE)


def _bits_difference_bound(model: Sequence[Figures], baseline: Sequence[Figures]) -> Row | None:
    """Return a row with a bound of the difference between the bits per byte of two models, from their trainings.

    Over texts that `model` restores exactly, the measured difference is an upper bound, because the bits of `baseline`
    are a lower bound. Over texts that `baseline` restores exactly, it is a lower bound. The bound that holds for more
    texts is returned if these are most of the texts; otherwise the row is empty. The result is None if the difference
    is exact: if both models read the same tokens, or both restore all texts.
    """
    all_figures = [*model, *baseline]
    if len({figures[BITS].key for figures in all_figures}) == 1:
        return None
    is_compared = np.logical_and.reduce([figures[BITS].is_included for figures in all_figures])
    restored = [
        is_compared & np.logical_and.reduce([_restored(figures) for figures in trainings])
        for trainings in (model, baseline)
    ]
    if all((mask == is_compared).all() for mask in restored):
        return None
    is_upper = bool(restored[0].sum() >= restored[1].sum())
    mask = restored[0] if is_upper else restored[1]
    if 2 * mask.sum() <= is_compared.sum():
        return {}
    sums = [[figures[BITS].omit(~mask) for figures in trainings] for trainings in (model, baseline)]
    ratios = Ratios.from_sums(sums)
    if ratios is None:
        return {}
    point = ratios.difference(0, 1).point
    return {**Interval(point).to_row(BITS_DIFFERENCE), f"{BITS_DIFFERENCE}_bound": AT_MOST if is_upper else AT_LEAST}


def _restored(figures: Figures) -> NDArray[np.bool_]:
    """Return for each text (N,) whether its tokens are known to determine it; False if it was not saved."""
    return figures[EXACT_BITS].is_included if EXACT_BITS in figures else np.zeros_like(figures[BITS].is_included)


def _may_be_marked_as_best(row: Row, name: str, sums_by_model: Sequence[Sequence[TextSums]]) -> bool:
    """Return whether figure `name` of `row` may be marked as the best.

    A lower bound may be marked only if all models read the same tokens.
    """
    return not row.get(f"{name}_bound") or len({sums.key for trainings in sums_by_model for sums in trainings}) == 1


def _sums(model: ComparedModel, name: str) -> list[TextSums]:
    """Return for each training the contributions of all texts to a figure; an empty list if a training lacks them."""
    return [figures[name] for figures in model.texts] if all(name in figures for figures in model.texts) else []


def _average_trainings(model: ComparedModel) -> Row:
    """Return the mean figures of a model over its trainings; perplexities have geometric means."""
    row: Row = {**model.rows[0], "model": model.name, "trainings": len(model.rows), "ahead": []}
    for name in AVERAGED_FIGURES:
        values = [training[name] for training in model.rows if training.get(name) is not None]
        if len(values) > 1:
            has_geometric_mean = name.startswith("perplexity")
            row[name] = float(np.exp(np.mean(np.log(values))) if has_geometric_mean else np.mean(values))
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    if len(model.rows) > 1 and (ratios := Ratios.from_sums([_sums(model, "bits_per_byte")])):
        row |= ratios.interval(0).to_row("bits_per_byte")
    return row


def _cells(row: Row, titles: Mapping[str, str]) -> dict[str, str]:
    cells = {"model": str(row["model"])}
    cells |= {
        name: format_figure(row, name, number_format)
        for name, number_format in FIGURE_FORMATS.items()
        if row.get(name) is not None
    }
    cells |= {title: text for name, title in titles.items() if (text := format_difference(name, row))}
    number_formats = {"accuracy_without_text": ".4f", "parameters": ",.0f", "minutes": ".2f"}
    return cells | {
        name: format(row[name], number_format)
        for name, number_format in number_formats.items()
        if row.get(name) is not None
    }


def format_figure(row: Mapping[str, Any], name: str, number_format: str) -> str:
    """Format a figure with its standard deviation, its interval, and the marks for a best figure or a lower bound."""
    deviation, low, high = (row.get(f"{name}_{part}") for part in ("deviation", "low", "high"))
    text = format(row[name], number_format) + ("" if deviation is None else f" ± {deviation:{number_format}}")
    text += BEST_MARK if name in row["ahead"] else ""
    text += "" if low is None or high is None else f" {format_ends(low, high, number_format)}"
    return f"{LOWER_BOUND_MARK} {text}" if row.get(f"{name}_bound") else text


def format_difference(name: str, row: Mapping[str, Any]) -> str | None:
    """Format a difference in `row`: gains in per cent, accuracies in percentage points; None if it is missing."""
    interval = Interval.from_row(row, name)
    if name.startswith("bits"):
        bound = f"{row[f'{name}_bound']} " if row.get(f"{name}_bound") else ""
        return interval and bound + interval.to_text(".3f")
    return interval and interval.to_text(".1f", scale=100.0, unit="%" if name.startswith("gain") else " pt")
