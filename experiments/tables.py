"""Rows of the experiments to the tables of the papers, in Markdown, the printed figures beside ours.

    python experiments/tables.py [--results RESULTS] [--into docs/tables.md]

Perplexities and accuracies are of the test, means over seeds beside their standard deviations. Gains are of the targets
that the printed ones count; in brackets what other texts and other trainings would make of them.
"""

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tacl
from factorcell import files
from factorcell.config import PAPER_MODELS, UserError
from family import EXPERIMENT as FAMILY
from pages import empty, filled, markdown, shown
from results import Results
from study import HERE, Row
from thesis_sixteen import PARTS
from thesis_sparse import TRIALS, penalties
from thesis_sparse import VARIABLES as VARIED
from thesis_subreddits import NEAREST, NEIGHBOURS_OF
from thesis_variables import SUBSETS, VARIABLES

LEAST = 50  # titles of a community whose perplexity is told
SHOWN = 9  # communities at each end of table 3.5
PENALTIES = penalties()
KNOWN, ALL = "known targets", "all targets"
WHOLE = "+".join(PARTS)

Published = Mapping[str, list[float]]


def ours(unit: str = "word", counted: str = KNOWN) -> list[str]:
    """The heads of what `own` has: perplexities with their unit and the targets that they count."""
    return [f"perplexity per {unit}, {ALL}", f"perplexity per {unit}, {KNOWN}", f"gain, {counted}"]


def theirs(source: str, unit: str = "word", counted: str = KNOWN) -> list[str]:
    """The heads of what `printed_gain` has; which targets a paper counts: docs/scoring.md."""
    return [f"{source}: perplexity per {unit}, {counted}", f"gain, {counted}"]


def own(found: Results, name: str, scores: Sequence[str] = (), counted: str = KNOWN) -> list[str]:
    """What we have of a row: the columns `ours`, and some scores in per cent."""
    gained = found.gain(name, "gain_known" if counted == KNOWN else "gain")
    figures = [found.shown(name, "perplexity"), found.shown(name, "perplexity_known"), gained]
    return figures + [found.shown(name, score, ".1f", 100.0) for score in scores]


def gain(value: float | None, base: float | None) -> float | None:
    """By what share `value` lies below `base`."""
    return None if value is None or base is None else 1 - value / base


def printed_gain(published: Published, name: str, base: str) -> list[str]:
    """The printed perplexity of a row and its gain over the row `base`."""
    value = published[name][0]
    return [shown(value), "" if name == base else shown(gain(value, published[base][0]), ".1%")]


def perplexities(published: Published) -> dict[str, float]:
    """The first figure of each printed row."""
    return {name: row[0] for name, row in published.items()}


def four(found: Results, published: Published, unit: str = "word") -> str:
    """A set of tables 3 and 4 of the TACL paper."""
    lines = []
    for model in PAPER_MODELS:
        parameters = shown(found.row(model).get("parameters"), ",.0f")
        printed = printed_gain(published, model, "unadapted") + [shown(one, ".1f") for one in published[model][1:]]
        lines.append([model, parameters, *own(found, model, ["accuracy"]), *printed, *[""] * (3 - len(printed))])
    header = ["model", "parameters", *ours(unit), "accuracy, %", *theirs("TACL", unit), "accuracy, %"]
    return markdown(header, lines) + "\n" + found.agreement("perplexity_known", perplexities(published))


def sixteen(found: Results, published: Published, scores: Mapping[str, str], unit: str = "word") -> str:
    """Tables 3.6 and 3.7. `scores` are keys of ours, in the order of the published columns, and their headings."""
    names = [f"{score}, %" for score in scores.values()]
    header = ["×", "+", "LR", "Hash", *ours(unit, ALL), *names, *theirs("thesis", unit, ALL), *names]
    lines = []
    for name, row in published.items():
        marks = ["Y" if part in name.split("+") else "N" for part in PARTS]
        printed = [shown(value, ".1f") for value in row[1 : len(scores) + 1]]
        printed += [""] * (len(scores) - len(printed))
        figures = own(found, name, list(scores), ALL)
        lines.append([*marks, *figures, *printed_gain(published, name, "unadapted"), *printed])
    told = [f"Perplexity: {found.agreement('perplexity', perplexities(published))}"]
    accuracies = {name: row[1] for name, row in published.items() if len(row) > 1}
    told.append(f"Accuracy: {found.agreement('accuracy', accuracies)}")
    return markdown(header, lines) + "\n" + "".join(told)


def variables(found: Results, published: Published) -> str:
    """Table 3.8."""
    lines = []
    for subset in SUBSETS:
        name = "+".join(subset) or "none"
        marks = ["Y" if variable in subset else "N" for variable in VARIABLES]
        lines.append([*marks, *own(found, name, counted=ALL), *printed_gain(published, name, "none")])
    header = ["case", "speaker", "role", *ours(counted=ALL), *theirs("thesis", counted=ALL)]
    return markdown(header, lines) + "\n" + found.agreement("perplexity", perplexities(published))


def with_both_ends(rows: Sequence[Row], scotus: Sequence[Row]) -> list[Row]:
    """The rows of table 3.8, of which the first and the last come from table 3.7."""
    ends = {"unadapted": "none", WHOLE: "+".join(VARIABLES)}
    return [*rows, *({**row, "row": ends[row["row"]]} for row in scotus if row["row"] in ends)]


def communities(found: Results) -> dict[str, tuple[int, float, float]]:
    """By name: titles, and perplexities unadapted and adapted, both geometric means over seeds."""
    means: list[dict[str, float]] = []
    counts: dict[str, int] = {}
    for candidate in found.candidates:
        tables = [{entry["value"]: entry for entry in row["by"]} for row in candidate.rows]
        counts |= {name: entry["count"] for name, entry in tables[0].items()}
        logs = {name: np.mean([np.log(table[name]["perplexity"]) for table in tables]) for name in tables[0]}
        means.append({name: float(np.exp(value)) for name, value in logs.items()})
    return {name: (counts[name], means[0][name], means[1][name]) for name in means[0] if counts[name] >= LEAST}


def subreddits(found: Results, published: Published) -> str:
    """Table 3.5: the communities that gain most and least, and those of the thesis."""
    if len(found.candidates) < 2:
        return "Not trained yet.\n"
    every = communities(found)
    gains = {name: gain(adapted, plain) or 0.0 for name, (_, plain, adapted) in every.items()}
    if not gains:
        return f"No community has {LEAST} titles.\n"
    order = sorted(gains, key=lambda name: -gains[name])

    def line(name: str) -> list[str]:
        count, *means = every[name]
        printed = shown(gain(published[name][1], published[name][0]), ".1%") if name in published else ""
        return [name, str(count), *(shown(value, ".1f") for value in means), shown(gains[name], ".1%"), printed]

    models = [f"{model}: perplexity per word, {ALL}" for model in ("unadapted", "adapted")]
    header = ["community", "titles", *models, f"gain, {ALL}", f"thesis: gain, {ALL}"]
    ends = markdown(header, [line(name) for name in order[:SHOWN] + order[SHOWN:][-SHOWN:]])
    printed = markdown(header, [line(name) for name in order if name in published])
    mean = float(np.mean(list(gains.values())))
    return f"{ends}\nOf {len(gains)} communities, the mean gain is {mean:.1%}. Those of the thesis:\n\n{printed}"


def neighbours(found: Results) -> str:
    """Table 3.4: what lies near chosen communities, with the first seed."""
    rows = [candidate.rows[0] for candidate in found.candidates]
    near: dict[str, list[str]] = next((row["nearest"] for row in rows if row["nearest"]), {})
    names = [name for name in NEIGHBOURS_OF if name in near]
    return markdown(["community", *map(str, range(1, NEAREST + 1))], [[name, *near[name]] for name in names])


def sparse(found: Results, published: Published) -> str:
    """Table A.1: each kind of bias, with the penalties that suit dev best, and all that were tried."""

    def figures(name: str) -> list[str]:
        penalty = PENALTIES[int(name.rpartition("-")[2]) - 1] if name.rpartition("-")[2].isdecimal() else {}
        shares = [found.shown(name, "top_3", ".1f", 100.0), found.shown(name, "nonzero", ".2f", 100.0)]
        return [", ".join(penalty.values()), *own(found, name), *shares]

    lines = []
    for kind in published:
        tried = [name for name in (kind, *(f"{kind}-{number + 1}" for number in range(TRIALS))) if name in found]
        top = published[kind][1] if len(published[kind]) > 1 else None
        printed = [*printed_gain(published, kind, "none"), shown(top)]
        lines.append([kind, *figures(min(tried, key=found.dev, default=kind)), *printed])
    columns = [f"λ of {', '.join(VARIED)}", *ours(), "top-3, %", "not zero, %"]
    every = [[candidate.name, *figures(candidate.name)] for candidate in found.candidates]
    best = markdown(["softmax bias", *columns, *theirs("thesis"), "top-3, %"], lines)
    return best + "\n" + markdown(["all that was trained", *columns], every)


def family(found: Results) -> str:
    """Every mechanism that was trained, beside the others."""
    names = [name for name in FAMILY.rows if name in found]
    lines = [[name, *own(found, name, ["accuracy"]), found.shown(name, "minutes", ".1f")] for name in names]
    return markdown(["model", *ours(), "accuracy, %", "minutes"], lines)


def all_tables(results: Path, suffix: str = "") -> dict[str, str]:
    """Heading -> table: those of the TACL paper, then those of the thesis in its order."""
    with (HERE / "published.toml").open("rb") as file:
        printed: dict[str, Any] = tomllib.load(file)

    def rows(name: str) -> list[Row]:
        return files.read_rows(results / f"{name}{suffix}.jsonl")

    scotus, languages = (Results.of(rows(name)) for name in ("scotus", "commonvoice9"))
    reddit = Results.of(rows("subreddits"))
    made = {
        f"TACL, {one.printed} ({name})": four(Results.of(rows(f"tacl_{name}")), printed["tacl"][one.printed], one.unit)
        for name, one in tacl.SETS.items()
    }
    return made | {
        "Table 3.4": neighbours(reddit),
        "Table 3.5": subreddits(reddit, printed["subreddits"]),
        "Table 3.6": sixteen(
            languages, printed["commonvoice9"], {"accuracy": "accuracy", "macro_f1": "F1"}, "character"
        ),
        "Table 3.7": sixteen(scotus, printed["scotus"], {"accuracy": "accuracy"}),
        "Table 3.8": variables(
            Results.of(with_both_ends(rows("variables"), rows("scotus")), "none"), printed["variables"]
        ),
        "Table A.1": sparse(Results.of(rows("sparse"), "none"), printed["sparse"]),
        "Every mechanism": family(Results.of(rows("family"))),
    }


def main(argv: Sequence[str], say: Callable[[str], object] = print) -> int:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description="The tables of the papers from the rows of the experiments.")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the rows")
    parser.add_argument(
        "--into", type=Path, help="page whose tables are replaced; a new one has headings and tables alone"
    )
    parser.add_argument("--trial", action="store_true", help="of the trial runs")
    given = parser.parse_args(argv)
    try:
        tables = all_tables(given.results, "-trial" if given.trial else "")
        if given.into is None:
            say(filled(empty(tables), tables))
            return 0
        page = given.into.read_text(encoding="utf-8") if given.into.exists() else empty(tables)
        files.write(given.into, filled(page, tables).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
