"""What finished rows say together: means over seeds, differences with their intervals, and orders that are no chance.

found = Results.read(study.HERE / "results", "tacl_agnews")
found.row("factorcell")["gain_known"]       # over the first row, with gain_known_low and gain_known_high
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import study
from factorcell import files
from factorcell.bootstrap import Interval
from factorcell.evaluation.comparison import AVERAGED, Candidate, compared, figure
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import TextSums
from study import Row


@dataclass(frozen=True)
class Results:
    """The finished rows of an experiment, the one that gains are measured from first."""

    candidates: Sequence[Candidate]

    @classmethod
    def read(cls, folder: Path, name: str, base: str = "unadapted") -> "Results":
        """Those of FOLDER/NAME.jsonl; none where there is no such file."""
        return cls.of(files.read_rows(folder / f"{name}.jsonl"), base)

    @classmethod
    def of(cls, rows: Sequence[Row], base: str = "unadapted") -> "Results":
        """The trainings `rows`, those of one name together."""
        names = sorted(dict.fromkeys(row["row"] for row in rows), key=lambda name: name != base)
        found = {
            name: sorted((row for row in rows if row["row"] == name), key=lambda row: row["seed"]) for name in names
        }
        return cls([Candidate(name, found[name], [study.ungrouped(row) for row in found[name]]) for name in names])

    @cached_property
    def averaged(self) -> Mapping[str, Row]:
        """By name: the figures of a row, means over its seeds, and its gains over the first."""
        if not self.candidates:
            return {}
        rows = compared(self.candidates)
        return {one.name: {**row, **means(one.rows)} for one, row in zip(self.candidates, rows, strict=True)}

    def dev(self, name: str) -> float:
        """The perplexity of known targets on dev, by which rows are chosen; a geometric mean over seeds."""
        rows = next(one.rows for one in self.candidates if one.name == name)
        return float(np.exp(np.mean([np.log(row["dev"]["perplexity_known"]) for row in rows])))

    def __contains__(self, name: str) -> bool:
        return name in self.averaged

    def row(self, name: str) -> Row:
        """The figures of a row; nothing if it is not finished."""
        return self.averaged.get(name, {"ahead": []})

    def shown(self, name: str, key: str, form: str = ".2f", scale: float = 1.0) -> str:
        """A figure of a row as a table has it, the best in bold; empty where there is none."""
        row = self.row(name)
        if row.get(key) is None:
            return ""
        ends = {part: scale * row[part] for part in (key, f"{key}_deviation") if row.get(part) is not None}
        text = figure({**ends, "ahead": []}, key, form)
        return f"**{text}**" if key in row["ahead"] else text

    def gain(self, name: str, key: str = "gain_known") -> str:
        """What a row gains over the first, with its interval; empty for the first."""
        found = Interval.of(self.row(name), key)
        return "" if found is None else found.told(".1f", 100.0, "%")

    def agreement(self, key: str, printed: Mapping[str, float]) -> str:
        """One line: in how many pairs of rows our order is no chance, and in how many of them it is the printed one."""
        sums = {one.name: self._sums(one, key) for one in self.candidates if one.name in printed}
        names = [name for name, own in sums.items() if own]
        drawn = Ratios.of([sums[name] for name in names]) if len(names) > 1 else None
        if drawn is None:
            return "Fewer than two rows are finished.\n"
        pairs = list(itertools.combinations(range(len(names)), 2))
        sure = [(drawn.difference(a, b).sign, names[a], names[b]) for a, b in pairs]
        told = [(sign, printed[a] - printed[b]) for sign, a, b in sure if sign and printed[a] != printed[b]]
        same = sum((difference > 0) == (sign > 0) for sign, difference in told)
        return (
            f"Of {len(pairs)} pairs of rows, {sum(sign != 0 for sign, _, _ in sure)} differ by more than chance; "
            f"{same} of {len(told)} stand in the printed order.\n"
        )

    @staticmethod
    def _sums(candidate: Candidate, key: str) -> list[TextSums]:
        return [texts[key] for texts in candidate.texts] if all(key in texts for texts in candidate.texts) else []


def means(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Of figures that no texts are kept of: means over seeds, and standard deviations where there are several."""
    names = [name for name, value in rows[0].items() if isinstance(value, float) and name not in AVERAGED]
    found = {name: [row[name] for row in rows] for name in names}
    made = {name: float(np.mean(values)) for name, values in found.items()}
    if len(rows) > 1:
        made |= {f"{name}_deviation": float(np.std(values, ddof=1)) for name, values in found.items()}
    return made
