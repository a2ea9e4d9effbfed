"""Verdicts: whether what finished rows say of a printed table or figure agrees with it, by `results.Orders`."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.comparison import COMPARED
from factorcell.evaluation.statistics import INTERVAL, rank_correlation
from pages import finetuning, trials, words
from pages.correlations import pooled
from pages.markdown import shown
from pages.results import (
    AGREES,
    DISAGREES,
    MARGIN,
    POINT,
    SEEDS,
    UNTOLD,
    Published,
    Results,
    accuracies,
    communities,
    gain,
    perplexities,
)
from study import Row
from thesis_queries import LENGTHS
from thesis_subreddits import ADAPTED, UNADAPTED

KNOWN = "perplexity_known"  # what the TACL paper and appendix A count; chapter 3 counts all targets
NO_ROW = "no row"
WORDS = "words, no figures"  # why nothing can be told of texts that a model writes, and of neighbours
USERS, TEXTS = 30, 300  # of whom, and of which, a verdict on a kind of texts needs so many

FEW = f"fewer than {SEEDS} seeds"

Names = Mapping[str, str] | None


class Line(NamedTuple):
    """A table or a figure: where it is printed, what it is, our command and figure, the printed one, the verdict."""

    where: str
    what: str
    command: str = ""
    ours: str = ""
    printed: str = ""
    verdict: str = UNTOLD
    why: str = WORDS


def both(line: Line, found: Results, printed: Published, row: str, key: str = "perplexity") -> list[Line]:
    """Two lines of rows: of perplexities, and of how often the right value is told, where print has that."""
    return [measured(line, found, printed, row, key), *right(line, found, printed, row)]


def measured(
    line: Line, found: Results, printed: Published, row: str, key: str = "perplexity", names: Names = None
) -> Line:
    """A line of rows: the gain of `row` over the first, and whether the orders are the printed ones.

    `key` is of the targets that print counts; our rows go by other `names` than the printed ones where these are given.
    """
    first = next(iter(printed))
    theirs = shown(gain(printed[row][0], printed[first][0]), "+.1%")
    if not found.candidates:
        return line._replace(ours=NO_ROW, printed=theirs, why="not trained")
    orders = found.orders(key, perplexities(printed), names)
    own = Interval.of(found.row(names.get(row, row) if names else row), COMPARED[key][0])
    ours = NO_ROW if own is None else f"{own.point:+.1%}"
    return line._replace(ours=ours, printed=theirs, verdict=orders.verdict, why=orders.why)


def right(line: Line, found: Results, printed: Published, row: str) -> list[Line]:
    """A line of how often the rows tell the right value, that of `row`; none where print has no accuracies."""
    told = accuracies(printed)
    line = line._replace(what=f"{line.what}, accuracy", printed=f"{told.get(row, 0.0):.1f}%")
    if not told:
        return []
    if not found.candidates:
        return [line._replace(ours=NO_ROW, why="not trained")]
    orders, ours = found.orders("accuracy", told), found.row(row).get("accuracy")
    return [line._replace(ours=shown(ours, ".1%") or NO_ROW, verdict=orders.verdict, why=orders.why)]


def by_trainings(line: Line, found: Results, key: str, printed: Mapping[str, float], row: str) -> Line:
    """A line of a figure that no texts are kept of, that of `row`: whether its orders over trainings are those."""
    line = line._replace(printed=f"{printed[row]:.1f}%")
    if not found.candidates:
        return line._replace(ours=NO_ROW, why="not trained")
    orders, ours = found.orders_of_trainings(key, printed), found.row(row).get(key)
    return line._replace(ours=shown(ours, ".1%") or NO_ROW, verdict=orders.verdict, why=orders.why)


def correlated(line: Line, found: Results, printed: Published) -> Line:
    """A line of gains a community: whether those gain most here that gain most in print, by their ranks."""
    both = (ADAPTED, UNADAPTED)
    if any(name not in found for name in both):
        return line._replace(ours=NO_ROW, why="not trained")
    every = communities(found)
    names = [name for name in printed if name in every]
    ours = [every[name].gain(*both) for name in names]
    theirs = [gain(printed[name][1], printed[name][0]) or 0.0 for name in names]
    rank = rank_correlation(ours, theirs)
    if rank["low"] is None or any(len(found.seeds(name)) < SEEDS for name in both):
        return line._replace(ours=NO_ROW, why=FEW)
    told = f"ranks {rank['r']:+.2f}"
    verdict = AGREES if rank["low"] > 0 else DISAGREES if rank["high"] < 0 else UNTOLD
    return line._replace(ours=told, verdict=verdict, why=f"{len(names)} communities")


def ordered(line: Line, found: Results, key: str, printed: Mapping[str, float], form: str) -> Line:
    """A line of a figure `key`: that of the last printed model, and whether the orders are the printed ones."""
    if not found.candidates:
        return line._replace(ours=NO_ROW, why="not trained")
    ours, orders = found.row(list(printed)[-1]).get(key), found.orders(key, printed)
    return line._replace(ours=shown(ours, form) or NO_ROW, verdict=orders.verdict, why=orders.why)


def opposed(line: Line, sets: Mapping[str, Sequence[Row]]) -> Line:
    """A line of trials: that the SoftmaxBias models of better perplexity are worse at telling contexts apart."""
    found = [trials.together(rows, "softmaxbias") for rows in sets.values()]
    if any(one["n"] < trials.LEAST for one in found):
        return line._replace(ours=NO_ROW, why="not trained")
    return going_along(line, pooled(found), 1)


def traded(line: Line, rows: Sequence[Row], printed: float) -> Line:
    """A line of trials: that the model chosen by accuracy tells so much more apart than that chosen by perplexity."""
    found = trials.traded(rows)
    if found is None:
        return line._replace(ours=NO_ROW, why="not trained")
    return effect(line._replace(ours=f"{100 * found.point:+.1f} points"), found, printed, POINT / 100)


def normalised(line: Line, found: Results, name: str, base: str, printed: Published) -> Line:
    """A line of what the row `name` gains over `base` in perplexity of known targets, as much as in print."""
    theirs = gain(printed[name][0], printed[base][0]) or 0.0
    line = line._replace(printed=f"{theirs:+.1%}")
    if name not in found or base not in found:
        return line._replace(ours=NO_ROW, why="not trained")
    if lacking(found, name, base):
        return line._replace(ours=NO_ROW, why=FEW)
    gained = found.lower(name, KNOWN, base)
    if gained is None:
        return line._replace(ours=NO_ROW, why="of other texts")
    return effect(line._replace(ours=f"{gained.point:+.1%}"), gained, theirs, MARGIN)


def lacking(found: Results, *names: str) -> bool:
    """Whether one of these rows has too few trainings for anything to be said of it."""
    return any(len(found.seeds(name)) < SEEDS for name in names)


def effect(line: Line, found: Interval, printed: float, margin: float) -> Line:
    """A line of an effect, above zero in print: one above zero agrees, one surely short of print disagrees."""
    if found.low is None or found.high is None:
        return line._replace(why="fewer texts than an interval wants")
    told = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
    if found.sign > 0:
        return line._replace(verdict=AGREES, why=told)
    return line._replace(verdict=DISAGREES if found.high < printed - margin else UNTOLD, why=told)


def penalised(line: Line, found: Results) -> Line:
    """A line of fine-tunings: that no penalty is better than none by a margin, as the thesis found."""
    every = [finetuning.gained(found, *case) for case in finetuning.CASES if finetuning.moved(found, *case)]
    cases = [case for case in every if case is not None]
    gains = [surely(case, len(cases), MARGIN) for case in cases]
    none = all(case.high is not None and case.high < MARGIN for case in cases)
    if not gains or len(found.candidates[0].rows) < SEEDS:
        return line._replace(ours=NO_ROW, why="not trained" if not gains else FEW)
    told = f"{sum(gains)} of {len(gains)} gain over {MARGIN:.0%}"
    verdict = DISAGREES if any(gains) else AGREES if none else UNTOLD
    return line._replace(ours=told, verdict=verdict, why="of domains and parts")


def surely(found: Interval, tries: int, least: float) -> bool:
    """Whether a gain is above the `least`, as one of so many `tries`, of which one in forty is by chance alone."""
    if found.low is None:
        return False
    wider = NormalDist().inv_cdf(1 - 0.025 / tries) / INTERVAL
    return found.point - least > wider * (found.point - found.low)


def no_better(line: Line, found: Results, plain: str | None, more: str | None) -> Line:
    """A line of two rows of which the second has a part `more`: that it gains nothing by it, as the thesis found."""
    if plain is None or more is None or plain not in found:
        return line._replace(ours=NO_ROW, why="not trained")
    if lacking(found, plain, more):
        return line._replace(ours=NO_ROW, why=FEW)
    gained = found.lower(more, KNOWN, plain)
    if gained is None or gained.high is None:
        return line._replace(ours=NO_ROW, why="of other texts")
    verdict = DISAGREES if surely(gained, 1, MARGIN) else AGREES if gained.high < MARGIN else UNTOLD
    return line._replace(ours=f"{gained.point:+.1%}", verdict=verdict, why=f"at most {gained.high:+.1%}")


def grouped(line: Line, found: Results, column: str) -> Line:
    """A line of a map: whether nearest neighbours are alike more often than by chance."""
    more = words.nearer(found, PAPER_MODELS[-1], column)
    hotels, same, chance, *_ = words.alike(found, PAPER_MODELS[-1], column)
    if more is None or lacking(found, PAPER_MODELS[-1]):
        return line._replace(ours=NO_ROW, why="not trained" if more is None else FEW)
    verdict = {1: AGREES, 0: UNTOLD, -1: DISAGREES}[more.sign]
    return line._replace(ours=f"{same}% alike, {chance}% by chance", verdict=verdict, why=f"of {hotels} hotels")


def going_along(line: Line, found: Row, sign: int) -> Line:
    """A line of a correlation that is above zero in print, or below, or neither, as `sign` says."""
    if found["low"] is None or found["n"] < trials.LEAST:
        return line._replace(ours=NO_ROW, why="not trained")
    ours = Interval(found["r"], found["low"], found["high"]).sign
    verdict = UNTOLD if ours == 0 else AGREES if ours == sign else DISAGREES
    return line._replace(ours=f"r {found['r']:+.2f}", verdict=verdict, why=f"{found['n']} models")


def further(line: Line, found: Results, key: str) -> Line:
    """A line of a figure that the FactorCell is further ahead in than the ConcatCell, as print has it."""
    gained = found.above("factor", key, "concat")
    return _of_users(line, found, "concat", gained, (key,), "+.1%")


def sooner(line: Line, found: Results) -> Line:
    """A line of what personal completion gains in ranks: more after short prefixes than after long ones, in print."""
    keys = [f"mrr_prefix_{LENGTHS['prefix'][place]}" for place in (0, -1)]
    short, long = (found.difference("factor", key, "unadapted") for key in keys)
    gained = None if short is None or long is None else less(short, long)
    return _of_users(line, found, "unadapted", gained, keys, "+.4f")


def _of_users(line: Line, found: Results, base: str, gained: Interval | None, keys: Sequence[str], form: str) -> Line:
    """A line of what the FactorCell has `gained` over the row `base`, in figures `keys` of enough users and texts."""
    if gained is None:
        return line._replace(ours=NO_ROW, why="not trained")
    if lacking(found, "factor", base):
        return line._replace(ours=NO_ROW, why=FEW)
    users, texts = map(min, zip(*(found.units("factor", key) for key in keys), strict=True))
    few = users < USERS or texts < TEXTS
    verdict = {1: AGREES, 0: UNTOLD, -1: DISAGREES}[0 if few else gained.sign]
    return line._replace(ours=f"{gained.point:{form}}", verdict=verdict, why=f"of {texts:,} texts")


def less(one: Interval, other: Interval) -> Interval:
    """`one` less `other`, two figures of other texts."""
    point, reaches = one.point - other.point, list[float]()
    for each in (one, other):
        if each.low is None or each.high is None:
            return Interval(point)
        reaches.append((each.high - each.low) / 2)
    reach = math.hypot(*reaches)
    return Interval(point, point - reach, point + reach)


def ranked(line: Line, rows: Sequence[Row]) -> Line:
    """A line of trials: what a rank of 20 saves of the perplexity."""
    found = trials.worth(rows)
    if found is None:
        return line._replace(ours=NO_ROW, why="not trained")
    sign = found.saved.sign
    verdict = AGREES if sign > 0 else DISAGREES if sign < 0 else UNTOLD
    return line._replace(ours=f"{found.saved.point:+.1%}", verdict=verdict, why="least squares")


def each_value(line: Line, rows: Sequence[Row]) -> Line:
    """A line of trials: that a bias of each value in place of one of low rank brings accuracy."""
    found = trials.worth(rows)
    if found is None or found.told_each is None:
        return line._replace(ours=NO_ROW, why="not trained")
    verdict = {1: AGREES, 0: UNTOLD, -1: DISAGREES}[found.told_each.sign]
    return line._replace(ours=f"{100 * found.told_each.point:+.1f} points", verdict=verdict, why="least squares")
