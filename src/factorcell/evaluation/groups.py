"""Groups of rows by the values of a column, for figures that are reported per group."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from factorcell.data.tables import open_table
from factorcell.data.values import is_missing, name_or_none, to_number

RANGES = 5  # quantile ranges that stand for the values of a numeric column
MISSING_GROUP = "(missing)"


def column_groups(source: Any, column: str) -> list[str]:
    """Return the group of each row of a table by `value_groups` of one column.

    Raises:
        UserError: The table lacks the column.
    """
    return value_groups([value for chunk in open_table(source).chunks([column]) for value in chunk[column]])


def value_groups(values: Sequence[Any]) -> list[str]:
    """Return the group of each value: its name, or one of `RANGES` quantile ranges; `MISSING_GROUP` if it is missing.

    Ranges are used where all values that are present are numbers, and more than 4 * `RANGES` of them are distinct.
    """
    numbers = {row: to_number(value) for row, value in enumerate(values) if not is_missing(value)}
    if None in numbers.values() or len(set(numbers.values())) <= 4 * RANGES:
        return [name_or_none(value) or MISSING_GROUP for value in values]
    array = np.array(list(numbers.values()), dtype=np.float64)
    edges = np.unique(np.quantile(array, np.linspace(0, 1, RANGES + 1)))
    which = np.clip(np.searchsorted(edges, array, side="right") - 1, 0, len(edges) - 2)
    groups = [MISSING_GROUP] * len(values)
    for row, index in zip(numbers, which.tolist(), strict=True):
        groups[row] = f"{edges[index]:.4g} to {edges[index + 1]:.4g}"
    return groups
