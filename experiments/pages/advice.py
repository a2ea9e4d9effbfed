"""The table of docs/advice.md: what the advice expects of the context of each set, beside what trained models gain."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tacl
from advice import ALL, FIGURES, SCOTUS
from factorcell.bootstrap import Interval
from factorcell.evaluation.statistics import rank_correlation
from pages.markdown import with_none
from pages.overview import Read
from pages.results import SEEDS, Results, of_variables, rows_of
from study import Row
from tacl_beyond import MODEL
from thesis_variables import VARIABLES

FEW = 5  # sets, of which no correlation is told
WITHIN = 2.0  # times as much or as little as was expected


class Line(NamedTuple):
    """A set and its columns, the advice on them, and what was gained."""

    name: str
    columns: str
    advice: Mapping[str, float]
    gained: Interval

    @property
    def near(self) -> bool:
        """Whether the gain lies within a factor of `WITHIN` of what was expected."""
        return self.advice["expected"] / WITHIN <= self.gained.point <= self.advice["expected"] * WITHIN

    @property
    def between(self) -> bool:
        """Whether it lies between the least and the most."""
        return self.advice["least"] <= self.gained.point <= self.advice["most"]


def lines(read: Read) -> list[Line]:
    """Where there are advice and trained models; of oral arguments each column by itself too."""
    advice: dict[str, Row] = {row["row"]: row["advice"] for row in rows_of(read("advice"))}
    found = [_line(name, ALL, read(f"tacl_{name}").row(MODEL), advice) for name in tacl.SETS]
    scotus = Results.of(of_variables(rows_of(read("variables", "none")), rows_of(read(SCOTUS))), "none")
    found += [_line(SCOTUS, column, scotus.row(column), advice) for column in VARIABLES]
    found.append(_line(SCOTUS, ALL, scotus.row("+".join(VARIABLES)), advice))
    return [one for one in found if one is not None]


def _line(name: str, column: str, row: Row, advice: Mapping[str, Row]) -> Line | None:
    """None where there is no advice, or where fewer than `SEEDS` models are trained."""
    gained = Interval.of(row, "gain_known")
    if gained is None or row.get("trainings", 0) < SEEDS or name not in advice:
        return None
    columns = column or ", ".join(key for key in advice[name] if key != ALL)
    return Line(name, columns, advice[name][column], gained)


def table(read: Read) -> str:
    """The lines in Markdown, and how well the gains were foreseen."""
    header = ["texts", "columns", *FIGURES, "gained, known targets"]
    found = lines(read)
    rows = [
        [one.name, one.columns, *(f"{one.advice[key]:.1%}" for key in FIGURES), one.gained.told(".1f", 100.0, "%")]
        for one in found
    ]
    return with_none(header, rows) + (f"\n{told(found)}" if found else "")


def told(found: Sequence[Line]) -> str:
    """How many gains come near what was expected, and, of more than a few, whether the order is foreseen."""
    near, between = sum(one.near for one in found), sum(one.between for one in found)
    said = (
        f"Of {len(found)} gains {near} are within a factor of two of what was expected, {between} between both ends.\n"
    )
    r = rank_correlation([one.advice["expected"] for one in found], [one.gained.point for one in found])
    if len(found) <= FEW or r["r"] is None:
        return said
    ends = f"interval of 95 % from {r['low']:.2f} to {r['high']:.2f}"
    return f"{said}Expected and gained have a rank correlation of {r['r']:.2f} (n = {r['n']}, {ends}).\n"
