"""Lists of different lengths in flat arrays."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ragged(NamedTuple):
    """Lists of different lengths, one per row.

    Attributes:
        values: The items of all lists, one list after the other.
        offsets: The index of the first item of each list, followed by the number of items (rows + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> "Ragged":
        """Return the lists of `rows`, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shifts = self.offsets[rows] - offsets[:-1]  # from the index of an item in the result to its index here
        indices = np.repeat(shifts, lengths) + np.arange(offsets[-1])
        return Ragged(self.values[indices], offsets)
