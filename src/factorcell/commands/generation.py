"""The verb of generation."""

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
    count_resumable_rows,
    generate,
    provenance,
    stream,
    unknown_tokens,
)
from factorcell.model.run import Run
from factorcell.progress import progress_bar

Row = dict[str, Any]


def writing_options(given: argparse.Namespace) -> GenerationOptions:
    """How texts are written."""
    return GenerationOptions(
        given.method,
        given.temperature,
        given.top_k,
        given.top_p,
        max_tokens=given.max_tokens,
        min_tokens=given.min_tokens,
        no_repeat_ngram=given.no_repeat_ngram,
        width=given.width,
        grow=given.grow,
        length_penalty=given.length_penalty,
        banned=tuple(given.ban),
        stops=tuple(given.stop),
        seed=given.seed,
        seconds=given.seconds,
    )


def run_generate(given: argparse.Namespace) -> None:
    """`factorcell generate`."""
    run = options.open_on_device(Run.open, given.run, given)
    _generate(run, given)
    named = {*options.parse_context(given.context), *given.each}
    if named and not run.model.adapted:
        terminal.notify(f"{run.folder} is not adapted: it writes alike in every context")
    elif run.model.adapted and (others := [name for name in run.schema.columns() if name not in named]):
        terminal.notify(f"not given, and so as expected of all texts: {', '.join(others)}")
    terminal.notify(*find_warnings([run]))


def _generate(run: Run, given: argparse.Namespace) -> None:
    how = writing_options(given)
    contexts = expand(run, options.parse_context(given.context), given.each)
    options.notify_rare_values(run.schema, *contexts)
    _tell_unknown(run, given.prompt)
    if given.stream:
        return _stream(run, contexts, how, given)
    count, done = len(contexts) * given.number, _done(given, provenance(run, how, given.prompt), contexts)
    rows = generate(
        run,
        contexts,
        number=given.number,
        options=how,
        prompt=given.prompt,
        case=given.case,
        unknown=given.unknown,
        first=done,
    )
    written = done
    with progress_bar(total=count, initial=done, desc="writing", unit="texts", show=count > 1, leave=False) as bar:
        for row in rows:
            if given.out:
                files.append_row(given.out, row)
            else:
                _show(row, given)
            written += 1
            bar.update()
    if written < count:
        terminal.notify(f"{written:,} of {count:,} texts: the time was up")
    if given.out:
        terminal.notify(f"{given.out}: {written:,} texts")
    return None


def _tell_unknown(run: Run, prompt: str) -> None:
    """Say which words of a prompt are not in the vocabulary."""
    words = [
        repr(word) + (f" (near it: {', '.join(map(repr, near))})" if near else "")
        for word, near in unknown_tokens(run, prompt).items()
    ]
    if words:
        terminal.notify(f"--prompt: not in the vocabulary of {run.folder}, and read as unknown: {', '.join(words)}")


def expand(run: Run, context: dict[str, str], each: Sequence[str]) -> list[dict[str, str]]:
    """Return `context` with every combination of values of the columns `each`."""
    for name in each:
        if name in context:
            raise UserError(f"--each {name}, but --context gives its value too")
    values = [category_values(run.schema, name) for name in each]
    for name, known in zip(each, values, strict=True):
        if not known:
            raise UserError(f"--each {name}: expected a column with values in training, got one without any")
    return [{**context, **dict(zip(each, chosen, strict=True))} for chosen in itertools.product(*values)]


def _done(given: argparse.Namespace, about: Row, contexts: Sequence[Row]) -> int:
    """Return how many texts the file has already."""
    if given.out is None or not given.out.exists():
        return 0
    if not given.resume:
        raise UserError(f"{given.out}: exists already; choose another file, or --resume to go on with it")
    return count_resumable_rows(given.out, about, contexts, given.number)


def _stream(run: Run, contexts: Sequence[Row], how: GenerationOptions, given: argparse.Namespace) -> None:
    if len(contexts) * given.number != 1 or given.out or given.json:
        raise UserError("--stream shows one text: no --each, --number, --out or --json")
    pieces = stream(run, contexts[0], options=how, prompt=given.prompt, case=given.case, unknown=given.unknown)
    before = ""
    for piece in pieces:
        terminal.show_part(piece, before)
        before = piece
    return terminal.show("")


def _show(row: Row, given: argparse.Namespace) -> None:
    if given.json:
        return terminal.show_json([row])
    named = ", ".join(f"{name} {value}" for name, value in row["context"].items())
    mark = "" if row["ended"] else " ..."
    return terminal.show_fields(*filter(None, (named,)), row["text"] + mark)
