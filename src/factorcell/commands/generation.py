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
    specified = {*options.parse_context(arguments.context), *arguments.each}
    if specified and not run.model.adapted:
        terminal.notify(f"{run.folder}: the model is not adapted; the context has no effect")
    elif run.model.adapted and (others := [name for name in run.schema.columns() if name not in specified]):
        terminal.notify(f"columns without a specified value, which have their expected value: {', '.join(others)}")
    terminal.notify(*find_warnings([run]))


def _generate(run: Run, arguments: argparse.Namespace) -> None:
    """Generate the texts and print each one, or append it to the file of --out, as soon as it is finished."""
    settings = generation_options(arguments)
    contexts = expand(run, options.parse_context(arguments.context), arguments.each)
    options.notify_rare_values(run.schema, *contexts)
    _notify_unknown_words(run, arguments.prompt)
    if arguments.stream:
        return _stream(run, contexts, settings, arguments)
    total = len(contexts) * arguments.number
    finished = _count_finished_texts(arguments, provenance(run, settings, arguments.prompt), contexts)
    rows = generate(
        run,
        contexts,
        number=arguments.number,
        options=settings,
        prompt=arguments.prompt,
        case=arguments.case,
        unknown=arguments.unknown,
        first=finished,
    )
    with progress_bar(
        total=total, initial=finished, desc="generating", unit="texts", show=total > 1, leave=False
    ) as bar:
        for row in rows:
            if arguments.out:
                files.append_row(arguments.out, row)
            else:
                _show(row, arguments)
            finished += 1
            bar.update()
    if finished < total:
        terminal.notify(f"time limit: {finished:,} of {total:,} texts are finished")
    if arguments.out:
        terminal.notify(f"{arguments.out}: {finished:,} texts")
    return None


def _notify_unknown_words(run: Run, prompt: str) -> None:
    """Print a notice about the words of a prompt that are not in the vocabulary."""
    words = [
        repr(word) + (f" (similar: {', '.join(map(repr, near))})" if near else "")
        for word, near in unknown_tokens(run, prompt).items()
    ]
    if words:
        terminal.notify(f"--prompt: words that are not in the vocabulary of {run.folder}: {', '.join(words)}")


def expand(run: Run, context: dict[str, str], each: Sequence[str]) -> list[dict[str, str]]:
    """Return a context for every combination of values of the columns `each`; all contexts also have `context`."""
    for name in each:
        if name in context:
            raise UserError(f"--each {name}: --context has a value for it; remove one of them")
    values = [category_values(run.schema, name) for name in each]
    for name, column_values in zip(each, values, strict=True):
        if not column_values:
            raise UserError(f"--each {name}: the column has no values in the run; choose another column")
    return [{**context, **dict(zip(each, combination, strict=True))} for combination in itertools.product(*values)]


def _count_finished_texts(arguments: argparse.Namespace, settings: Row, contexts: Sequence[Row]) -> int:
    """Return the number of texts that an earlier command wrote to the file of --out."""
    if arguments.out is None or not arguments.out.exists():
        return 0
    if not arguments.resume:
        raise UserError(f"{arguments.out}: exists already; choose another file, or continue it with --resume")
    return repair_and_count_rows(arguments.out, settings, contexts, arguments.number)


def _stream(run: Run, contexts: Sequence[Row], settings: GenerationOptions, arguments: argparse.Namespace) -> None:
    if len(contexts) * arguments.number != 1 or arguments.out or arguments.json:
        raise UserError("--stream generates one text; remove --each, --number, --out and --json")
    parts = stream(
        run, contexts[0], options=settings, prompt=arguments.prompt, case=arguments.case, unknown=arguments.unknown
    )
    printed = ""
    for part in parts:
        terminal.show_part(part, printed)
        printed = part
    return terminal.show("")


def _show(row: Row, arguments: argparse.Namespace) -> None:
    if arguments.json:
        return terminal.show_json([row])
    context = ", ".join(f"{name} {value}" for name, value in row["context"].items())
    ending = "" if row["ended"] else " ..."
    return terminal.show_fields(*filter(None, (context,)), row["text"] + ending)
