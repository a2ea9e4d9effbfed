"""The command `explain`, which shows for each token of a text how probable it is given each of several contexts."""

import argparse
import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
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
    shared = options.parse_context(arguments.context)
    contexts = contexts_between(arguments.between, shared)
    open_run = partial(Run.open, mixture=not arguments.no_ngram_mixture)
    run, *others = (
        options.open_on_device(open_run, folder, arguments) for folder in (arguments.run, *arguments.ensemble)
    )
    compared_runs = [options.open_on_device(open_run, folder, arguments) for folder in arguments.compare_with]
    specified = {name for context in contexts.values() for name in context}
    texts, text_contexts = _read_texts(arguments, run, specified)
    options.check_contexts(run, list(contexts.values()), arguments.unknown)
    model_name = f"{arguments.run.name} and {len(others)} more" if others else arguments.run.name
    models = [(model_name, [run, *others]), *((other.folder.name, [other]) for other in compared_runs)]
    settings: dict[str, Any] = {
        # The typed values were checked above; a table is read as `score` reads it.
        "unknown": "group" if text_contexts[0] and arguments.unknown == "error" else arguments.unknown,
        "train": options.find_training_table(run, arguments.train, "no counts of words"),
        "text_contexts": text_contexts,
    }
    rows_of_models = [
        [{**({"model": name} if compared_runs else {}), **row} for row in explain(runs, texts, contexts, **settings)]
        for name, runs in models
    ]
    rows = list(itertools.chain.from_iterable(zip(*rows_of_models, strict=True)))
    if arguments.page:
        from factorcell.reports.explain import explanation_page

        columns = compared_columns([*contexts.values()], text_contexts)
        findings = [finding for _, runs in models for member in runs for finding in run_findings(member, *columns)]
        cautions = [finding.text for finding in ranked([*findings, *evidence_findings(rows)])]
        files.write(arguments.page, explanation_page(model_name, rows, 1 + len(others), cautions))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(rows)
    else:
        _show(rows, list(contexts))


def contexts_between(texts: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the contexts that the texts of --between specify, by name."""
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


def _read_texts(arguments: argparse.Namespace, run: Run, specified: Collection[str]) -> tuple[list[str], list[Row]]:
    """Return the distinct texts of --text, of a table, or of the lines of a file, and the context of each text.

    A table has the values of the context columns of the run that are not `specified` on the command line.
    """
    if (arguments.file is None) == (not arguments.text):
        raise UserError("specify either FILE (one text per line, or a table) or --text")
    if arguments.text:
        texts = list(dict.fromkeys(arguments.text))
    elif Path(arguments.file).suffix.lower() in FORMATS:
        columns = [name for name in run.schema.columns() if name not in specified]
        return read_texts(arguments.file, run.config.data.text, columns)
    else:
        is_stream = arguments.file == "-"
        content = terminal.decode_input(sys.stdin.buffer.read()) if is_stream else input_files.read_text(arguments.file)
        texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{arguments.file}: the file contains no text")
    return texts, [{} for _ in texts]


def _show(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Print the tokens of each text: for two contexts with marks for their ratios, for more contexts as a table."""
    has_colours = terminal.has_colours(sys.stdout)
    if len(names) == 2:
        first, second = (
            mark_token(name, sign * STRONG_RATIO, has_colours=has_colours)
            for name, sign in zip(names, (1, -1), strict=True)
        )
        legend = ["more probable given ", first, ", given ", second, "; ¶ is the end of the text"]
        terminal.show(terminal.join("", legend))
        weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
        levels = f"weak marks from {weak} nats, clear from {clear}, strong from {strong}"
        terminal.show(f"{levels}; tokens without a mark are counted too", EQUAL_PRIORS)
    for row in rows:
        terminal.show("", *([row["model"]] if "model" in row else []))
        tokens = [(readable_token(token["token"]), token) for token in row["tokens"]]
        if len(names) == 2:
            _show_marked_tokens(row, tokens, names[0], has_colours)
        else:
            probabilities = [{name: f"{token['posterior'][name]:.1%}" for name in names} for _, token in tokens]
            lines = [{"token": text, **line} for (text, _), line in zip(tokens, probabilities, strict=True)]
            terminal.show_table(lines, ("token", *names))
        if unknown := dict.fromkeys(text for text, token in tokens if not token["known"]):
            terminal.show(f"out of vocabulary: {', '.join(unknown)}")
    if len(names) > 2:
        terminal.notify(EQUAL_PRIORS)


def _show_marked_tokens(row: Row, tokens: Sequence[tuple[str, Row]], first_context: str, has_colours: bool) -> None:
    """Print the tokens of a text with marks for their ratios, and the probability of the first of two contexts."""
    marked_tokens = [
        mark_token(text, token["ratio"] * has_evidence(token), has_colours=has_colours) for text, token in tokens
    ]
    terminal.show(terminal.join(token_separator(row["tokenizer"]), marked_tokens))
    ratio, probability = row["ratio"], row["posterior"][first_context]
    terminal.show(f"{ratio:+z.2f} nats in total; p({first_context} | text) = {probability:.1%}")
    if unsupported := dict.fromkeys(text for text, token in tokens if not has_evidence(token)):
        ratio, probability = with_evidence(row)
        figures = f"{ratio:+z.2f} nats; p({first_context} | text) = {probability:.1%}"
        terminal.show(f"without the tokens without evidence ({', '.join(unsupported)}): {figures}")


def mark_token(text: str, ratio: float, *, has_colours: bool) -> str:
    """Return a token with marks for the strength and the sign of its log-likelihood ratio."""
    signed_strength = strength(ratio)
    if not signed_strength:
        return text
    is_positive = signed_strength > 0
    if not has_colours:
        return text + ("⁺" if is_positive else "⁻") * abs(signed_strength)
    background, foreground = (BLUES if is_positive else ORANGES)[abs(signed_strength) - 1]
    underline = "" if is_positive else "4;"
    return terminal.coloured(text, f"{underline}48;5;{background};38;5;{foreground}")
