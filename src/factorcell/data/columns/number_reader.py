"""The reader of context columns of numbers and times."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig
from factorcell.data.columns.readers import ColumnReader, deviations
from factorcell.data.columns.schema import Variable, wave_parameters
from factorcell.data.columns.values import is_missing, short_repr, to_hour, to_number, to_weekday, to_yearday
from factorcell.io.findings import Finding, report

NOT_A_TIME = "not a {} (ISO 8601, such as 2026-11-21T15:55)"
# For each kind, the parser of its values and the end of the message about a value that the parser cannot read.
NUMBER_PARSERS: dict[str, tuple[Callable[[Any], float | None], str]] = {
    "number": (to_number, "not a number"),
    "longitude": (to_number, "not a number of degrees"),
    "cyclic": (to_number, "not a number"),
    "hour": (to_hour, NOT_A_TIME.format("time of day")),
    "weekday": (to_weekday, NOT_A_TIME.format("date")),
    "yearday": (to_yearday, NOT_A_TIME.format("date")),
}


class NumberReader(ColumnReader):
    """Reads a column of numbers or times; periodic numbers are reduced modulo their period."""

    has_reported = False  # whether a finding has named a number outside its period

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        parse, problem = NUMBER_PARSERS[self.declared_variable.kind]
        numbers = [parse(value) for value in values]
        for row, value, number in zip(rows, values, numbers, strict=True):
            if number is None and not is_missing(value):
                # The user can change the kind of a column only in training.
                can_be_category = not self.is_known and self.declared_variable.kind == "number"
                suggestion = f" (for a category, use {self.column}:category)" if can_be_category else ""
                raise self.error(row, f"is {short_repr(value)}, {problem}{suggestion}")
        array = np.array([math.nan if number is None else number for number in numbers])
        period = self.declared_variable.period
        if period:
            self._report_outside(array, rows)
        self.chunk_arrays.append(array % period if period else array)

    def _report_outside(self, numbers: NDArray[np.float64], rows: Sequence[int]) -> None:
        """Report the first number below minus half its period or above its period."""
        period = self.declared_variable.period
        is_outside = (numbers < -period / 2) | (numbers > period)
        if is_outside.any() and not self.has_reported:
            self.has_reported = True
            first = int(is_outside.argmax())
            value = f"{self.table_name} row {rows[first]}: {self.column} is {numbers[first]:.8g}"
            text = f"{value}, outside {-period / 2:g} to {period:g}; such numbers are read modulo {period:g}"
            report(Finding("outside range", text))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean, standard deviation and range of its numbers.

        A periodic number has no range, but the means and standard deviations of its waves (`wave_parameters`). Its
        values are points on the unit circle, and its mean is the angle of the mean of these points.
        """
        numbers, period = np.concatenate(self.chunk_arrays), self.declared_variable.period
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            raise self.no_values_error()
        if not period:
            return replace(
                self.declared_variable,
                mean=float(numbers.mean()),
                deviation=float(deviations(numbers)),
                low=float(numbers.min()),
                high=float(numbers.max()),
            )
        frequencies, phases = map(np.array, wave_parameters(period))
        wave_values = np.sin(numbers[:, None] * frequencies + phases)
        means = wave_values.mean(0)
        sine_mean, cosine_mean = means[:2]  # of the first two waves, whose period is `period`
        mean = math.atan2(sine_mean, cosine_mean) * period / (2 * math.pi) % period
        # The signed distance of each number from the mean on the circle, from -period / 2 to period / 2.
        distances = (numbers - mean + period / 2) % period - period / 2
        return replace(
            self.declared_variable,
            mean=mean,
            deviation=float(deviations(mean + distances)),
            means=tuple(means.tolist()),
            deviations=tuple(deviations(wave_values).tolist()),
        )
