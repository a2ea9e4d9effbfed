"""Verdicts: whether what finished rows say of a printed table or figure agrees with it."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.comparison import COMPARED
from factorcell.evaluation.statistics import LEVEL, rank_correlation
from pages import finetuning, trials, words
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


def lacks(line: Line, why: str = "not trained") -> Line:
    """A line of which no row of ours tells anything."""
    return line._replace(ours=NO_ROW, why=why)


def untrained(found: Results, *names: str) -> str:
    """Why nothing can be said of rows: one of them is not there, or has too few trainings; nothing where they do."""
    least = min(len(found.seeds(name)) for name in names)
    return "" if least >= SEEDS else FEW if least else "not trained"


def by_sign(found: Interval, sign: int = 1) -> str:
    """The verdict on a figure that is above zero in print, or below, or neither, as `sign` says."""
    if not sign:
        return DISAGREES if found.sign else UNTOLD
    return {1: AGREES, 0: UNTOLD, -1: DISAGREES}[sign * found.sign]


def ends(found: Interval, form: str = "+.1f", scale: float = 100.0) -> str:
    """The interval that a verdict rests on."""
    if found.low is None:
        return "no interval"
    low, high = (shown(None if end is None else scale * end, form) for end in found[1:])
    return f"{low} to {high}"


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
        return [lacks(line)]
    orders, ours = found.orders("accuracy", told), found.row(row).get("accuracy")
    return [line._replace(ours=shown(ours, ".1%") or NO_ROW, verdict=orders.verdict, why=orders.why)]


def by_trainings(line: Line, found: Results, key: str, printed: Mapping[str, float], row: str) -> Line:
    """A line of a figure that no texts are kept of, that of `row`: whether its orders over trainings are those."""
    line = line._replace(printed=f"{printed[row]:.1f}%")
    if not found.candidates:
        return lacks(line)
    orders, ours = found.orders_of_trainings(key, printed), found.row(row).get(key)
    return line._replace(ours=shown(ours, ".1%") or NO_ROW, verdict=orders.verdict, why=orders.why)


def correlated(line: Line, found: Results, printed: Published) -> Line:
    """A line of gains a community: whether those gain most here that gain most in print, by their ranks."""
    both = (ADAPTED, UNADAPTED)
    if why := untrained(found, *both):
        return lacks(line, why)
    every = communities(found)
    names = [name for name in printed if name in every]
    ours = [every[name].gain(*both) for name in names]
    theirs = [gain(printed[name][1], printed[name][0]) or 0.0 for name in names]
    rank = rank_correlation(ours, theirs)
    if rank["low"] is None:
        return lacks(line, f"{len(names)} communities")
    interval = Interval(rank["r"], rank["low"], rank["high"])
    why = f"{ends(interval, '+.2f', 1.0)}, {len(names)} communities"
    return line._replace(ours=f"ranks {rank['r']:+.2f}", verdict=by_sign(interval), why=why)


def ordered(line: Line, found: Results, key: str, printed: Mapping[str, float], form: str) -> Line:
    """A line of a figure `key`: that of the last printed model, and whether the orders are the printed ones."""
    if not found.candidates:
        return lacks(line)
    ours, orders = found.row(list(printed)[-1]).get(key), found.orders(key, printed)
    return line._replace(ours=shown(ours, form) or NO_ROW, verdict=orders.verdict, why=orders.why)


def opposed(line: Line, sets: Mapping[str, Sequence[Row]]) -> Line:
    """A line of trials: that the SoftmaxBias models of better perplexity are worse at telling contexts apart."""
    if any(len(trials.of_class(rows, "softmaxbias")) < trials.LEAST for rows in sets.values()):
        return lacks(line)
    return going_along(line, trials.across_sets([*sets.values()], "softmaxbias"), 1)


def traded(line: Line, rows: Sequence[Row], printed: float) -> Line:
    """A line of trials: that the model chosen by accuracy tells so much more apart than that chosen by perplexity."""
    found = trials.traded(rows)
    if found is None:
        return lacks(line)
    return effect(line._replace(ours=f"{100 * found.point:+.1f} points"), found, printed, POINT / 100)


def normalised(line: Line, found: Results, name: str, base: str, printed: Published) -> Line:
    """A line of what the row `name` gains over `base` in perplexity of known targets, as much as in print."""
    theirs = gain(printed[name][0], printed[base][0]) or 0.0
    line = line._replace(printed=f"{theirs:+.1%}")
    if why := untrained(found, name, base):
        return lacks(line, why)
    gained = found.lower(name, KNOWN, base)
    if gained is None:
        return lacks(line, "of other texts")
    return effect(line._replace(ours=f"{gained.point:+.1%}"), gained, theirs, MARGIN)


def effect(line: Line, found: Interval, printed: float, margin: float) -> Line:
    """A line of an effect, above zero in print: one above zero agrees, one below or surely short of print disagrees."""
    if found.low is None or found.high is None:
        return line._replace(why="fewer texts than an interval wants")
    short = found.high < printed - margin
    verdict = DISAGREES if short and found.sign == 0 else by_sign(found)
    return line._replace(verdict=verdict, why=ends(found))


def penalised(line: Line, found: Results) -> Line:
    """A line of fine-tunings: that no penalty is better than none by a margin, as the thesis found."""
    moved = [case for case in finetuning.CASES if finetuning.moved(found, *case)]
    level = 1 - (1 - LEVEL) / max(1, len(moved))  # so that one in forty has such a gain among them by chance
    every = [finetuning.gained(found, *case, level=level) for case in moved]
    cases = [case for case in every if case is not None]
    gains = [case.low is not None and case.low > MARGIN for case in cases]
    none = all(case.high is not None and case.high < MARGIN for case in cases)
    if not gains or len(found.candidates[0].rows) < SEEDS:
        return lacks(line, FEW if gains else "not trained")
    told = f"{sum(gains)} of {len(gains)} gain over {MARGIN:.0%}"
    verdict = DISAGREES if any(gains) else AGREES if none else UNTOLD
    return line._replace(ours=told, verdict=verdict, why="of domains and parts")


def no_better(line: Line, found: Results, plain: str, more: str) -> Line:
    """A line of two rows of which the second has a part `more`: that it gains nothing by it, as the thesis found."""
    if why := untrained(found, plain, more):
        return lacks(line, why)
    gained = found.lower(more, KNOWN, plain)
    if gained is None or gained.high is None:
        return lacks(line, "of other texts")
    surely = gained.low is not None and gained.low > MARGIN
    verdict = DISAGREES if surely else AGREES if gained.high < MARGIN else UNTOLD
    return line._replace(ours=f"{gained.point:+.1%}", verdict=verdict, why=f"at most {gained.high:+.1%}")


def added(line: Line, found: Results, plain: str, more: str, printed: float) -> Line:
    """A line of two rows of which the second has a part `more`: that it finds more words among its first three."""
    if why := untrained(found, plain, more):
        return lacks(line, why)
    above = found.difference(more, "top_3", plain)
    if above is None:
        return lacks(line, "of other texts")
    return effect(line._replace(ours=f"{100 * above.point:+.2f} points"), above, printed, 0.0)


def grouped(line: Line, found: Results, column: str) -> Line:
    """A line of a map: whether nearest neighbours are alike more often than by chance."""
    more = words.nearer(found, PAPER_MODELS[-1], column)
    hotels, same, chance, *_ = words.alike(found, PAPER_MODELS[-1], column)
    if more is None:
        return lacks(line)
    if why := untrained(found, PAPER_MODELS[-1]):
        return lacks(line, why)
    ours = f"{same}% alike, {chance}% by chance"
    return line._replace(ours=ours, verdict=by_sign(more), why=f"of {hotels} hotels")


def going_along(line: Line, found: Row, sign: int) -> Line:
    """A line of a correlation that is above zero in print, or below, or neither, as `sign` says."""
    if found["n"] < trials.LEAST:
        return lacks(line)
    if found["low"] is None:
        return lacks(line, "all alike")
    ours = Interval(found["r"], found["low"], found["high"])
    why = f"{ends(ours, '+.2f', 1.0)}, {found['n']} models"
    return line._replace(ours=f"r {found['r']:+.2f}", verdict=by_sign(ours, sign), why=why)


def further(line: Line, found: Results, key: str) -> Line:
    """A line of a figure that the FactorCell is further ahead in than the ConcatCell, as print has it."""
    gained = found.above("factor", key, "concat")
    return _of_users(line, found, "concat", gained, (key,))


def sooner(line: Line, found: Results, what: str) -> Line:
    """A line of what personal completion gains by shares of ranks: for short prefixes, or queries, more than for long.

    Both are of the same trainings, but of other texts; they are held against each other as if they were independent.
    """
    keys = [f"mrr_{what}_{LENGTHS[what][place]}" for place in (0, -1)]
    short, long = (found.above("factor", key, "unadapted") for key in keys)
    gained = None if short is None or long is None else less(short, long)
    return _of_users(line, found, "unadapted", gained, keys)


def _of_users(line: Line, found: Results, base: str, gained: Interval | None, keys: Sequence[str]) -> Line:
    """A line of what the FactorCell has `gained` over the row `base`, in figures `keys` of enough users and texts."""
    if gained is None:
        return lacks(line)
    if why := untrained(found, "factor", base):
        return lacks(line, why)
    users, texts = map(min, zip(*(found.units("factor", key) for key in keys), strict=True))
    few = users < USERS or texts < TEXTS
    why = f"{ends(gained)}, {texts:,} texts of {users} users"
    return line._replace(ours=f"{gained.point:+.1%}", verdict=UNTOLD if few else by_sign(gained), why=why)


def less(one: Interval, other: Interval) -> Interval:
    """`one` less `other`, two figures of other texts."""
    point, reaches = one.point - other.point, list[float]()
    for each in (one, other):
        if each.low is None or each.high is None:
            return Interval(point)
        reaches.append((each.high - each.low) / 2)
    reach = math.hypot(*reaches)
    return Interval(point, point - reach, point + reach)


def brought(
    line: Line, found: Mapping[str, trials.Effects], change: str, what: Literal["saved", "told"], sign: int = 1
) -> Line:
    """A line of trials: that a change saves perplexity on all sets, or brings accuracy; or costs it, as `sign` says.

    With a sign of 0 it does neither.
    """
    if any(change not in one for one in found.values()):
        return lacks(line)
    own = {name: getattr(one[change], what) for name, one in found.items()}
    verdicts = [by_sign(one, sign) for one in own.values()]
    turned = verdicts.count(DISAGREES) > verdicts.count(AGREES)
    verdict = DISAGREES if turned else AGREES if set(verdicts) == {AGREES} else UNTOLD
    unit = "%" if what == "saved" else " points"
    points = {name: f"{100 * one.point:+.1f}{unit}" for name, one in own.items()}
    if len(own) == 1:
        ((name, only),) = own.items()
        return line._replace(ours=points[name], verdict=verdict, why=ends(only))
    beyond = [f"{name} {points[name]}" for name, one in own.items() if one.sign]
    ours = f"beyond chance on {len(beyond)} of {len(own)}"
    return line._replace(ours=ours, verdict=verdict, why=", ".join(beyond) or "none")
