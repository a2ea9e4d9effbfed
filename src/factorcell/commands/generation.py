"""The command `generate`, which generates texts for a context."""

import argparse
import functools
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.data.tables.chunks import format_names
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.generation.generate import (
    GenerationOptions,
    category_values,
    generate,
    provenance,
    repair_and_count_rows,
    stream,
)
from factorcell.io import files
from factorcell.io.progress import progress_bar
from factorcell.runs.run import Run

Row = dict[str, Any]


def generation_options(arguments: argparse.Namespace) -> GenerationOptions:
    """Return the options of generation that the arguments specify."""
    return GenerationOptions(
        arguments.method,
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        max_tokens=arguments.max_tokens,
        min_tokens=arguments.min_tokens,
        no_repeat_ngram=arguments.no_repeat_ngram,
        width=arguments.width,
        branching=arguments.branching,
        length_penalty=arguments.length_penalty,
        banned=tuple(arguments.ban),
        stops=tuple(arguments.stop),
        seed=arguments.seed,
        seconds=arguments.seconds,
    )


def run_generate(arguments: argparse.Namespace) -> None:
    """Run `factorcell generate`: as soon as a text is finished, print it or append it to the file of --out."""
    open_run = functools.partial(Run.open, mixture=not arguments.no_ngram_mixture)
    run = options.open_on_device(open_run, arguments.run, arguments)
    settings, specified = generation_options(arguments), options.parse_context_values(arguments.context)
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


def expand_contexts(run: Run, specified: dict[str, list[str]], columns: Sequence[str]) -> list[dict[str, str]]:
    """Return a context for every combination of the `specified` values and of all values of the columns of --each."""
    for column in columns:
        if column in specified:
            raise UserError(f"--each {column}: --context has a value for this column; remove one of the two options")
    values_of_columns = [category_values(run.schema, column) for column in columns]
    for column, values in zip(columns, values_of_columns, strict=True):
        if not values:
            raise UserError(f"--each {column}: the column has no values in the run; choose another column")
    names, combinations = [*specified, *columns], itertools.product(*specified.values(), *values_of_columns)
    return [dict(zip(names, combination, strict=True)) for combination in combinations]


def read_contexts(run: Run, path: Path, specified: Collection[str]) -> list[Row]:
    """Return the context in each row of a table, which must not contain the columns `specified`."""
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


def _stream(run: Run, contexts: Sequence[Row], settings: GenerationOptions, arguments: argparse.Namespace) -> None:
    """Generate a single text and print each part of it immediately."""
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
