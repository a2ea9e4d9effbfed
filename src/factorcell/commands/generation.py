"""The command `generate`, which generates texts for a context."""

import argparse
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import Parser
from factorcell.errors import UserError
from factorcell.io.progress import progress_bar
from factorcell.options.limits import GENERATION_METHODS

if TYPE_CHECKING:
    from factorcell.generation.generate import GenerationOptions
    from factorcell.runs.run import Run

Row = dict[str, Any]


def add_generate_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder")
    options.add_context(parser, "repeatable, or joined by ';'; several values of a column generate for each of them")
    help_text = "generate for every value of this context column (repeatable)"
    parser.add_argument("--each", action="append", default=[], metavar="NAME", help=help_text)
    parser.add_argument("--rows", type=Path, metavar="TABLE", help="generate for the context in each row of this table")
    parser.add_argument("--number", type=int, default=1, help="number of texts for each context")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="beginning of every text")
    parser.add_argument("--case", action="store_true", help="capitalize sentences (for models of lower-case English)")
    parser.add_argument("--stream", action="store_true", help="print one text token by token while it is generated")
    options.add_output(parser, "--out", "write each finished text to this file immediately (JSON lines)")
    parser.add_argument("--resume", action="store_true", help="continue a file that was started with the same options")
    generation, rare = parser.section("generation"), parser.section("generation", is_rare=True)
    help_text = "how to choose tokens: by sampling, or by a search for the most probable texts"
    generation.add_argument("--method", choices=GENERATION_METHODS, default="sample", help=help_text)
    help_text = "number by which the logits are divided; below 1, texts are more probable and less varied"
    generation.add_argument("--temperature", type=float, default=1.0, metavar="T", help=help_text)
    help_text = "sample from the K most probable tokens; 0: all"
    generation.add_argument("--top-k", type=int, default=0, metavar="K", help=help_text)
    help_text = "sample from the most probable tokens whose probabilities sum to P"
    generation.add_argument("--top-p", type=float, default=1.0, metavar="P", help=help_text)
    generation.add_argument("--max-tokens", type=int, default=100, help="maximum number of tokens")
    rare.add_argument("--min-tokens", type=int, default=0, help="minimum number of tokens")
    options.add_seed(generation, "the random numbers")
    help_text = "time limit; only texts that are finished in time are returned"
    generation.add_argument("--seconds", type=float, metavar="S", help=help_text)
    help_text = "word that is never generated (repeatable)"
    rare.add_argument("--ban", dest="banned", action="append", default=[], metavar="WORD", help=help_text)
    help_text = "end a generated text where TEXT occurs in it (repeatable)"
    rare.add_argument("--stop", dest="stops", action="append", default=[], metavar="TEXT", help=help_text)
    help_text = "never generate the same N tokens in a row twice; 0: no restriction"
    rare.add_argument("--no-repeat-ngram", type=int, default=0, help=help_text)
    rare.add_argument("--width", type=int, metavar="K", help="beam width (default: 8; stochastic: 120)")
    help_text = "number of tokens that a stochastic beam samples for each hypothesis"
    rare.add_argument("--branching", type=int, default=8, metavar="L", help=help_text)
    help_text = "exponent A: a beam search compares texts by log probability / (number of tokens) ** A"
    rare.add_argument("--length-penalty", type=float, default=1.0, metavar="A", help=help_text)
    options.add_no_ngram_mixture(rare)
    options.add_computing(parser, unknown="error")
    parser.optional.set_defaults(resume_hint="; with --out, repeat the command with --resume to continue")


def run_generate(arguments: argparse.Namespace) -> None:
    """Run `factorcell generate`: as soon as a text is finished, print it or append it to the file of --out."""
    from factorcell.generation.generate import GenerationOptions, generate, provenance, repair_and_count_rows
    from factorcell.io import files

    run = options.open_run(arguments)
    names = [field.name for field in dataclasses.fields(GenerationOptions)]
    settings = GenerationOptions(**{name: getattr(arguments, name) for name in names})
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
    rows = generate(
        run,
        contexts,
        number=arguments.number,
        options=settings,
        prompt=arguments.prompt,
        case=arguments.case,
        unknown=arguments.unknown,
        first=finished_count,
    )
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
    parts = stream(
        run, contexts[0], options=settings, prompt=arguments.prompt, case=arguments.case, unknown=arguments.unknown
    )
    previous_part = ""
    for part in parts:
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
