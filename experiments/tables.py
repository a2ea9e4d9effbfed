"""Rows of the experiments to the tables of the documentation, the printed figures beside ours.

    python experiments/tables.py [--results RESULTS] [--docs DOCS]

Without DOCS the tables are printed. What is written around them in a page stays as it is.

Perplexities and accuracies are of the test, means over seeds beside their standard deviations. Gains are of the targets
that the printed ones count; in brackets what other texts and other trainings would make of them.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import exposure
import exposure_phrases
import lengths
import papers
import ranks
import restraint
import sampled
import switches
import tacl
import tacl_trials
import thesis_speakers
from factorcell import files
from factorcell.config import PAPER_MODELS, UserError
from pages import (
    advice,
    beside,
    beyond,
    completion,
    drawings,
    finetuning,
    front,
    overview,
    rescoring,
    sizes,
    specificity,
    trials,
    words,
)
from pages.drawings import Picture
from pages.markdown import empty, filled
from pages.results import Results, of_variables, published, rows_of
from study import HERE, Row


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
    printed = published()
    scotus, reddit = read("scotus"), read("subreddits")
    subsets = of_variables(rows_of(read("variables", "none")), rows_of(scotus))
    made = {"Every table and figure": overview.table(read, printed)}
    made["The whole in numbers"] = papers.whole(lambda name: rows_of(read(name)))
    made["Sizes"] = sizes.table(read, printed["sizes"])
    others = {}
    for name, one in tacl.SETS.items():
        every = Results.of([*rows_of(read(f"tacl_{name}")), *rows_of(read(f"tacl_baselines_{name}"))])
        made[f"TACL, {one.printed} ({name})"] = beside.four(every, printed["tacl"][one.printed], one.unit)
        others[f"Beyond, {name}"] = beyond.table(name, one.unit, beyond.read(read, name))
    made["Told apart"] = beyond.reached(read, printed["code"][PAPER_MODELS[-1]][-1])
    drawn = {name: rows_of(read(f"tacl_trials_{name}")) for name in tacl_trials.DRAWN}
    made["Figures 4.2, 4.4 and 4.5"] = trials.table(drawn)
    accuracy, languages = {"accuracy": "accuracy"}, {"accuracy": "accuracy", "macro_f1": "F1"}
    return {**made, **words.tables(scotus, read("commonvoice9"), read("tacl_hotels"))} | {
        "Table 3.3": beside.sixteen(read("reddit_titles"), printed["reddit_titles"], {"auc": "AUC"}),
        "Table 3.4": beside.neighbours(reddit),
        "Table 3.5": beside.subreddits(reddit, printed["subreddits"]),
        "Table 3.6": beside.sixteen(read("commonvoice9"), printed["commonvoice9"], languages, "character"),
        "Table 3.7": beside.sixteen(scotus, printed["scotus"], accuracy),
        "Table 3.8": beside.variables(Results.of(subsets, "none"), printed["variables"]),
        "Table 5.2": beside.queries(read("queries"), printed["completion"]),
        **completion.tables(read("queries"), rows_of(read("queries_trials"))),
        "Tables 6.1 to 6.3": specificity.fillers(read("specificity_imdb")),
        "Table 6.4": specificity.specificity(
            wrote(read, "imdb"), printed["generation"]["Yelp"], printed["real"]["Yelp"]
        ),
        "Table 6.4, of hotels": specificity.specificity(
            wrote(read, "ratings"), printed["generation"]["Yelp"], printed["real"]["Yelp"]
        ),
        "Table 6.5": specificity.specificity(
            wrote(read, "hotels"), printed["generation"]["TripAdvisor"], printed["real"]["TripAdvisor"]
        ),
        "Figures 6.1 to 6.4": specificity.figures(overview.written(read)),
        "Table A.1": beside.sparse(read("sparse", "none"), printed["sparse"]),
        "Section A.2": finetuning.table(read("finetuned", "none")),
        "Every mechanism": beside.mechanisms(read("family")),
        "Parts as printed, news": beside.switched(read("switches_agnews", switches.OURS), "word"),
        "Parts as printed, places": beside.switched(read("switches_places", switches.OURS), "character"),
        "Parts as printed, tweets": beside.switched(read("switches_tweets", switches.OURS), "character"),
        "Parts as printed, films": beside.switched(read("switches_imdb", switches.OURS), "word"),
        "Parts as printed, speakers": beside.speakers(read("speakers", thesis_speakers.OURS)),
        "Parts as printed, texts": specificity.lengths({name: read(f"lengths_{name}") for name in lengths.EXPERIMENTS}),
        **{f"Restrained, {name}": beside.restrained(restrained(read, name)) for name in restraint.EXPERIMENTS},
        "Ranks": beside.ranked({name: ranked(read, name) for name in ranks.EXPERIMENTS}),
        **others,
    }


def factorcells(read: overview.Read, name: str) -> list[Row]:
    """The rows of a set's FactorCell."""
    return [row for row in rows_of(read(f"tacl_{name}")) if row["row"] == PAPER_MODELS[-1]]


def wrote(read: overview.Read, name: str) -> Results:
    """The models of chapter 6 on a set, and what is beside them."""
    return Results.of(
        [*rows_of(read(f"specificity_{name}")), *rows_of(read(f"specificity_prefix_{name}"))], "unadapted"
    )


def restrained(read: overview.Read, name: str) -> Results:
    """The rows of a set whose context is restrained in other ways, beside its FactorCell."""
    return Results.of([*factorcells(read, name), *rows_of(read(f"restraint_{name}"))], PAPER_MODELS[-1])


def ranked(read: overview.Read, name: str) -> Results:
    """The FactorCells of a set, that of the TACL paper's tables among them, by the names of their ranks."""
    own = [{**row, "row": ranks.of_rank(row["config"]["model"]["rank"])} for row in factorcells(read, name)]
    return Results.of([*own, *rows_of(read(f"ranks_{name}"))], ranks.of_rank(ranks.RANKS[0]))


def privacy(results: Path, suffix: str = "") -> dict[str, str]:
    """Options against the exposure of canaries."""
    kinds = {"exposure": exposure.table, "exposure_phrases": exposure_phrases.table}
    return {name: table(files.read_rows(results / f"{name}{suffix}.jsonl")) for name, table in kinds.items()}


def foreseen(results: Path, suffix: str = "") -> dict[str, str]:
    """What the advice expects beside what models gain."""
    return {"advice": advice.table(reader(results, suffix))}


def rescored(results: Path, suffix: str = "") -> dict[str, str]:
    """What context brings to a recogniser."""
    return rescoring.tables(reader(results, suffix)("rescoring"))


def generated(results: Path, suffix: str = "") -> dict[str, str]:
    """Whether sampled texts fit their rating."""
    read = reader(results, suffix)
    return {f"sampled, {name}": specificity.sampled(read(f"sampled_{name}")) for name in sampled.SETS}


def completed(results: Path, suffix: str = "") -> dict[str, str]:
    """What completion reaches for people that no model knew."""
    return completion.reached(reader(results, suffix)("queries"))


def draw(results: Path, suffix: str, folder: Path) -> None:
    """Write the pictures that there are, in place of all that were there."""
    every = list(itertools.chain(*drawings.pictures(reader(results, suffix)).values()))
    for stale in set(folder.glob("*.svg")) - {folder / picture.file for picture in every}:
        stale.unlink()
    for picture in every:
        folder.mkdir(exist_ok=True)
        files.write(folder / picture.file, picture.svg())


PAGES = {
    "tables.md": of_papers,
    "results.md": front.results,
    "privacy.md": privacy,
    "advice.md": foreseen,
    "rescoring.md": rescored,
    "generation.md": generated,
    "completion.md": completed,
    "../README.md": front.front,
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
            files.write(page, filled(page.read_text(encoding="utf-8"), tables))
        if given.docs is not None:
            draw(given.results, suffix, given.docs / drawings.FOLDER)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
