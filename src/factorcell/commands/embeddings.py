"""The command `factorcell contexts`: what a model has learned about contexts."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from factorcell import files
from factorcell.choices import DEFAULT_VALUE_COUNT
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation import embeddings
from factorcell.evaluation.embeddings import Embeddings
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.model.run import Run
from factorcell.reports.wording import agreement_sentence, visible_token

Row = dict[str, Any]


def run_contexts(given: argparse.Namespace) -> None:
    """`factorcell contexts`."""
    if bool(given.by) != bool(given.map or given.predict):
        raise UserError("--by COLUMN says what to --map TABLE or to --predict TABLE by; neither goes without the other")
    run = options.open_on_device(Run.open, given.run, given)
    context = options.parse_context(given.context)
    other = given.between or given.map or given.predict or (given.words and context)
    pairs: list[tuple[dict[str, str], dict[str, str]]] = [(context, {})] if given.words and context else []
    found: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": [], "predictions": []}
    found["cautions"] = find_warnings([run])
    if given.near or given.map or given.predict or not other:
        known = Embeddings.from_run(run, given.variable, given.near)
        near = given.near or (() if other else known.values[:DEFAULT_VALUE_COUNT])
        found |= {"variable": known.variable, "values": len(known.values)}
        found["neighbours"] = known.neighbours(near, given.count, given.measure)
        for name in given.by:
            if given.map:
                found["maps"].append(_map(known, name, given))
            if given.predict:
                column = embeddings.read_column(known, given.predict, name)
                found["predictions"].append(embeddings.predict_column(known, column, seed=given.seed, progress=True))
        if given.words and near:
            pairs = [({known.source: value, **context}, {}) for value in near]
    if given.between:
        first, second = (options.parse_context(text.split(";"), "--between") for text in given.between)
        pairs.append(({**context, **first}, {**context, **second}))
    options.notify_rare_values(run.schema, *(context for pair in pairs for context in pair))
    found["words"] = [_words(run, context, against, given) for context, against in pairs]
    if given.page:
        from factorcell.reports import embeddings as report

        files.write(given.page, report.embeddings_page(run.folder.name, found))
    if given.json:
        terminal.show_json(_rows(found))
    else:
        _show(found, given)
    terminal.notify(*found["cautions"])


def _words(run: Run, context: Mapping[str, str], against: Mapping[str, str], given: argparse.Namespace) -> Row:
    rows = embeddings.most_shifted_tokens(
        run, context, against, count=given.count, frequent=given.frequent, unknown=given.unknown
    )
    different = {name: value for name, value in context.items() if against.get(name) != value}
    other = {name: value for name, value in against.items() if name in different}
    names = [", ".join(f"{name}={value}" for name, value in one.items()) for one in (different, other)]
    return {
        **dict(zip(("context", "against"), (name or "what is expected" for name in names), strict=True)),
        "rows": rows,
    }


def _map(known: Embeddings, name: str, given: argparse.Namespace) -> Row:
    column = embeddings.read_column(known, given.map, name)
    points = embeddings.map_points(known, column)
    return {
        "column": column.name,
        "points": points,
        "ellipses": None if column.numbers is not None else embeddings.ellipses(points, given.groups),
        "agreement": embeddings.neighbour_agreement(known, column, given.measure),
        "shares": embeddings.project_to_plane(known.vectors)[1].tolist(),
        "dots": given.points,
    }


def _rows(found: Row) -> list[Row]:
    """Return all rows, each with its `kind`."""
    rows = [{"kind": "neighbour", **row} for row in found["neighbours"]]
    for entry in found["words"]:
        about = {"kind": "word", "context": entry["context"], "against": entry["against"]}
        rows += [{**about, **row} for row in entry["rows"]]
    for entry in found["maps"]:
        column = {"column": entry["column"]}
        rows += [{"kind": "point", **column, **row} for row in entry["points"]]
        rows += [{"kind": "ellipse", **column, **row} for row in entry["ellipses"] or ()]
        rows.append({"kind": "agreement", **entry["agreement"]})
    return rows + [{"kind": "prediction", **row} for row in found["predictions"]]


def _show(found: Row, given: argparse.Namespace) -> None:
    _show_neighbours(found, given.measure)
    for entry in found["words"]:
        terminal.show("", f"{entry['context']} against {entry['against']}")
        _show_words(entry["rows"])
    for entry in found["maps"]:
        terminal.show("", agreement_sentence(entry["agreement"]))
        if entry["ellipses"]:
            terminal.show_table(entry["ellipses"], ("group", "count", "x", "y", "wide", "high"))
    for row in found["predictions"]:
        of = f"{row['column']} from the embedding of {row['variable']} ({row['values']:,} values)"
        if "accuracy" in row:
            terminal.show("", f"{of}: accuracy {row['accuracy']:.1%}, the largest group {row['majority']:.1%}")
        else:
            terminal.show("", f"{of}: R² {row['r2']:z.3f}, correlation {row['correlation']:z.3f}")
    if given.page:
        terminal.notify(f"the page: {given.page}")


def _show_neighbours(found: Row, measure: str) -> None:
    """Print a table for one value, or a line for each of several."""
    rows = found["neighbours"]
    values = list(dict.fromkeys(row["value"] for row in rows))
    if not values:
        return
    of = values[0] if len(values) == 1 else f"{len(values):,} of {found['values']:,} values"
    terminal.show(terminal.bold(f"{found['variable']}: what is nearest to {of} by {measure}"))
    if len(values) == 1:
        terminal.show_table(rows, ("near", "count", measure))
        return
    width = max(map(len, values))
    for value in values:
        near = ", ".join(f"{row['near']} {row[measure]:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{value:<{width}}  {near}")


def _show_words(rows: Sequence[Row]) -> None:
    """Print raised and lowered tokens side by side."""
    if not rows:
        terminal.show("no token is raised or lowered")
        return
    cells = [(visible_token(row["token"]), f"{row['nats']:+.2f}") for row in rows]
    raised = [cell for cell, row in zip(cells, rows, strict=True) if row["nats"] > 0]
    lines = zip_longest(raised, cells[len(raised) :], fillvalue=(None, None))
    columns = ("raised", "nats", "lowered", "nats ")
    terminal.show_table([dict(zip(columns, (*left, *right), strict=True)) for left, right in lines], columns)
