"""JSON lines of the experiments to the tables of the thesis, in Markdown, its own numbers beside ours.

    python experiments/thesis_tables.py --out OUT [--into docs/tables.md]

Gains are relative to the unadapted model, of perplexities without out-of-vocabulary targets ("known"), as in the
published tables; those of single communities have all targets.
"""

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from factorcell import files
from factorcell.config import UserError
from family import EXPERIMENT as FAMILY
from study import HERE, Row
from thesis_sixteen import EXPERIMENTS, PARTS
from thesis_sparse import PENALTIES
from thesis_subreddits import NEAREST, NEIGHBOURS_OF
from thesis_variables import SUBSETS, VARIABLES

LEAST = 50  # titles of a community whose perplexity is told
SHOWN = 9  # communities at each end of table 3.5

Rows = dict[str, Row]  # by name
Published = Mapping[str, list[float]]


def loaded(out: Path, name: str) -> Rows:
    """The finished rows of an experiment."""
    return {row["row"]: row for row in files.read_rows(out / f"{name}.jsonl")}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, numbers to the right."""
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shown(value: float | None, form: str = ".2f") -> str:
    """A figure, or nothing."""
    return "" if value is None or np.isnan(value) else f"{value:{form}}"


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Rank correlation, 1: the same order; NaN of fewer than two different values."""
    a, b = (ranks(values) - (len(values) + 1) / 2 for values in (ours, theirs))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def agreement(what: str, pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """One line that says how far two columns have the same order."""
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    value = spearman([a for a, _ in both], [b for _, b in both]) if both else float("nan")
    return f"Rank correlation with the thesis, {what}: {shown(value) or 'none yet'} ({len(both)} rows).\n"


def known(rows: Rows, name: str) -> float | None:
    """The perplexity of a row, if it is finished."""
    return rows[name]["perplexity_known"] if name in rows else None


def gain(value: float | None, base: float | None) -> float | None:
    """By what share `value` lies below `base`."""
    return None if value is None or base is None else 1 - value / base


def sixteen(rows: Rows, published: Published, names: Sequence[str], scores: Mapping[str, str]) -> str:
    """Tables 3.6 and 3.7. `scores` are keys of ours, in the order of the published columns, and their headings."""
    ours_base, their_base = known(rows, "unadapted"), published["unadapted"][0]
    header = ["×", "+", "LR", "Hash", "perplexity, all", "known", "gain", *scores.values()]
    header += ["thesis: perplexity", "gain", *scores.values()]
    lines, pairs = [], {key: list[tuple[float | None, float | None]]() for key in ("perplexity", *scores)}
    for name in names:
        row, theirs = rows.get(name, {}), [*published[name], *[None] * len(scores)]
        own = [row.get(key) and 100 * row[key] for key in scores]
        for key, pair in zip(pairs, zip([known(rows, name), *own], theirs, strict=False), strict=True):
            pairs[key].append(pair)
        lines.append(
            ["Y" if part in name.split("+") else "N" for part in PARTS]
            + [shown(row.get("perplexity")), shown(known(rows, name)), shown(gain(known(rows, name), ours_base), ".1%")]
            + [shown(value, ".1f") for value in own]
            + [shown(theirs[0]), shown(gain(theirs[0], their_base), ".1%")]
            + [shown(value, ".1f") for value in theirs[1 : len(scores) + 1]]
        )
    told = [agreement(scores.get(key, key), pair) for key, pair in pairs.items()]
    return markdown(header, lines) + "\n" + "".join(told)


def variables(rows: Rows, scotus: Rows, published: Published) -> str:
    """Table 3.8; the first and the last row come from table 3.7."""
    rows = rows | {
        theirs: scotus[ours]
        for theirs, ours in (("none", "unadapted"), ("+".join(VARIABLES), "+".join(PARTS)))
        if ours in scotus
    }
    lines, pairs = [], []
    for subset in SUBSETS:
        name = "+".join(subset) or "none"
        row, theirs = rows.get(name, {}), published[name][0]
        lines.append(
            ["Y" if variable in subset else "N" for variable in VARIABLES]
            + [
                shown(row.get("perplexity")),
                shown(known(rows, name)),
                shown(gain(known(rows, name), known(rows, "none")), ".1%"),
            ]
            + [shown(theirs), shown(gain(theirs, published["none"][0]), ".1%")]
        )
        pairs.append((known(rows, name), theirs))
    header = ["case", "speaker", "role", "perplexity, all", "known", "gain", "thesis: perplexity", "gain"]
    return markdown(header, lines) + "\n" + agreement("perplexity", pairs)


def subreddits(rows: Rows, published: Published) -> str:
    """Table 3.5: the communities that gain most and least, and those of the thesis."""
    if len(rows) < 2:
        return "Not trained yet.\n"
    plain, adapted = ({entry["value"]: entry for entry in rows[name]["by"]} for name in sorted(rows, key=len))
    gains = {
        name: gain(adapted[name]["perplexity"], entry["perplexity"]) or 0.0
        for name, entry in plain.items()
        if entry["count"] >= LEAST
    }
    if not gains:
        return f"No community has {LEAST} titles.\n"
    order = sorted(gains, key=lambda name: -gains[name])
    ends = order[:SHOWN] + order[SHOWN:][-SHOWN:]
    theirs = {name: published[name] for name in published if name in gains}

    def line(name: str) -> list[str]:
        own = [str(plain[name]["count"]), *(shown(table[name]["perplexity"], ".1f") for table in (plain, adapted))]
        printed = [shown(gain(published[name][1], published[name][0]), ".1%") if name in published else ""]
        return [name, *own, shown(gains[name], ".1%"), *printed]

    header = ["community", "titles", "unadapted", "adapted", "gain", "thesis: gain"]
    named = sorted(theirs, key=lambda name: -gains[name])
    pairs = [(gains[name], gain(pair[1], pair[0])) for name, pair in theirs.items()]
    middle = (
        f"\nOf {len(gains)} communities, the mean gain is {np.mean(list(gains.values())):.1%}. Those of the thesis:\n\n"
    )
    return (
        markdown(header, list(map(line, ends)))
        + middle
        + markdown(header, list(map(line, named)))
        + "\n"
        + agreement("gain", pairs)
    )


def neighbours(rows: Rows) -> str:
    """Table 3.4: what lies near chosen communities."""
    found: dict[str, list[str]] = next((row["nearest"] for row in rows.values() if row["nearest"]), {})
    names = [name for name in NEIGHBOURS_OF if name in found]
    return markdown(["community", *map(str, range(1, NEAREST + 1))], [[name, *found[name]] for name in names])


def sparse(rows: Rows, published: Published) -> str:
    """Table A.1: each kind of bias, with the penalty that suits it best, and all penalties."""
    lines, pairs = [], []
    for kind, theirs in published.items():
        tried = [name for name in (kind, *(f"{kind}-{penalty:g}" for penalty in PENALTIES)) if name in rows]
        best = min(tried, key=lambda name: rows[name]["perplexity_known"], default=kind)
        row, top = rows.get(best, {}), theirs[1] if len(theirs) > 1 else None
        penalty = best.rpartition("-")[2] if best != kind else ""
        own = [shown(row.get("perplexity")), shown(known(rows, best)), shown(row.get("top_3") and 100 * row["top_3"])]
        lines.append([kind, penalty, *own, shown(theirs[0]), shown(top)])
        pairs.append((known(rows, best), theirs[0]))
    header = ["softmax bias", "λ", "perplexity, all", "known", "top-3", "thesis: perplexity", "top-3"]
    every = [
        [name, shown(row["perplexity_known"]), shown(row.get("top_3") and 100 * row["top_3"])]
        for name, row in rows.items()
    ]
    told = agreement("perplexity", pairs)
    return markdown(header, lines) + "\n" + told + "\n" + markdown(["all that was trained", "known", "top-3"], every)


def family(rows: Rows) -> str:
    """Every mechanism that was trained, beside the others."""
    base, lines = known(rows, "unadapted"), []
    for name in (name for name in FAMILY.rows if name in rows):
        row = rows[name]
        share, accuracy = gain(known(rows, name), base), row.get("accuracy")
        own = [shown(row.get("perplexity")), shown(known(rows, name)), shown(share, ".1%"), shown(accuracy, ".3f")]
        lines.append([name, *own, shown(row.get("minutes"), ".1f")])
    return markdown(["model", "perplexity, all", "known", "gain", "accuracy", "minutes"], lines)


def all_tables(out: Path, suffix: str = "") -> dict[str, str]:
    """Heading -> table, in the order of the thesis."""
    with (HERE / "published.toml").open("rb") as file:
        printed: dict[str, Any] = tomllib.load(file)
    sets = {
        name: loaded(out, name + suffix)
        for name in ("commonvoice9", "scotus", "variables", "subreddits", "sparse", "family")
    }
    names = list(EXPERIMENTS["scotus"].rows)
    return {
        "Table 3.4": neighbours(sets["subreddits"]),
        "Table 3.5": subreddits(sets["subreddits"], printed["subreddits"]),
        "Table 3.6": sixteen(
            sets["commonvoice9"], printed["commonvoice9"], names, {"accuracy": "accuracy", "macro_f1": "F1"}
        ),
        "Table 3.7": sixteen(sets["scotus"], printed["scotus"], names, {"accuracy": "accuracy"}),
        "Table 3.8": variables(sets["variables"], sets["scotus"], printed["variables"]),
        "Table A.1": sparse(sets["sparse"], printed["sparse"]),
        "Every mechanism": family(sets["family"]),
    }


def filled(text: str, tables: Mapping[str, str]) -> str:
    """`text` with each table between its marks; `UserError` where a mark is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text.split(begin, 1)[1]:
            raise UserError(f"no place for {name}: it stands between the lines {begin.strip()} and {end}")
        before, after = text.split(begin, 1)
        text = before + begin + "\n" + table + "\n" + end + after.split(end, 1)[1]
    return text


def main(argv: Sequence[str], say: Callable[[str], object] = print) -> int:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description="The tables of the thesis from the rows of the experiments.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--into", type=Path, help="page whose tables are replaced; a new one has headings and tables alone"
    )
    parser.add_argument("--trial", action="store_true", help="of the trial runs")
    given = parser.parse_args(argv)
    try:
        tables = all_tables(given.out, "-trial" if given.trial else "")
        frame = "".join(f"## {name}\n\n<!-- {name} -->\n<!-- end of {name} -->\n\n" for name in tables)
        if given.into is None:
            say(filled(frame, tables))
            return 0
        page = given.into.read_text(encoding="utf-8") if given.into.exists() else frame
        files.write(given.into, filled(page, tables).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
