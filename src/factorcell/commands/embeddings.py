"""The verb that shows what a model has learned about contexts."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell import files
from factorcell.choices import NEAR_VALUES
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation import embeddings
from factorcell.evaluation.cautions import cautions
from factorcell.evaluation.embeddings import Embeddings
from factorcell.model.run import Run
from factorcell.reports.wording import agreed, sign

Row = dict[str, Any]


def run_contexts(given: argparse.Namespace) -> None:
    """`factorcell contexts`."""
    if bool(given.by) != bool(given.map or given.predict):
        raise UserError("--by COLUMN says what to --map TABLE or to --predict TABLE by; neither goes without the other")
    opened = options.opened(Run.open, given.run, given)
    context = options.context(given.context)
    other = given.between or given.map or given.predict or (given.words and context)
    asked: list[tuple[dict[str, str], dict[str, str]]] = [(context, {})] if given.words and context else []
    found: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": [], "predictions": []}
    found["cautions"] = cautions([opened])
    if given.near or given.map or given.predict or not other:
        known = Embeddings.of(opened, given.variable, given.near)
        near = given.near or (() if other else known.values[:NEAR_VALUES])
        found |= {"variable": known.variable, "values": len(known.values)}
        found["neighbours"] = known.neighbours(near, given.count, given.measure)
        found["maps"] = [_map(known, column, given) for column in given.by if given.map]
        found["predictions"] = [_prediction(known, column, given) for column in given.by if given.predict]
        if given.words and near:
            asked = [({known.source: value, **context}, {}) for value in near]
    if given.between:
        first, second = (options.context(text.split(";"), "--between") for text in given.between)
        asked.append(({**context, **first}, {**context, **second}))
    options.tell_rare(opened.schema, *(context for pair in asked for context in pair))
    found["words"] = [_words(opened, one, against, given) for one, against in asked]
    if given.page:
        from factorcell.reports import embeddings as report

        files.write(given.page, report.page(opened.folder.name, found))
    _show(found, given)
    terminal.say(*found["cautions"])


def _words(run: Run, context: Mapping[str, str], against: Mapping[str, str], given: argparse.Namespace) -> Row:
    rows = embeddings.words(run, context, against, count=given.count, frequent=given.frequent, unknown=given.unknown)
    different = {name: value for name, value in context.items() if against.get(name) != value}
    return {"context": _named(different), "against": _named(against, different), "rows": rows}


def _named(context: Mapping[str, str], names: Mapping[str, str] | None = None) -> str:
    """A context as people write it, only the columns `names` of it if they are given."""
    shown = [f"{name}={value}" for name, value in context.items() if names is None or name in names]
    return ", ".join(shown) or "what is expected"


def _map(known: Embeddings, name: str, given: argparse.Namespace) -> Row:
    """The map by one column, as the page takes it."""
    column = embeddings.read_column(known, given.map, name)
    points = embeddings.points(known, column)
    return {
        "column": column.name,
        "points": points,
        "ellipses": None if column.numbers is not None else embeddings.ellipses(points, given.groups),
        "agreement": embeddings.agreement(known, column, given.measure),
        "shares": embeddings.project(known.vectors)[1].tolist(),
        "dots": given.points,
    }


def _prediction(known: Embeddings, name: str, given: argparse.Namespace) -> Row:
    column = embeddings.read_column(known, given.predict, name)
    return embeddings.predict(known, column, seed=given.seed, progress=True)


def _show(found: Row, given: argparse.Namespace) -> None:
    if given.json:
        return terminal.lines(_rows(found))
    _show_neighbours(found, given.measure)
    for entry in found["words"]:
        terminal.show("", f"{entry['context']} against {entry['against']}")
        _show_words(entry["rows"])
    for entry in found["maps"]:
        terminal.show("", f"{agreed(entry['agreement'])}")
        if entry["ellipses"]:
            terminal.table(entry["ellipses"], ("group", "count", "x", "y", "wide", "high"))
    for row in found["predictions"]:
        of = f"{row['column']} from the embedding of {row['variable']} ({row['values']:,} values)"
        if "accuracy" in row:
            terminal.show("", f"{of}: accuracy {row['accuracy']:.1%}, the largest group {row['majority']:.1%}")
        else:
            terminal.show("", f"{of}: R² {row['r2']:z.3f}, correlation {row['correlation']:z.3f}")
    if given.page:
        terminal.say(f"the page: {given.page}")
    return None


def _rows(found: Row) -> list[Row]:
    """All rows, each with its `kind`."""
    rows = [{"kind": "neighbour", **row} for row in found["neighbours"]]
    for entry in found["words"]:
        rows += [
            {"kind": "word", "context": entry["context"], "against": entry["against"], **row} for row in entry["rows"]
        ]
    for entry in found["maps"]:
        of = {"column": entry["column"]}
        rows += [{"kind": "point", **of, **row} for row in entry["points"]]
        rows += [{"kind": "ellipse", **of, **row} for row in entry["ellipses"] or ()]
        rows.append({"kind": "agreement", **entry["agreement"]})
    return rows + [{"kind": "prediction", **row} for row in found["predictions"]]


def _show_neighbours(found: Row, measure: str) -> None:
    """One value as a table, several in a line each."""
    rows = found["neighbours"]
    values = list(dict.fromkeys(row["value"] for row in rows))
    if values:
        of = values[0] if len(values) == 1 else f"{len(values):,} of {found['values']:,} values"
        terminal.show(terminal.bold(f"{found['variable']}: what is nearest to {of} by {measure}"))
    if len(values) == 1:
        return terminal.table(rows, ("near", "count", measure))
    width = max(map(len, values), default=0)
    for value in values:
        near = ", ".join(f"{row['near']} {row[measure]:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{value:<{width}}  {near}")
    return None


def _show_words(rows: Sequence[Row]) -> None:
    """Raised and lowered tokens side by side."""
    if not rows:
        return terminal.show("no token is raised or lowered")
    raised = [row for row in rows if row["nats"] > 0]
    lowered = [row for row in rows if row["nats"] < 0]
    lines: list[Row] = [{} for _ in range(max(len(raised), len(lowered)))]
    for side, chosen in (("raised", raised), ("lowered", lowered)):
        for line, row in zip(lines, chosen, strict=False):
            line[side] = sign(row["token"])
            line["nats" if side == "raised" else "nats "] = f"{row['nats']:+.2f}"
    return terminal.table(lines, ("raised", "nats", "lowered", "nats "))
