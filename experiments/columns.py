"""Columns and tables in Markdown: a table is a list of columns, each of which makes a cell from the rows of a name."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from aggregate import Rows, interval, number, published, relative_gain, spread
from factorcell.config import UserError
from figures import Read
from study import HERE, Row

NUMBER = re.compile(r"(\*\*)?[-+]?\d")  # the beginning of a numeric cell
NO_ROWS = "No rows yet.\n"
KNOWN = "perplexity_known"
FOUR = ("unadapted", "softmaxbias", "concatcell", "factorcell")
SETS = ("agnews", "dbpedia", "hotels", "hotels13", "imdb", "languages", "tweets", "places")
WHOLE = "scale+concat+low_rank+hash"  # the row of chapter 3 with all adaptations
PAPER = published()
SPECS: Mapping[str, Any] = tomllib.loads((HERE / "tables.toml").read_text(encoding="utf-8"))


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table: the first column and columns of words to the left, numbers to the right."""
    if not lines:
        return NO_ROWS
    numeric = [all(not cell or NUMBER.match(cell) for cell in column) for column in zip(*lines, strict=True)]
    rule = [":--", *("--:" if right else ":--" for right in numeric[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def fill_page(text: str, tables: Mapping[str, str]) -> str:
    """Put each table between its marks. `UserError` if a mark is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, mark, after = text.partition(begin)
        if not mark or end not in after:
            raise UserError(f"expected the marks {begin.strip()} and {end} of a table, found none")
        text = f"{before}{begin}\n{table}\n{end}{after.partition(end)[2]}"
    return text


# ---- columns ----


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


def lower(key: str, base: str | Mapping[str, str], head: str = "gain, %") -> Column:
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


def figures_of(path: str) -> Mapping[str, Sequence[float]]:
    """Return a table of published.toml."""
    table = reduce(lambda section, name: section[name], path.split("."), PAPER)
    return {name: values for name, values in table.items() if isinstance(values, list)}


def paper(path: str, place: int, head: str, form: str = ".2f") -> Column:
    """A figure of the paper, in the table `path` of published.toml."""
    values = figures_of(path)
    return Column(
        f"paper: {head}",
        lambda rows, name: number(values[name][place], form) if len(values.get(name, ())) > place else "",
    )


def paper_gain(path: str, base: str) -> Column:
    """By how many per cent the perplexity of the paper lies below that of its row `base`."""
    values = figures_of(path)

    def cell(rows: Rows, name: str) -> str:
        is_published = name in values and name != base
        return number(100 * relative_gain(values[name][0], values[base][0]), ".1f") if is_published else ""

    return Column("paper: gain, %", cell)


def about(key: str, head: str) -> Column:
    """A number that one of the rows has, such as one of the training texts."""
    return Column(head, lambda rows, _: next((f"{row[key]:,.0f}" for row in rows.all() if key in row), ""))


def of(name: str, column: Sequence[Any]) -> Column:
    """The cell of the row `name`, whatever the row: for tables with a line for each data set."""
    head, cell = column_of(column)
    return Column(head, lambda rows, _: cell(rows, name))


def nonzero(rows: Rows, name: str) -> str:
    """Return the share of coefficients of a sparse bias that are not zero, in per cent."""
    biases = [row["sparse_bias"] for row in rows.trainings[name] if "sparse_bias" in row]
    sums = [[sum(coefficients[key] for coefficients in bias) for key in ("nonzero", "coefficients")] for bias in biases]
    return spread([left / every for left, every in sums], ".2f", 100.0)


def penalties(rows: Rows, name: str) -> str:
    """Return the penalties of a sparse bias."""
    l1 = rows.first(name)["config"]["training"]["sparse_l1"] if "sparse" in name else ()
    return ", ".join(penalty.partition("=")[2] for penalty in l1)


def embedding(rows: Rows, name: str) -> str:
    """Return the size of the embeddings of a low-rank bias."""
    return str(rows.first(name)["config"]["model"]["context_size"]) if "low_rank" in name else ""


COLUMN_KINDS: Mapping[str, Callable[..., Column]] = {
    **{"mean": mean, "share": share, "lower": lower, "points": points, "paper": paper, "paper_gain": paper_gain},
    **{"about": about, "of": of},
}
SINGLE = {  # columns without arguments
    "parameters": Column("parameters", lambda rows, name: number(rows.first(name).get("parameters"), ",.0f")),
    "nonzero": Column("nonzero, %", nonzero),
    "penalties": Column("λ of hotel, city, rating", penalties),
    "embedding": Column("embedding", embedding),
    "dev": Column("dev: perplexity", lambda rows, name: number(rows.dev(name))),
}


def column_of(spec: str | Sequence[Any]) -> Column:
    """Return the column of a specification: [KIND, ARGUMENTS ...], or a name."""
    if isinstance(spec, str):
        return SINGLE[spec] if spec in SINGLE else column_of(SPECS["columns"][spec])
    return COLUMN_KINDS[spec[0]](*spec[1:])


def group(name: str) -> list[Column]:
    """Return a list of columns."""
    return [column_of(column) for column in SPECS["groups"][name]]


# ---- tables ----


def gather_rows(read: Read, sources: Sequence[Any]) -> Rows:
    """Return the rows of experiments; [EXPERIMENT, {row: name}] takes some of them under other names."""
    tables = [read(source) if isinstance(source, str) else read(source[0]).renamed(source[1]) for source in sources]
    return Rows(row for rows in tables for row in rows.all())


def table(rows: Rows, columns: Sequence[Column], names: Sequence[str] = (), head: str = "model") -> str:
    """Make a table with a line for each of `names` that there is, or for every row."""
    lines = [[name, *(column.cell(rows, name) for column in columns)] for name in names or rows if name in rows]
    return markdown([head, *(column.head for column in columns)], lines)


def specified(read: Read, spec: Mapping[str, Any]) -> str:
    """Make a table of tables.toml."""
    columns = [column_of(entry) for entry in spec["columns"]]
    if "sets" not in spec:
        return table(gather_rows(read, spec["from"]), columns, spec.get("rows", ()), spec.get("head", "model"))
    sets = {label: gather_rows(read, sources) for label, sources in spec["sets"].items()}
    if "across" in spec:  # a column for each data set
        ((head, cell),) = columns
        lines = [[label, *(cell(rows, name) for rows in sets.values())] for name, label in spec["across"].items()]
        return markdown([head, *sets], [line for line in lines if any(line[1:])])
    lines = [[label, *(column.cell(rows, "") for column in columns)] for label, rows in sets.items() if rows.all()]
    return markdown([spec.get("head", "data set"), *(column.head for column in columns)], lines)


def system(rows: Rows, source: str, label: str, keys: Mapping[str, str]) -> Rows:
    """Return a row `label` with the figures `keys` (new name -> name) of the row `source`."""

    def chosen(values: Mapping[str, Any]) -> Row:
        return {new: values[key] for new, key in keys.items() if key in values}

    return Rows(
        {**chosen(row), "row": label, "seed": row["seed"], "exact": row.get("exact"), "sums": chosen(row["sums"])}
        for row in rows.trainings.get(source, ())
    )
