"""The command `generate`, which generates texts for a context."""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.generation.generate import (
    GenerationOptions,
    category_values,
    generate,
    provenance,
    repair_and_count_rows,
    stream,
    unknown_tokens,
)
from factorcell.model.run import Run
from factorcell.progress import progress_bar

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
    """Run `factorcell generate`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    _generate(run, arguments)
    specified_columns = {*options.parse_context_values(arguments.context), *arguments.each}
    other_columns = [column for column in run.schema.columns() if column not in specified_columns]
    if specified_columns and not run.model.is_adapted:
        terminal.notify(f"{run.folder}: the model is not adapted; the context has no effect")
    elif run.model.is_adapted and other_columns:
        terminal.notify(f"columns without a specified value, read as their expected value: {', '.join(other_columns)}")
    terminal.notify(*find_warnings([run]))


def _generate(run: Run, arguments: argparse.Namespace) -> None:
    """Generate the texts; as soon as a text is finished, print it or append it to the file of --out."""
    settings = generation_options(arguments)
    contexts = expand_contexts(run, options.parse_context_values(arguments.context), arguments.each)
    options.notify_rare_values(run.schema, *contexts)
    _notify_unknown_words(run, arguments.prompt)
    if arguments.stream:
        return _stream(run, contexts, settings, arguments)
    total = len(contexts) * arguments.number
    finished_count = _count_finished_texts(arguments, provenance(run, settings, arguments.prompt), contexts)
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
    with progress_bar(
        total=total, initial=finished_count, desc="generating", unit="texts", show=total > 1, leave=False
    ) as bar:
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


def _notify_unknown_words(run: Run, prompt: str) -> None:
    """Print a notice about the words of a prompt that are not in the vocabulary."""
    described_words = [
        repr(word) + (f" (similar: {', '.join(map(repr, similar_words))})" if similar_words else "")
        for word, similar_words in unknown_tokens(run, prompt).items()
    ]
    if described_words:
        terminal.notify(f"--prompt: words that are not in the vocabulary of {run.folder}: {', '.join(described_words)}")


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


def _count_finished_texts(arguments: argparse.Namespace, origin: Row, contexts: Sequence[Row]) -> int:
    """Return the number of texts that an earlier command wrote to the file of --out.

    `origin` is the `provenance` of the texts to generate; all texts in the file must have the same one.
    """
    if arguments.out is None or not arguments.out.exists():
        return 0
    if not arguments.resume:
        raise UserError(f"{arguments.out}: exists already; choose another file, or continue it with --resume")
    return repair_and_count_rows(arguments.out, origin, contexts, arguments.number)


def _stream(run: Run, contexts: Sequence[Row], settings: GenerationOptions, arguments: argparse.Namespace) -> None:
    """Generate a single text and print each part of it immediately."""
    if len(contexts) * arguments.number != 1 or arguments.out or arguments.json:
        raise UserError("--stream generates one text of one context; remove --each, --number, --out and --json")
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
