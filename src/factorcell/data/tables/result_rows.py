"""Rows of a result as a list that converts itself to the tables of other libraries."""

import importlib
from typing import Any

import pyarrow as pa

from factorcell.data.tables.arrow import one_line
from factorcell.errors import UserError

Row = dict[str, Any]


class ResultRows(list[Row]):
    """A list of rows (dicts from column to value) that can become an Arrow table, a data frame or a data set.

        run.score_rows(["lovely stay"]).to_pandas()

    A column of dicts becomes one column for each key: `probabilities` of `Oslo` becomes `probabilities.Oslo`.
    """

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`; a value that a row lacks is null.

        Raises:
            UserError: The values of a column have different types.
        """
        columns = {}
        for name in dict.fromkeys(name for row in self for name in row):
            try:
                columns[name] = pa.array([row.get(name) for row in self])
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UserError(f"column {name}: expected values of one type ({one_line(error)})") from None
        return pa.table(columns).flatten()

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises:
            UserError: pandas is not installed, or the values of a column have different types.
        """
        try:
            importlib.import_module("pandas")  # Arrow needs it to convert the table
        except ImportError:
            raise UserError("pandas is not installed: pip install pandas") from None
        return self.to_arrow().to_pandas()

    def to_dataset(self) -> Any:
        """Return the rows as a `datasets.Dataset` of Hugging Face.

        Raises:
            UserError: The library `datasets` is not installed, or the values of a column have different types.
        """
        try:
            datasets = importlib.import_module("datasets")
        except ImportError:
            raise UserError("datasets is not installed: pip install datasets") from None
        return datasets.Dataset(self.to_arrow())
