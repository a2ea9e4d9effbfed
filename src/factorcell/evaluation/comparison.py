"""Models side by side, each trained once or with several seeds, and which of their differences are more than chance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.evaluation import statistics
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.visible import aligned

Row = dict[str, Any]

# The figures that are compared: the name of the difference to another model, and whether higher is better.
COMPARED = {
    "perplexity": ("gain", False),
    "perplexity_known": ("gain_known", False),
    "accuracy": ("accuracy_difference", True),
    "specificity": ("specificity_difference", True),
}
FORMS = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".4f"}
AVERAGED = ("perplexity", "perplexity_known", "accuracy", "macro_f1", "auc", "minutes")
MARK = "*"  # behind what is better than all others


@dataclass(frozen=True)
class Candidate:
    """A model by its trainings: the `rows` of their figures, and what every text adds to those that are compared.

    In an `exact` one nothing is by chance: it would be the same again.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    texts: Sequence[Figures]
    exact: bool = False


@dataclass(frozen=True)
class Comparison:
    """A row per model, the first one of which the others are measured from; it prints as a table.

    A row has `model`, `trainings` and the figures. Of several trainings these are means, beside standard deviations
    such as `perplexity_deviation`. `gain`, `gain_known` and `accuracy_difference` are those to the first model that has
    the figure, each with `_low` and `_high`; `ahead` names the figures in which the model is better than every other
    by more than their intervals.
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
        return "\n".join([*aligned([[name.replace("_", " ") for name in columns], *cells]), *self.notes()])

    def table(self) -> tuple[list[dict[str, str]], list[str]]:
        """A row of text per model, and the names of the columns."""
        titles = self.titles()
        lines = [_cells(row, titles) for row in self.rows]
        gain, accuracy = (titles.get(name, "") for name in ("gain", "accuracy_difference"))
        columns = ("model", "perplexity", "perplexity_known", gain, "accuracy", accuracy, "parameters", "minutes")
        return lines, [name for name in columns if any(name in line for line in lines)]

    def titles(self) -> dict[str, str]:
        """The differences that there are, and the titles of their columns."""
        first = {name: _first(self.rows, name) for name in ("perplexity", "accuracy")}
        named = {
            "gain": f"gain over {first['perplexity']}",
            "accuracy_difference": f"accuracy above {first['accuracy']}",
        }
        return {name: title for name, title in named.items() if any(row.get(name) is not None for row in self.rows)}

    def notes(self, mark: str = MARK) -> list[str]:
        """What the signs of the table mean, a line each; `mark` is how what is better than all others is marked."""
        several = any(row["trainings"] > 1 for row in self.rows)
        notes = ["± is the standard deviation of trainings"] if several else []
        if self.titles():
            sources = "other texts and other trainings" if several else "other texts"
            notes.append(f"in brackets: what {sources} would make of a difference, 95 times of 100")
        if any(row["ahead"] for row in self.rows):
            notes.append(f"{mark} is better than all others, and by more than that")
        return notes


def compared(models: Sequence[Candidate], seed: int = 0) -> Comparison:
    """Models side by side; differences are of texts that both have read, drawn by `seed`, and of their trainings."""
    rows = [_averaged(model) for model in models]
    for name, (difference, highest) in COMPARED.items():
        there = [at for at, row in enumerate(rows) if row.get(name) is not None]
        own = [_sums(models[at], name) for at in there]
        exact = {place for place, at in enumerate(there) if models[at].exact}
        every = Ratios.of(own, seed, exact) if len(own) > 1 else None
        for place, at in enumerate(there[1:], start=1):
            pair = {number for number, one in enumerate((0, place)) if one in exact}
            if both := every or Ratios.of([own[0], own[place]], seed, pair):
                second = place if every else 1
                found = both.difference(second, 0) if highest else statistics.gain(both.difference(0, second))
                rows[at] |= found.row(difference)
        if every and (best := every.ahead(highest)) is not None:
            rows[there[best]]["ahead"].append(name)
    return Comparison(rows)


def _sums(model: Candidate, name: str) -> list[TextSums]:
    """What the texts add to a figure, a training each; nothing if one of them does not know."""
    return [texts[name] for texts in model.texts] if all(name in texts for texts in model.texts) else []


def _averaged(model: Candidate) -> Row:
    """The figures of a model, of several trainings means; of perplexities geometric ones, as nats are averaged."""
    row: Row = {**model.rows[0], "model": model.name, "trainings": len(model.rows), "ahead": []}
    for name in AVERAGED:
        values = [one[name] for one in model.rows if one.get(name) is not None]
        if len(values) > 1:
            logs = name.startswith("perplexity")
            row[name] = float(np.exp(np.mean(np.log(values))) if logs else np.mean(values))
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    return row


def _first(rows: Sequence[Row], name: str) -> str:
    """The first model that has a figure."""
    return next((str(row["model"]) for row in rows if row.get(name) is not None), "")


def _cells(row: Row, titles: Mapping[str, str]) -> dict[str, str]:
    """The figures of a model as text, without those that it lacks."""
    cells = {"model": str(row["model"])}
    cells |= {name: figure(row, name, form) for name, form in FORMS.items() if row.get(name) is not None}
    cells |= {title: text for name, title in titles.items() if (text := told_difference(name, row))}
    forms = {"parameters": ",.0f", "minutes": ".2f"}
    return cells | {name: format(row[name], form) for name, form in forms.items() if row.get(name) is not None}


def figure(row: Mapping[str, Any], name: str, form: str, mark: str = MARK) -> str:
    """A figure with the standard deviation of its trainings, and the `mark` if it is better than all others."""
    spread = row.get(f"{name}_deviation")
    text = format(row[name], form) + ("" if spread is None else f" ± {spread:{form}}")
    return text + (mark if name in row["ahead"] else "")


def told_difference(name: str, row: Mapping[str, Any]) -> str | None:
    """A difference in `row` as people read it, perplexities as shares and accuracies in points; None if not there."""
    found = Interval.of(row, name)
    return found and found.told(".1f", 100.0, "%" if name.startswith("gain") else " pt")
