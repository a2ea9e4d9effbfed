"""Do people agree with the judge of chapter 6 of the thesis? A sheet of written texts to rate, and what came of it.

    python experiments/ratings.py sheet imdb --data DATA --out OUT --folder ratings    # after thesis_specificity.py
    python experiments/ratings.py read imdb --folder ratings anna.csv ben.csv

The sheet has texts of all models in random order and nothing of what they were written for; who rates gets a copy of
it, and writes a value into the column `rating` of each, or leaves it empty. What each text was written for, and which
value the judge tells, is in the key, which is for nobody who rates.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import hotels
import tacl
import thesis_specificity
from factorcell import files
from factorcell.config import UserError
from factorcell.evaluation.judge import Judge
from factorcell.evaluation.statistics import rank_correlation
from factorcell.model.run import Run
from pages.correlations import told
from pages.markdown import markdown
from thesis_specificity import SETS

SHEET, KEY = "sheet.csv", "key.csv"
TEXTS = 100  # of a sheet
Cells = dict[str, str]


def sheet(name: str, data: Path, out: Path, folder: Path, texts: int, seed: int) -> None:
    """Write the sheet and the key: as many texts of each model of the first seed, drawn and put in order by `seed`."""
    if (folder / SHEET).exists():
        raise UserError(f"{folder / SHEET}: exists already; choose another --folder")
    of, random = tacl.experiment(SETS[name].of), np.random.default_rng(seed)
    drawn: list[Cells] = []
    for model in of.rows:
        every = written(name, out / of.name / model)
        if len(every) < texts // len(of.rows):
            raise UserError(f"{out / of.name / model}: has {len(every)} texts; write with thesis_specificity.py {name}")
        chosen = random.permutation(len(every))[: texts // len(of.rows)]
        drawn += [{"model": model, **every[place]} for place in chosen.tolist()]
    drawn = [drawn[place] for place in random.permutation(len(drawn)).tolist()]
    told = judge(name, data, out).told([row["text"] for row in drawn])
    rows = [
        {"number": str(n), "judged": value, **row} for n, (row, value) in enumerate(zip(drawn, told, strict=True), 1)
    ]
    write(folder / KEY, ("number", "model", "wanted", "judged"), rows)
    write(folder / SHEET, ("number", "text", "rating"), [{**row, "rating": ""} for row in rows])


def written(name: str, folder: Path) -> list[Cells]:
    """The texts of a model, and what each was written for."""
    how = SETS[name]
    rows = files.read_rows(thesis_specificity.file_of(folder / "0", name, how.texts))
    wanted = [hotels.class_of(row["context"]["hotel"]) if how.classes else row["context"]["rating"] for row in rows]
    return [{"text": row["text"], "wanted": value or ""} for row, value in zip(rows, wanted, strict=True)]


def judge(name: str, data: Path, out: Path) -> Judge:
    """The judge of the tables."""
    how = SETS[name]
    of = tacl.experiment(how.of)
    tables = thesis_specificity.tables(name, of, data, out / "tables", 1.0)
    run = Run.open(out / of.name / next(iter(of.rows)) / "0")
    return thesis_specificity.judge_of(run, *thesis_specificity.labelled(tables), how.target, how.order)


def write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """A CSV file of these columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        made = csv.DictWriter(file, columns, extrasaction="ignore")
        made.writeheader()
        made.writerows(rows)


def read(path: Path, columns: Sequence[str]) -> list[Cells]:
    """The rows of a CSV file that has these columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = csv.DictReader(file)
            lacking = [name for name in columns if name not in (found.fieldnames or ())]
            if lacking:
                raise UserError(f"{path}: no column {', '.join(lacking)}")
            return [{name: (row[name] or "").strip() for name in columns} for row in found]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None


def place(name: str, value: str, where: str) -> float:
    """A value as a number: its place in the order of a set, or itself."""
    order = SETS[name].order
    try:
        return float(order.index(value)) if order else float(value)
    except ValueError:
        raise UserError(f"{where}: {value!r} is no {SETS[name].target}: {', '.join(order) or 'a number'}") from None


def ratings(name: str, key: Sequence[Cells], path: Path) -> list[float]:
    """What somebody says of the texts of a key, NaN where nothing is said."""
    found = {row["number"]: row["rating"] for row in read(path, ("number", "rating"))}
    if unknown := [number for number in found if number not in {row["number"] for row in key}]:
        raise UserError(f"{path}: the key has no text {unknown[0]}")
    values = [(row["number"], found.get(row["number"], "")) for row in key]
    return [place(name, value, f"{path}, text {number}") if value else float("nan") for number, value in values]


def table(name: str, key: Path, sheets: Sequence[Path]) -> str:
    """Rank correlations with the judge and with what was wanted, of each who rated and of their mean, and of pairs."""
    rows = read(key, ("number", "wanted", "judged"))
    known = {at: [place(name, row[at], f"{key}, text {row['number']}") for row in rows] for at in ("judged", "wanted")}
    people = {path.stem: ratings(name, rows, path) for path in sheets}
    every = np.array(list(people.values()))
    whole = ~np.isnan(every).any(axis=0)  # a mean is of all who rate, or of nobody
    mean = np.where(whole, every.sum(axis=0), np.nan).tolist()

    def pairs() -> Iterator[tuple[str, str, Sequence[float], Sequence[float]]]:
        for who, own in (*people.items(), *([("their mean", mean)] if len(people) > 1 else [])):
            yield who, "the judge", own, known["judged"]
            yield who, "what was wanted", own, known["wanted"]
        for (first, one), (second, other) in itertools.combinations(people.items(), 2):
            yield first, second, one, other
        yield "the judge", "what was wanted", known["judged"], known["wanted"]

    lines = []
    for first, second, one, other in pairs():
        found = rank_correlation(one, other)
        lines.append([first, second, str(found["n"]), told(found)])
    return markdown(["who", "with", "texts", "rank correlation"], lines)


def main(argv: Sequence[str]) -> int:
    """Write a sheet, or say what came of it."""
    parser = argparse.ArgumentParser(description="Written texts, rated by people.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("sheet", "write a sheet to rate and its key"),
        ("read", "correlations of sheets that are rated"),
    ):
        own = verbs.add_parser(verb, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        own.add_argument("set", choices=SETS, help="data set")
        own.add_argument("--folder", type=Path, required=True, help=f"folder of {SHEET} and {KEY}")
        if verb == "read":
            own.add_argument("sheets", type=Path, nargs="+", help="a rated copy of the sheet of each person")
            continue
        own.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files for each set")
        own.add_argument("--out", type=Path, required=True, help="folder of the runs of thesis_specificity.py")
        own.add_argument("--texts", type=int, default=TEXTS, help="texts of all models together")
        own.add_argument("--seed", type=int, default=0, help="draws the texts and their order")
    given = parser.parse_args(argv)
    try:
        if given.verb == "read":
            print(table(given.set, given.folder / KEY, given.sheets), end="")
        else:
            sheet(given.set, given.data, given.out, given.folder, given.texts, given.seed)
            print(
                f"{given.folder / SHEET}: to be rated by {', '.join(SETS[given.set].order) or SETS[given.set].target}"
            )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
