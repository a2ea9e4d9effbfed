"""Every table and figure of the papers: what it is, how it is made here, and whether our rows agree with it.

What is said of one follows from rows, by `results.Orders`; where there are none, nothing is said.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import switches
import tacl
from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.comparison import COMPARED
from factorcell.evaluation.statistics import rank_correlation
from pages import completion, finetuning, specificity, trials, words
from pages.markdown import markdown, shown
from pages.results import (
    AGREES,
    DISAGREES,
    MARGIN,
    SEEDS,
    UNTOLD,
    Published,
    Results,
    accuracies,
    chosen,
    communities,
    gain,
    perplexities,
    rows_of,
    with_both_ends,
)
from study import Row
from thesis_queries import LENGTHS, PLACES
from thesis_sixteen import WHOLE
from thesis_variables import VARIABLES

KNOWN = "perplexity_known"  # what the TACL paper and appendix A count; chapter 3 counts all targets
NO_ROW, NO_COMMAND = "no row", "none yet"
WORDS = "words, no figures"  # why nothing can be told of texts that a model writes, and of neighbours
OPPOSED = ("dbpedia", "hotels", "imdb")  # where the thesis says so of its figure 4.2
USERS, TEXTS = 30, 300  # of whom, and of which, a verdict on a kind of texts needs so many

Names = Mapping[str, str] | None
Read = Callable[..., Results]  # the rows of an experiment by its name, and their first row


class Line(NamedTuple):
    """A table or a figure: where it is printed, what it is, our command and figure, the printed one, the verdict."""

    where: str
    what: str
    command: str = ""
    ours: str = ""
    printed: str = ""
    verdict: str = UNTOLD
    why: str = WORDS


def lines(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """All of them, in the order of the thesis."""
    return [*introduction(), *chapter_3(read, printed), *chapter_4(read, printed), *later(read, printed)]


def table(read: Read, printed: Mapping[str, Any]) -> str:
    """All of them in Markdown."""
    rows = []
    for one in lines(read, printed):
        command = f"`{one.command}`" if one.command not in ("", NO_COMMAND) else one.command
        figures = f"{one.ours} ({one.printed})" if one.printed else one.ours
        rows.append([one.where, one.what, command, figures, one.verdict, one.why])
    return markdown(["printed as", "what it is", "command", "here (in print)", "verdict", "why"], rows)


def introduction() -> list[Line]:
    """What tells of the world and of other work."""
    return [
        Line("F1.1", "two terms on Reddit, eight years", NO_COMMAND, why="wants dated texts"),
        Line("T1.1", "what adaptation is good for", why="a list"),
        Line("F2.1", "vocabularies of recognisers", why="of other work"),
        Line("T2.1", "earlier adaptations", why="of other work"),
        Line("T3.1, 2017 T1", "sizes of the texts", why="of their texts"),
        Line("T3.2, 2017 T2", "sizes of the models", why="of their models"),
    ]


def chapter_3(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """Sixteen ways to adapt, on three sets."""
    reddit, scotus = read("subreddits"), read("scotus")
    variables = Results.of(with_both_ends(rows_of(read("variables", "none")), rows_of(scotus)), "none")
    every = "+".join(VARIABLES)
    return [
        measured(
            Line("T3.3, 2017 T3", "communities", "thesis_sixteen reddit_titles"),
            read("reddit_titles"),
            {name: row[:1] for name, row in printed["reddit_titles"].items()},  # an AUC has no texts to draw from
            "concat+low_rank+hash",
        ),
        Line("T3.4, 2017 T4", "neighbours of communities", "thesis_subreddits"),
        correlated(
            Line("T3.5, 2017 T5", "gains of communities", "thesis_subreddits"),
            reddit,
            printed["subreddits"],
        ),
        *both(
            Line("T3.6, 2017 T6", "languages", "thesis_sixteen commonvoice9"),
            read("commonvoice9"),
            printed["commonvoice9"],
            "concat+low_rank+hash",
        ),
        Line("F3.1, 2017 F1", "a hidden unit for Spanish", "thesis_sixteen commonvoice9"),
        *both(
            Line("T3.7, 2017 T7", "oral arguments", "thesis_sixteen scotus"),
            scotus,
            printed["scotus"],
            WHOLE,
        ),
        measured(
            Line("T3.8, 2017 T8", "its variables", "thesis_variables"),
            variables,
            printed["variables"],
            every,
        ),
        Line("T3.9, 2017 T9", "sentences of roles", "thesis_sixteen scotus"),
    ]


def chapter_4(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """The FactorCell: the TACL paper, and its chapter of the thesis."""
    word, character = list[Line](), list[Line]()
    for name, one in tacl.SETS.items():
        long = one.printed.endswith("Twitter")
        where = "T4.4, TACL T4" if long else "T4.3, TACL T3"
        line = Line(where, f"{name} for {one.printed}", f"tacl {name}")
        (character if long else word).extend(
            both(line, read(f"tacl_{name}"), printed["tacl"][one.printed], PAPER_MODELS[-1], KNOWN)
        )
    return [
        Line("F4.1", "the FactorCell", why="a drawing"),
        Line("T4.1, TACL T1", "sizes of the texts", why="of their texts"),
        Line("T4.2, TACL T2", "sizes of the models", why="of their models"),
        *word,
        opposed(
            Line("F4.2, TACL F1", "accuracy against perplexity", "tacl_trials dbpedia"),
            {name: rows_of(read(f"tacl_trials_{name}")) for name in OPPOSED},
        ),
        Line("F4.3, TACL F2", "a review by five and one stars", "tacl hotels"),
        *character,
        Line("F4.4, TACL F3", "the same, of characters", "tacl_trials languages", why="a drawing"),
        ranked(
            Line("F4.5, TACL F5", "a rank of 20 in place of 0", "tacl_trials dbpedia", printed="+5.0%"),
            rows_of(read("tacl_trials_dbpedia")),
        ),
        measured(
            Line("4.3.4, TACL 4.4", "layer normalisation, imdb for Yelp", "switches imdb"),
            read("switches_imdb", switches.OURS),
            printed["layer_norm"],
            switches.NORMALISED,
            KNOWN,
        ),
        grouped(Line("F4.6, TACL F6", "hotels by region", "tacl hotels"), read("tacl_hotels"), "region"),
        grouped(Line("F4.7", "hotels by class", "tacl hotels"), read("tacl_hotels"), "class"),
        Line("T4.5, TACL T5", "boosted words of hotels", "tacl hotels"),
    ]


def later(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """Completion, which is the ACL paper too; generation; sparse biases."""
    sparse, queries = read("sparse", "none"), read("queries")
    ranks = {name: row[-1] for name, row in printed["completion"]["small"].items() if name != "mpc"}
    kinds = {kind: chosen(sparse, kind) for kind in printed["sparse"]}
    return [
        Line("T5.1, ACL", "completions, cold and warm", "thesis_queries"),
        going_along(
            Line("F5.1", "perplexity and reciprocal rank", "thesis_queries_trials"),
            completion.together(rows_of(read("queries_trials"))),
            -1,
        ),
        ordered(
            Line("T5.2, ACL", "reciprocal ranks of models", "thesis_queries", printed=f"{ranks['factor']:.3f}"),
            queries,
            "mrr",
            ranks,
            ".3f",
        ),
        further(
            Line("F5.2, ACL", "FactorCell over ConcatCell after 100 texts", "thesis_queries"),
            queries,
            f"mrr_after_{PLACES[-1]}",
        ),
        sooner(Line("F5.3, ACL", "what short prefixes gain beyond long ones", "thesis_queries"), queries),
        *(Line(f"T5.{n}, ACL", "queries likelier after two", "thesis_queries") for n in (3, 4, 5)),
        *(Line(f"T6.{n}", "fillers of a gap by stars", "thesis_specificity imdb") for n in (1, 2, 3)),
        *chapter_6(read, printed["generation"]),
        measured(
            Line("TA.1", "sparse and low-rank biases", "thesis_sparse"),
            sparse,
            printed["sparse"],
            "low_rank_each",
            KNOWN,
            {kind: name for kind, name in kinds.items() if name},
        ),
        penalised(Line("A.2", "a penalty on fine-tuning", "thesis_finetuning"), read("finetuned", "none")),
    ]


def chapter_6(read: Read, printed: Mapping[str, Published]) -> list[Line]:
    """Texts that fit their context: films and hotels by their rating, hotels by a class that no model was given."""
    drawn = written(read)

    def figure(which: str, what: str, name: str, kind: str, command: str = "") -> Line:
        line = Line(which, what, command or f"thesis_specificity {name}_trials")
        return going_along(line, specificity.along(drawn[name], kind), 1)

    def table(which: str, what: str, name: str, theirs: Published) -> Line:
        line = Line(which, what, f"thesis_specificity {name}", printed=f"{theirs['factorcell'][0]:.1f}%")
        found = read(f"specificity_{name}")
        return ordered(line, found, "specificity", {model: row[0] for model, row in theirs.items()}, ".1%")

    return [
        figure("F6.1", "telling apart and writing, stars", "ratings", "accuracy"),
        figure("F6.1", "telling apart and writing, sampled", "sampled", "accuracy", "sampled hotels_trials"),
        figure("F6.2", "rank and writing, stars", "ratings", "rank"),
        figure("F6.2", "rank and writing, sampled", "sampled", "rank", "sampled hotels_trials"),
        table("T6.4", "texts that fit stars, films", "imdb", printed["Yelp"]),
        table("T6.4", "texts that fit stars, hotels", "ratings", printed["Yelp"]),
        table("T6.5", "texts that fit a hidden class", "hotels", printed["TripAdvisor"]),
        figure("F6.3", "rank and writing, a hidden class", "hotels", "rank"),
        figure("F6.4", "telling apart and writing, a hidden class", "hotels", "accuracy"),
    ]


def written(read: Read) -> dict[str, list[Row]]:
    """The trials that have written texts, by what these are judged by."""
    told = rows_of(read("tacl_trials_hotels"))
    return {name: specificity.joined(rows_of(read(own.rows)), told) for name, own in specificity.DRAWN.items()}


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


def correlated(line: Line, found: Results, printed: Published) -> Line:
    """A line of gains a community: whether those gain most here that gain most in print, by their ranks."""
    if len(found.candidates) < 2:
        return line._replace(ours=NO_ROW, why="not trained")
    every = communities(found)
    names = [name for name in printed if name in every]
    ours = [gain(every[name][2], every[name][1]) or 0.0 for name in names]
    theirs = [gain(printed[name][1], printed[name][0]) or 0.0 for name in names]
    rank = rank_correlation(ours, theirs)
    if rank["low"] is None or any(len(one.rows) < SEEDS for one in found.candidates):
        return line._replace(ours=NO_ROW, why=f"fewer than {SEEDS} seeds")
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
    if any(one["n"] < trials.LEAST or one["low"] is None for one in found):
        return line._replace(ours=NO_ROW, why="not trained")
    signs = [Interval(one["r"], one["low"], one["high"]).sign for one in found]
    verdict = AGREES if min(signs) > 0 else DISAGREES if max(signs) < 0 else UNTOLD
    told = ", ".join(f"{one['r']:+.2f}" for one in found)
    return line._replace(ours=told, verdict=verdict, why=f"{signs.count(1)} of {len(signs)} sets")


def penalised(line: Line, found: Results) -> Line:
    """A line of fine-tunings: that no penalty is better than none by a margin, as the thesis found."""
    every = [finetuning.gained(found, *case) for case in finetuning.CASES]
    cases = [case for case in every if case is not None]
    gains = [case.sign > 0 and case.point > MARGIN for case in cases]
    none = all(case.high is not None and case.high < MARGIN for case in cases)
    if not gains or len(found.candidates[0].rows) < SEEDS:
        return line._replace(ours=NO_ROW, why="not trained" if not gains else f"fewer than {SEEDS} seeds")
    told = f"{sum(gains)} of {len(gains)} gain {MARGIN:.0%}"
    verdict = DISAGREES if any(gains) else AGREES if none else UNTOLD
    return line._replace(ours=told, verdict=verdict, why="of domains and parts")


def grouped(line: Line, found: Results, column: str) -> Line:
    """A line of a map: whether nearest neighbours are alike more often than by chance."""
    more = words.nearer(found, PAPER_MODELS[-1], column)
    hotels, same, chance, *_ = words.alike(found, PAPER_MODELS[-1], column)
    if more is None or any(len(one.rows) < SEEDS for one in found.candidates if one.name == PAPER_MODELS[-1]):
        return line._replace(ours=NO_ROW, why="not trained" if more is None else f"fewer than {SEEDS} seeds")
    verdict = {1: AGREES, 0: UNTOLD, -1: DISAGREES}[more.sign]
    return line._replace(ours=f"{same}% alike, {chance}% by chance", verdict=verdict, why=f"of {hotels} hotels")


def going_along(line: Line, found: Row, sign: int) -> Line:
    """A line of a correlation that is above zero in print, or below, as `sign` says."""
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
    if any(len(one.rows) < SEEDS for one in found.candidates if one.name in ("factor", base)):
        return line._replace(ours=NO_ROW, why=f"fewer than {SEEDS} seeds")
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
