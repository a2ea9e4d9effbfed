"""The command `generate`, which generates texts for a context."""

import argparse
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import COMPUTING, OUTPUT_FILE, Parser
from factorcell.errors import UserError
from factorcell.io.progress import progress_bar
from factorcell.options.limits import GENERATION_METHODS

if TYPE_CHECKING:
    from factorcell.generation.generate import GenerationOptions
    from factorcell.runs.run import Run

Row = dict[str, Any]


def add_generate_arguments(parser: Parser) -> None:
    parser.add("run")
    help_text = "value of a context column (repeatable, or joined by ';'); several values generate for each of them"
    parser.add("--context", help=help_text)
    help_text = "generate for every value of this context column (repeatable)"
    parser.add("--each", repeatable=True, metavar="NAME", help=help_text)
    parser.add("--rows", type=Path, metavar="TABLE", help="generate for the context in each row of this table")
    parser.add("--number", default=1, help="number of texts for each context")
    parser.add("--prompt", default="", metavar="TEXT", help="beginning of every text")
    parser.add("--case", action="store_true", help="capitalize sentences (for models of lower-case English)")
    parser.add("--stream", action="store_true", help="print one text token by token while it is generated")
    parser.add("--out", type=OUTPUT_FILE, help="write each finished text to this file immediately (JSON lines)")
    parser.add("--resume")
    generation = partial(parser.add, section="generation")
    rare = partial(generation, rare=True)
    help_text = "how to choose tokens: by sampling, or by a search for the most probable texts"
    generation("--method", choices=GENERATION_METHODS, default="sample", help=help_text)
    help_text = "number by which the logits are divided; below 1, texts are more probable and less varied"
    generation("--temperature", default=1.0, metavar="T", help=help_text)
    help_text = "sample from the K most probable tokens; 0: all"
    generation("--top-k", default=0, metavar="K", help=help_text)
    help_text = "sample from the most probable tokens whose probabilities sum to P"
    generation("--top-p", default=1.0, metavar="P", help=help_text)
    generation("--max-tokens", default=100, help="maximum number of tokens")
    rare("--min-tokens", default=0, help="minimum number of tokens")
    parser.add("--seed", default=0, section="generation", help="seed of the random numbers")
    help_text = "time limit; only texts that are finished in time are returned"
    generation("--seconds", metavar="S", help=help_text)
    help_text = "never generate the same N tokens in a row twice; 0: no restriction"
    rare("--no-repeat-ngram", default=0, help=help_text)
    rare("--width", metavar="K", help="beam width (default: 8; stochastic: 120)")
    help_text = "number of tokens that a stochastic beam samples for each hypothesis"
    rare("--branching", default=8, metavar="L", help=help_text)
    help_text = "exponent A: a beam search compares texts by log probability / (number of tokens) ** A"
    rare("--length-penalty", default=1.0, metavar="A", help=help_text)
    parser.add("--no-ngram-mixture")
    parser.add("--unknown", default="error")
    parser.add_all(*COMPUTING)
    parser.resume_hint = "; with --out, repeat the command with --resume to continue"


def run_generate(arguments: argparse.Namespace) -> None:
    """Run `factorcell generate`: as soon as a text is finished, print it or append it to the file of --out."""
    from factorcell.generation.generate import GenerationOptions, generate, provenance, repair_and_count_rows
    from factorcell.io import files

    run = options.open_run(arguments)
    names = [field.name for field in dataclasses.fields(GenerationOptions)]
    settings = GenerationOptions(**options.selected(arguments, *names))
    specified = options.parse_context_values(run, arguments.context)
    if arguments.rows and arguments.each:
        raise UserError("--rows and --each: both specify the contexts; remove one of the two options")
    contexts = expand_contexts(run, specified, arguments.each)
    if arguments.rows:
        contexts_of_rows = read_contexts(run, arguments.rows, specified)
        contexts = [{**context, **shared} for context in contexts_of_rows for shared in contexts]
    if arguments.stream:
        return _stream(run, contexts, settings, arguments)
    total = len(contexts) * arguments.number
    finished_count = 0
    if arguments.out is not None and arguments.out.exists():
        if not arguments.resume:
            raise UserError(f"{arguments.out}: exists already; choose another file, or continue it with --resume")
        origin = provenance(run, settings, arguments.prompt)
        finished_count = repair_and_count_rows(arguments.out, origin, contexts, arguments.number)
    text_settings = options.selected(arguments, "number", "prompt", "case", "unknown")
    rows = generate(run, contexts, options=settings, first=finished_count, **text_settings)
    with progress_bar(total=total, initial=finished_count, desc="generating", unit="texts", show=total > 1) as bar:
        for row in rows:
            if arguments.out:
                files.append_row(arguments.out, row)
            else:
                _show(row, arguments)
            finished_count += 1
            bar.update()
    if finished_count < total:
        terminal.notify(f"time limit: {finished_count:,} of {total:,} texts are finished")
    omitted = [name for name in run.schema.columns() if name not in contexts[0]]
    if contexts[0] and omitted and run.reads_context:
        terminal.notify(f"columns without a value, read as expected: {', '.join(omitted)}")
    if arguments.out:
        terminal.notify(f"{arguments.out}: {finished_count:,} texts")
    return None


def expand_contexts(run: "Run", specified: dict[str, list[str]], columns: Sequence[str]) -> list[dict[str, str]]:
    """Return a context for every combination of the `specified` values and of all values of the columns of --each."""
    from factorcell.generation.generate import category_values

    for column in columns:
        if column in specified:
            raise UserError(f"--each {column}: --context has a value for this column; remove one of the two options")
    values_of_columns = [category_values(run.schema, column) for column in columns]
    for column, values in zip(columns, values_of_columns, strict=True):
        if not values:
            raise UserError(f"--each {column}: the column has no values in the run; choose another column")
    names, combinations = [*specified, *columns], itertools.product(*specified.values(), *values_of_columns)
    return [dict(zip(names, combination, strict=True)) for combination in combinations]


def read_contexts(run: "Run", path: Path, specified: Collection[str]) -> list[Row]:
    """Return the context in each row of a table, which must not contain the columns `specified`."""
    from factorcell.data.tables.chunks import format_names
    from factorcell.data.tables.tables import open_table

    table = open_table(path)
    names = [name for name in run.schema.columns() if name in table.columns]
    if not names:
        expected = format_names(run.schema.columns()) if run.schema.variables else "none"
        raise UserError(f"--rows {path}: expected context columns ({expected}), got {format_names(table.columns)}")
    for name in names:
        if name in specified:
            raise UserError(f"--rows {path}: --context and the table both have {name}; remove one of them")
    contexts: list[Row] = []
    for chunk in table.chunks(names):
        rows = zip(*(chunk[name] for name in names), strict=True)
        contexts += [dict(zip(names, values, strict=True)) for values in rows]
    return contexts


def _stream(run: "Run", contexts: Sequence[Row], settings: "GenerationOptions", arguments: argparse.Namespace) -> None:
    """Generate a single text and print each part of it immediately."""
    from factorcell.generation.generate import stream

    if len(contexts) * arguments.number != 1 or arguments.out or arguments.json:
        raise UserError("--stream generates one text of one context; remove --each, --rows, --number, --out and --json")
    previous_part = ""
    text_settings = options.selected(arguments, "prompt", "case", "unknown")
    for part in stream(run, contexts[0], options=settings, **text_settings):
        terminal.show_part(part, before=previous_part)
        previous_part = part
    return terminal.show("")


def _show(row: Row, arguments: argparse.Namespace) -> None:
    if arguments.json:
        return terminal.show_json([row])
    context_text = ", ".join(f"{column} {value}" for column, value in row["context"].items())
    context_cells = [context_text] if context_text else []
    ending = "" if row["ended"] else " ..."
    return terminal.show_fields(*context_cells, row["text"] + ending)
