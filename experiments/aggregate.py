"""Means over trainings, and differences between rows with 95 % intervals over texts and trainings."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums, add_training_variance, gain_from_nats
from study import EXPERIMENTS_FOLDER, Row, grouped_figures

PERPLEXITIES = ("perplexity", "dev_")  # figures with these prefixes have geometric means


def published() -> dict[str, Any]:
    return tomllib.loads((EXPERIMENTS_FOLDER / "published.toml").read_text(encoding="utf-8"))


def relative_gain(value: float, base: float) -> float:
    return 1 - value / base


def paired_difference(ratios: Ratios, first: int, second: int) -> Interval:
    """Return the difference of two models, where training s of one corresponds to training s of the other."""
    differences = ratios.resampled[:, first] - ratios.resampled[:, second]
    interval = bootstrap.percentile_interval(differences, ratios.text_count)
    figures = ratios.training_figures
    return add_training_variance(interval, figures[first] - figures[second], figures[second][:0])


class Rows:
    """The finished trainings of an experiment, grouped by the name of the row."""

    def __init__(self, trainings: Iterable[Row]) -> None:
        self.trainings: dict[str, list[Row]] = {}
        for row in trainings:
            self.trainings.setdefault(row["row"], []).append(row)
        for rows in self.trainings.values():
            rows.sort(key=lambda row: int(row["seed"]))

    def __contains__(self, name: str) -> bool:
        return name in self.trainings

    def __iter__(self) -> Iterator[str]:
        return iter(self.trainings)

    def all(self) -> list[Row]:
        return [row for rows in self.trainings.values() for row in rows]

    def first(self, name: str) -> Row:
        """Return the training with the lowest seed, or an empty dict if the row is missing."""
        return next(iter(self.trainings.get(name, ())), {})

    def renamed(self, names: Mapping[str, str]) -> "Rows":
        return Rows({**row, "row": names[row["row"]]} for row in self.all() if row["row"] in names)

    def __or__(self, other: "Rows") -> "Rows":
        return Rows([*self.all(), *other.all()])

    @cached_property
    def texts(self) -> dict[str, list[Figures]]:
        """The figures of each training of each row, as sums over groups of texts."""
        return {name: [grouped_figures(row) for row in rows] for name, rows in self.trainings.items()}

    def mean(self, name: str, key: str) -> tuple[float, float | None] | None:
        """Return the mean and standard deviation of a figure over trainings; perplexities have geometric means."""
        values = [row[key] for row in self.trainings.get(name, ()) if row.get(key) is not None]
        if not values:
            return None
        logarithmic = key.startswith(PERPLEXITIES)
        mean = float(np.exp(np.mean(np.log(values))) if logarithmic else np.mean(values))
        return mean, float(np.std(values, ddof=1)) if len(values) > 1 else None

    def sums(self, name: str, key: str) -> list[TextSums]:
        """Return the sums of a figure for each training, or an empty list if a training lacks it."""
        trainings = self.texts.get(name, [])
        return [figures[key] for figures in trainings] if all(key in figures for figures in trainings) else []

    def _ratios(self, *figures: tuple[str, str]) -> Ratios | None:
        """Return figures (row, key) over bootstrap draws of their common texts."""
        sums = [self.sums(name, key) for name, key in figures]
        exact = {index for index, (name, _) in enumerate(figures) if self.first(name).get("exact")}
        return Ratios.from_sums(sums, deterministic=exact) if all(sums) else None

    def difference(self, name: str, key: str, base: str, base_key: str = "") -> Interval | None:
        """Return a figure of a row minus a figure of the row `base`."""
        ratios = self._ratios((base, base_key or key), (name, key))
        return None if ratios is None else ratios.difference(1, 0)

    def gain(self, name: str, key: str, base: str, paired: bool = False) -> Interval | None:
        """Return the relative reduction of a perplexity from `base`; `paired` trainings continue those of `base`."""
        ratios = self._ratios((base, key), (name, key))
        if ratios is None:
            return None
        return gain_from_nats(paired_difference(ratios, 0, 1) if paired else ratios.difference(0, 1))

    def relative_increase(self, name: str, key: str, base: str) -> Interval | None:
        """Return the relative increase of a figure compared with the row `base`."""
        ratios = self._ratios((base, key), (name, key))
        if ratios is None or not ratios.resampled[0, 0] > 0:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            increases = ratios.resampled[:, 1] / ratios.resampled[:, 0] - 1
        interval = bootstrap.percentile_interval(increases, ratios.text_count)
        (base_value, increased), (base_figures, figures) = ratios.resampled[0], ratios.training_figures
        return add_training_variance(interval, figures / base_value, base_figures * increased / base_value**2)

    def difference_within(self, name: str, key: str, base_key: str) -> Interval | None:
        """Return a figure minus another figure of the same trainings."""
        figures = [self.sums(name, figure) for figure in (base_key, key)]
        ratios = Ratios.from_sums(figures) if all(figures) else None
        return None if ratios is None else paired_difference(ratios, 1, 0)

    def best_row(self, key: str, names: Sequence[str], highest: bool) -> str | None:
        """Return the row that is significantly better than every other row of `names`, or None."""
        names = [name for name in names if self.sums(name, key)]
        ratios = self._ratios(*((name, key) for name in names)) if len(names) > 1 else None
        index = None if ratios is None else ratios.best_model(highest)
        return None if index is None else names[index]

    def dev_perplexity(self, name: str) -> float:
        """Return the geometric mean of the development perplexity over in-vocabulary targets."""
        return float(np.exp(np.mean([np.log(row["dev"]["perplexity_known"]) for row in self.trainings[name]])))


# ---- text ----


def number(value: float | None, form: str = ".2f", scale: float = 1.0) -> str:
    """Format a number; a missing one gives an empty string."""
    return "" if value is None or np.isnan(value) else f"{scale * value:{form}}"


def spread(values: Sequence[float], form: str = ".2f", scale: float = 1.0) -> str:
    if not values:
        return ""
    mean = number(float(np.mean(values)), form, scale)
    return f"{mean} ± {scale * float(np.std(values, ddof=1)):{form}}" if len(values) > 1 else mean


def interval(value: Interval | Mapping[str, Any] | None, form: str = ".1f", scale: float = 100.0) -> str:
    """Format a difference, or a correlation {r, low, high}, with its interval."""
    if isinstance(value, Mapping):
        value = None if value["r"] is None else Interval(value["r"], value["low"], value["high"])
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return f"{scale * value.point:+{form}}"
    return f"{scale * value.point:+{form}} [{scale * value.low:+{form}}, {scale * value.high:+{form}}]"
