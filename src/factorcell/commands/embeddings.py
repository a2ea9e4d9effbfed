"""The command `contexts`, which shows what a model has learned about contexts."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
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
from factorcell.options.choices import DEFAULT_VALUE_COUNT
from factorcell.reports.wording import agreement_sentence, visible_token
from factorcell.runs.run import Run

Row = dict[str, Any]


def run_contexts(arguments: argparse.Namespace) -> None:
    """Run `factorcell contexts`."""
    if bool(arguments.by) != bool(arguments.map):
        raise UserError("--by COLUMN requires --map TABLE, and --map TABLE requires --by COLUMN")
    run = options.open_on_device(Run.open, arguments.run, arguments)
    context = options.parse_context(arguments.context)
    has_words_of_context = bool(arguments.words and context)
    # If there is no other request, the command shows the neighbours of the most frequent values.
    has_other_request = arguments.between or arguments.map or has_words_of_context
    # Each pair has a context and the context to compare it with; {} is the expected context.
    context_pairs: list[tuple[dict[str, str], dict[str, str]]] = [(context, {})] if has_words_of_context else []
    results: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": []}
    if arguments.near or arguments.map or not has_other_request:
        value_embeddings = Embeddings.from_run(run, arguments.variable, arguments.near)
        default_values = () if has_other_request else value_embeddings.values[:DEFAULT_VALUE_COUNT]
        shown_values = arguments.near or default_values
        results |= {"variable": value_embeddings.variable, "values": len(value_embeddings.values)}
        if not (arguments.variable or arguments.near):
            results["other_variables"] = [
                variable.name
                for variable in run.schema.categories
                if variable.name != value_embeddings.variable and not variable.is_all_rare
            ]
        results["neighbours"] = value_embeddings.neighbours(shown_values, arguments.count)
        for column_name in arguments.by:
            results["maps"].append(_map_embeddings(value_embeddings, column_name, arguments.map))
        if arguments.words and shown_values:
            context_pairs = [({value_embeddings.source: value, **context}, {}) for value in shown_values]
    if arguments.between:
        first_values, second_values = (options.parse_context([text], "--between") for text in arguments.between)
        context_pairs.append(({**context, **first_values}, {**context, **second_values}))
    options.check_contexts(run, list(itertools.chain.from_iterable(context_pairs)), arguments.unknown)
    if context_pairs:
        _add_words(results, run, context_pairs, arguments)
    columns = dict.fromkeys(itertools.chain.from_iterable(map(differing_columns, context_pairs)))
    specified = common_columns(itertools.chain.from_iterable(context_pairs)) if context_pairs else ()
    findings = run_findings(run, columns, specified)
    report(*findings)
    results["cautions"] = [finding.text for finding in findings]
    if arguments.page:
        from factorcell.reports.embeddings import embeddings_page

        files.write(arguments.page, embeddings_page(run.folder.name, results))
    if arguments.json:
        terminal.show_json(_flatten(results))
    else:
        _show(results, arguments)
    if others := results.get("other_variables"):
        terminal.notify(f"variable: {results['variable']}; --variable chooses another: {', '.join(others)}")


def _add_words(
    results: Row,
    run: Run,
    context_pairs: Sequence[tuple[Mapping[str, str], Mapping[str, str]]],
    arguments: argparse.Namespace,
) -> None:
    """Add the words that distinguish the contexts of each pair to `results`."""
    train = options.find_training_table(run, arguments.train, "no counts of words")
    counts: list[TokenCounts | None] = [None] * len(context_pairs)
    if train is not None:
        training_texts = read_training_texts(run, train)
        counts = [
            TokenCounts.of_contexts(run, training_texts, pair, unknown=arguments.unknown) for pair in context_pairs
        ]
    results["words"] = [
        _compare_contexts(run, *pair, pair_counts, arguments)
        for pair, pair_counts in zip(context_pairs, counts, strict=True)
    ]
    if train is not None and None in counts:
        report(Finding("no evidence", f"words without evidence may be among the tokens, because {NOT_CATEGORIES}"))


def _compare_contexts(
    run: Run,
    first: Mapping[str, str],
    second: Mapping[str, str],
    counts: TokenCounts | None,
    arguments: argparse.Namespace,
) -> Row:
    """Return the tokens that the softmax bias of the first context raises or lowers most, relative to the second.

    The texts `context` and `against` state the values in which the two contexts differ, with their training texts.
    """
    token_rows = rank_shifted_tokens(
        run,
        first,
        second,
        counts,
        count=arguments.count,
        frequent=arguments.frequent,
        unknown=arguments.unknown,
    )
    first_values = {name: value for name, value in first.items() if second.get(name) != value}
    second_values = {name: value for name, value in second.items() if name in first_values}
    first_text, second_text = (
        ", ".join(f"{name}={value}" for name, value in values.items()) or "the expected context"
        for values in (first_values, second_values)
    )
    if counts is not None:
        first_text, second_text = (
            f"{text} ({count:,} texts)"
            for text, count in zip((first_text, second_text), counts.texts.tolist(), strict=True)
        )
    return {"context": first_text, "against": second_text, "rows": token_rows}


def _map_embeddings(value_embeddings: Embeddings, column_name: str, table: Path) -> Row:
    """Return the content of a map of the embeddings, coloured by a column.

    The map has points, ellipses of groups, the agreement of neighbours in the column, and for each of the two axes the
    share of the variance that it explains.
    """
    column = embeddings.read_column(value_embeddings, table, column_name)
    points = embeddings.map_points(value_embeddings, column)
    _, variance_shares = embeddings.project_to_plane(value_embeddings.vectors)
    return {
        "column": column.name,
        "points": points,
        "ellipses": None if column.numbers is not None else embeddings.fit_ellipses(points),
        "agreement": embeddings.neighbour_agreement(value_embeddings, column),
        "shares": variance_shares.tolist(),
    }


def _flatten(results: Row) -> list[Row]:
    """Return the results as flat rows with a `kind`: neighbour, word, point, ellipse or agreement."""
    rows = [{"kind": "neighbour", **row} for row in results["neighbours"]]
    for comparison in results["words"]:
        contexts = {"context": comparison["context"], "against": comparison["against"]}
        rows += [{"kind": "word", **contexts, **row} for row in comparison["rows"]]
    for map_content in results["maps"]:
        column = map_content["column"]
        rows += [{"kind": "point", "column": column, **row} for row in map_content["points"]]
        rows += [{"kind": "ellipse", "column": column, **row} for row in map_content["ellipses"] or ()]
        rows.append({"kind": "agreement", **map_content["agreement"]})
    return rows


def _show(results: Row, arguments: argparse.Namespace) -> None:
    _show_neighbours(results)
    for comparison in results["words"]:
        terminal.show("", f"{comparison['context']} against {comparison['against']}")
        _show_words(comparison["rows"])
    for map_content in results["maps"]:
        terminal.show("", agreement_sentence(map_content["agreement"]))
        if map_content["ellipses"]:
            terminal.show_table(map_content["ellipses"], ("group", "count", "x", "y", "wide", "high"))
    if arguments.page:
        terminal.notify(f"report: {arguments.page}")


def _show_neighbours(results: Row) -> None:
    """Print the neighbours of a single value as a table, or the neighbours of several values in one line per value."""
    rows = results["neighbours"]
    values = list(dict.fromkeys(row["value"] for row in rows))
    if not values:
        if results["values"] == 1:
            terminal.show(f"{results['variable']}: only one value is frequent, so it has no neighbours")
        return
    counts = {row["value"]: f"{row['value']} ({row['value_count']:,} texts)" for row in rows}
    subject = counts[values[0]] if len(values) == 1 else f"{len(values):,} of {results['values']:,} values"
    terminal.show(terminal.bold(f"{results['variable']}: nearest neighbours of {subject} by cosine"))
    if len(values) == 1:
        terminal.show_table(rows, ("near", "count", "cosine"))
        return
    width = max(map(len, counts.values()))
    for value in values:
        neighbours = ", ".join(f"{row['near']} {row['cosine']:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{counts[value]:<{width}}  {neighbours}")


def _counts_cell(row: Row) -> str | None:
    """Return the counts of a token in the training texts of the two contexts, if they are known."""
    return f"{row['count']:,} : {row['count_against']:,}" if "count" in row else None


def _show_words(rows: Sequence[Row]) -> None:
    """Print the tokens that a context raises next to the tokens that it lowers; `rows` begin with the raised tokens."""
    if not rows:
        terminal.show("the context changes no token that has evidence in the training texts")
        return
    tokens_with_nats = [(visible_token(row["token"]), f"{row['nats']:+.2f}", _counts_cell(row)) for row in rows]
    raised_count = sum(row["nats"] > 0 for row in rows)
    raised, lowered = tokens_with_nats[:raised_count], tokens_with_nats[raised_count:]
    # The last two names have a space, since a dict needs distinct keys.
    columns = ("raised", "nats", "counts", "lowered", "nats ", "counts ")
    table_rows = [
        dict(zip(columns, (*raised_cells, *lowered_cells), strict=True))
        for raised_cells, lowered_cells in itertools.zip_longest(raised, lowered, fillvalue=(None, None, None))
    ]
    terminal.show_table(table_rows, columns)
