"""The command `contexts`, which shows what a model has learned about contexts."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.data.columns.columns import parse_column
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import common_columns, differing_columns, run_findings
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings
from factorcell.evaluation.explaining.token_evidence import (
    NOT_CATEGORIES,
    TokenCounts,
    rank_shifted_tokens,
    read_training_texts,
)
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.options.limits import DEFAULT_VALUE_COUNT
from factorcell.reports.wording import visible_token
from factorcell.runs.run import Run

Row = dict[str, Any]
ContextPair = tuple[dict[str, str], dict[str, str]]  # a context, and the one it is compared with


def run_contexts(arguments: argparse.Namespace) -> None:
    """Run `factorcell contexts`."""
    if bool(arguments.by) != bool(arguments.map):
        raise UserError("--by COLUMN requires --map TABLE, and --map TABLE requires --by COLUMN")
    if arguments.map and not (arguments.page or arguments.json):
        raise UserError("--map TABLE requires --page HTML, which gets the map, or --json")
    run = options.open_on_device(Run.open, arguments.run, arguments)
    context = options.parse_context(arguments.context)
    pairs: list[ContextPair] = [(context, {})] if arguments.words and context else []
    # If there is no other request, the command shows the neighbours of the most frequent values.
    has_other_request = bool(arguments.between or arguments.map or pairs)
    results: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": []}
    if arguments.near or arguments.map or not has_other_request:
        known = Embeddings.from_run(run, arguments.variable, arguments.near)
        shown_values = arguments.near or (() if has_other_request else known.values[:DEFAULT_VALUE_COUNT])
        results |= {"variable": known.variable, "values": len(known.values)}
        results["neighbours"] = known.neighbours(shown_values, arguments.count)
        results["maps"] = [_map_embeddings(known, column, arguments) for column in arguments.by]
        if arguments.words and shown_values:
            pairs = [({known.source: value, **context}, {}) for value in shown_values]
        if not (arguments.variable or arguments.near):
            _name_other_variables(run, known.variable)
    if arguments.between:
        first, second = (options.parse_context([text], "--between") for text in arguments.between)
        pairs.append(({**context, **first}, {**context, **second}))
    contexts = list(itertools.chain.from_iterable(pairs))
    options.check_contexts(run, contexts, arguments.unknown)
    if pairs:
        results["words"] = _compare_pairs(run, pairs, arguments)
    columns = dict.fromkeys(itertools.chain.from_iterable(map(differing_columns, pairs)))
    findings = run_findings(run, columns, common_columns(contexts) if contexts else ())
    report(*findings)
    results["cautions"] = [finding.text for finding in findings]
    if arguments.page:
        from factorcell.reports.embeddings import embeddings_page

        files.write(arguments.page, embeddings_page(run.folder.name, results))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(_flatten(results))
    else:
        _show_neighbours(results)
        for comparison in results["words"]:
            terminal.show("", f"{comparison['context']} against {comparison['against']}")
            _show_words(comparison["rows"])


def _name_other_variables(run: Run, variable: str) -> None:
    others = [other.name for other in run.schema.categories if other.name != variable and not other.is_all_rare]
    if others:
        terminal.notify(f"variable: {variable}; --variable chooses another: {', '.join(others)}")


def _map_embeddings(known: Embeddings, column: str, arguments: argparse.Namespace) -> Row:
    """Return the points of a map, coloured by a column of --map, and the share of the variance that it shows."""
    points = embeddings.map_points(known, embeddings.read_column(known, arguments.map, column))
    _, shares = embeddings.project_to_plane(known.vectors)
    name, _, _ = parse_column(column)
    return {"column": name, "points": points, "share": float(shares.sum())}


def _compare_pairs(run: Run, pairs: Sequence[ContextPair], arguments: argparse.Namespace) -> list[Row]:
    """Return for each pair the tokens that the softmax bias of the first context raises or lowers most."""
    train = options.find_training_table(run, arguments.train, "no counts of words")
    training_texts = None if train is None else read_training_texts(run, train)
    settings = {"count": arguments.count, "frequent": arguments.frequent, "unknown": arguments.unknown}
    comparisons = []
    for pair in pairs:
        counts = None
        if training_texts is not None:
            counts = TokenCounts.of_contexts(run, training_texts, pair, unknown=arguments.unknown)
            if counts is None:
                problem = f"words without evidence may be among the tokens, because {NOT_CATEGORIES}"
                report(Finding("no evidence", problem))
        first, second = pair
        names = [name for name in first if second.get(name) != first[name]]
        texts = [_describe({name: context[name] for name in names if name in context}) for context in pair]
        if counts is not None:
            texts = [f"{text} ({count:,} texts)" for text, count in zip(texts, counts.texts.tolist(), strict=True)]
        rows = rank_shifted_tokens(run, first, second, counts, **settings)
        comparisons.append({"context": texts[0], "against": texts[1], "rows": rows})
    return comparisons


def _describe(context: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in context.items()) or "the expected context"


def _flatten(results: Row) -> list[Row]:
    """Return the results as flat rows with a `kind`: neighbour, word or point."""
    rows = [{"kind": "neighbour", **row} for row in results["neighbours"]]
    for comparison in results["words"]:
        contexts = {"context": comparison["context"], "against": comparison["against"]}
        rows += [{"kind": "word", **contexts, **row} for row in comparison["rows"]]
    for entry in results["maps"]:
        rows += [{"kind": "point", "column": entry["column"], **row} for row in entry["points"]]
    return rows


def _show_neighbours(results: Row) -> None:
    """Print the neighbours of a single value as a table, or the neighbours of several values in one line per value."""
    rows = results["neighbours"]
    counts = {row["value"]: f"{row['value']} ({row['value_count']:,} texts)" for row in rows}
    if not counts:
        if results["values"] == 1:
            terminal.show(f"{results['variable']}: only one value is frequent, so it has no neighbours")
        return
    subject = next(iter(counts.values())) if len(counts) == 1 else f"{len(counts):,} of {results['values']:,} values"
    terminal.show(terminal.bold(f"{results['variable']}: nearest neighbours of {subject} by cosine"))
    if len(counts) == 1:
        terminal.show_table(rows, ("near", "count", "cosine"))
        return
    width = max(map(len, counts.values()))
    for value, text in counts.items():
        neighbours = ", ".join(f"{row['near']} {row['cosine']:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{text:<{width}}  {neighbours}")


def _show_words(rows: Sequence[Row]) -> None:
    """Print the tokens that a context raises next to the tokens that it lowers, with their counts if known."""
    if not rows:
        terminal.show("the context changes no token that has evidence in the training texts")
        return
    # The names of the last two columns end with a space, because a dict needs distinct keys.
    raised, lowered = (
        [
            {
                title: visible_token(row["token"]),
                f"nats{end}": f"{row['nats']:+.2f}",
                f"counts{end}": f"{row['count']:,} : {row['count_against']:,}" if "count" in row else None,
            }
            for row in rows
            if sign * row["nats"] > 0
        ]
        for sign, title, end in ((1, "raised", ""), (-1, "lowered", " "))
    )
    empty: Row = {}
    lines = [{**first, **second} for first, second in itertools.zip_longest(raised, lowered, fillvalue=empty)]
    terminal.show_table(lines, ("raised", "nats", "counts", "lowered", "nats ", "counts "))
