"""Turn the rows of the experiments into the Markdown tables and figures of the documentation.

    python experiments/tables.py [--results RESULTS] --docs DOCS

tables.toml specifies the tables that are columns of figures; OTHERS are functions. A page holds each table between two
marks, <!-- NAME --> and <!-- end of NAME -->; the text around them is written by hand. A figure is the mean of the
trainings ± their standard deviation; a difference is followed by its 95 % interval over texts and trainings.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import backbone_pages
import figures
import mixture_pages
import paper_tables
from aggregate import Rows
from columns import SPECS, fill_page, make_table
from factorcell.errors import UserError
from factorcell.io import files
from figures import LENGTHS, TEXTS_SEEN, Read
from study import EXPERIMENTS_FOLDER

Maker = Callable[[Read], str]
PAPERS_PAGE = "results/tables.md"
OTHERS: Mapping[str, Mapping[str, Maker]] = {  # page -> name -> table
    PAPERS_PAGE: {
        "Sizes": paper_tables.sizes,
        "Figures 4.2, 4.4 and 4.5": paper_tables.trials,
        "Figures 4.6 and 4.7": paper_tables.embedding_groups,
        "Table 3.4": paper_tables.neighbours,
        "Table 3.5": paper_tables.communities,
        "Figure 5.1": paper_tables.rank_against_perplexity,
        "Table 5.2": paper_tables.table_5_2,
        "Figure 5.2": partial(paper_tables.completion_gains, names={"after": TEXTS_SEEN}, head="texts seen"),
        "Figure 5.3": partial(paper_tables.completion_gains, names=LENGTHS, head="characters, after 50 texts"),
        "Table 6.4": partial(paper_tables.specificity, name="imdb", paper_set="Yelp"),
        "Table 6.4, of hotels": partial(paper_tables.specificity, name="ratings", paper_set="Yelp"),
        "Table 6.5": partial(paper_tables.specificity, name="hotels", paper_set="TripAdvisor"),
        "Figures 6.1 to 6.4": paper_tables.correlations,
        "Section A.2": paper_tables.finetuned,
    },
    "results/privacy.md": {"exposure": paper_tables.exposure},
    "results/backbones.md": backbone_pages.TABLES,
    "results/generation.md": {
        f"sampled, {name}": partial(paper_tables.sampled, name=name) for name in ("hotels", "imdb")
    },
    "results/training.md": {
        "mixtures": mixture_pages.perplexities,
        "combinations": mixture_pages.combinations,
        "advice": paper_tables.advice,
    },
    "results/completion.md": {
        "completion with mixtures": mixture_pages.completions,
    },
}
WITH_PICTURES = {  # table -> the figures above it
    "Figures 4.2, 4.4 and 4.5": ("4.2", "4.4", "4.5"),
    "Figures 4.6 and 4.7": ("4.6", "4.7"),
    **{f"Figure {number}": (number,) for number in ("5.1", "5.2", "5.3")},
    "Figures 6.1 to 6.4": ("6.1", "6.2", "6.3", "6.4"),
}


def pages() -> dict[str, dict[str, Maker]]:
    tables_by_page = {page: dict(makers) for page, makers in OTHERS.items()}
    for spec in SPECS["table"]:
        tables_by_page.setdefault(spec["page"], {})[spec["name"]] = partial(make_table, spec=spec)
    return tables_by_page


def reader(results: Path) -> Read:
    @cache
    def read_one(name: str) -> Rows:
        return Rows(files.read_rows(results / f"{name}.jsonl"))

    def read(*names: str) -> Rows:
        return read_one(names[0]) if len(names) == 1 else Rows(row for name in names for row in read_one(name).all())

    return read


def make_tables(read: Read, pictures: Mapping[str, figures.Picture]) -> dict[str, dict[str, str]]:
    """Make all tables: page -> name -> Markdown, with the pictures above their tables."""
    tables_by_page = {page: {name: make(read) for name, make in makers.items()} for page, makers in pages().items()}
    for name, numbers in WITH_PICTURES.items():
        links = "".join(pictures[number].link() for number in numbers if number in pictures)
        tables_by_page[PAPERS_PAGE][name] = f"{links}\n{tables_by_page[PAPERS_PAGE][name]}"
    return tables_by_page


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="The tables of the documentation from the rows of the experiments.")
    parser.add_argument("--results", type=Path, default=EXPERIMENTS_FOLDER / "results", help="folder of the rows")
    parser.add_argument("--docs", type=Path, required=True, help="folder of the pages whose tables are replaced")
    options = parser.parse_args(argv)
    read = reader(options.results)
    pictures = figures.pictures(read)
    try:
        for name, tables in make_tables(read, pictures).items():
            page = options.docs / name
            if not page.is_file():
                raise UserError(f"{page}: expected a page with marks for its tables, found no file")
            files.write(page, fill_page(page.read_text(encoding="utf-8"), tables).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_pictures((options.docs / PAPERS_PAGE).parent / figures.FOLDER, list(pictures.values()))
    return 0


def write_pictures(folder: Path, pictures: Sequence[figures.Picture]) -> None:
    folder.mkdir(exist_ok=True)
    for stale in set(folder.glob("*.svg")) - {folder / picture.file for picture in pictures}:
        stale.unlink()
    for picture in pictures:
        files.write(folder / picture.file, picture.svg().encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
