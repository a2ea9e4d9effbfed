"""Rows of a result as a list that converts itself to a data frame."""

import importlib
from typing import Any

from factorcell.errors import UserError

Row = dict[str, Any]


class ResultRows(list[Row]):
    """A list of rows (dicts from column to value) that can become a data frame.

    run.score_rows(["lovely stay"]).to_pandas()
    """

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; a value that a row lacks is missing.

        A column of dicts becomes one column for each key: `probabilities` of `Oslo` becomes `probabilities.Oslo`.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UserError("pandas is not installed: pip install pandas") from None
        return pandas.json_normalize(self)
