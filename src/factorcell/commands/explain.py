"""The command `explain`, which shows for each token of a text how probable it is given each of several contexts."""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.data.tables.tables import FORMATS
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import run_findings
from factorcell.evaluation.explaining.likelihood_ratios import (
    STRENGTHS,
    compared_columns,
    context_text,
    evidence_findings,
    explain,
    has_evidence,
    read_texts,
    strength,
    with_evidence,
)
from factorcell.io import files, input_files
from factorcell.io.findings import ranked
from factorcell.reports.wording import readable_token, token_separator
from factorcell.runs.run import Run

# Pairs of a background and a foreground colour (numbers of the 256 terminal colours), for weak to strong ratios.
# Tokens that are more probable given the first context are blue; the others are orange and also underlined.
BLUES = ((153, 16), (75, 16), (26, 231))
ORANGES = ((223, 16), (215, 16), (166, 231))
EQUAL_PRIORS = "probabilities of the contexts assume that all of them are equally frequent (uniform priors)"
STRONG_RATIO = 9.0  # nats; a ratio that has the strongest mark

Row = dict[str, Any]


def run_explain(arguments: argparse.Namespace) -> None:
    """Run `factorcell explain`."""
    contexts = contexts_between(arguments.between, options.parse_context(arguments.context))
    ensemble_folders = [arguments.run, *arguments.ensemble]
    open_run = partial(Run.open, mixture=not arguments.no_ngram_mixture)
    ensemble = [options.open_on_device(open_run, folder, arguments) for folder in ensemble_folders]
    compared_runs = [options.open_on_device(open_run, folder, arguments) for folder in arguments.compare_with]
    texts, text_contexts = _read_texts(arguments, ensemble[0])
    options.check_contexts(ensemble[0], list(contexts.values()), arguments.unknown)
    model_name = arguments.run.name
    if arguments.ensemble:
        model_name += f" and {len(arguments.ensemble)} more"
    train = options.find_training_table(ensemble[0], arguments.train, "no counts of words")
    # The typed values were checked above; a table is read as `score` reads it.
    unknown = "group" if text_contexts[0] and arguments.unknown == "error" else arguments.unknown
    settings: dict[str, Any] = {"unknown": unknown, "train": train, "text_contexts": text_contexts}
    rows: list[Row] = explain(ensemble, texts, contexts, **settings)
    if compared_runs:
        rows_of_models = [[{"model": model_name, **row} for row in rows]]
        for run in compared_runs:
            run_rows = explain([run], texts, contexts, **settings)
            rows_of_models.append([{"model": run.folder.name, **row} for row in run_rows])
        rows = list(itertools.chain.from_iterable(zip(*rows_of_models, strict=True)))
    if arguments.page:
        from factorcell.reports.explain import explanation_page

        columns = compared_columns([*contexts.values()], text_contexts)
        findings = itertools.chain.from_iterable(run_findings(run, *columns) for run in [*ensemble, *compared_runs])
        cautions = [finding.text for finding in ranked([*findings, *evidence_findings(rows)])]
        files.write(arguments.page, explanation_page(model_name, rows, len(ensemble), cautions))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(rows)
    else:
        _show(rows, list(contexts))


def contexts_between(texts: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the contexts that the texts of --between specify, by name.

    A text is one `NAME=VALUE`, or several with semicolons between them. Every context also has the values of `shared`.
    """
    contexts = {}
    for text in texts:
        context = options.parse_context([text], "--between")
        name = context_text(context)
        if duplicates := set(context) & set(shared):
            raise UserError(f"--between and --context both have a value for {', '.join(sorted(duplicates))}")
        if name in contexts:
            raise UserError(f"--between: {name} is given twice")
        contexts[name] = {**shared, **context}
    if len(contexts) < 2:
        raise UserError(f"--between: expected two or more contexts, got only {', '.join(contexts)}")
    return contexts


def _read_texts(arguments: argparse.Namespace, run: Run) -> tuple[list[str], list[Row]]:
    """Return the distinct texts of --text, of a table, or of the lines of a file, and the context of each text.

    A table has the values of the context columns of the run that neither --context nor --between specifies.
    """
    if (arguments.file is None) == (not arguments.text):
        raise UserError("specify either FILE (one text per line, or a table) or --text")
    if arguments.text:
        texts = list(dict.fromkeys(arguments.text))
    elif Path(arguments.file).suffix.lower() in FORMATS:
        specified = {*options.parse_context(arguments.context)}
        specified |= {name for text in arguments.between for name in options.parse_context([text], "--between")}
        columns = [name for name in run.schema.columns() if name not in specified]
        return read_texts(arguments.file, run.config.data.text, columns)
    else:
        is_stream = arguments.file == "-"
        content = terminal.decode_input(sys.stdin.buffer.read()) if is_stream else input_files.read_text(arguments.file)
        texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{arguments.file}: the file contains no text")
    return texts, [{} for _ in texts]


def _show(rows: Sequence[Row], context_names: Sequence[str]) -> None:
    """Print the tokens of each text: for two contexts with marks for their ratios, for more contexts as a table."""
    has_colours = terminal.has_colours(sys.stdout)
    if len(context_names) == 2:
        first_name, second_name = context_names
        first = mark_token(first_name, STRONG_RATIO, has_colours=has_colours)
        second = mark_token(second_name, -STRONG_RATIO, has_colours=has_colours)
        legend = ["more probable given ", first, ", given ", second, "; ¶ is the end of the text"]
        terminal.show(terminal.join("", legend))
        weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
        levels = f"weak marks from {weak} nats, clear from {clear}, strong from {strong}"
        terminal.show(f"{levels}; tokens without a mark are counted too", EQUAL_PRIORS)
    for row in rows:
        terminal.show("", *([row["model"]] if "model" in row else []))
        if len(context_names) == 2:
            _show_marked_tokens(row, context_names[0], has_colours)
        else:
            _show_posteriors(row, context_names)
        if unknown_tokens := [readable_token(token["token"]) for token in row["tokens"] if not token["known"]]:
            terminal.show(f"out of vocabulary: {', '.join(dict.fromkeys(unknown_tokens))}")
    if len(context_names) > 2:
        terminal.notify(EQUAL_PRIORS)


def _show_marked_tokens(row: Row, first_context: str, has_colours: bool) -> None:
    """Print the tokens of a text with marks for their ratios, and the probability of the first of two contexts."""
    gap = token_separator(row["tokenizer"])
    marked_tokens = [
        mark_token(readable_token(token["token"]), token["ratio"] * has_evidence(token), has_colours=has_colours)
        for token in row["tokens"]
    ]
    terminal.show(terminal.join(gap, marked_tokens))
    terminal.show(
        f"{row['ratio']:+z.2f} nats in total; p({first_context} | text) = {row['posterior'][first_context]:.1%}"
    )
    if unsupported := [readable_token(token["token"]) for token in row["tokens"] if not has_evidence(token)]:
        ratio, probability = with_evidence(row)
        figures = f"{ratio:+z.2f} nats; p({first_context} | text) = {probability:.1%}"
        terminal.show(f"without the tokens without evidence ({', '.join(dict.fromkeys(unsupported))}): {figures}")


def _show_posteriors(row: Row, context_names: Sequence[str]) -> None:
    """Print a table with the posterior probability of each context after each token of a text."""
    table_rows = [
        {
            "token": readable_token(token["token"]),
            **{name: f"{token['posterior'][name]:.1%}" for name in context_names},
        }
        for token in row["tokens"]
    ]
    terminal.show_table(table_rows, ("token", *context_names))


def mark_token(text: str, ratio: float, *, has_colours: bool) -> str:
    """Return a token with marks for the strength and the sign of its log-likelihood ratio.

    The marks are colours, blue for positive ratios and underlined orange for negative ones. Without colours, they are
    up to three superscript signs.
    """
    signed_strength = strength(ratio)
    if not signed_strength:
        return text
    is_positive = signed_strength > 0
    if not has_colours:
        return text + ("⁺" if is_positive else "⁻") * abs(signed_strength)
    background, foreground = (BLUES if is_positive else ORANGES)[abs(signed_strength) - 1]
    underline = "" if is_positive else "4;"
    return terminal.coloured(text, f"{underline}48;5;{background};38;5;{foreground}")
