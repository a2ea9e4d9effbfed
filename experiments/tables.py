"""Rows of the experiments to the tables of the documentation, the printed figures beside ours.

    python experiments/tables.py [--results RESULTS] [--docs DOCS]

Without DOCS the tables are printed. What is written around them in a page stays as it is.

Perplexities and accuracies are of the test, means over seeds beside their standard deviations. Gains are of the targets
that the printed ones count; in brackets what other texts and other trainings would make of them.
"""

import argparse
import itertools
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import advice
import beyond_tables
import completion_tables
import drawings
import exposure
import finetuning_tables
import front_tables
import overview
import papers
import samples_tables
import specificity_tables
import switches
import tacl
import tacl_baselines
import trials
from drawings import Picture
from factorcell import files
from factorcell.choices import PROPOSALS
from factorcell.config import PAPER_MODELS, UserError
from family import EXPERIMENT as FAMILY
from overview import LEAST, Published, accuracies, chosen, communities, gain, perplexities, rows_of, with_both_ends
from pages import NO_ROW, empty, filled, markdown, shown, with_none
from results import Results
from study import HERE
from thesis_queries import LATE, NO_LAYER, OPTIMISERS
from thesis_sixteen import PARTS
from thesis_sparse import EXPERIMENT as SPARSE
from thesis_sparse import VARIABLES as VARIED
from thesis_subreddits import NEAREST, NEIGHBOURS_OF
from thesis_variables import SUBSETS, VARIABLES

SHOWN = 9  # communities at each end of table 3.5
KNOWN, ALL = "known targets", "all targets"


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


def printed_gain(published: Published, name: str, base: str) -> list[str]:
    """The printed perplexity of a row and its gain over the row `base`."""
    value = published[name][0]
    return [shown(value), "" if name == base else shown(gain(value, published[base][0]), ".1%")]


def four(found: Results, published: Published, unit: str = "word") -> str:
    """A set of tables 3 and 4 of the TACL paper, and what its models are held against."""
    lines = []
    for model in (*PAPER_MODELS, *tacl_baselines.ROWS):
        parameters = shown(found.row(model).get("parameters"), ",.0f")
        printed = printed_gain(published, model, "unadapted") if model in published else []
        printed += [shown(one, ".1f") for one in published.get(model, ())[1:]]
        lines.append([model, parameters, *own(found, model, ["accuracy"]), *printed, *[""] * (3 - len(printed))])
    header = ["model", "parameters", *ours(unit), "accuracy, %", *theirs("TACL", unit), "accuracy, %"]
    return markdown(header, lines) + "\n" + told(found, published, KNOWN)


def told(found: Results, published: Published, counted: str) -> str:
    """In how many pairs of rows the orders of perplexity and of accuracy are those of print."""
    orders = {
        "Perplexity": found.orders("perplexity_known" if counted == KNOWN else "perplexity", perplexities(published)),
        "Accuracy": found.orders("accuracy", accuracies(published)),
    }
    every = "".join(f"{name}: {one}" for name, one in orders.items() if one.printed)
    return every if found.candidates else NO_ROW


def sixteen(found: Results, published: Published, scores: Mapping[str, str], unit: str = "word") -> str:
    """Tables 3.3, 3.6 and 3.7. `scores` are keys of ours, in the order of the published columns, and their headings."""
    names = [f"{score}, %" for score in scores.values()]
    header = ["×", "+", "LR", "Hash", *ours(unit, ALL), *names, *theirs("thesis", unit, ALL), *names]
    lines = []
    for name, row in published.items():
        marks = ["Y" if part in name.split("+") else "N" for part in PARTS]
        printed = [shown(value, ".1f") for value in row[1 : len(scores) + 1]]
        printed += [""] * (len(scores) - len(printed))
        figures = own(found, name, list(scores), ALL)
        lines.append([*marks, *figures, *printed_gain(published, name, "unadapted"), *printed])
    of = published if "accuracy" in scores else {name: row[:1] for name, row in published.items()}
    return markdown(header, lines) + "\n" + told(found, of, ALL)


def variables(found: Results, published: Published) -> str:
    """Table 3.8."""
    lines = []
    for subset in SUBSETS:
        name = "+".join(subset) or "none"
        marks = ["Y" if variable in subset else "N" for variable in VARIABLES]
        lines.append([*marks, *own(found, name, counted=ALL), *printed_gain(published, name, "none")])
    header = ["case", "speaker", "role", *ours(counted=ALL), *theirs("thesis", counted=ALL)]
    return markdown(header, lines) + "\n" + told(found, published, ALL)


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
    return with_none(["community", *map(str, range(1, NEAREST + 1))], [[name, *near[name]] for name in names])


def sparse(found: Results, published: Published) -> str:
    """Table A.1: each kind of bias, with the penalties that suit dev best, and all that were tried."""

    def figures(name: str) -> list[str]:
        options = SPARSE.rows.get(name, {})
        penalty = [one.partition("=")[2] for one in options.get("training", {}).get("sparse_l1", ())]
        size = str(options.get("model", {}).get("context_size", ""))
        shares = [found.shown(name, "top_3", ".1f", 100.0), found.shown(name, "nonzero", ".2f", 100.0)]
        return [", ".join(penalty), size, *own(found, name), *shares]

    best = {kind: chosen(found, kind) for kind in published}
    lines = []
    for kind in published:
        top = published[kind][1] if len(published[kind]) > 1 else None
        lines.append([kind, *figures(best[kind] or kind), *printed_gain(published, kind, "none"), shown(top)])
    columns = [f"λ of {', '.join(VARIED)}", "embedding", *ours(), "top-3, %", "not zero, %"]
    every = [[candidate.name, *figures(candidate.name)] for candidate in found.candidates]
    text = markdown(["softmax bias", *columns, *theirs("thesis"), "top-3, %"], lines)
    said = sparse_told(found, published, {kind: name for kind, name in best.items() if name})
    return f"{text}\n{said}\n{markdown(['all that was trained', *columns], every)}"


def sparse_told(found: Results, published: Published, best: Mapping[str, str]) -> str:
    """Whether the orders are the printed ones, and what a sparse bias adds to top-3 beside a low-rank one."""
    if not found.candidates:
        return NO_ROW
    orders = found.orders("perplexity_known", perplexities(published), best)
    both, base = (best.get(kind, "") for kind in ("low_rank_each+sparse", "low_rank_each"))
    more = found.above(both, "top_3", base)
    added = "" if more is None else f"Top-3 with a sparse bias beside a low-rank one: {more.told('.2f', 100.0, '%')}.\n"
    return f"Perplexity: {orders}{added}"


def queries(found: Results, published: Mapping[str, Published]) -> str:
    """Table 5.2: mean reciprocal ranks, over the texts of all users that no model was trained on."""
    kinds = ("seen", "unseen", "")
    lines = []
    for name in (*published["large"], NO_LAYER):
        row, figure = ("unadapted", "mpc") if name == "mpc" else (name, "mrr")
        own = [found.shown(row, f"{figure}_{kind}".rstrip("_"), ".3f") for kind in kinds]
        own.append(found.shown(row, f"{figure}_late", ".3f"))
        every = [published[size].get(name, [None] * 3) for size in ("small", "large")]
        lines.append([name, *own, *(shown(value, ".3f") for values in every for value in values)])
    sizes = [f"thesis, {size}: {kind or 'all'}" for size in ("small", "large") for kind in kinds]
    header = ["model", "seen", "unseen", "all", f"after {LATE} texts", *sizes]
    printed = {name: row[-1] for name, row in published["small"].items() if name != "mpc"}
    said = f"All: {found.orders('mrr', printed)}{learned(found)}" if found.candidates else NO_ROW
    return markdown(header, lines) + "\n" + said


def learned(found: Results) -> str:
    """What learning users brings on dev to the FactorCell, by the printed rule and by ours."""
    shown = {how: found.shown("factor", f"dev_{how}") for how in ("none", *OPTIMISERS)}
    if not all(shown.values()):
        return ""
    told = ", ".join(f"{value} by {how}" for how, value in shown.items() if how != "none")
    return f"\nThe FactorCell on the users of dev: perplexity {shown['none']} where nothing is learned, {told}.\n"


def family(found: Results) -> str:
    """Every mechanism that was trained, beside the others."""
    names = [name for name in FAMILY.rows if name in found]
    lines = [[name, *own(found, name, ["accuracy"]), found.shown(name, "minutes", ".1f")] for name in names]
    return with_none(["model", *ours(), "accuracy, %", "minutes"], lines)


def switched(found: Results, unit: str) -> str:
    """Parts as printed beside ours: what each gains over the row that it is held against."""
    lines = []
    for name in (candidate.name for candidate in found.candidates):
        against = "" if name == switches.OURS else switches.HELD_AGAINST.get(name, switches.OURS)
        told = found.lower(name, "perplexity_known", against) if against in found else None
        apart = found.difference(name, "accuracy", against) if against in found else None
        figures = [found.shown(name, "perplexity_known"), "" if told is None else told.told(".1f", 100.0, "%")]
        figures += [found.shown(name, "accuracy", ".1f", 100.0), "" if apart is None else apart.told(".1f", 100.0)]
        lines.append([name, against, *figures])
    header = [
        "model",
        "beside",
        f"perplexity per {unit}, {KNOWN}",
        f"gain, {KNOWN}",
        "accuracy, %",
        "above, points",
    ]
    drawn = {how: found.shown(switches.OURS, f"accuracy_{how}", ".1f", 100.0) for how in PROPOSALS}
    said = ", ".join(f"{value}% by {how}" for how, value in drawn.items() if value)
    sampled = f"\nAccuracy of ours by {switches.SAMPLES:,} samples of the vocabulary: {said}.\n" if said else ""
    return with_none(header, lines) + sampled


def reader(results: Path, suffix: str = "") -> overview.Read:
    """What reads the rows of an experiment by its name, and by the row that gains are measured from."""
    return lambda name, base="unadapted": Results.read(results, name + suffix, base)


def of_papers(results: Path, suffix: str = "") -> dict[str, str]:
    """Heading -> pictures and table: what there is, those of the TACL paper, then those of the thesis in its order."""
    read = reader(results, suffix)
    above = {heading: "".join(map(Picture.line, own)) for heading, own in drawings.pictures(read).items() if own}
    return {name: f"{above[name]}\n{table}" if name in above else table for name, table in tabled(read).items()}


def tabled(read: overview.Read) -> dict[str, str]:
    """Heading -> table."""
    with (HERE / "published.toml").open("rb") as file:
        printed: dict[str, Any] = tomllib.load(file)
    scotus, reddit = read("scotus"), read("subreddits")
    subsets = with_both_ends(rows_of(read("variables", "none")), rows_of(scotus))
    made = {"Every table and figure": overview.table(read, printed)}
    made["The whole in numbers"] = papers.whole(lambda name: rows_of(read(name)))
    beyond = {}
    for name, one in tacl.SETS.items():
        every = Results.of([*rows_of(read(f"tacl_{name}")), *rows_of(read(f"tacl_baselines_{name}"))])
        made[f"TACL, {one.printed} ({name})"] = four(every, printed["tacl"][one.printed], one.unit)
        beyond[f"Beyond, {name}"] = beyond_tables.table(name, one.unit, beyond_tables.read(read, name))
    drawn = {name: rows_of(read(f"tacl_trials_{name}")) for name in tacl.SETS}
    made["Figures 4.2, 4.4 and 4.5"] = trials.table(drawn)
    accuracy, languages = {"accuracy": "accuracy"}, {"accuracy": "accuracy", "macro_f1": "F1"}
    return {**made, **samples_tables.tables(scotus, read("commonvoice9"), read("tacl_hotels"))} | {
        "Table 3.3": sixteen(read("reddit_titles"), printed["reddit_titles"], {"auc": "AUC"}),
        "Table 3.4": neighbours(reddit),
        "Table 3.5": subreddits(reddit, printed["subreddits"]),
        "Table 3.6": sixteen(read("commonvoice9"), printed["commonvoice9"], languages, "character"),
        "Table 3.7": sixteen(scotus, printed["scotus"], accuracy),
        "Table 3.8": variables(Results.of(subsets, "none"), printed["variables"]),
        "Table 5.2": queries(read("queries"), printed["completion"]),
        **completion_tables.tables(read("queries"), rows_of(read("queries_trials"))),
        "Tables 6.1 to 6.3": specificity_tables.fillers(read("specificity_imdb")),
        "Table 6.4": specificity_tables.specificity(read("specificity_imdb"), printed["generation"]["Yelp"]),
        "Table 6.5": specificity_tables.specificity(read("specificity_hotels"), printed["generation"]["TripAdvisor"]),
        "Figures 6.1 to 6.4": specificity_tables.figures(overview.written(read)),
        "Table A.1": sparse(read("sparse", "none"), printed["sparse"]),
        "Section A.2": finetuning_tables.table(read("finetuned", "none")),
        "Every mechanism": family(read("family")),
        "Parts as printed, news": switched(read("switches_agnews", switches.OURS), "word"),
        "Parts as printed, tweets": switched(read("switches_tweets", switches.OURS), "character"),
        **beyond,
    }


def privacy(results: Path, suffix: str = "") -> dict[str, str]:
    """Options against the exposure of canaries."""
    return {"exposure": exposure.table(files.read_rows(results / f"exposure{suffix}.jsonl"))}


def foreseen(results: Path, suffix: str = "") -> dict[str, str]:
    """What the advice expects beside what models gain."""
    return {"advice": advice.table(reader(results, suffix))}


def draw(results: Path, suffix: str, folder: Path) -> None:
    """Write the pictures that there are, in place of all that were there."""
    every = list(itertools.chain(*drawings.pictures(reader(results, suffix)).values()))
    for stale in set(folder.glob("*.svg")) - {folder / picture.file for picture in every}:
        stale.unlink()
    for picture in every:
        folder.mkdir(exist_ok=True)
        files.write(folder / picture.file, picture.svg().encode())


PAGES = {
    "tables.md": of_papers,
    "results.md": front_tables.results,
    "privacy.md": privacy,
    "advice.md": foreseen,
    "../README.md": front_tables.front,
}


def main(argv: Sequence[str], say: Callable[[str], object] = print) -> int:
    """Print the tables, or put them into the pages."""
    parser = argparse.ArgumentParser(description="The tables of the documentation from the rows of the experiments.")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the rows")
    parser.add_argument("--docs", type=Path, help="folder of the pages whose tables are replaced")
    parser.add_argument("--trial", action="store_true", help="of the trial runs")
    given = parser.parse_args(argv)
    suffix = "-trial" if given.trial else ""
    try:
        for name, make in PAGES.items():
            tables = make(given.results, suffix)
            if given.docs is None:
                say(filled(empty(tables), tables))
                continue
            page = given.docs / name
            if not page.is_file():
                raise UserError(f"{page}: there is no such page")
            files.write(page, filled(page.read_text(encoding="utf-8"), tables).encode())
        if given.docs is not None:
            draw(given.results, suffix, given.docs / drawings.FOLDER)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
