"""Texts that fit their context, from a run: contexts in, readable texts out, as plain rows.

    generate   whole texts, each in its context, in one of `METHODS`
    stream     one text, as it is written

What a text draws follows from the seed and its number, so that texts are the same in any batch, and a list that was
stopped goes on from any number.
"""

import difflib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorcell import files, limits, memory
from factorcell.choices import GENERATION_METHODS
from factorcell.config import UserError, choose
from factorcell.data.rows import to_rows
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import sentence_case
from factorcell.generation import beam_search
from factorcell.generation.beam_search import Beam
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import (
    Choice,
    GeneratedText,
    WritingTask,
    collect_texts,
    generate_steps,
    greedy,
    sampled,
)
from factorcell.model import sizes
from factorcell.model.language_model import Conditioning
from factorcell.model.precision import FLOAT32
from factorcell.model.run import Run

DRAWN = ("sample", "stochastic")  # those whose draws can be sharpened
BATCH_SIZES = {"sample": 128, "greedy": 128, "beam": 16, "stochastic": 8}  # contexts written at once
NARROW, WIDE = 8, 120  # beginnings of a beam, and of a stochastic one (thesis 2018, section 6.3.1)


@dataclass(frozen=True)
class GenerationOptions:
    """How texts are written.

    The thesis' stochastic beam is ("stochastic", max_tokens=70, no_repeat_ngram=3, length_penalty=0).
    Lengths are in tokens, `banned` and `stops` are words or texts. A beam holds `width` beginnings (None: 8, and 120 of
    a stochastic one); a stochastic one grows each by `grow` drawn tokens. `length_penalty` 1 looks for the lowest
    perplexity, 0 for the most probable text, which is short. After `seconds` what is written so far is given back.
    """

    method: str = "sample"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 100
    min_tokens: int = 0
    no_repeat_ngram: int = 0
    width: int | None = None
    grow: int = 8
    length_penalty: float = 1.0
    banned: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    seed: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        choose("method", self.method, GENERATION_METHODS)
        limits.check(
            seed=self.seed,
            width=self.width,
            grow=self.grow,
            length_penalty=self.length_penalty,
            seconds=self.seconds,
        )
        if self.sampler() != Sampler() and self.method not in DRAWN:
            raise UserError(f"{self.method} texts have no temperature, top_k or top_p; choose {' or '.join(DRAWN)}")
        Constraints(self.max_tokens, self.min_tokens, no_repeat_ngram=self.no_repeat_ngram)

    def deadline(self) -> float:
        return math.inf if self.seconds is None else time.monotonic() + self.seconds

    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.top_k, self.top_p)

    def beam_sizes(self, texts: int) -> tuple[int, int]:
        """Return the beginnings held for `texts` texts of a context, and the tokens by which each is grown."""
        width = self.width or (WIDE if self.method == "stochastic" else NARROW)
        wide = {"beam": max(texts, width), "stochastic": width}.get(self.method, 1)
        return wide, self.grow if self.method == "stochastic" else wide

    def constraints(self, run: Run) -> Constraints:
        """Return the constraints in token ids; `UserError` for a word that is not in the vocabulary."""
        specials = run.tokenizer.specials
        banned = {specials.unknown, *(token for word in self.banned for token in known_tokens(run, word, "banned"))}
        stops = tuple(known_tokens(run, text, "a stop") for text in self.stops)
        return Constraints(
            self.max_tokens, self.min_tokens, tuple(sorted(banned)), self.no_repeat_ngram, stops, specials.end
        )


DEFAULT = GenerationOptions()


def known_tokens(run: Run, text: str, what: str) -> tuple[int, ...]:
    """Return the tokens of `text`; a `UserError` names a word that is not in the vocabulary, and the nearest ones."""
    tokens = run.tokenizer.split(text)
    for token, near in unknown_tokens(run, text).items():
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise UserError(f"{what}: {token!r} is not in the vocabulary of {run.folder}{hint}")
    if not tokens:
        raise UserError(f"{what}: {text!r} has no token")
    return tuple(run.tokenizer.encode(tokens))


def unknown_tokens(run: Run, text: str) -> dict[str, list[str]]:
    """Return the tokens of `text` that the run reads as the unknown one, each with the nearest that it knows."""
    tokens, unknown = run.tokenizer.split(text), run.tokenizer.specials.unknown
    pairs = zip(tokens, run.tokenizer.encode(tokens), strict=True)
    names = dict.fromkeys(token for token, number in pairs if number == unknown)
    return {token: difflib.get_close_matches(token, run.tokenizer.tokens, n=3) for token in names}


def category_values(schema: ContextSchema, column: str) -> list[str]:
    """Return the values of a categorical context column, `in_order`."""
    variable = schema.variable(column)
    if variable.kind != "category":
        raise UserError(f"{column} is a {variable.kind}: only a category has a list of values")
    return sort_values(variable.values[1:])


def sort_values(values: Sequence[str]) -> list[str]:
    """Sort values as numbers if all are numbers, otherwise as words."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def generate(
    run: Run,
    contexts: Any,
    *,
    number: int = 1,
    options: GenerationOptions = DEFAULT,
    prompt: str = "",
    case: bool = False,
    unknown: str = "error",
    first: int = 0,
) -> Iterator[files.Row]:
    """Yield `number` texts of each of `contexts`, one context after another.

    Args:
        run: The model.
        contexts: A mapping from column to value, a list of them, or any table; other columns have expected values.
        number: Texts of each context.
        options: How texts are written.
        prompt: The beginning of each text; the model may not know its words.
        case: Whether sentences begin with capitals.
        unknown: How values that training never saw are read, as in `Run.prepare`.
        first: The number of the first text, to continue a list.

    Returns:
        Rows with `run`, `options`, `number`, `context`, `text`, `tokens`, `log_probability` (nats, without the prompt),
        `perplexity` and `ended`.

    Raises:
        UserError: A number, a context or a word of the options is not valid.
    """
    limits.check(number=number)
    contexts = to_rows(contexts)
    if options.method == "greedy" and number > 1:
        raise UserError(f"{number} greedy texts of a context would be the same; choose sample, stochastic or beam")
    rules, deadline = options.constraints(run), options.deadline()
    prompted, about = run.tokenizer.split(prompt), provenance(run, options, prompt)
    size = number if options.method == "beam" else 1  # texts that are searched for together
    each, together = number // size, BATCH_SIZES[options.method]
    jobs = len(contexts) * each
    for start in range(first // size, jobs, together):
        if time.monotonic() >= deadline:
            return
        places = [job // each for job in range(start, min(jobs, start + together))]
        width, across = options.beam_sizes(size)
        wanted = sizes.beam_bytes(run.model, len(places), width, across, options.max_tokens)
        memory.check(wanted, f"{len(places):,} times {width:,} beginnings of texts")
        conditioning, which = condition_contexts(run, contexts, places, unknown)
        with run.scoring():
            ids = run.tokenizer.encode(prompted)
            task = WritingTask(run.model, conditioning, which, rules, ids, deadline)
            found = _written(task, options, size, start)
        for job, (place, texts) in enumerate(zip(places, found, strict=True), start):
            for index, text in enumerate(texts):
                if job * size + index >= first:
                    yield {
                        **about,
                        "number": job * size + index,
                        "context": dict(contexts[place]),
                        "text": _readable(run, [*prompted, *run.tokenizer.decode(text.tokens)], case),
                        "tokens": len(text.tokens),
                        "log_probability": text.log_probability,
                        "perplexity": math.exp(-text.log_probability / max(1, text.targets)),
                        "ended": text.ended,
                    }


def provenance(run: Run, options: GenerationOptions, prompt: str = "") -> files.Row:
    """Return the run and the options that are not the default, as every row of `generate` has them.

    The precision is one of them, since the same seed draws other texts in another precision.
    """
    chosen = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != field.default and field.name != "seconds"
    }
    chosen = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}
    chosen |= {"prompt": prompt} if prompt else {}
    chosen |= {"precision": run.precision} if run.precision != FLOAT32 else {}
    return {"run": run.folder.name, "options": chosen}


def count_resumable_rows(file: Path, about: files.Row, contexts: Sequence[Mapping[str, Any]], number: int) -> int:
    """Return the number of rows in `file`, of `number` texts for each of `contexts`; remove a last line that was cut.

    Raises:
        UserError: A row has another origin or context.
    """
    rows = files.read_rows(file)
    for index, row in enumerate(rows):
        place = index // max(1, number)
        wanted = {**about, "number": index, "context": contexts[place] if place < len(contexts) else "no further one"}
        for name, value in wanted.items():
            if row.get(name) != value:
                found = f"{name} is {row.get(name)!r}, where {value!r} is asked for"
                raise UserError(f"{file} line {index + 1}: {found}; nothing resumed")
    files.write_rows(file, rows)
    return len(rows)


def stream(
    run: Run,
    context: Mapping[str, Any],
    *,
    options: GenerationOptions = DEFAULT,
    prompt: str = "",
    case: bool = False,
    unknown: str = "error",
) -> Iterator[str]:
    """Yield one text in pieces as it is drawn, the prompt first; joined, they are the first text of `generate`."""
    if options.method not in ("sample", "greedy"):
        raise UserError(f"a text by {options.method} is not written from left to right; choose sample or greedy")
    conditioning, which = condition_contexts(run, [context], [0], unknown)
    rules, tokens, shown = options.constraints(run), run.tokenizer.split(prompt), ""
    task = WritingTask(run.model, conditioning, which, rules, run.tokenizer.encode(tokens), options.deadline())
    written = generate_steps(task, _choice(options, 1, 0))
    while True:
        text = _readable(run, tokens, case)
        if len(text) > len(shown):
            yield text[len(shown) :]
        shown = text
        with run.scoring():  # between two steps the caller computes as before
            step = next(written, None)
        if step is None:
            return
        if step.tokens[0] != rules.end:
            tokens = [*tokens, *run.tokenizer.decode(step.tokens.tolist())]


def condition_contexts(
    run: Run, contexts: Sequence[Mapping[str, Any]], places: Sequence[int], unknown: str = "error"
) -> tuple[Conditioning, Tensor]:
    """Return the conditions of the contexts at `places`, each once, biases summed; and the row of each place."""
    distinct, which = np.unique(np.asarray(places, dtype=np.int64), return_inverse=True)
    corpus = run.read([""] * len(distinct), [contexts[place] for place in distinct], unknown=unknown)
    with run.scoring():
        conditioning = run.model.condition(corpus.context(np.arange(len(distinct))).to(run.device))
        conditioning = replace(conditioning, head=run.model.head.fold(conditioning.head))
    return conditioning, torch.from_numpy(which).to(run.device)


def _written(task: WritingTask, options: GenerationOptions, size: int, first: int) -> list[list[GeneratedText]]:
    """Return `size` texts for each context of `task`, of which the first has the number `first`."""
    beam = Beam(options.beam_sizes(size)[0], options.length_penalty, size)
    if options.method == "beam":
        return beam_search.search_beam(task, beam)
    if options.method == "stochastic":
        return beam_search.search_stochastic_beam(
            task, beam, options.sampler(), grow=options.grow, seed=options.seed, first=first
        )
    chosen = generate_steps(task, _choice(options, len(task.contexts), first))
    return [[text] for text in collect_texts(len(task.contexts), chosen, task.rules)]


def _choice(options: GenerationOptions, count: int, first: int) -> Choice:
    if options.method == "greedy":
        return greedy
    return sampled(options.sampler(), count, options.max_tokens, options.seed, first)


def _readable(run: Run, tokens: Sequence[str], case: bool) -> str:
    text = run.tokenizer.join(tokens)
    return sentence_case(text) if case else text
