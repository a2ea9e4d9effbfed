"""Generation of texts for contexts, with the model of a run.

`generate` yields whole texts as rows, and `stream` yields one text token by token. The random draws of a text depend
only on the seed and on the number of the text. A text therefore does not depend on the batch in which it is generated,
and an interrupted list can be continued at any number.
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
    greedy_choice,
    sampling_choice,
)
from factorcell.model import sizes
from factorcell.model.language_model import Conditioning
from factorcell.model.precision import FLOAT32
from factorcell.model.run import Run

SAMPLED_METHODS = ("sample", "stochastic")
BATCH_SIZES = {"sample": 128, "greedy": 128, "beam": 16, "stochastic": 8}  # searches that run at once
BEAM_WIDTH, STOCHASTIC_BEAM_WIDTH = 8, 120  # default widths (thesis 2018, section 6.3.1)


@dataclass(frozen=True)
class GenerationOptions:
    """Options of generation.

    The stochastic beam search of the thesis is
    `GenerationOptions("stochastic", max_tokens=70, no_repeat_ngram=3, length_penalty=0)`.

    Attributes:
        method: `sample`, `greedy`, `beam` or `stochastic`.
        temperature: Temperature of sampling.
        top_k: Number of most probable tokens among which to sample; 0 means all.
        top_p: Minimum total probability of the most probable tokens among which to sample; 1 means all tokens.
        max_tokens: Maximum number of tokens, without the prompt.
        min_tokens: Minimum number of tokens, without the prompt.
        no_repeat_ngram: Length of token sequences of which none occurs twice in the prompt and the text; 0 permits
            repetitions.
        width: Number of unfinished texts that a beam search retains; by default 8 for `beam` and 120 for `stochastic`.
        branching: Number of tokens that `stochastic` samples to extend each unfinished text.
        length_penalty: Exponent of the length: beam searches compare log p / targets ** length_penalty. 1 prefers the
            text with the lowest perplexity, 0 the most probable text, which is usually short.
        banned: Words that no generated text contains.
        stops: Texts after which a generated text ends.
        seed: The seed of all draws.
        seconds: Time limit, after which unfinished texts are returned.

    Raises:
        UserError: An option is not valid.
    """

    method: str = "sample"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 100
    min_tokens: int = 0
    no_repeat_ngram: int = 0
    width: int | None = None
    branching: int = 8
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
            branching=self.branching,
            length_penalty=self.length_penalty,
            seconds=self.seconds,
        )
        if self.sampler() != Sampler() and self.method not in SAMPLED_METHODS:
            methods = " or ".join(SAMPLED_METHODS)
            raise UserError(f"{self.method} does not use temperature, top_k or top_p; choose {methods}")
        Constraints(self.max_tokens, self.min_tokens, no_repeat_ngram=self.no_repeat_ngram)

    def deadline(self) -> float:
        """Return the time at which generation must end, as a value of `time.monotonic()`."""
        return math.inf if self.seconds is None else time.monotonic() + self.seconds

    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.top_k, self.top_p)

    def beam_sizes(self, texts: int) -> tuple[int, int]:
        """Return the number of hypotheses of a search for `texts` texts, and the number of extensions of each."""
        default = STOCHASTIC_BEAM_WIDTH if self.method == "stochastic" else BEAM_WIDTH
        width = self.width or default
        hypotheses = {"beam": max(texts, width), "stochastic": width}.get(self.method, 1)
        return hypotheses, self.branching if self.method == "stochastic" else hypotheses

    def constraints(self, run: Run) -> Constraints:
        """Return the constraints on generated texts, with the token ids of `run`.

        Raises:
            UserError: A banned word or a stop contains an out-of-vocabulary word.
        """
        specials = run.tokenizer.specials
        banned = {specials.unknown, *(token for word in self.banned for token in known_tokens(run, word, "banned"))}
        stops = tuple(known_tokens(run, text, "a stop") for text in self.stops)
        return Constraints(
            self.max_tokens, self.min_tokens, tuple(sorted(banned)), self.no_repeat_ngram, stops, specials.end
        )


DEFAULT = GenerationOptions()


def known_tokens(run: Run, text: str, what: str) -> tuple[int, ...]:
    """Return the token ids of `text`, or raise a `UserError` if a word is out of vocabulary; it calls `text` `what`."""
    tokens = run.tokenizer.split(text)
    for token, similar in unknown_tokens(run, text).items():
        hint = f"; similar words: {', '.join(similar)}" if similar else ""
        raise UserError(f"{what}: {token!r} is not in the vocabulary of {run.folder}{hint}")
    if not tokens:
        raise UserError(f"{what}: {text!r} has no token")
    return tuple(run.tokenizer.encode(tokens))


def unknown_tokens(run: Run, text: str) -> dict[str, list[str]]:
    """Return the out-of-vocabulary tokens of `text`, each with similar tokens of the vocabulary."""
    tokens, unknown = run.tokenizer.split(text), run.tokenizer.specials.unknown
    pairs = zip(tokens, run.tokenizer.encode(tokens), strict=True)
    names = dict.fromkeys(token for token, number in pairs if number == unknown)
    return {token: difflib.get_close_matches(token, run.tokenizer.tokens, n=3) for token in names}


def category_values(schema: ContextSchema, column: str) -> list[str]:
    """Return the sorted values of a categorical context column, or raise a `UserError` if it has another kind."""
    variable = schema.variable(column)
    if variable.kind != "category":
        raise UserError(f"{column}: expected a column of kind category, got {variable.kind}")
    return sort_values(variable.values[1:])


def sort_values(values: Sequence[str]) -> list[str]:
    """Sort values as numbers if all are numbers, otherwise alphabetically."""
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
    """Yield `number` texts for each context, one context after another.

    Args:
        run: The model.
        contexts: A mapping from column to value, a list of mappings, or any table. A column without a value is read as
            its expected value.
        number: Number of texts per context.
        options: The options of generation.
        prompt: The beginning of each text; it may contain out-of-vocabulary words.
        case: Whether sentences begin with capital letters.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        first: The number of the first text to yield, to continue an interrupted list.

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
    constraints, deadline = options.constraints(run), options.deadline()
    prompt_tokens, origin = run.tokenizer.split(prompt), provenance(run, options, prompt)
    size = number if options.method == "beam" else 1  # texts that one search returns
    searches, batch_size = number // size, BATCH_SIZES[options.method]
    total = len(contexts) * searches
    for start in range(first // size, total, batch_size):
        if time.monotonic() >= deadline:
            return
        indices = [search // searches for search in range(start, min(total, start + batch_size))]
        width, extensions = options.beam_sizes(size)
        required = sizes.beam_bytes(run.model, len(indices), width, extensions, options.max_tokens)
        memory.check(required, f"{len(indices):,} contexts with {width:,} hypotheses each")
        conditioning, rows = condition_contexts(run, contexts, indices, unknown)
        with run.scoring():
            ids = run.tokenizer.encode(prompt_tokens)
            task = WritingTask(run.model, conditioning, rows, constraints, ids, deadline)
            results = _write_texts(task, options, size, start)
        for search, (index, texts) in enumerate(zip(indices, results, strict=True), start):
            for offset, text in enumerate(texts):
                if search * size + offset >= first:
                    yield {
                        **origin,
                        "number": search * size + offset,
                        "context": dict(contexts[index]),
                        "text": _join(run, [*prompt_tokens, *run.tokenizer.decode(text.tokens)], case),
                        "tokens": len(text.tokens),
                        "log_probability": text.log_probability,
                        "perplexity": math.exp(-text.log_probability / max(1, text.targets)),
                        "ended": text.ended,
                    }


def provenance(run: Run, options: GenerationOptions, prompt: str = "") -> files.Row:
    """Return the keys `run` and `options` of the rows of `generate`; only options other than the defaults are included.

    The options include the precision, because the same seed draws other texts in another precision.
    """
    specified = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != field.default and field.name != "seconds"
    }
    specified = {name: list(value) if isinstance(value, tuple) else value for name, value in specified.items()}
    specified |= {"prompt": prompt} if prompt else {}
    specified |= {"precision": run.precision} if run.precision != FLOAT32 else {}
    return {"run": run.folder.name, "options": specified}


def count_resumable_rows(file: Path, origin: files.Row, contexts: Sequence[Mapping[str, Any]], number: int) -> int:
    """Remove an incomplete last line from a file of generated texts, and return the number of its texts.

    Args:
        file: A file of rows of `generate`.
        origin: The `provenance` that all rows must contain.
        contexts: The contexts of the list.
        number: Number of texts per context.

    Raises:
        UserError: A row has another provenance or context.
    """
    rows = files.read_rows(file)
    for index, row in enumerate(rows):
        place = index // max(1, number)
        expected = {**origin, "number": index, "context": contexts[place] if place < len(contexts) else "no more rows"}
        for name, value in expected.items():
            if row.get(name) != value:
                fault = f"expected {name} {value!r}, got {row.get(name)!r}"
                raise UserError(f"{file} line {index + 1}: {fault}; nothing resumed")
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
    """Generate one text and yield its parts as soon as they are known, the prompt first.

    The text is the first one that `generate` yields for the same arguments.

    Args:
        run: The model.
        context: Column -> value; a column without a value is read as its expected value.
        options: The options of generation; the method must be `sample` or `greedy`.
        prompt: The beginning of the text; it may contain out-of-vocabulary words.
        case: Whether sentences begin with capital letters.
        unknown: How to read context values that training never saw, as in `Run.prepare`.

    Returns:
        The parts of the text, in order; together they are the whole text.

    Raises:
        UserError: The method, the context or a word of the options is not valid.
    """
    if options.method not in ("sample", "greedy"):
        raise UserError(f"stream: {options.method} does not write from left to right; choose sample or greedy")
    conditioning, rows = condition_contexts(run, [context], [0], unknown)
    constraints, tokens, yielded = options.constraints(run), run.tokenizer.split(prompt), ""
    ids = run.tokenizer.encode(tokens)
    task = WritingTask(run.model, conditioning, rows, constraints, ids, options.deadline())
    steps = generate_steps(task, _choice(options, 1, 0))
    while True:
        text = _join(run, tokens, case)
        if len(text) > len(yielded):
            yield text[len(yielded) :]
        yielded = text
        with run.scoring():  # only within a step: between steps, the precision of the caller applies
            step = next(steps, None)
        if step is None:
            return
        if step.tokens[0] != constraints.end:
            tokens = [*tokens, *run.tokenizer.decode(step.tokens.tolist())]


def condition_contexts(
    run: Run, contexts: Sequence[Mapping[str, Any]], indices: Sequence[int], unknown: str = "error"
) -> tuple[Conditioning, Tensor]:
    """Return the `Conditioning` of the distinct contexts at `indices`, with folded biases of the head.

    Returns:
        The conditioning, and for each of `indices` (N,) its row of the conditioning (N,).
    """
    distinct, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
    corpus = run.read([""] * len(distinct), [contexts[index] for index in distinct], unknown=unknown)
    with run.scoring():
        conditioning = run.model.condition(corpus.context(np.arange(len(distinct))).to(run.device))
        conditioning = replace(conditioning, head=run.model.head.fold(conditioning.head))
    return conditioning, torch.from_numpy(rows).to(run.device)


def _write_texts(task: WritingTask, options: GenerationOptions, size: int, first: int) -> list[list[GeneratedText]]:
    """Generate `size` texts for each entry of `task.contexts`; `first` is the number of the first search."""
    beam = Beam(options.beam_sizes(size)[0], options.length_penalty, size)
    if options.method == "beam":
        return beam_search.search_beam(task, beam)
    if options.method == "stochastic":
        return beam_search.search_stochastic_beam(
            task, beam, options.sampler(), branching=options.branching, seed=options.seed, first=first
        )
    steps = generate_steps(task, _choice(options, len(task.contexts), first))
    return [[text] for text in collect_texts(len(task.contexts), steps, task.constraints)]


def _choice(options: GenerationOptions, count: int, first: int) -> Choice:
    if options.method == "greedy":
        return greedy_choice
    return sampling_choice(options.sampler(), count, options.max_tokens, options.seed, first)


def _join(run: Run, tokens: Sequence[str], case: bool) -> str:
    text = run.tokenizer.join(tokens)
    return sentence_case(text) if case else text
