"""The command `contexts`, which shows what a model has learned about contexts."""

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


def run_contexts(arguments: argparse.Namespace) -> None:
    """Run `factorcell contexts`."""
    if bool(arguments.by) != bool(arguments.map or arguments.predict):
        raise UserError("--by COLUMN requires --map TABLE or --predict TABLE, and each of the two requires --by COLUMN")
    run = options.open_on_device(Run.open, arguments.run, arguments)
    context = options.parse_context(arguments.context)
    has_other_request = arguments.between or arguments.map or arguments.predict or (arguments.words and context)
    pairs: list[tuple[dict[str, str], dict[str, str]]] = [(context, {})] if arguments.words and context else []
    results: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": [], "predictions": []}
    results["cautions"] = find_warnings([run])
    if arguments.near or arguments.map or arguments.predict or not has_other_request:
        value_embeddings = Embeddings.from_run(run, arguments.variable, arguments.near)
        near = arguments.near or (() if has_other_request else value_embeddings.values[:DEFAULT_VALUE_COUNT])
        results |= {"variable": value_embeddings.variable, "values": len(value_embeddings.values)}
        results["neighbours"] = value_embeddings.neighbours(near, arguments.count, arguments.measure)
        for name in arguments.by:
            if arguments.map:
                results["maps"].append(_map(value_embeddings, name, arguments))
            if arguments.predict:
                column = embeddings.read_column(value_embeddings, arguments.predict, name)
                results["predictions"].append(
                    embeddings.predict_column(value_embeddings, column, seed=arguments.seed, progress=True)
                )
        if arguments.words and near:
            pairs = [({value_embeddings.source: value, **context}, {}) for value in near]
    if arguments.between:
        first, second = (options.parse_context(text.split(";"), "--between") for text in arguments.between)
        pairs.append(({**context, **first}, {**context, **second}))
    options.notify_rare_values(run.schema, *(context for pair in pairs for context in pair))
    results["words"] = [_words(run, context, against, arguments) for context, against in pairs]
    if arguments.page:
        from factorcell.reports import embeddings as report

        files.write(arguments.page, report.embeddings_page(run.folder.name, results))
    if arguments.json:
        terminal.show_json(_rows(results))
    else:
        _show(results, arguments)
    terminal.notify(*results["cautions"])


def _words(run: Run, context: Mapping[str, str], against: Mapping[str, str], arguments: argparse.Namespace) -> Row:
    """Return the tokens that `context` raises or lowers most against another context, with texts of the differences."""
    rows = embeddings.most_shifted_tokens(
        run, context, against, count=arguments.count, frequent=arguments.frequent, unknown=arguments.unknown
    )
    changed = {name: value for name, value in context.items() if against.get(name) != value}
    replaced = {name: value for name, value in against.items() if name in changed}
    first, second = (", ".join(f"{name}={value}" for name, value in values.items()) for values in (changed, replaced))
    expected = "the expected context"
    return {"context": first or expected, "against": second or expected, "rows": rows}


def _map(value_embeddings: Embeddings, name: str, arguments: argparse.Namespace) -> Row:
    """Return what a map of the embeddings by the column `name` shows: points, ellipses of groups, and agreement."""
    column = embeddings.read_column(value_embeddings, arguments.map, name)
    points = embeddings.map_points(value_embeddings, column)
    return {
        "column": column.name,
        "points": points,
        "ellipses": None if column.numbers is not None else embeddings.fit_ellipses(points, arguments.groups),
        "agreement": embeddings.neighbour_agreement(value_embeddings, column, arguments.measure),
        "shares": embeddings.project_to_plane(value_embeddings.vectors)[1].tolist(),
        "dots": arguments.points,
    }


def _rows(results: Row) -> list[Row]:
    """Return the results as flat rows with a `kind`: neighbour, word, point, ellipse, agreement or prediction."""
    rows = [{"kind": "neighbour", **row} for row in results["neighbours"]]
    for entry in results["words"]:
        description = {"kind": "word", "context": entry["context"], "against": entry["against"]}
        rows += [{**description, **row} for row in entry["rows"]]
    for entry in results["maps"]:
        column = {"column": entry["column"]}
        rows += [{"kind": "point", **column, **row} for row in entry["points"]]
        rows += [{"kind": "ellipse", **column, **row} for row in entry["ellipses"] or ()]
        rows.append({"kind": "agreement", **entry["agreement"]})
    return rows + [{"kind": "prediction", **row} for row in results["predictions"]]


def _show(results: Row, arguments: argparse.Namespace) -> None:
    _show_neighbours(results, arguments.measure)
    for entry in results["words"]:
        terminal.show("", f"{entry['context']} against {entry['against']}")
        _show_words(entry["rows"])
    for entry in results["maps"]:
        terminal.show("", agreement_sentence(entry["agreement"]))
        if entry["ellipses"]:
            terminal.show_table(entry["ellipses"], ("group", "count", "x", "y", "wide", "high"))
    for row in results["predictions"]:
        task = f"{row['column']} predicted from the embedding of {row['variable']} ({row['values']:,} values)"
        if "accuracy" in row:
            terminal.show("", f"{task}: accuracy {row['accuracy']:.1%}, majority class {row['majority']:.1%}")
        else:
            terminal.show("", f"{task}: R² {row['r2']:z.3f}, correlation {row['correlation']:z.3f}")
    if arguments.page:
        terminal.notify(f"report: {arguments.page}")


def _show_neighbours(results: Row, measure: str) -> None:
    """Print the neighbours of one value as a table, or those of several values as one line each."""
    rows = results["neighbours"]
    values = list(dict.fromkeys(row["value"] for row in rows))
    if not values:
        return
    subject = values[0] if len(values) == 1 else f"{len(values):,} of {results['values']:,} values"
    terminal.show(terminal.bold(f"{results['variable']}: nearest neighbours of {subject} by {measure}"))
    if len(values) == 1:
        terminal.show_table(rows, ("near", "count", measure))
        return
    width = max(map(len, values))
    for value in values:
        near = ", ".join(f"{row['near']} {row[measure]:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{value:<{width}}  {near}")


def _show_words(rows: Sequence[Row]) -> None:
    """Print the tokens that a context raises next to those that it lowers; `rows` begin with the raised tokens."""
    if not rows:
        terminal.show("the context changes no token")
        return
    cells = [(visible_token(row["token"]), f"{row['nats']:+.2f}") for row in rows]
    raised = [cell for cell, row in zip(cells, rows, strict=True) if row["nats"] > 0]
    lines = zip_longest(raised, cells[len(raised) :], fillvalue=(None, None))
    columns = ("raised", "nats", "lowered", "nats ")  # with a space, since a dict needs distinct keys
    terminal.show_table([dict(zip(columns, (*left, *right), strict=True)) for left, right in lines], columns)
