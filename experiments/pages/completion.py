"""Tables 5.1 and 5.3 to 5.5 of the thesis, its figures 5.1 to 5.3: completion for people that no model knew."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest

import numpy as np

from factorcell.bootstrap import Interval
from pages import beside, correlations, trials
from pages.markdown import NO_ROW, markdown, shown, with_none
from pages.results import Results, rows_of
from study import Row
from thesis_queries import LATE, LENGTHS, OFTEN, PAIRS, PLACES, PREFIX, RISEN, ROWS, SUGGESTED, WARM

LEARNING = ("factor", "concat")  # those that tell users apart, in the order of the printed tables
SYSTEMS = {  # what completes, and what it is called in tables
    "mpc": "most popular completion",
    "history": "one's own earlier texts",
    "unadapted": "unadapted",
    "concat": "ConcatCell",
    "factor": "FactorCell",
    "blend": "blend",
}


def tables(found: Results, drawn: Sequence[Row]) -> dict[str, str]:
    """Heading -> table."""
    return {
        "Table 5.1": suggested(found),
        "Figure 5.1": against_perplexity(drawn),
        "Figure 5.2": over_time(found),
        "Figure 5.3": by_length(found),
        "Tables 5.3 to 5.5": risen(found),
    }


def reached(found: Results) -> dict[str, str]:
    """The table of docs/completion.md: what each system reaches."""
    lines = []
    for name, what in SYSTEMS.items():
        row, figure = beside.system(name)
        ranks = [found.shown(row, f"{figure}{kind}", ".3f") for kind in ("", "_seen", "_unseen", "_late")]
        own = figure == "mrr"
        more = found.above(row, "mrr", "unadapted") if own and name != "unadapted" else None
        lines.append([what, ranks[0], _told(more), *ranks[1:], found.shown(row, "perplexity_online") if own else ""])
    perplexity = "perplexity per character, all targets"
    header = ["system", "MRR", "above unadapted", "seen", "unseen", f"after {LATE} texts", perplexity]
    if not found.candidates:
        return {"What it reaches": f"{markdown(header, lines)}\n{NO_ROW}"}
    _, texts = found.units("unadapted", "mrr")
    said = f"Of {texts:,} texts.\n{beside.blended(found)}{beside.learned(found)}"
    return {"What it reaches": f"{markdown(header, lines)}\n{said}"}


def with_popular(found: Results) -> Results:
    """The same rows, and most popular completion as one of its own, which comes with the unadapted model."""
    rows = rows_of(found)
    there = [row for row in rows if row["row"] == "unadapted" and "mpc" in row["sums"]]
    popular = ({**row, "row": "mpc", "exact": True, "sums": {"mrr": row["sums"]["mpc"]}} for row in there)
    return Results.of([*rows, *popular])


def suggested(found: Results) -> str:
    """Table 5.1: what somebody new is suggested, and after a few texts."""
    told = found.first("factor").get("suggested", {})
    places = [str(place) for place in range(1, SUGGESTED + 1)]
    lines = list(zip_longest(places, told.get("cold", ()), told.get("warm", ()), fillvalue=""))
    after = f"The prefix is `{PREFIX}`; warm is after\n\n" + "".join(f"- “{text}”\n" for text in WARM)
    return markdown(["", "cold start", "warm start"], lines) + "\n" + (after if told else NO_ROW)


def risen(found: Results) -> str:
    """Tables 5.3 to 5.5: the frequent texts that two texts have made likelier by most."""
    made = [found.first(name).get("risen", [[] for _ in PAIRS]) for name in LEARNING]
    count = found.first(LEARNING[0]).get("frequent")
    parts = [f"Of the {count:,} most frequent texts, each there {OFTEN} times or more:\n"] if count else []
    for number, pair in enumerate(PAIRS):
        places = [str(place) for place in range(1, RISEN + 1)]
        lines = list(zip_longest(places, *(own[number] for own in made), fillvalue=""))
        parts.append(f"After {_listed(pair)}:\n\n{markdown(['', *LEARNING], lines)}")
    return "\n".join(parts) + ("" if found.candidates else f"\n{NO_ROW}")


def _listed(texts: Sequence[str]) -> str:
    return " and ".join((", ".join(f"“{text}”" for text in texts[:-1]), f"“{texts[-1]}”"))


def kinds(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The trials of figure 5.1 by what they adapt, then all of them."""
    own = {kind: [row for row in rows if trials.model_of(row) == kind] for kind in ROWS}
    return {**own, "all": list(rows)}


def together(rows: Sequence[Row]) -> Row:
    """The correlation of log perplexity and mean reciprocal rank: `r`, `low`, `high`, `n`."""
    logs = [float(np.log(row["perplexity_online"])) for row in rows]
    return trials.correlated(logs, [row["mrr"] for row in rows], rows)


def against_perplexity(rows: Sequence[Row]) -> str:
    """Figure 5.1: a line for each kind of models, and one of all."""
    lines = []
    for kind, own in kinds(rows).items():
        if own:
            by_text, by_rank = min(own, key=lambda row: row["perplexity_online"]), max(own, key=lambda row: row["mrr"])
            figures = [(row["perplexity_online"], row["mrr"]) for row in (by_text, by_rank)]
            ends = [shown(figures[0][0]), shown(figures[0][1], ".3f"), shown(figures[1][1], ".3f")]
            lines.append([kind, str(len(own)), correlations.told(together(own)), *ends, shown(figures[1][0])])
    perplexity = "perplexity per character, all targets"
    header = ["model", "trials", "correlation", f"lowest {perplexity}", "its MRR", "best MRR", f"its {perplexity}"]
    return with_none(header, lines)


def over_time(found: Results) -> str:
    """Figure 5.2: by what share ranks are better than without a user, by how many of its texts were seen."""
    spans = _spans(PLACES)
    lines = [[span, *_ranks(found, f"mrr_after_{begin}")] for begin, span in spans.items()]
    return _gains("texts seen", lines, found)


def by_length(found: Results) -> str:
    """Figure 5.3: the same of late texts, by how much is typed and how long they are."""
    lines = [
        [f"{span} of a {name}", *_ranks(found, f"mrr_{name}_{begin}")]
        for name, begins in LENGTHS.items()
        for begin, span in _spans(begins).items()
    ]
    return _gains(f"characters, after {LATE} texts", lines, found)


def _spans(begins: Sequence[int]) -> Mapping[int, str]:
    """The ranges that begin there, as a table names them."""
    spans = {begin: f"{begin} to {end - 1}" for begin, end in pairwise(begins)}
    return {**spans, begins[-1]: f"{begins[-1]} and more"}


def _ranks(found: Results, key: str) -> list[str]:
    """The rank without a user, and what is gained by those that learn: over it, and over each other."""
    pairs = (("concat", "unadapted"), ("factor", "unadapted"), ("factor", "concat"))
    return [found.shown("unadapted", key, ".3f"), *(_told(found.above(name, key, base)) for name, base in pairs)]


def _told(found: Interval | None) -> str:
    return "" if found is None else found.told(".1f", 100.0, "%")


def _gains(what: str, lines: Sequence[Sequence[str]], found: Results) -> str:
    header = [what, "MRR unadapted", "concat over unadapted", "factor over unadapted", "factor over concat"]
    return markdown(header, lines) + ("" if found.candidates else f"\n{NO_ROW}")
