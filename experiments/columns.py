"""Markdown tables: each column makes a cell from the rows of one name."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from aggregate import Rows, interval, number, published, relative_gain, spread
from factorcell.errors import UserError
from figures import Read
from study import EXPERIMENTS_FOLDER, Row

NUMBER = re.compile(r"(\*\*)?[-+]?\d")  # the beginning of a numeric cell
NO_ROWS = "No rows yet.\n"
KNOWN_PERPLEXITY = "perplexity_known"
MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")
SETS = ("agnews", "dbpedia", "hotels", "hotels13", "imdb", "languages", "tweets", "places")
ALL_ADAPTATIONS = "scale+concat+low_rank+hash"  # the row of chapter 3 with all adaptations
PAPER = published()
SPECS: Mapping[str, Any] = tomllib.loads((EXPERIMENTS_FOLDER / "tables.toml").read_text(encoding="utf-8"))


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table; numeric columns are aligned to the right."""
    if not lines:
        return NO_ROWS
    numeric = [all(not cell or NUMBER.match(cell) for cell in column) for column in zip(*lines, strict=True)]
    rule = [":--", *("--:" if right else ":--" for right in numeric[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def fill_page(text: str, tables: Mapping[str, str]) -> str:
    """Replace the table between each pair of marks. Raises `UserError` if a mark is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, mark, after = text.partition(begin)
        if not mark or end not in after:
            raise UserError(f"expected the marks {begin.strip()} and {end} of a table, found none")
        text = f"{before}{begin}\n{table}\n{end}{after.partition(end)[2]}"
    return text


# ---- columns ----


class Column(NamedTuple):
    """A column: its header, and a function that formats its cell of a row."""

    head: str
    cell: Callable[[Rows, str], str]


def mean(key: str, head: str, form: str = ".2f", scale: float = 1.0, bold: bool = False) -> Column:
    """Return a column of means ± standard deviations; `bold` marks the perplexity that is significantly the lowest."""

    def cell(rows: Rows, name: str) -> str:
        value = rows.mean(name, key)
        if value is None:
            return ""
        text = number(value[0], form, scale) + ("" if value[1] is None else f" ± {scale * value[1]:{form}}")
        return f"**{text}**" if bold and rows.best_row(key, list(rows), highest=False) == name else text

    return Column(head, cell)


def share(key: str, head: str) -> Column:
    return mean(key, f"{head}, %", ".1f", 100.0)


def gain(key: str, base: str | Mapping[str, str], head: str = "gain, %") -> Column:
    """Return a column of relative perplexity reductions in per cent, compared with `base` or the base of each row."""

    def cell(rows: Rows, name: str) -> str:
        base_name = base if isinstance(base, str) else base.get(name, "unadapted")
        paired = name == "with ngram"  # its trainings continue those of the FactorCell
        return "" if name == base_name or base_name not in rows else interval(rows.gain(name, key, base_name, paired))

    return Column(head, cell)


def difference(key: str, base: str, head: str = "", scale: float = 100.0, form: str = ".1f") -> Column:
    """Return a column of differences from the row `base`, in percentage points unless `scale` says otherwise."""

    def cell(rows: Rows, name: str) -> str:
        return "" if name == base or base not in rows else interval(rows.difference(name, key, base), form, scale)

    return Column(head or f"minus {base}, points", cell)


def figures_of(path: str) -> Mapping[str, Sequence[float]]:
    table = reduce(lambda section, name: section[name], path.split("."), PAPER)
    return {name: values for name, values in table.items() if isinstance(values, list)}


def paper(path: str, index: int, head: str, form: str = ".2f") -> Column:
    """Return a column of figures from the table `path` of published.toml; `index` is their position in a row."""
    values = figures_of(path)
    return Column(
        f"paper: {head}",
        lambda rows, name: number(values[name][index], form) if len(values.get(name, ())) > index else "",
    )


def paper_gain(path: str, base: str) -> Column:
    """Return a column of the paper's relative perplexity reductions compared with `base`, in per cent."""
    values = figures_of(path)

    def cell(rows: Rows, name: str) -> str:
        is_published = name in values and name != base
        return number(100 * relative_gain(values[name][0], values[base][0]), ".1f") if is_published else ""

    return Column("paper: gain, %", cell)


def any_row(key: str, head: str) -> Column:
    """Return a column with a number that is equal for all rows, such as the number of training texts."""
    return Column(head, lambda rows, _: next((f"{row[key]:,.0f}" for row in rows.all() if key in row), ""))


def fixed_row(name: str, column: Sequence[Any]) -> Column:
    """Return a column that always shows the row `name`, for tables with one line per data set."""
    head, cell = column_of(column)
    return Column(head, lambda rows, _: cell(rows, name))


def nonzero(rows: Rows, name: str) -> str:
    """Return the share of nonzero coefficients of a sparse bias, in per cent."""
    biases = [row["sparse_bias"] for row in rows.trainings[name] if "sparse_bias" in row]
    sums = [[sum(coefficients[key] for coefficients in bias) for key in ("nonzero", "coefficients")] for bias in biases]
    return spread([remaining / total for remaining, total in sums], ".2f", 100.0)


def penalties(rows: Rows, name: str) -> str:
    l1 = rows.first(name)["config"]["training"]["sparse_l1"] if "sparse" in name else ()
    return ", ".join(penalty.partition("=")[2] for penalty in l1)


def embedding(rows: Rows, name: str) -> str:
    return str(rows.first(name)["config"]["model"]["context_size"]) if "low_rank" in name else ""


COLUMN_KINDS: Mapping[str, Callable[..., Column]] = {
    **{"mean": mean, "share": share, "gain": gain, "difference": difference, "paper": paper, "paper_gain": paper_gain},
    **{"any_row": any_row, "fixed_row": fixed_row},
}
FIXED_COLUMNS = {  # columns without arguments
    "parameters": Column("parameters", lambda rows, name: number(rows.first(name).get("parameters"), ",.0f")),
    "nonzero": Column("nonzero, %", nonzero),
    "penalties": Column("λ of hotel, city, rating", penalties),
    "embedding": Column("embedding", embedding),
    "dev": Column("dev: perplexity", lambda rows, name: number(rows.dev_perplexity(name))),
}


def column_of(spec: str | Sequence[Any], paper_set: str = "") -> Column:
    """Return the column of a specification: [KIND, ARGUMENTS ...], or a name; {} stands for `paper_set`."""
    if isinstance(spec, str):
        return FIXED_COLUMNS[spec] if spec in FIXED_COLUMNS else column_of(SPECS["columns"][spec])
    arguments = (part.format(paper_set) if isinstance(part, str) else part for part in spec[1:])
    return COLUMN_KINDS[spec[0]](*arguments)


def group(name: str) -> list[Column]:
    return [column_of(column) for column in SPECS["groups"][name]]


# ---- tables ----


def gather_rows(read: Read, sources: Sequence[Any]) -> Rows:
    """Collect rows of experiments; [EXPERIMENT, {row: new name}] selects and renames rows."""
    tables = [read(source) if isinstance(source, str) else read(source[0]).renamed(source[1]) for source in sources]
    return Rows(row for rows in tables for row in rows.all())


def table(rows: Rows, columns: Sequence[Column], names: Sequence[str] = (), head: str = "model") -> str:
    lines = [[name, *(column.cell(rows, name) for column in columns)] for name in names or rows if name in rows]
    return markdown([head, *(column.head for column in columns)], lines)


def make_table(read: Read, spec: Mapping[str, Any]) -> str:
    def columns_of(label: str = "") -> list[Column]:
        return [column_of(entry, label.partition(" ")[0]) for entry in spec["columns"]]

    if "sets" not in spec:
        return table(gather_rows(read, spec["from"]), columns_of(), spec.get("rows", ()), spec.get("head", "model"))
    sets = {label: gather_rows(read, sources) for label, sources in spec["sets"].items()}
    columns = columns_of(next(iter(sets)))
    heads = [column.head for column in columns]
    if "rows" in spec:  # a line for each row of each data set
        lines = [
            [label, name, *(column.cell(rows, name) for column in columns_of(label))]
            for label, rows in sets.items()
            for name in spec["rows"]
            if name in rows
        ]
        return markdown(["data set", "model", *heads], lines)
    if "across" in spec:  # a column for each data set
        lines = [
            [label, *(columns[0].cell(rows, name) for rows in sets.values())] for name, label in spec["across"].items()
        ]
        return markdown([*heads, *sets], [line for line in lines if any(line[1:])])
    lines = [[label, *(column.cell(rows, "") for column in columns)] for label, rows in sets.items() if rows.all()]
    return markdown([spec.get("head", "data set"), *heads], lines)


def system(rows: Rows, source: str, label: str, keys: Mapping[str, str]) -> Rows:
    """Return a row `label` with the figures `keys` (new name -> name) of the row `source`."""

    def renamed(values: Mapping[str, Any]) -> Row:
        return {new: values[key] for new, key in keys.items() if key in values}

    return Rows(
        {**renamed(row), "row": label, "seed": row["seed"], "exact": row.get("exact"), "sums": renamed(row["sums"])}
        for row in rows.trainings.get(source, ())
    )
