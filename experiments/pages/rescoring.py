"""The tables of docs/rescoring.md: word errors with and without context, and the perplexity of what was said."""

from collections.abc import Sequence

from pages.markdown import with_none
from pages.results import Results, rows_of
from rescoring import BARE, KINDS, LEARNED
from study import Row

SYSTEMS = {  # what it is -> the row that has its figures, and how their names end
    "first pass (bigram)": ("first pass", ""),
    "its own scores, reweighted": ("reweighted", ""),
    "n-grams": ("n-grams", ""),
    "unadapted": ("unadapted", ""),
    "FactorCell without its context": ("factorcell", BARE),
    "FactorCell in context": ("factorcell", ""),
    "FactorCell, learning who speaks": ("factorcell", LEARNED),
    "oracle": ("oracle", ""),
}
BASE = "unadapted"  # what the others are held against
SPEAKERS = dict(zip(KINDS, ("all", "new speakers", "known ones"), strict=True))


def systems(found: Results) -> Results:
    """The same rows by system: one that is rescored in several ways is several."""
    rows = rows_of(found)
    return Results.of(
        [_named(row, what, end) for what, (name, end) in SYSTEMS.items() for row in rows if row["row"] == name]
    )


def _named(row: Row, what: str, end: str) -> Row:
    """A row with the figures of one system alone, by names that all of them have."""
    keys = {f"{figure}{kind}": f"{figure}{end}{kind}" for figure in ("wer", "likelihood", "said") for kind in KINDS}
    there = {name: key for name, key in keys.items() if key in row["sums"]}
    shared = {name: value for name, value in row.items() if name in ("seed", "exact")}
    sums = {name: row["sums"][key] for name, key in there.items()}
    return {"row": what, **shared, "sums": sums, **{name: row[key] for name, key in there.items()}}


def tables(found: Results) -> dict[str, str]:
    """Heading -> table."""
    made = systems(found)
    return {"Word errors": errors(made), "What was said": said(made)}


def errors(found: Results) -> str:
    """Word error rates by weights of both objectives, and how far they lie below those of the unadapted model."""
    lines = []
    for what in (name for name in SYSTEMS if name in found):
        figures = [found.shown(what, f"wer{kind}", ".2f", 100.0) for kind in KINDS]
        less = found.difference(BASE, "wer", what) if what != BASE else None
        told = "" if less is None else less.told(".2f", 100.0)
        lines.append([what, *figures, told, found.shown(what, "likelihood", ".2f", 100.0)])
    heads = [f"word errors, %: {name}" for name in SPEAKERS.values()]
    table = with_none(["", *heads, "below unadapted, points", "by likelihood, %: all"], lines)
    if not lines:
        return table
    every, new = (found.units(lines[0][0], f"wer{kind}")[1] for kind in ("", "_new"))
    return f"{table}\nOf {every:,} words that were said, {new:,} by new speakers.\n"


def said(found: Results) -> str:
    """Perplexities of what was said, and by what share they lie below those of the unadapted model."""
    lines = []
    for what in (name for name in SYSTEMS if found.row(name).get("said") is not None):
        lines.append([what, *(found.shown(what, f"said{kind}") for kind in KINDS), *gains(found, what)])
    heads = [f"{name}: perplexity per word, all targets" for name in SPEAKERS.values()]
    return with_none(["", *heads, *(f"{name}: gain over unadapted, all targets" for name in SPEAKERS.values())], lines)


def gains(found: Results, what: str) -> Sequence[str]:
    """By what share each perplexity of a system lies below that of the unadapted model."""
    own = [found.lower(what, f"said{kind}", BASE) if what != BASE else None for kind in KINDS]
    return ["" if one is None else one.told(".1f", 100.0, "%") for one in own]
