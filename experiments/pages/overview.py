"""Every table and figure of the papers: what it is, how it is made here, and whether our rows agree with it.

What is said of one follows from rows, by `verdicts`; where there are none, nothing is said.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import switches
import tacl
from factorcell.config import PAPER_MODELS
from pages import completion, specificity, trials, words
from pages.markdown import markdown
from pages.results import Published, Results, chosen, column, of_variables, rows_of
from pages.verdicts import (
    KNOWN,
    NO_ROW,
    Line,
    added,
    both,
    brought,
    by_trainings,
    correlated,
    further,
    going_along,
    grouped,
    measured,
    no_better,
    normalised,
    opposed,
    ordered,
    penalised,
    sooner,
    traded,
)
from study import Row
from tacl_trials import CHARACTERS, DRAWN, MANY
from thesis_queries import PLACES
from thesis_sixteen import WHOLE
from thesis_sparse import UNPENALISED
from thesis_variables import VARIABLES

NO_COMMAND, NOTHING, OF_WORDS = "none", "nothing", "below"  # what cells have where there is no figure of ours
OPPOSED = ("dbpedia", "hotels", "imdb")  # sets of figure 4.2 of which print tells how accuracy and perplexity go
TRADED = {  # sets of figure 4.4, and what it and table 4.4 differ by: accuracy of a model chosen by it, by perplexity
    "languages": ("95% for 93.3%", 0.95 - 0.933),
    "places": ("more", 0.0),  # print has no number
}
NEUTRAL = ("hotels", "imdb")  # of which it says that the size of the context vector hardly matters to accuracy
BY_RANK = ("agnews", "dbpedia", "hotels")  # of which it says that the rank seemed to help with perplexity
BEST = "concat+low_rank+hash"  # of communities and languages

Read = Callable[..., Results]  # the rows of an experiment by its name, and their first row


def lines(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """All of them, in the order of the thesis."""
    earlier = [*introduction(), *chapter_3(read, printed), *chapter_4(read, printed)]
    return [*earlier, *chapter_5(read, printed), *chapter_6(read, printed["generation"]), *appendix(read, printed)]


def table(read: Read, printed: Mapping[str, Any]) -> str:
    """All of them in Markdown."""
    rows = []
    for one in lines(read, printed):
        command = f"`{one.command}`" if one.command else NO_COMMAND
        ours = one.ours or (OF_WORDS if one.command else NOTHING)
        figures = f"{ours} ({one.printed})" if one.printed else ours
        rows.append([one.where, one.what, command, figures, one.verdict, one.why])
    return markdown(["printed as", "what it is", "command", "here (in print)", "verdict", "why"], rows)


def introduction() -> list[Line]:
    """What tells of the world and of other work."""
    return [
        Line("F1.1", "two terms on Reddit, eight years", why="our titles have no dates"),
        Line("T1.1", "what adaptation is good for", why="a list"),
        Line("F2.1", "vocabularies of recognisers", why="of other work"),
        Line("T2.1", "earlier adaptations", why="of other work"),
        Line("T3.1, 2017 T1", "sizes of the texts", ours=OF_WORDS, why="of their texts"),
        Line("T3.2, 2017 T2", "sizes of the models", ours=OF_WORDS, why="of their models"),
    ]


def chapter_3(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """Sixteen ways to adapt, on three sets."""
    titles, reddit, languages, scotus = map(read, ("reddit_titles", "subreddits", "commonvoice9", "scotus"))
    variables = Results.of(of_variables(rows_of(read("variables", "none")), rows_of(scotus)), "none")
    every = "+".join(VARIABLES)
    return [
        measured(
            Line("T3.3, 2017 T3", "communities", "thesis_sixteen reddit_titles"),
            titles,
            {name: row[:1] for name, row in printed["reddit_titles"].items()},
            BEST,
        ),
        by_trainings(
            Line("T3.3, 2017 T3", "communities, AUC", "thesis_sixteen reddit_titles"),
            titles,
            "auc",
            column(printed["reddit_titles"], 1),
            BEST,
        ),
        Line("T3.4, 2017 T4", "neighbours of communities", "thesis_subreddits"),
        correlated(
            Line("T3.5, 2017 T5", "gains of communities", "thesis_subreddits"),
            reddit,
            printed["subreddits"],
        ),
        *both(
            Line("T3.6, 2017 T6", "languages", "thesis_sixteen commonvoice9"),
            languages,
            printed["commonvoice9"],
            BEST,
        ),
        by_trainings(
            Line("T3.6, 2017 T6", "languages, F1", "thesis_sixteen commonvoice9"),
            languages,
            "macro_f1",
            column(printed["commonvoice9"], 2),
            BEST,
        ),
        Line("F3.1, 2017 F1, TACL F4", "a hidden unit for Spanish", "thesis_sixteen commonvoice9", why="of one model"),
        Line(
            "3.4.2, 2017 4.2, TACL 4.3",
            "languages by an unadapted model's state",
            "thesis_sixteen commonvoice9",
            words.few_told(languages) or NO_ROW,
            "74.6%",
            why="one figure, no order" if languages.candidates else "not trained",
        ),
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
        Line("T4.1, TACL T1", "sizes of the texts", ours=OF_WORDS, why="of their texts"),
        Line("T4.2, TACL T2", "sizes of the models", ours=OF_WORDS, why="of their models"),
        *word,
        opposed(
            Line("F4.2, TACL F1", "accuracy and perplexity, softmax biases", trained(OPPOSED), printed="above zero"),
            drawn(read, OPPOSED),
        ),
        Line("F4.3, TACL F2", "a review by five and one stars", "tacl hotels", why="of one review"),
        *character,
        *(
            traded(
                Line("F4.4, TACL F3", f"accuracy for perplexity, {name}", f"tacl_trials {name}", printed=told),
                rows_of(read(f"tacl_trials_{name}")),
                more,
            )
            for name, (told, more) in TRADED.items()
        ),
        *analysed(read),
        normalised(
            Line("4.3.4, TACL 4.4", "layer normalisation, imdb for Yelp", "switches imdb"),
            read("switches_imdb", switches.OURS),
            switches.GATES,
            switches.OURS,
            printed["layer_norm"],
        ),
        grouped(Line("F4.6, TACL F6", "hotels by region", "tacl hotels"), read("tacl_hotels"), "region"),
        grouped(Line("F4.7", "hotels by class", "tacl hotels"), read("tacl_hotels"), "class"),
        Line("T4.5, TACL T5", "boosted words of hotels", "tacl hotels"),
    ]


def analysed(read: Read) -> list[Line]:
    """Figure 4.5, and what section 4.4 of the TACL paper says of sizes, on the sets of which it says it."""
    found = {name: trials.effects(rows) for name, rows in drawn(read, DRAWN).items()}
    few = [name for name in DRAWN if name not in MANY]  # values for a bias of each
    told = [name for name in DRAWN if name not in NEUTRAL]

    def line(what: str, sets: Sequence[str], change: str, kind: Literal["saved", "told"], sign: int = 1) -> Line:
        own = Line("4.3.4, TACL 4.4", what, trained(sets), printed=("hardly any", "some", "costs some")[sign])
        return brought(own, {name: found[name] for name in sets}, change, kind, sign)

    ranks = Line("F4.5, TACL F5", "a rank of 20 in place of 0", trained(["dbpedia"]), printed="+5.0%")
    return [
        brought(ranks, {"dbpedia": found["dbpedia"]}, trials.RANKED, "saved"),
        line("perplexity saved by a larger LSTM", DRAWN, trials.LARGER, "saved"),
        line("perplexity saved by a longer context vector", CHARACTERS, trials.LONGER, "saved", -1),
        line("accuracy gained by a longer context vector", told, trials.LONGER, "told"),
        line("the same of reviews", NEUTRAL, trials.LONGER, "told", 0),
        line("perplexity saved by a larger rank", BY_RANK, trials.RANKED, "saved"),
        line("accuracy gained by a larger rank", DRAWN, trials.RANKED, "told"),
        line("accuracy gained by a bias of each value", few, trials.EACH, "told"),
    ]


def trained(sets: Sequence[str]) -> str:
    """The command of trials; of several sets one for each."""
    return f"tacl_trials {', '.join(sets)}"


def drawn(read: Read, sets: Sequence[str]) -> dict[str, list[Row]]:
    """The trials of sets."""
    return {name: rows_of(read(f"tacl_trials_{name}")) for name in sets}


def chapter_5(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """Completion, which is the ACL paper too."""
    queries = read("queries")
    ranks = {name: row[-1] for name, row in printed["completion"]["small"].items() if name != "mpc"}
    popular = [printed["completion"]["small"][name][-1] for name in ("mpc", "unadapted")]
    return [
        Line("T5.1, ACL", "completions, cold and warm", "thesis_queries"),
        going_along(
            Line("F5.1", "perplexity and reciprocal rank", "thesis_queries_trials", printed="below zero"),
            completion.together(rows_of(read("queries_trials"))),
            -1,
        ),
        ordered(
            Line("T5.2, ACL", "a language model over popular texts", "thesis_queries", printed=f"{popular[-1]:.3f}"),
            completion.with_popular(queries),
            "mrr",
            {"mpc": popular[0], "unadapted": popular[-1]},
            ".3f",
        ),
        ordered(
            Line("T5.2, ACL", "reciprocal ranks of models", "thesis_queries", printed=f"{ranks['factor']:.3f}"),
            queries,
            "mrr",
            ranks,
            ".3f",
        ),
        further(
            Line("F5.2, ACL", "FactorCell over ConcatCell after 100 texts", "thesis_queries", printed="up to +2%"),
            queries,
            f"mrr_after_{PLACES[-1]}",
        ),
        *(
            sooner(
                Line("F5.3, ACL", f"gain of short {many} beyond long", "thesis_queries", printed="more"), queries, one
            )
            for one, many in (("prefix", "prefixes"), ("query", "queries"))
        ),
        *(Line(f"T5.{n}, ACL", "queries likelier after two", "thesis_queries") for n in (3, 4, 5)),
    ]


def appendix(read: Read, printed: Mapping[str, Any]) -> list[Line]:
    """Sparse biases, and fine-tuning."""
    sparse = read("sparse", "none")
    kinds = {kind: chosen(sparse, kind) or "" for kind in printed["sparse"]}
    both = kinds["low_rank_each"], kinds["low_rank_each+sparse"]
    return [
        measured(
            Line("TA.1", "sparse and low-rank biases", "thesis_sparse"),
            sparse,
            printed["sparse"],
            "low_rank_each",
            KNOWN,
            {kind: name for kind, name in kinds.items() if name},
        ),
        no_better(Line("TA.1", "a sparse bias beside low-rank ones", "thesis_sparse"), sparse, *both),
        added(
            Line("TA.1", "top-3 of a sparse bias beside them", "thesis_sparse", printed="+0.08 points"),
            sparse,
            *both,
            0.0008,
        ),
        no_better(Line("TA.1", "a penalty on a sparse bias", "thesis_sparse"), sparse, UNPENALISED, kinds["sparse"]),
        penalised(Line("A.2", "a penalty on fine-tuning", "thesis_finetuning"), read("finetuned", "none")),
    ]


def chapter_6(read: Read, printed: Mapping[str, Published]) -> list[Line]:
    """Texts that fit their context: films and hotels by their rating, hotels by a class that no model was given."""
    drawn = written(read)

    def figure(which: str, what: str, name: str, kind: str, printed: str = "", sign: int = 1) -> Line:
        command = "sampled hotels_trials" if name == "sampled" else f"thesis_specificity {name}_trials"
        return going_along(Line(which, what, command, printed=printed), specificity.along(drawn[name], kind), sign)

    def table(which: str, what: str, name: str, theirs: Published) -> Line:
        line = Line(which, what, f"thesis_specificity {name}", printed=f"{theirs['factorcell'][0]:.1f}%")
        found = read(f"specificity_{name}")
        return ordered(line, found, "specificity", {model: row[0] for model, row in theirs.items()}, ".1%")

    return [
        *(Line(f"T6.{n}", "fillers of a gap by stars", "thesis_specificity imdb") for n in (1, 2, 3)),
        figure("F6.1, TACL 5", "telling apart and writing, stars", "ratings", "accuracy", "r +0.95"),
        figure("F6.1, TACL 5", "telling apart and writing, sampled", "sampled", "accuracy", "r +0.95"),
        figure("F6.2", "rank and writing, stars", "ratings", "rank", "r +0.80"),
        figure("F6.2", "rank and writing, sampled", "sampled", "rank", "r +0.80"),
        figure("F6.2", "log perplexity and writing, stars", "ratings", "perplexity", "r 0.00", 0),
        figure("F6.2", "log perplexity and writing, sampled", "sampled", "perplexity", "r 0.00", 0),
        table("T6.4", "texts that fit stars, films", "imdb", printed["Yelp"]),
        table("T6.4", "texts that fit stars, hotels", "ratings", printed["Yelp"]),
        Line("6.3", "people agree with the judge", "ratings sheet imdb", NO_ROW, "r +0.82", why="wants people"),
        table("T6.5", "texts that fit a hidden class", "hotels", printed["TripAdvisor"]),
        by_trainings(
            Line("T6.5", "texts that mention the commonest town", "thesis_specificity hotels"),
            read("specificity_hotels"),
            "town_commonest",
            {model: row[-1] for model, row in printed["mentioned"].items()},
            PAPER_MODELS[-1],
        ),
        figure("F6.3", "rank and writing, a hidden class", "hotels", "rank", "above zero"),
        figure("F6.3", "log perplexity and writing, a hidden class", "hotels", "perplexity", "below zero", -1),
        figure("F6.4", "telling apart and writing, a hidden class", "hotels", "accuracy", "above zero"),
    ]


def written(read: Read) -> dict[str, list[Row]]:
    """The trials that have written texts, by what these are judged by."""
    told = rows_of(read("tacl_trials_hotels"))
    return {name: specificity.joined(rows_of(read(own.rows)), told) for name, own in specificity.DRAWN.items()}
