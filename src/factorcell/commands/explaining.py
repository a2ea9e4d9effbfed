"""The commands `explain`, which compares contexts on texts, and `contexts`, which shows what a run learned of them."""

import argparse
import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import COMPUTING, OUTPUT_FILE, Parser
from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.io.findings import report
from factorcell.options.limits import DEFAULT_VALUE_COUNT

if TYPE_CHECKING:
    from factorcell.evaluation.explaining.embeddings import Embeddings
    from factorcell.runs.run import Run

# Pairs of a background and a foreground colour (numbers of the 256 terminal colours), for weak to strong ratios.
# Tokens that are more probable given the first context are blue; the others are orange and also underlined.
BLUES = ((153, 16), (75, 16), (26, 231))
ORANGES = ((223, 16), (215, 16), (166, 231))
EQUAL_PRIORS = "probabilities of the contexts assume that all of them are equally frequent (uniform priors)"
STRONG_RATIO = 9.0  # nats; a ratio that has the strongest mark

Row = dict[str, Any]
ContextPair = tuple[dict[str, str], dict[str, str]]  # a context, and the one it is compared with


def add_explain_arguments(parser: Parser) -> None:
    parser.add("run")
    parser.add("file", metavar="FILE", nargs="?", help="file with one text per line, or a table; -: standard input")
    parser.add("--text", repeatable=True, help="a text, instead of FILE (repeatable)")
    help_text = "two or more contexts: rating=5 rating=1; join several columns with ';': 'rating=5; city=Oslo'"
    parser.add("--between", nargs="+", required=True, metavar="NAME=VALUE", help=help_text)
    parser.add("--context")
    parser.add("--no-ngram-mixture")
    parser.add("--page", type=OUTPUT_FILE, metavar="HTML", help="write an HTML page")
    parser.add("--unknown", default="error")
    parser.add_all(*COMPUTING)


def run_explain(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import differing_columns, run_findings
    from factorcell.evaluation.explaining.token_evidence import evidence_findings, explain
    from factorcell.io import files
    from factorcell.io.findings import ranked

    run = options.open_run(arguments)
    shared = options.parse_context(run, arguments.context)
    contexts = contexts_between(run, arguments.between, shared)
    specified = {name for context in contexts.values() for name in context}
    texts, text_contexts = _read_texts(arguments, run, specified)
    for context in contexts.values():
        run.read([""], [context], unknown=arguments.unknown)  # raises the error of a value that is not valid
    # The typed values were checked above; a table is read as `score` reads it.
    unknown = "group" if text_contexts[0] and arguments.unknown == "error" else arguments.unknown
    rows = explain(run, texts, contexts, unknown=unknown, text_contexts=text_contexts)
    if arguments.page:
        from factorcell.reports.explaining import explanation_page

        columns = differing_columns([*contexts.values()])
        cautions = [finding.text for finding in ranked([*run_findings(run, columns), *evidence_findings(rows)])]
        files.write(arguments.page, explanation_page(arguments.run.name, rows, cautions))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(rows)
    else:
        _show_explanation(rows, list(contexts))


def contexts_between(run: "Run | None", texts: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the contexts that the texts of --between specify, by name."""
    from factorcell.evaluation.explaining.token_evidence import context_text

    contexts = {}
    for text in texts:
        context = options.parse_context(run, [text], "--between")
        name = context_text(context)
        if duplicates := set(context) & set(shared):
            raise UserError(f"--between and --context both have a value for {', '.join(sorted(duplicates))}")
        if name in contexts:
            raise UserError(f"--between: {name} is given twice")
        contexts[name] = {**shared, **context}
    if len(contexts) < 2:
        raise UserError(f"--between: expected two or more contexts, got only {', '.join(contexts)}")
    return contexts


def _read_texts(arguments: argparse.Namespace, run: "Run", specified: Collection[str]) -> tuple[list[str], list[Row]]:
    """Return the distinct texts of --text, of a table, or of the lines of a file, and the context of each text.

    A table has the values of the context columns of the run that are not `specified` on the command line.
    """
    from factorcell.data.tables.tables import is_table_path
    from factorcell.evaluation.explaining.token_evidence import read_texts

    if (arguments.file is None) == (not arguments.text):
        raise UserError("specify either FILE (one text per line, or a table) or --text")
    if arguments.text:
        texts = list(dict.fromkeys(arguments.text))
    elif is_table_path(Path(arguments.file)):
        columns = [name for name in run.schema.columns() if name not in specified]
        return read_texts(arguments.file, run.config.data.text, columns)
    else:
        if arguments.file == "-":
            content = input_files.decode(sys.stdin.buffer.read(), "standard input", sys.stdin.encoding)
        else:
            content = input_files.read_text(arguments.file)
        texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{arguments.file}: the file contains no text")
    return texts, [{} for _ in texts]


def _show_explanation(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Print the tokens of each text: for two contexts with marks for their ratios, for more contexts as a table."""
    from factorcell.evaluation.explaining.token_evidence import STRENGTHS, readable_token

    if len(names) == 2:
        first, second = mark_token(names[0], STRONG_RATIO), mark_token(names[1], -STRONG_RATIO)
        legend = ["more probable given ", first, ", given ", second, "; ¶ is the end of the text"]
        terminal.show(terminal.join("", legend))
        weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
        levels = f"weak marks from {weak} nats, clear from {clear}, strong from {strong}"
        terminal.show(f"{levels}; tokens without a mark are counted too", EQUAL_PRIORS)
    for row in rows:
        terminal.show("")
        tokens = [(readable_token(token["token"]), token) for token in row["tokens"]]
        if len(names) == 2:
            _show_marked_tokens(row, tokens, names[0])
        else:
            probabilities = [{name: f"{token['posterior'][name]:.1%}" for name in names} for _, token in tokens]
            lines = [{"token": text, **line} for (text, _), line in zip(tokens, probabilities, strict=True)]
            terminal.show_table(lines, ("token", *names))
        if unknown := dict.fromkeys(text for text, token in tokens if not token["known"]):
            terminal.show(f"out of vocabulary: {', '.join(unknown)}")
    if len(names) > 2:
        terminal.notify(EQUAL_PRIORS)


def _show_marked_tokens(row: Row, tokens: Sequence[tuple[str, Row]], first_context: str) -> None:
    """Print the tokens of a text with marks for their ratios, and the probability of the first of two contexts."""
    from factorcell.evaluation.explaining.token_evidence import has_evidence, token_separator, with_evidence

    marked_tokens = [mark_token(text, token["ratio"] * has_evidence(token)) for text, token in tokens]
    terminal.show(terminal.join(token_separator(row["tokenizer"]), marked_tokens))
    ratio, probability = row["ratio"], row["posterior"][first_context]
    terminal.show(f"{ratio:+z.2f} nats in total; p({first_context} | text) = {probability:.1%}")
    if unsupported := dict.fromkeys(text for text, token in tokens if not has_evidence(token)):
        ratio, probability = with_evidence(row)
        figures = f"{ratio:+z.2f} nats; p({first_context} | text) = {probability:.1%}"
        terminal.show(f"without the tokens without evidence ({', '.join(unsupported)}): {figures}")


def mark_token(text: str, ratio: float) -> str:
    """Return a token with marks for the strength and the sign of its log-likelihood ratio."""
    from factorcell.evaluation.explaining.token_evidence import strength

    signed_strength = strength(ratio)
    if not signed_strength:
        return text
    is_positive = signed_strength > 0
    if not terminal.has_colours(sys.stdout):
        return text + ("⁺" if is_positive else "⁻") * abs(signed_strength)
    background, foreground = (BLUES if is_positive else ORANGES)[abs(signed_strength) - 1]
    underline = "" if is_positive else "4;"
    return terminal.coloured(text, f"{underline}48;5;{background};38;5;{foreground}")


def add_contexts_arguments(parser: Parser) -> None:
    parser.add("run")
    help_text = f"values whose neighbours are shown (default: the {DEFAULT_VALUE_COUNT} most frequent)"
    parser.add("--near", nargs="+", default=[], metavar="VALUE", help=help_text)
    help_text = "context variable (default: the variable with the values of --near, else the one with most values)"
    parser.add("--variable", default="", metavar="NAME", help=help_text)
    parser.add("--count", default=10, help="number of neighbours, of raised words and of lowered words")
    parser.add("--words", action="store_true", help="show words whose softmax bias the values raise or lower most")
    parser.add("--context")
    help_text = "show words whose softmax bias differs most between the first context and the second"
    parser.add("--between", nargs=2, metavar="NAME=VALUE[;NAME=VALUE]", help=help_text)
    parser.add("--map", type=Path, metavar="TABLE", help="draw a map of the embeddings for each column of --by")
    help_text = "column of TABLE that colours the map (repeatable)"
    parser.add("--by", help=help_text)
    parser.add("--page", type=OUTPUT_FILE, metavar="HTML", help="write all results as an HTML page")
    parser.add("--unknown", default="error")
    parser.add_all(*COMPUTING)


def run_contexts(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import differing_columns, run_findings
    from factorcell.evaluation.explaining.embeddings import Embeddings
    from factorcell.io import files

    if bool(arguments.by) != bool(arguments.map):
        raise UserError("--by COLUMN requires --map TABLE, and --map TABLE requires --by COLUMN")
    if arguments.map and not (arguments.page or arguments.json):
        raise UserError("--map TABLE requires --page HTML, which gets the map, or --json")
    if arguments.context and not (arguments.words or arguments.between):
        raise UserError("--context requires --words or --between")
    run = options.open_run(arguments)
    context = options.parse_context(run, arguments.context)
    pairs: list[ContextPair] = [(context, {})] if arguments.words and context else []
    # If there is no other request, the command shows the neighbours of the most frequent values.
    has_values = any(not variable.is_all_rare for variable in run.schema.categories)
    has_other_request = bool(pairs or ((arguments.between or arguments.map) and not (arguments.words and has_values)))
    results: Row = {"variable": "", "values": 0, "neighbours": [], "words": [], "maps": []}
    if arguments.near or arguments.map or not has_other_request:
        known = Embeddings.from_run(run, arguments.variable, arguments.near)
        variables = [variable for variable in run.schema.categories if not variable.is_all_rare]
        others = [variable.name for variable in variables if variable.name != known.variable]
        if others and not arguments.variable:
            terminal.notify(f"variable: {known.variable}; --variable chooses another: {', '.join(others)}")
        shown_values = arguments.near or (() if has_other_request else known.values[:DEFAULT_VALUE_COUNT])
        results |= {"variable": known.variable, "values": len(known.values)}
        results["neighbours"] = known.neighbours(shown_values, arguments.count)
        results["maps"] = [_map_embeddings(known, column, arguments) for column in arguments.by]
        if arguments.words and shown_values:
            pairs = [({known.source: value, **context}, {}) for value in shown_values]
    if arguments.between:
        first, second = (options.parse_context(run, [text], "--between") for text in arguments.between)
        pairs.append(({**context, **first}, {**context, **second}))
    contexts = list(itertools.chain.from_iterable(pairs))
    for context in contexts:
        run.read([""], [context], unknown=arguments.unknown)  # raises the error of a value that is not valid
    if pairs:
        results["words"] = _compare_pairs(run, pairs, arguments)
    findings = run_findings(run, {column for pair in pairs for column in differing_columns(pair)})
    report(*findings)
    results["cautions"] = [finding.text for finding in findings]
    if arguments.page:
        from factorcell.reports.explaining import embeddings_page

        files.write(arguments.page, embeddings_page(run.folder.name, results))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(_flatten(results))
    else:
        _show_neighbours(results)
        for comparison in results["words"]:
            terminal.show("", f"{comparison['context']} against {comparison['against']}")
            _show_words(comparison["rows"])


def _map_embeddings(known: "Embeddings", column: str, arguments: argparse.Namespace) -> Row:
    """Return the points of a map, coloured by a column of --map, and the share of the variance that it shows."""
    from factorcell.data.columns.declarations import parse_column
    from factorcell.evaluation.explaining import embeddings

    points = embeddings.map_points(known, embeddings.read_column(known, arguments.map, column))
    _, shares = embeddings.project_to_plane(known.vectors)
    return {"column": parse_column(column).name, "points": points, "share": float(shares.sum())}


def _compare_pairs(run: "Run", pairs: Sequence[ContextPair], arguments: argparse.Namespace) -> list[Row]:
    """Return for each pair the tokens that the softmax bias of the first context raises or lowers most."""
    from factorcell.evaluation.diagnostics import differing_columns
    from factorcell.evaluation.explaining.token_evidence import context_text, most_shifted_tokens

    settings = options.selected(arguments, "count", "unknown")
    comparisons = []
    for pair in pairs:
        names = differing_columns(pair)
        texts = [context_text({name: context[name] for name in names if name in context}) for context in pair]
        rows = most_shifted_tokens(run, *pair, **settings)
        comparisons.append({"context": texts[0], "against": texts[1], "rows": rows})
    return comparisons


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
    """Print the neighbours of each value in a line."""
    rows = results["neighbours"]
    counts = {row["value"]: f"{row['value']} ({row['value_count']:,} texts)" for row in rows}
    if not counts:
        if results["values"] == 1:
            terminal.show(f"{results['variable']}: only one value is frequent, so it has no neighbours")
        return
    shown = f"{len(counts):,} of {results['values']:,} values"
    terminal.show(f"{results['variable']}: nearest neighbours of {shown} by cosine")
    width = max(map(len, counts.values()))
    for value, text in counts.items():
        neighbours = ", ".join(f"{row['near']} {row['cosine']:z.2f}" for row in rows if row["value"] == value)
        terminal.show(f"{text:<{width}}  {neighbours}")


def _show_words(rows: Sequence[Row]) -> None:
    """Print the tokens that a context raises, then those that it lowers, with their counts if known."""
    from factorcell.evaluation.explaining.token_evidence import visible_token

    if not rows:
        terminal.show("the context changes no token that has evidence in the training texts")
    lines = [
        {
            "token": visible_token(row["token"]),
            "nats": f"{row['nats']:+.2f}",
            "occurrences, first : second": f"{row['count']:,} : {row['count_against']:,}" if "count" in row else None,
        }
        for row in rows
    ]
    terminal.show_table(lines, ("token", "nats", "occurrences, first : second"))
