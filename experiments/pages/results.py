"""What finished rows say together: means over seeds, differences with their intervals, and orders that are no chance.

found = Results.read(study.HERE / "results", "tacl_agnews")
found.row("factorcell")["gain_known"]       # over the first row, with gain_known_low and gain_known_high
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import study
from factorcell import bootstrap, files
from factorcell.bootstrap import Interval
from factorcell.evaluation import statistics
from factorcell.evaluation.comparison import AVERAGED, COMPARED, Candidate, compared, figure
from factorcell.evaluation.statistics import Ratios, widened
from factorcell.evaluation.text_figures import TextSums
from study import Row
from tacl_baselines import CLASSIFIERS
from tacl_baselines import ROWS as BASELINES
from thesis_sixteen import WHOLE
from thesis_sparse import TRIALS
from thesis_variables import VARIABLES

SEEDS = 3  # trainings of a row, at least, before anything is said of it
MARGIN = 0.01  # of a perplexity or a rank: papers print one training each, so what lies closer is no order of theirs
POINT = 1.0  # of shares in per cent, likewise
SHARES = ("accuracy", "specificity", "auc", "macro_f1", "town_commonest")
PERPLEXITIES = ("perplexity", "said", "dev_")  # how their names begin
DIFFERENCES = tuple(name for name, _ in COMPARED.values())  # how figures begin that are measured from the first row
ENOUGH = 0.5  # of the pairs that are told apart in print more than that have to differ here
NEARLY_ALL = 0.95  # of those have to stand as printed: one in forty would not by chance alone

AGREES, DISAGREES, UNTOLD = "agrees", "disagrees", "cannot be told"
OTHERS = tuple(name for name in BASELINES if name not in CLASSIFIERS)  # language models beside those of a paper
LEAST = 50  # titles of a community whose perplexity is told

Published = Mapping[str, list[float]]


def apart(key: str, one: float, other: float) -> bool:
    """Whether two printed figures differ by more than one training of each could make of them."""
    return abs(one - other) > (POINT if key in SHARES else MARGIN * min(one, other))


@dataclass(frozen=True)
class Orders:
    """Pairs of rows that a paper tells apart, and of these those that differ here (`sure`).

    Of all pairs of two printed figures, however close, so many `differ` here, and of those have the `same` order.
    `lacking` rows have fewer than `SEEDS` trainings. Of pairs the other way round `turned` is the one that print tells
    furthest apart. Where all that differ are of one row, that is `alone`.
    """

    printed: int = 0
    sure: int = 0
    differ: int = 0
    same: int = 0
    lacking: int = 0
    turned: tuple[str, ...] = ()
    alone: str = ""

    @classmethod
    def of(
        cls,
        key: str,
        printed: Mapping[str, float],
        found: Mapping[tuple[str, str], Interval],
        trainings: Mapping[str, int],
    ) -> "Orders":
        """What the differences `found` of pairs of rows say of figures `printed`, each row of so many `trainings`."""
        far = {pair for pair in itertools.combinations(printed, 2) if apart(key, *(printed[name] for name in pair))}
        differ = {pair: one.sign for pair, one in found.items() if one.sign and printed[pair[0]] != printed[pair[1]]}
        other = [(a, b) for (a, b), sign in differ.items() if sign != np.sign(printed[a] - printed[b])]
        lacking = sum(trainings.get(name, 0) < SEEDS for name in printed)
        turned = max(other, key=lambda pair: abs(printed[pair[0]] - printed[pair[1]]), default=())
        alone = next((name for name in printed if len(differ) > 1 and all(name in pair for pair in differ)), "")
        return cls(len(far), len(far & differ.keys()), len(differ), len(differ) - len(other), lacking, turned, alone)

    def __str__(self) -> str:
        return (
            f"of {self.printed} pairs told apart in print {self.sure} differ here beyond chance; "
            f"of all {self.differ} that do {self.same} stand as printed.\n"
        )

    @property
    def verdict(self) -> str:
        """What our rows say of the printed order."""
        if self.lacking or self.sure <= ENOUGH * self.printed:
            return UNTOLD
        return AGREES if self.same >= NEARLY_ALL * self.differ else DISAGREES

    @property
    def why(self) -> str:
        """What the verdict rests on."""
        if self.lacking:
            return f"{self.lacking} {'row' if self.lacking == 1 else 'rows'} lacking"
        if self.verdict == UNTOLD:
            return f"{self.sure} of {self.printed} differ"
        told = f"{self.same} of {self.differ} as printed" + (f", all against {self.alone}" if self.alone else "")
        return f"{told}, not {' and '.join(self.turned)}" if self.turned and self.verdict == DISAGREES else told


@dataclass(frozen=True)
class Results:
    """The finished rows of an experiment, first `base`, which gains are measured from; without it there are none."""

    candidates: Sequence[Candidate]
    base: str = ""

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
        return cls([candidate(name, found[name]) for name in names], base)

    @cached_property
    def averaged(self) -> Mapping[str, Row]:
        """By name: the figures of a row, means over its seeds, and its gains over the first."""
        if not self.candidates:
            return {}
        rows: Sequence[Row] = compared(self.candidates).rows
        if self.candidates[0].name != self.base:
            rows = [{key: value for key, value in row.items() if not key.startswith(DIFFERENCES)} for row in rows]
        return {one.name: {**row, **means(one.rows)} for one, row in zip(self.candidates, rows, strict=True)}

    def dev(self, name: str) -> float:
        """The perplexity of known targets on dev, by which rows are chosen; a geometric mean over seeds."""
        return float(np.exp(np.mean([np.log(row["dev"]["perplexity_known"]) for row in self.trainings(name)])))

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

    def above(self, name: str, key: str, base: str) -> Interval | None:
        """By what share a figure of a row lies above that of the row `base`, over texts and trainings; None without."""
        drawn = self._pair(name, key, base)
        if drawn is None or not drawn.drawn[0, 0] > 0:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            found = bootstrap.middle(drawn.drawn[:, 1] / drawn.drawn[:, 0] - 1, drawn.texts)
        below, above = drawn.drawn[0]
        return widened(found, drawn.trained[1] / below, drawn.trained[0] * above / below**2)

    def difference(self, name: str, key: str, base: str, other: str = "") -> Interval | None:
        """By how much a figure of a row lies above that of the row `base`, over texts and trainings; None without.

        The row `base` may have it by an `other` name.
        """
        drawn = self._pair(name, key, base, other)
        return None if drawn is None else drawn.difference(1, 0)

    def within(self, name: str, key: str, base: str, level: float = statistics.LEVEL) -> Interval | None:
        """By how much a figure of a row lies above another one of the same trainings, over texts; None without."""
        own = next((one.texts for one in self.candidates if one.name == name), ())
        if not all(key in texts and base in texts for texts in own):
            return None
        both = Ratios.of([[texts[base] for texts in own], [texts[key] for texts in own]])
        return None if both is None else both.difference(1, 0, True, level)

    def lower(self, name: str, key: str, base: str, paired: bool = False) -> Interval | None:
        """By what share a perplexity of a row lies below that of the row `base`; None without.

        Where its trainings are those of `base` that went on, they are `paired` by seed.
        """
        drawn = self._pair(name, key, base)
        if paired and self.seeds(name) != self.seeds(base):
            return None
        return None if drawn is None else statistics.gain(drawn.difference(0, 1, paired))

    def trainings(self, name: str) -> list[Row]:
        """Those of a row."""
        return [dict(row) for one in self.candidates if one.name == name for row in one.rows]

    def seeds(self, name: str) -> list[int]:
        """The seeds of a row."""
        return [row["seed"] for row in self.trainings(name)]

    def _pair(self, name: str, key: str, base: str, other: str = "") -> Ratios | None:
        """The figures of the row `base` and of a row, by texts that are drawn again."""
        rows = {one.name: one for one in self.candidates}
        named = {base: other or key, name: key}
        both = [rows[each] for each in named if each in rows]
        sums = [self._sums(one, named[one.name]) for one in both]
        exact = {place for place, one in enumerate(both) if one.exact}
        return Ratios.of(sums, exact=exact) if len(sums) == 2 and all(sums) else None

    def units(self, name: str, key: str) -> tuple[int, int]:
        """Of how many groups of users or texts a figure of a row is, and of how many texts."""
        texts = next(one.texts for one in self.candidates if one.name == name)[0][key]
        return int(np.count_nonzero(texts.below)), int(texts.below.sum())

    def first(self, name: str) -> Row:
        """The row of the first seed; nothing if it is not finished."""
        return next(iter(self.trainings(name)), {})

    def orders(self, key: str, printed: Mapping[str, float], named: Mapping[str, str] | None = None) -> "Orders":
        """What our rows, by the names `named`, say of the order of the figures `printed`."""
        named = named or {name: name for name in printed}
        rows = {one.name: one for one in self.candidates}
        own = {name: self._sums(rows[named[name]], key) for name in printed if named.get(name) in rows}
        own = {name: sums for name, sums in own.items() if sums}
        places = {name: place for place, name in enumerate(own)}
        exact = {places[name] for name in own if rows[named[name]].exact}
        drawn = Ratios.of(list(own.values()), exact=exact) if len(own) > 1 else None
        found = {
            (a, b): drawn.difference(places[a], places[b])
            for a, b in itertools.combinations(own, 2)
            if drawn is not None
        }
        trainings = {name: SEEDS if places[name] in exact else len(sums) for name, sums in own.items()}
        return Orders.of(key, printed, found, trainings)

    def orders_of_trainings(self, key: str, printed: Mapping[str, float]) -> "Orders":
        """The same of a figure that no texts are kept of: by how its trainings spread."""
        rows = {one.name: [row[key] for row in one.rows if key in row] for one in self.candidates}
        own = {name: np.array(rows[name]) for name in printed if rows.get(name)}
        found = {}
        for a, b in itertools.combinations(own, 2):
            point = float(own[a].mean() - own[b].mean())
            found[a, b] = widened(Interval(point, point, point), own[a], own[b])
        return Orders.of(key, printed, found, {name: len(values) for name, values in own.items()})

    @staticmethod
    def _sums(candidate: Candidate, key: str) -> list[TextSums]:
        return [texts[key] for texts in candidate.texts] if all(key in texts for texts in candidate.texts) else []


def candidate(name: str, rows: Sequence[Row]) -> Candidate:
    """The trainings of a row."""
    return Candidate(name, rows, [study.ungrouped(row) for row in rows], exact=rows[0].get("exact", False))


def means(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Of figures that `AVERAGED` has not: means over seeds, and standard deviations where there are several.

    Those of perplexities are geometric.
    """
    names = [name for name, value in rows[0].items() if isinstance(value, float) and name not in AVERAGED]
    found = {name: [row[name] for row in rows] for name in names}
    made = {
        name: float(np.exp(np.mean(np.log(values))) if name.startswith(PERPLEXITIES) else np.mean(values))
        for name, values in found.items()
    }
    if len(rows) > 1:
        made |= {f"{name}_deviation": float(np.std(values, ddof=1)) for name, values in found.items()}
    return made


# ---- what is made of rows and of print ----


def published() -> dict[str, Any]:
    """What the papers and their code print."""
    return tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))


def perplexities(printed: Published) -> dict[str, float]:
    """The first figure of each printed row."""
    return column(printed, 0)


def accuracies(printed: Published) -> dict[str, float]:
    """The second figure of each printed row that has one."""
    return column(printed, 1)


def column(printed: Published, place: int) -> dict[str, float]:
    """The figure at a place of each printed row that has so many."""
    return {name: row[place] for name, row in printed.items() if len(row) > place}


def gain(value: float | None, base: float | None) -> float | None:
    """By what share `value` lies below `base`."""
    return None if value is None or base is None else 1 - value / base


def rows_of(found: Results) -> list[Row]:
    """All trainings."""
    return [dict(row) for one in found.candidates for row in one.rows]


def of_variables(rows: Sequence[Row], scotus: Sequence[Row]) -> list[Row]:
    """The rows of table 3.8, of which the first, the last and the other language models come from table 3.7."""
    names = {"unadapted": "none", WHOLE: "+".join(VARIABLES), **{name: name for name in OTHERS}}
    return [*rows, *({**row, "row": names[row["row"]]} for row in scotus if row["row"] in names)]


def chosen(found: Results, kind: str) -> str | None:
    """Of a kind of bias the row whose penalty suits dev best; None where none is trained."""
    tried = [name for name in (kind, *(f"{kind}-{number + 1}" for number in range(TRIALS))) if name in found]
    return min(tried, key=found.dev, default=None)


class Community(NamedTuple):
    """How many titles there are of one, and the perplexity that each row has on them, a geometric mean over seeds."""

    titles: int
    perplexities: Mapping[str, float]

    def gain(self, row: str, base: str) -> float:
        """By what share the perplexity of a row lies below that of the row `base`."""
        return gain(self.perplexities[row], self.perplexities[base]) or 0.0


def communities(found: Results) -> dict[str, Community]:
    """Communities with at least `LEAST` titles, by name."""
    counts: dict[str, int] = {}
    means: dict[str, dict[str, float]] = {}
    for candidate in found.candidates:
        tables = [{entry["value"]: entry for entry in row["by"]} for row in candidate.rows]
        for name, entry in tables[0].items():
            counts[name] = entry["count"]
            logs = [np.log(table[name]["perplexity"]) for table in tables]
            means.setdefault(name, {})[candidate.name] = float(np.exp(np.mean(logs)))
    return {name: Community(counts[name], of) for name, of in means.items() if counts[name] >= LEAST}
