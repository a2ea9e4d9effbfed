"""How well the other context variables predict a target, measured on development texts whose words are not read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorcell.bootstrap import Interval

MIN_ADVANTAGE = 0.1  # accuracy above the majority class from which the other variables are reported to predict a target

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Dependence:
    """How well the other variables of development texts predict a target; the words of the texts are not read.

    Attributes:
        target: The target.
        accuracy: The accuracy of predicting the value with the highest prior, given all other variables.
        majority: The accuracy of always predicting the most frequent value of the training texts.
        advantage: The difference of the two accuracies, with its interval.
        variables: The variable that alone predicts the target best.
    """

    target: str
    accuracy: float
    majority: float
    advantage: Interval
    variables: tuple[str, ...]

    @property
    def is_strong(self) -> bool:
        """Whether the advantage is significantly larger than `MIN_ADVANTAGE`."""
        return self.advantage.low is not None and self.advantage.low > MIN_ADVANTAGE

    def to_row(self) -> Row:
        """Return the fields for a file, without the target."""
        figures = {"accuracy": self.accuracy, "majority": self.majority, "variables": [*self.variables]}
        return {**figures, **self.advantage.to_row("advantage")}

    @classmethod
    def from_row(cls, target: str, row: Row) -> "Dependence | None":
        """Return the dependence with the fields of a file; None if the file lacks its interval or its variables."""
        advantage = Interval.from_row(row, "advantage")
        if advantage is None or "variables" not in row:
            return None
        return cls(target, float(row["accuracy"]), float(row["majority"]), advantage, tuple(row["variables"]))
