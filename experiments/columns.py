"""Columns and tables in Markdown: a table is a list of columns, each of which makes a cell of the rows of a name."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aggregate import Rows, interval, number, published, relative_gain, spread
from factorcell.config import UserError
from figures import Read
from study import Row

Maker = Callable[[Read], str]  # makes a table of rows
NUMBER = re.compile(r"(\*\*)?[-+]?\d")  # the beginning of a numeric cell
NO_ROWS = "No rows yet.\n"
KNOWN, ALL = "perplexity_known", "perplexity"
PAPER = published()
FOUR = ("unadapted", "softmaxbias", "concatcell", "factorcell")
BASELINES = ("prefix", "separate", "mixture", "ngram", "bayes", "linear", "fasttext")
SETS = {  # data set -> the paper's data set that it stands for
    "agnews": "AgNews",
    "dbpedia": "DBPedia",
    "hotels": "TripAdvisor",
    "hotels13": "TripAdvisor",
    "imdb": "Yelp",
    "languages": "EuroTwitter",
    "tweets": "GeoTwitter",
    "places": "GeoTwitter",
}
WHOLE = "scale+concat+low_rank+hash"  # the row of chapter 3 with all adaptations


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table: the first column and columns of words to the left, numbers to the right."""
    if not lines:
        return NO_ROWS
    numeric = [all(not cell or NUMBER.match(cell) for cell in column) for column in zip(*lines, strict=True)]
    rule = [":--", *("--:" if right else ":--" for right in numeric[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Put each table between its marks. `UserError` if a mark is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, after = text.partition(begin)
        if not found or end not in after:
            raise UserError(f"expected the marks {begin.strip()} and {end} of a table, found none")
        text = f"{before}{begin}\n{table}\n{end}{after.partition(end)[2]}"
    return text


class Column(NamedTuple):
    """A column: its head, and the text of its cell in a row."""

    head: str
    cell: Callable[[Rows, str], str]


def mean(key: str, head: str, form: str = ".2f", scale: float = 1.0, bold: bool = False) -> Column:
    """Mean ± standard deviation of a figure; `bold` marks a perplexity significantly below that of every other row."""

    def cell(rows: Rows, name: str) -> str:
        value = rows.mean(name, key)
        if value is None:
            return ""
        text = number(value[0], form, scale) + ("" if value[1] is None else f" ± {scale * value[1]:{form}}")
        return f"**{text}**" if bold and rows.best(key, list(rows), highest=False) == name else text

    return Column(head, cell)


def share(key: str, head: str) -> Column:
    """A share, in per cent."""
    return mean(key, f"{head}, %", ".1f", 100.0)


def lower(key: str = KNOWN, base: str | Mapping[str, str] = "unadapted", head: str = "gain, %") -> Column:
    """By how many per cent a perplexity lies below that of the row `base`, or of the base of each row."""

    def cell(rows: Rows, name: str) -> str:
        below = base if isinstance(base, str) else base.get(name, "unadapted")
        paired = name == "with ngram"  # its trainings begin with those of the FactorCell
        return "" if name == below or below not in rows else interval(rows.lower(name, key, below, paired))

    return Column(head, cell)


def points(key: str, base: str, head: str = "", scale: float = 100.0, form: str = ".1f") -> Column:
    """By how many percentage points a share lies above that of the row `base`."""

    def cell(rows: Rows, name: str) -> str:
        return "" if name == base or base not in rows else interval(rows.difference(name, key, base), form, scale)

    return Column(head or f"above {base}, points", cell)


def paper(values: Mapping[str, Sequence[float]], place: int, head: str, form: str = ".2f") -> Column:
    """A figure of the paper."""
    return Column(
        f"paper: {head}",
        lambda rows, name: number(values[name][place], form) if len(values.get(name, ())) > place else "",
    )


def paper_gain(values: Mapping[str, Sequence[float]], base: str = "unadapted") -> Column:
    """By how many per cent the perplexity of the paper lies below that of its row `base`."""

    def cell(rows: Rows, name: str) -> str:
        there = name in values and name != base
        return number(100 * relative_gain(values[name][0], values[base][0]), ".1f") if there else ""

    return Column("paper: gain, %", cell)


def constant(head: str, cell: Callable[[Row], str]) -> Column:
    """A cell made from the first training of a row."""
    return Column(head, lambda rows, name: cell(rows.first(name)) if name in rows else "")


def of(name: str, column: Column, head: str = "") -> Column:
    """The cell of the row `name`, whatever the row: a column of tables with a line per data set."""
    return Column(head or column.head, lambda rows, _: column.cell(rows, name))


PERPLEXITIES = [mean(ALL, "perplexity, all targets", bold=True), mean(KNOWN, "perplexity, known targets", bold=True)]
ACCURACY = share("accuracy", "accuracy")
PARAMETERS = constant("parameters", lambda row: number(row.get("parameters"), ",.0f"))
NONZERO = Column(
    "nonzero, %",
    lambda rows, name: spread(
        [
            sum(one["nonzero"] for one in row["sparse_bias"]) / sum(one["coefficients"] for one in row["sparse_bias"])
            for row in rows.trainings[name]
            if "sparse_bias" in row
        ],
        ".2f",
        100.0,
    ),
)


def system(rows: Rows, source: str, label: str, keys: Mapping[str, str]) -> Rows:
    """Return a row `label` with the figures `keys` (new name -> name) of the row `source`."""

    def chosen(values: Mapping[str, Any]) -> Row:
        return {new: values[key] for new, key in keys.items() if key in values}

    return Rows(
        {**chosen(row), "row": label, "seed": row["seed"], "exact": row.get("exact"), "sums": chosen(row["sums"])}
        for row in rows.trainings.get(source, ())
    )


# ---- tables ----


def table(
    experiments: Sequence[str],
    columns: Sequence[Column],
    rows: Sequence[str] = (),
    head: str = "model",
    load: Callable[[Read], Rows] | None = None,
) -> Maker:
    """A line for each of `rows`, or for every row, of `experiments` or of what `load` returns."""

    def make(read: Read) -> str:
        found = load(read) if load else read(*experiments)
        names = [name for name in rows or found if name in found]
        lines = [[name, *(column.cell(found, name) for column in columns)] for name in names]
        return markdown([head, *(column.head for column in columns)], lines)

    return make


def by_set(names: Sequence[str], load: Callable[[Read, str], Rows], columns: Sequence[Column]) -> Maker:
    """A line for each data set."""

    def make(read: Read) -> str:
        lines = []
        for name in names:
            rows = load(read, name)
            if cells := [column.cell(rows, name) for column in columns] if rows.all() else []:
                lines.append([name, *cells])
        return markdown(["data set", *(column.head for column in columns)], lines)

    return make


def matrix(names: Sequence[str], load: Callable[[Read, str], Rows], rows: Mapping[str, str], column: Column) -> Maker:
    """A line for each of `rows` (name -> label), a column for each data set."""

    def make(read: Read) -> str:
        sets = [load(read, name) for name in names]
        lines = [[label, *(column.cell(own, row) for own in sets)] for row, label in rows.items()]
        return markdown([column.head, *names], [line for line in lines if any(line[1:])])

    return make
