"""Comparison of models, each trained once or with several seeds, with the intervals of their differences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.escapes import align_columns
from factorcell.evaluation import statistics
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums

Row = dict[str, Any]

# The figures that are compared: the name of the difference, and whether higher is better.
COMPARED = {
    "perplexity": ("gain", False),
    "perplexity_known": ("gain_known", False),
    "bits_per_byte": ("bits_per_byte_difference", False),
    "accuracy": ("accuracy_difference", True),
    "specificity": ("specificity_difference", True),
}
FORMS = {"perplexity": ".2f", "perplexity_known": ".2f", "bits_per_byte": ".3f", "accuracy": ".4f"}
AVERAGED = ("perplexity", "perplexity_known", "bits_per_byte", "accuracy", "macro_f1", "auc", "minutes")
BEST_MARK = "*"  # after a figure that is better than all others
LOWER_BOUND_MARK = "≥"  # before a lower bound
LOWER_BOUND_NOTE = (
    "the bits that restore the original texts from tokens are not counted (unknown words, case, white space)"
)


@dataclass(frozen=True)
class ComparedModel:
    """A model: the `rows` of figures of its trainings, and what every text adds. `exact`: it is deterministic."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    texts: Sequence[Figures]
    is_deterministic: bool = False


@dataclass(frozen=True)
class Comparison:
    """A row per model, with differences to the first model; it prints as a table.

    A row has `model`, `trainings` and the figures; of several trainings these are means, with standard deviations
    such as `perplexity_deviation`. `gain`, `gain_known`, `bits_per_byte_difference` and `accuracy_difference` are
    differences to the first model that has the figure, each with `_low` and `_high`; `ahead` names the figures in which
    the model is better than every other beyond the intervals. `bits_per_byte` has `_low`, `_high` and `_bound` (whether
    it is only a lower bound).
    """

    rows: Sequence[Row]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __str__(self) -> str:
        lines, columns = self.table()
        cells = [[line.get(name, "-") for name in columns] for line in lines]
        return "\n".join([*align_columns([[name.replace("_", " ") for name in columns], *cells]), *self.notes()])

    def table(self) -> tuple[list[dict[str, str]], list[str]]:
        titles = self.titles()
        lines = [_cells(row, titles) for row in self.rows]
        gain, bits, accuracy = (
            titles.get(COMPARED[name][0], "") for name in ("perplexity", "bits_per_byte", "accuracy")
        )
        columns = ("model", "perplexity", "perplexity_known", gain, "bits_per_byte", bits, "accuracy", accuracy)
        return lines, [name for name in (*columns, "parameters", "minutes") if any(name in line for line in lines)]

    def titles(self) -> dict[str, str]:
        """Return the names of the differences and the titles of their columns."""
        first = {
            name: next((str(row["model"]) for row in self.rows if row.get(name) is not None), "")
            for name in ("perplexity", "bits_per_byte", "accuracy")
        }
        named = {
            "gain": f"gain over {first['perplexity']}",
            "bits_per_byte_difference": f"bits per byte above {first['bits_per_byte']}",
            "accuracy_difference": f"accuracy above {first['accuracy']}",
        }
        return {name: title for name, title in named.items() if any(row.get(name) is not None for row in self.rows)}

    def notes(self) -> list[str]:
        """Return the legend of the table, a line each."""
        several = any(row["trainings"] > 1 for row in self.rows)
        notes = ["± is the standard deviation of trainings"] if several else []
        if self.titles():
            sources = "other texts and other trainings" if several else "other texts"
            notes.append(f"in brackets: 95 % intervals over {sources}")
        if any(row["ahead"] for row in self.rows):
            notes.append(f"{BEST_MARK} is better than all others, and by more than that")
        rows = [row for row in self.rows if row.get("bits_per_byte") is not None]
        if any(row.get("bits_per_byte_texts", 0) < row.get("texts", 0) for row in rows):
            each = ", ".join(f"{row['model']} {row['bits_per_byte_texts']:,} of {row['texts']:,}" for row in rows)
            both = "differences are over the texts that both read whole"
            notes.append(f"bits per byte are of the texts that were read whole ({each}); {both}")
        if any(row.get("bits_per_byte_bound") for row in rows):
            notes.append(f"{LOWER_BOUND_MARK} is a lower bound: {LOWER_BOUND_NOTE}")
        return notes


def compare_models(models: Sequence[ComparedModel], seed: int = 0) -> Comparison:
    """Compare models over the texts that they share, drawn by `seed`, and over their trainings."""
    rows = [_averaged(model) for model in models]
    for name, (difference, highest) in COMPARED.items():
        there = [at for at, row in enumerate(rows) if row.get(name) is not None]
        own = [_sums(models[at], name) for at in there]
        exact = {place for place, at in enumerate(there) if models[at].is_deterministic}
        every = Ratios.from_sums(own, seed, exact) if len(own) > 1 else None
        for place, at in enumerate(there[1:], start=1):
            pair = {number for number, one in enumerate((0, place)) if one in exact}
            if both := every or Ratios.from_sums([own[0], own[place]], seed, pair):
                second = place if every else 1
                logs = name.startswith("perplexity")
                interval = statistics.gain_from_nats(both.difference(0, second)) if logs else both.difference(second, 0)
                rows[at] |= interval.to_row(difference)
        if every and (best := every.best_model(highest)) is not None and _can_be_ahead(rows[there[best]], name, own):
            rows[there[best]]["ahead"].append(name)
    return Comparison(rows)


def _can_be_ahead(row: Row, name: str, models: Sequence[Sequence[TextSums]]) -> bool:
    """Return whether the lowest figure is the best: not if it is a lower bound and `models` read texts differently."""
    return not row.get(f"{name}_bound") or len({sums.key for trainings in models for sums in trainings}) == 1


def _sums(model: ComparedModel, name: str) -> list[TextSums]:
    return [texts[name] for texts in model.texts] if all(name in texts for texts in model.texts) else []


def _averaged(model: ComparedModel) -> Row:
    """Return the figures of a model: means over trainings, of perplexities geometric ones."""
    row: Row = {**model.rows[0], "model": model.name, "trainings": len(model.rows), "ahead": []}
    for name in AVERAGED:
        values = [one[name] for one in model.rows if one.get(name) is not None]
        if len(values) > 1:
            logs = name.startswith("perplexity")
            row[name] = float(np.exp(np.mean(np.log(values))) if logs else np.mean(values))
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    if len(model.rows) > 1 and (ratios := Ratios.from_sums([_sums(model, "bits_per_byte")])):
        row |= ratios.interval(0).to_row("bits_per_byte")
    return row


def _cells(row: Row, titles: Mapping[str, str]) -> dict[str, str]:
    cells = {"model": str(row["model"])}
    cells |= {name: format_figure(row, name, form) for name, form in FORMS.items() if row.get(name) is not None}
    cells |= {title: text for name, title in titles.items() if (text := format_difference(name, row))}
    forms = {"parameters": ",.0f", "minutes": ".2f"}
    return cells | {name: format(row[name], form) for name, form in forms.items() if row.get(name) is not None}


def format_figure(row: Mapping[str, Any], name: str, form: str) -> str:
    """Return a figure as text: with its standard deviation, `MARK` if it is the best, and its interval.

    A lower bound has `AT_LEAST` before it.
    """
    spread, low, high = (row.get(f"{name}_{part}") for part in ("deviation", "low", "high"))
    text = format(row[name], form) + ("" if spread is None else f" ± {spread:{form}}")
    text += BEST_MARK if name in row["ahead"] else ""
    text += "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"
    return f"{LOWER_BOUND_MARK} {text}" if row.get(f"{name}_bound") else text


def format_difference(name: str, row: Mapping[str, Any]) -> str | None:
    """Return a difference in `row` as text, gains in per cent and accuracies in points; None if there is none."""
    interval = Interval.from_row(row, name)
    if name.startswith("bits"):
        return interval and interval.to_text(".3f")
    return interval and interval.to_text(".1f", 100.0, "%" if name.startswith("gain") else " pt")
