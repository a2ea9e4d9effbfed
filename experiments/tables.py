"""Turn the rows of the experiments into the Markdown tables and figures of the documentation.

    python experiments/tables.py [--results RESULTS] [--docs DOCS]

A page holds each table between two marks, <!-- NAME --> and <!-- end of NAME -->; the text around them is written by
hand. Without DOCS the tables are printed. A figure is the mean of the trainings ± their standard deviation; a
difference is followed by its 95 % interval over texts and trainings.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import figures
import page_tables
import paper_tables
from aggregate import Rows, number
from columns import (
    ACCURACY,
    ALL,
    BASELINES,
    FOUR,
    KNOWN,
    NONZERO,
    PAPER,
    PARAMETERS,
    PERPLEXITIES,
    SETS,
    WHOLE,
    Column,
    Maker,
    by_set,
    constant,
    filled,
    lower,
    markdown,
    matrix,
    mean,
    of,
    paper,
    paper_gain,
    points,
    share,
    table,
)
from factorcell import files
from factorcell.config import UserError
from figures import LENGTHS, PLACES, Read
from study import HERE, Row


def four(name: str) -> Maker:
    """Tables 3 and 4 of the TACL paper: a data set, its four models and the baselines."""
    values = PAPER["tacl"][SETS[name]]
    columns = [PARAMETERS, *PERPLEXITIES, lower(), ACCURACY, points("accuracy", "factorcell")]
    columns += (
        [share("accuracy_printed_cities", "accuracy, cities of the paper")] if name in ("tweets", "places") else []
    )
    columns += [paper(values, 0, "perplexity"), paper_gain(values), paper(values, 1, "accuracy, %", ".1f")]
    return table([f"tacl_{name}", f"tacl_baselines_{name}"], columns, [*FOUR, *BASELINES])


def sixteen(name: str, scores: Mapping[str, str]) -> Maker:
    """Tables 3.3, 3.6 and 3.7 of the thesis; `scores` are keys and heads, in the order of published.toml."""
    columns = [*PERPLEXITIES, lower(ALL), *(share(key, head) for key, head in scores.items())]
    columns += [points("accuracy", WHOLE, "above all four, points")] if "accuracy" in scores else []
    columns += [paper(PAPER[name], 0, "perplexity"), paper_gain(PAPER[name])]
    columns += [paper(PAPER[name], place, f"{head}, %", ".1f") for place, head in enumerate(scores.values(), 1)]
    return table([name], columns, [*subsets(("scale", "concat", "low_rank", "hash"), "unadapted"), *BASELINES])


def subsets(parts: Sequence[str], nothing: str) -> list[str]:
    """Return the names of all subsets, in the order of the thesis."""
    chosen = [
        [part for place, part in enumerate(reversed(parts)) if bits >> place & 1] for bits in range(2 ** len(parts))
    ]
    return ["+".join(reversed(own)) or nothing for own in chosen]


def ranks(read: Read, name: str) -> Rows:
    """FactorCells by their rank; one of them may be that of the TACL tables."""
    own = Rows(
        {**row, "row": f"rank {row['config']['model']['rank']}"}
        for row in (read(f"tacl_{name}").all() if name in SETS else [])
        if row["row"] == "factorcell"
    )
    return own | read(f"ranks_{name}")


def about(key: str, head: str) -> Column:
    """A figure of the training texts, which one of the rows has."""
    return Column(head, lambda rows, _: next((f"{row[key]:,.0f}" for row in rows.all() if key in row), ""))


def beyond(read: Read, name: str) -> Rows:
    """FactorCells, their ensembles and mixtures, and the classifiers."""
    return read(f"tacl_{name}", f"tacl_baselines_{name}", f"tacl_beyond_{name}")


FRONT = {
    "agnews": "AG News, words; topic",
    "dbpedia": "DBpedia, words; category",
    "hotels": "short hotel reviews, words; hotel, rating",
    "hotels13": "long hotel reviews, words; hotel, rating",
    "imdb": "film reviews, words; rating",
    "languages": "sentences of nine languages, characters; language",
    "tweets": "tweets, characters; latitude, longitude",
    "places": "names of places, characters; latitude, longitude",
}


def front(read: Read) -> str:
    """The table of the README: the four models of the paper on each data set."""
    lines = []
    for name, label in FRONT.items():
        rows = read(f"tacl_{name}")
        accuracy = f"{ACCURACY.cell(rows, 'factorcell')} ({rows.first('factorcell')['candidates']} values)"
        perplexities = [mean(KNOWN, "", bold=True).cell(rows, model) for model in FOUR]
        lines.append([label, *perplexities, lower().cell(rows, "factorcell"), accuracy])
    heads = [*FOUR, "gain of factorcell, %", "its accuracy, %"]
    return markdown(["perplexity per unit: texts, unit; context", *heads], lines)


SCORERS = {  # rows that have a perplexity
    **{model: model for model in FOUR},
    "prefix": "control codes",
    "mixture": "a model per value, mixed",
    "ngram": "n-grams",
    "with ngram": "factorcell and n-grams",
    "ensemble": "three factorcells",
    "ensemble with ngram": "three and n-grams",
}
CLASSIFIERS = {  # rows that have an accuracy
    **{model: model for model in FOUR[1:]},
    "prefix": "control codes",
    "separate": "a model per value",
    "ensemble": "three factorcells",
    "bayes": "naive Bayes",
    "linear": "linear",
    "fasttext": "fastText",
}
BASE = "concat+low_rank"
COMPARED = {  # row of the table of every mechanism -> the row that its gain is measured from; else unadapted
    **{f"cell {cell}": BASE for cell in ("lstm", "gru", "tanh", "relu")},
    **dict.fromkeys(("two layers", "layer normalisation", "no dropout", "variational dropout"), BASE),
    "loss sampled_text": BASE,
}


def switches(name: str) -> Maker:
    """A set whose FactorCells differ in one part."""
    columns = [mean(KNOWN, "perplexity"), lower(base="ours"), ACCURACY, points("accuracy", "ours")]
    if name in ("agnews", "imdb"):
        columns += [share(f"accuracy_{how}", f"accuracy, 1,000 samples by {how}") for how in ("rank", "unigram")]
    rows = ["ours", "relu", "linear", "no joint layer", "no number network", "number network of one layer"]
    return table([f"switches_{name}"], columns, [*rows, "scale", "layer_norm"])


def restrained(name: str) -> Maker:
    """FactorCells of hotels whose context is restrained in another way."""
    columns = [
        Column("dev: perplexity", lambda rows, row: number(rows.dev(row))),
        mean(KNOWN, "test: perplexity", bold=True),
    ]
    columns += [lower(base="factorcell"), ACCURACY, points("accuracy", "factorcell")]

    def load(read: Read) -> Rows:
        own = read(f"tacl_{name}").renamed({"factorcell": "factorcell"})
        return own | read(f"restraint_{name}")

    return table([], columns, load=load)


def sizes() -> Maker:
    """The sizes of texts and models."""
    models = {f"tacl_{name}": ("unadapted", "factorcell") for name in SETS}
    models |= dict.fromkeys(("reddit_titles", "commonvoice9", "scotus"), ("unadapted", WHOLE))
    models |= {"subreddits": ("unadapted", "concat+low_rank+hash"), "queries": ("unadapted", "factor")}
    models |= {"sparse": ("none", "low_rank_each-2")}

    def make(read: Read) -> str:
        lines = []
        for name, (plain, adapted) in models.items():
            first, last = read(name).first(plain), read(name).first(adapted)
            training, model = first["config"]["training"], last["config"]["model"]
            targets = first["dev"]["steps"] * training["batch_tokens"] / training["epochs"] / 1e6
            rank = str(model["rank"]) if "factor" in model["adapt"] else ""
            shape = [str(model[f"{part}_size"]) for part in ("embedding", "hidden", "context")]
            parameters = [f"{row['parameters']:,}" for row in (first, last)]
            texts = [f"{targets:.1f}", f"{first['texts']:,}", f"{first['targets']:,}"]
            lines.append([name, *texts, *shape, rank, f"{training['epochs']:g}", *parameters])
        heads = [
            "training targets, millions",
            "test texts",
            "test targets",
            "embedding",
            "hidden units",
            "context vector",
        ]
        heads += ["rank", "passes", "parameters, unadapted", "parameters, adapted"]
        return markdown(["experiment", *heads], lines)

    return make


ENSEMBLES = ("with ngram", "ensemble", "ensemble with ngram")
MECHANISMS = [*PERPLEXITIES, lower(base=COMPARED), ACCURACY, points("accuracy", "concat+factor+low_rank"), NONZERO]
SPARSE = [
    constant("λ of hotel, city, rating", lambda row: ", ".join(one.partition("=")[2] for one in penalties(row))),
    constant("embedding", lambda row: str(row["config"]["model"]["context_size"]) if "low_rank" in row["row"] else ""),
    *PERPLEXITIES,
    lower(base="none"),
    share("top_3", "top-3"),
    NONZERO,
]


def penalties(row: Row) -> list[str]:
    """Return the penalties of a sparse bias."""
    return list(row["config"]["training"]["sparse_l1"]) if "sparse" in row["row"] else []


def perplexities(unit: str, names: Sequence[str]) -> Maker:
    """The perplexity of each scorer on each data set."""
    return matrix(names, beyond, SCORERS, mean(KNOWN, f"perplexity per {unit}, known targets", bold=True))


PAGES: Mapping[str, Mapping[str, Maker]] = {
    "tables.md": {
        "Sizes": sizes(),
        **{f"TACL, {SETS[name]} ({name})": four(name) for name in SETS},
        "Figures 4.2, 4.4 and 4.5": paper_tables.trials,
        "Figures 4.6 and 4.7": paper_tables.embedding_groups,
        "Table 3.3": sixteen("reddit_titles", {"auc": "AUC"}),
        "Table 3.4": paper_tables.neighbours,
        "Table 3.5": paper_tables.communities,
        "Table 3.6": sixteen("commonvoice9", {"accuracy": "accuracy", "macro_f1": "F1"}),
        "Table 3.7": sixteen("scotus", {"accuracy": "accuracy"}),
        "Table 3.8": table(
            [],
            [
                *PERPLEXITIES,
                lower(ALL, "none"),
                paper(PAPER["variables"], 0, "perplexity"),
                paper_gain(PAPER["variables"], "none"),
            ],
            [*subsets(("case", "speaker", "role"), "none"), *BASELINES[:4]],
            "variables",
            paper_tables.variables,
        ),
        "Figure 5.1": paper_tables.rank_against_perplexity,
        "Table 5.2": paper_tables.table_5_2,
        "Figure 5.2": paper_tables.completion_gains({"after": PLACES}, "texts seen"),
        "Figure 5.3": paper_tables.completion_gains(LENGTHS, "characters, after 50 texts"),
        "Table 6.4": paper_tables.specificity(["specificity_imdb", "specificity_prefix_imdb"], "Yelp"),
        "Table 6.4, of hotels": paper_tables.specificity(["specificity_ratings", "specificity_prefix_ratings"], "Yelp"),
        "Table 6.5": paper_tables.specificity(["specificity_hotels", "specificity_prefix_hotels"], "TripAdvisor"),
        "Figures 6.1 to 6.4": paper_tables.correlations,
        "Table A.1": table(["sparse"], SPARSE, head="softmax bias"),
        "Section A.2": paper_tables.finetuned,
        "Every mechanism": table(["family"], MECHANISMS),
        **{f"Parts, {name}": switches(name) for name in ("agnews", "places", "tweets", "imdb")},
        "Parts, speakers": paper_tables.speakers,
        **{f"Restrained, {name}": restrained(name) for name in ("hotels", "hotels13")},
        "Ranks": by_set(
            ["hotels", "hotels13", "dbpedia", "languages", "scotus", "reddit_titles"],
            ranks,
            [
                about("trained_targets", "training targets"),
                about("values", "values"),
                about("texts_per_value", "texts of a value"),
                *(of(f"rank {rank}", mean(KNOWN, f"rank {rank}: perplexity", bold=True)) for rank in (4, 12)),
                of("rank 12", lower(base="rank 4", head="gain of rank 12, %")),
                of("rank 12", points("accuracy", "rank 4", "accuracy, points")),
            ],
        ),
        "Beyond": by_set(
            list(SETS),
            beyond,
            [
                *(of(row, lower(base="factorcell", head=f"gain of {row}, %")) for row in ENSEMBLES),
                of("with ngram", mean("fresh_gain", "gain with n-grams on new texts, %", ".1f", 100.0)),
                of("with ngram", about("fresh_texts", "new texts")),
            ],
        ),
        "Classifiers": by_set(
            list(SETS)[:6],
            beyond,
            [
                *(
                    of(row, points("classifier_accuracy", best, f"{row} above {best}, points"))
                    for row in ("factorcell", "ensemble")
                    for best in ("linear", "fasttext")
                ),
                *(
                    of(row, share("classifier_calibration_error", f"calibration error of {row}"))
                    for row in ("factorcell", "linear")
                ),
            ],
        ),
    },
    "results.md": {
        "Perplexity per word": perplexities("word", list(SETS)[:5]),
        "Perplexity per character": perplexities("character", list(SETS)[5:]),
        "Accuracy": matrix(list(SETS), beyond, CLASSIFIERS, share("classifier_accuracy", "accuracy")),
    },
    "privacy.md": {
        "exposure": page_tables.exposure,
        "exposure_phrases": table(
            ["exposure_phrases"],
            [mean("stranger", "exposure for a stranger"), mean("chance", "by chance"), mean("p", "p", ".3f")],
            head="options",
        ),
    },
    "advice.md": {"advice": page_tables.advice},
    "rescoring.md": {
        "Word errors": page_tables.word_errors,
        "What was said": page_tables.said,
    },
    "generation.md": {f"sampled, {name}": paper_tables.specificity([f"sampled_{name}"]) for name in ("hotels", "imdb")},
    "completion.md": {"What it reaches": paper_tables.completion},
    "../README.md": {"Results": front},
}
WITH_PICTURES = {  # table -> the figures above it
    "Figures 4.2, 4.4 and 4.5": ("4.2", "4.4", "4.5"),
    "Figures 4.6 and 4.7": ("4.6", "4.7"),
    **{f"Figure {number}": (number,) for number in ("5.1", "5.2", "5.3")},
    "Figures 6.1 to 6.4": ("6.1", "6.2", "6.3", "6.4"),
}


def reader(results: Path) -> Read:
    """Return a function that reads the rows of experiments by their names."""

    @cache
    def one(name: str) -> Rows:
        return Rows(files.read_rows(results / f"{name}.jsonl"))

    def read(*names: str) -> Rows:
        rows = [one(name) for name in names]
        return rows[0] if len(rows) == 1 else Rows(row for own in rows for row in own.all())

    return read


def made(read: Read, pictures: Mapping[str, figures.Picture]) -> dict[str, dict[str, str]]:
    """Make all tables: page -> name -> Markdown."""
    every = {page: {name: make(read) for name, make in makers.items()} for page, makers in PAGES.items()}
    for name, numbers in WITH_PICTURES.items():
        links = "".join(pictures[number].link() for number in numbers if number in pictures)
        every["tables.md"][name] = f"{links}\n{every['tables.md'][name]}"
    return every


def main(argv: Sequence[str], say: Callable[[str], object] = print) -> int:
    """Print the tables, or put them into the pages."""
    parser = argparse.ArgumentParser(description="The tables of the documentation from the rows of the experiments.")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the rows")
    parser.add_argument("--docs", type=Path, help="folder of the pages whose tables are replaced")
    options = parser.parse_args(argv)
    read = reader(options.results)
    try:
        pictures = figures.pictures(read)
        for name, tables in made(read, pictures).items():
            if options.docs is None:
                say("\n".join(f"## {title}\n\n{table}" for title, table in tables.items()))
                continue
            page = options.docs / name
            if not page.is_file():
                raise UserError(f"{page}: expected a page with marks for its tables, found no file")
            files.write(page, filled(page.read_text(encoding="utf-8"), tables).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.docs is not None:
        write_pictures(options.docs / figures.FOLDER, list(pictures.values()))
    return 0


def write_pictures(folder: Path, pictures: Sequence[figures.Picture]) -> None:
    """Write the pictures, and remove those that are no longer made."""
    folder.mkdir(exist_ok=True)
    for stale in set(folder.glob("*.svg")) - {folder / picture.file for picture in pictures}:
        stale.unlink()
    for picture in pictures:
        files.write(folder / picture.file, picture.svg().encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
