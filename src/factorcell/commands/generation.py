"""The verb of generation."""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.generation.generate import METHODS, GenerationOptions, every, fill, generate, origin, resumed, stream
from factorcell.model.run import Run

Row = dict[str, Any]


def add(verbs: Any) -> None:
    """Add the verb to those of the command line."""
    verb = options.verb(verbs, "generate", write, "texts that fit a context, or what fits the gap of a template")
    verb.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    options.add_context(verb)
    verb.add_argument(
        "--each", action="append", default=[], metavar="NAME", help="every value of a context column (repeatable)"
    )
    verb.add_argument("--number", type=int, default=1, metavar="N", help="texts of each context (default: 1)")
    verb.add_argument("--prompt", default="", metavar="TEXT", help="what every text begins with")
    verb.add_argument("--fill", metavar="TEMPLATE", help="a text with a gap, ____ : find the best fillers instead")
    verb.add_argument("--whole", action="store_true", help="with --fill: the text ends with the template")
    add_writing(verb)
    verb.add_argument("--case", action="store_true", help="sentences begin with capitals (for lower-case English)")
    verb.add_argument("--stream", action="store_true", help="show one text token by token, as it is drawn")
    verb.add_argument("--out", type=Path, metavar="FILE", help="write the rows there (JSON lines) as they are done")
    verb.add_argument("--resume", action="store_true", help="go on with a file that was begun with the same options")
    options.computing(verb)
    verb.set_defaults(again="; with --out, the same command with --resume goes on")


def add_writing(verb: argparse.ArgumentParser) -> None:
    """Add how texts are written."""
    group = verb.add_argument_group("writing")
    group.add_argument("--method", choices=METHODS, default="sample", help="how texts are found (default: sample)")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="below 1: likelier, duller texts")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among the K likeliest tokens; 0: all")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw among the fewest that hold P")
    group.add_argument("--max-tokens", type=int, metavar="N", help="at most N tokens (default: 100; 4 in a gap)")
    group.add_argument("--min-tokens", type=int, default=0, metavar="N", help="at least N tokens")
    group.add_argument(
        "--no-repeat-ngram", type=int, default=0, metavar="N", help="write no N tokens in a row twice; 0: may"
    )
    group.add_argument("--width", type=int, metavar="K", help="of a beam (default: 8; stochastic: 120; in a gap: 100)")
    group.add_argument("--grow", type=int, default=8, metavar="L", help="tokens drawn for each of a stochastic beam")
    group.add_argument(
        "--length-penalty", type=float, metavar="A", help="beams compare log p / tokens ** A (default: 1; 0 in a gap)"
    )
    group.add_argument("--ban", action="append", default=[], metavar="WORD", help="a word never written (repeatable)")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="what ends a text (repeatable)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    group.add_argument("--seconds", type=float, metavar="S", help="time after which what is written will do")


def writing_options(given: argparse.Namespace) -> GenerationOptions:
    """What `add_writing` was given."""
    return GenerationOptions(
        given.method,
        given.temperature,
        given.top_k,
        given.top_p,
        max_tokens=100 if given.max_tokens is None else given.max_tokens,
        min_tokens=given.min_tokens,
        no_repeat_ngram=given.no_repeat_ngram,
        width=given.width,
        grow=given.grow,
        length_penalty=1.0 if given.length_penalty is None else given.length_penalty,
        banned=tuple(given.ban),
        stops=tuple(given.stop),
        seed=given.seed,
        seconds=given.seconds,
    )


def write(given: argparse.Namespace) -> None:
    """`factorcell generate`."""
    how = writing_options(given)
    run = Run.open(given.run, device=given.device, precision=given.precision)
    contexts = expand(run, options.context(given.context), given.each)
    if given.fill is not None and given.stream:
        raise UserError("--fill finds whole fillers: no --stream")
    if given.fill is not None:
        return _fill(run, contexts, given)
    if given.stream:
        return _stream(run, contexts, how, given)
    if not run.model.adapted and contexts[0]:
        terminal.say(f"{given.run} is not adapted: it writes alike in every context")
    count, done = len(contexts) * given.number, _done(given, origin(run, how, given.prompt), contexts)
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
    with tqdm(total=count, initial=done, desc="writing", unit="text", disable=count < 2, leave=False) as bar:
        for row in rows:
            if given.out:
                files.append_row(given.out, row)
            else:
                _show(row, given)
            written += 1
            bar.update()
    if written < count:
        terminal.say(f"{written:,} of {count:,} texts: the time was up")
    if given.out:
        terminal.say(f"{given.out}: {written:,} texts")
    return None


def expand(run: Run, context: dict[str, str], each: Sequence[str]) -> list[dict[str, str]]:
    """`context` with every value of the columns `each`."""
    for name in each:
        if name in context:
            raise UserError(f"--each {name}, but --context gives its value too")
    values = [every(run.schema, name) for name in each]
    return [{**context, **dict(zip(each, chosen, strict=True))} for chosen in itertools.product(*values)]


def _done(given: argparse.Namespace, about: Row, contexts: Sequence[Row]) -> int:
    """How many texts the file has already."""
    if given.out is None or not given.out.exists():
        return 0
    if not given.resume:
        raise UserError(f"{given.out}: exists already; choose another file, or --resume to go on with it")
    return resumed(given.out, about, contexts, given.number)


def _fill(run: Run, contexts: Sequence[Row], given: argparse.Namespace) -> None:
    rows = fill(
        run,
        given.fill,
        contexts,
        number=given.number,
        max_tokens=4 if given.max_tokens is None else given.max_tokens,
        width=100 if given.width is None else given.width,
        length_penalty=0.0 if given.length_penalty is None else given.length_penalty,
        banned=given.ban,
        whole=given.whole,
        case=given.case,
        unknown=given.unknown,
        seconds=given.seconds,
    )
    if given.out:
        files.write_rows(given.out, rows)
        return terminal.say(f"{given.out}: {len(rows):,} fillers")
    if given.json:
        return terminal.lines(rows)
    names = list(rows[0]["context"]) if rows else []
    shown = [
        {**row["context"], "filler": terminal.visible(row["filler"]), "log p": f"{row['log_probability']:.2f}"}
        for row in rows
    ]
    terminal.table(shown, (*names, "filler", "log p"))
    return None


def _stream(run: Run, contexts: Sequence[Row], how: GenerationOptions, given: argparse.Namespace) -> None:
    if len(contexts) * given.number != 1 or given.out or given.json:
        raise UserError("--stream shows one text: no --each, --number, --out or --json")
    pieces = stream(run, contexts[0], options=how, prompt=given.prompt, case=given.case, unknown=given.unknown)
    for piece in pieces:
        terminal.piece(terminal.visible(piece))
    return terminal.show("")


def _show(row: Row, given: argparse.Namespace) -> None:
    if given.json:
        return terminal.lines([row])
    named = ", ".join(f"{name} {value}" for name, value in row["context"].items())
    mark = "" if row["ended"] else " ..."
    return terminal.show(
        f"{named}\t{terminal.visible(row['text'])}{mark}" if named else terminal.visible(row["text"]) + mark
    )
