"""Generation of texts for contexts, with the model of a run.

`generate` yields whole texts as rows, and `stream` yields one text token by token. The random draws of a text depend
only on the seed and on the number of the text. A text therefore does not depend on the batch in which it is generated,
and an interrupted list can be continued at any number.
"""

import difflib
import itertools
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorcell.data.columns.rows import to_row, to_rows
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.data.tokenizers.tokenizer import sentence_case
from factorcell.errors import UserError, check_choice
from factorcell.generation.writing import (
    Constraints,
    GeneratedText,
    RequestTokens,
    WritingTask,
    search_beams,
    write_step_by_step,
    write_texts,
)
from factorcell.io import files, memory
from factorcell.io.findings import Finding, report
from factorcell.io.output import to_json
from factorcell.nn import sizes
from factorcell.nn.devices import FLOAT32
from factorcell.nn.kernels.drawing import SampleRequest, TokenRequest, TopRequest
from factorcell.nn.language_model import max_prompt_length
from factorcell.options import limits
from factorcell.options.limits import GENERATION_METHODS
from factorcell.runs.run import Run

SAMPLED_METHODS = ("sample", "stochastic")
BATCH_SIZES = {"sample": 128, "greedy": 128, "beam": 16, "stochastic": 8}  # number of searches that run at once
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
        no_repeat_ngram: No sequence of this many tokens occurs twice in the prompt and the text; 0 permits repetitions.
        width: Number of unfinished texts that a beam search retains; by default 8 for `beam` and 120 for `stochastic`.
        branching: Number of tokens that `stochastic` samples to extend each unfinished text.
        length_penalty: Exponent of the number of tokens n: beam searches prefer the text with the highest
            log p / n ** length_penalty. 1 prefers the lowest perplexity; 0 prefers the most probable text, which is
            usually short.
        seed: The seed of all draws.
        seconds: Time limit; `generate` returns the texts that are finished before it.

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
    seed: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        limits.make_plain(self)
        check_choice("method", self.method, GENERATION_METHODS)
        limits.check(**{field.name: getattr(self, field.name) for field in fields(self) if field.name != "method"})
        if self.min_tokens > self.max_tokens:
            values = f"min_tokens is {self.min_tokens}, max_tokens is {self.max_tokens}"
            raise UserError(f"{values}; min_tokens must be at most max_tokens")
        if (self.temperature, self.top_k, self.top_p) != (1, 0, 1) and self.method not in SAMPLED_METHODS:
            methods = " or ".join(SAMPLED_METHODS)
            raise UserError(f"{self.method} does not use temperature, top_k or top_p; choose {methods}")

    def deadline(self) -> float:
        """Return the time at which generation must end, as a value of `time.monotonic()`."""
        return math.inf if self.seconds is None else time.monotonic() + self.seconds

    def beam_sizes(self, text_count: int) -> tuple[int, int]:
        """Return the number of hypotheses of a search for `text_count` texts, and the extensions of each hypothesis."""
        if self.method == "stochastic":
            return self.width or STOCHASTIC_BEAM_WIDTH, self.branching
        hypothesis_count = max(text_count, self.width or BEAM_WIDTH) if self.method == "beam" else 1
        return hypothesis_count, hypothesis_count

    def constraints(self, run: Run, prompt_length: int = 0) -> Constraints:
        """Return the constraints on texts of `run` that begin with a prompt of `prompt_length` tokens.

        Raises:
            UserError: The base cannot read enough tokens after the prompt.
        """
        specials, max_tokens, limit = run.tokenizer.specials, self.max_tokens, run.model.max_tokens
        if limit is not None:
            room = limit - 1 - prompt_length - max_prompt_length(run.config, run.schema)  # 1: the start token
            fewest = max(1, self.min_tokens)
            if room < fewest:
                problem = f"the base can read {max(0, room):,} tokens after the prompt, expected at least {fewest:,}"
                raise UserError(f"{problem}; shorten the prompt or lower min_tokens")
            max_tokens = min(max_tokens, room)
        return Constraints(max_tokens, self.min_tokens, (specials.unknown,), self.no_repeat_ngram, specials.end)

    def requests(
        self, count: int, first: int = 0, text_count: int = 1, device: torch.device | str = "cpu"
    ) -> RequestTokens:
        """Return the function that requests the next tokens in `count` searches for `text_count` texts each.

        The random draws of a search depend only on the seed and on its number, which is `first` for the first search.
        Each step of a stochastic beam draws for `width` hypotheses, so later draws do not depend on their number.
        """
        width, branching = self.beam_sizes(text_count)
        if self.method in ("greedy", "beam"):
            # One extension of a beam may be the end token, which leaves `width` other tokens.
            top_request = TopRequest(1 if self.method == "greedy" else width + 1)
            return lambda _unfinished, _step, _hypothesis_count: top_request
        generators = [random_generator(self.seed, first + index) for index in range(count)]
        if self.method == "sample":
            draws = np.stack([generator.random(self.max_tokens) for generator in generators])

        def request(unfinished: Sequence[int], step: int, hypothesis_count: int) -> TokenRequest:
            if self.method == "sample":
                places = draws[unfinished, step, None]
            else:
                drawn = (generators[index].random((width, branching)) for index in unfinished)
                places = np.concatenate([of_search[:hypothesis_count] for of_search in drawn])
            return SampleRequest(torch.from_numpy(places).to(device), self.temperature, self.top_k, self.top_p)

        return request

    def write(self, task: WritingTask, first: int = 0, text_count: int = 1) -> list[list[GeneratedText]]:
        """Return the texts of the searches for `task.context_rows`; the number of the first search is `first`."""
        requests = self.requests(len(task.context_rows), first, text_count, task.context_rows.device)
        if self.method in ("sample", "greedy"):
            return [[text] for text in write_texts(task, requests)]
        width, _ = self.beam_sizes(text_count)
        return search_beams(task, requests, width=width, length_penalty=self.length_penalty, num_texts=text_count)


def random_generator(seed: int, number: int) -> np.random.Generator:
    """Return the random generator of a text or search; it depends only on the seed and on its number."""
    return np.random.Generator(np.random.Philox(key=[seed, number]))


DEFAULT = GenerationOptions()


def report_request(run: Run, prompt_tokens: Sequence[str], columns: Collection[str]) -> None:
    """Report what is doubtful about a run and a request with values of `columns`, and unknown words of the prompt."""
    run.report_findings(columns)
    tokenizer, descriptions = run.tokenizer, list[str]()
    tokens_with_ids = zip(prompt_tokens, tokenizer.encode(prompt_tokens), strict=True)
    for word in dict.fromkeys(token for token, index in tokens_with_ids if index == tokenizer.specials.unknown):
        similar_words = difflib.get_close_matches(word, tokenizer.tokens, n=3)
        hint = f" (similar: {', '.join(map(repr, similar_words))})" if similar_words else ""
        descriptions.append(f"{word!r}{hint}")
    if descriptions:
        text = f"prompt: words that are not in the vocabulary of {run.folder}: {', '.join(descriptions)}"
        report(Finding("unknown words", text))


def category_values(schema: ContextSchema, column: str) -> list[str]:
    """Return the values of a categorical context column, sorted as numbers if they are; raise `UserError` otherwise."""
    variable = schema.variable(column)
    if variable.kind != "category":
        remedy = f"name its values in --context, or train with --context {variable.source_column}:category"
        raise UserError(f"{column}: expected a column of kind category, got {variable.kind}; {remedy}")
    _unknown, *values = variable.values
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
    """Return a generator of `number` texts for each context, one context after another.

    Args:
        run: The model.
        contexts: A mapping from column to value, a list of them, or any table; missing values are expected values.
        number: Number of texts per context.
        options: The options of generation.
        prompt: The beginning of each text; it may contain out-of-vocabulary words.
        case: Whether sentences begin with capital letters.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        first: The number of the first text to yield, to continue an interrupted list.

    Returns:
        A generator of rows with `run`, `options`, `number`, `context`, `text`, `tokens`, `log_probability` (nats,
        without the prompt), `perplexity` and `ended`.

    Raises:
        UserError: A number or a context is not valid.
    """
    (number, first), contexts = limits.check(number=number, first=first), to_rows(contexts)
    if options.method == "greedy" and number > 1:
        raise UserError(f"{number} greedy texts of a context would be the same; choose sample, stochastic or beam")
    prompt_tokens = _split_prompt(run, prompt)
    origin, constraints = provenance(run, options, prompt), options.constraints(run, len(prompt_tokens))
    texts_per_search = number if options.method == "beam" else 1
    searches_per_context, batch_size = number // texts_per_search, BATCH_SIZES[options.method]
    search_count = len(contexts) * searches_per_context
    (width, branching), count = options.beam_sizes(texts_per_search), min(search_count, batch_size)
    required = sizes.beam_bytes(run.model, count, width, branching, constraints.max_tokens)
    memory.check(required, f"{count:,} contexts with {width:,} hypotheses each")
    if not contexts:
        return iter(())
    corpus = run.read([""] * len(contexts), contexts, unknown=unknown)
    report_request(run, prompt_tokens, contexts[0])

    def write() -> Iterator[files.Row]:
        deadline = options.deadline()
        for start in range(first // texts_per_search, search_count, batch_size):
            if time.monotonic() >= deadline:
                break
            searches = range(start, min(search_count, start + batch_size))
            indices = [search // searches_per_context for search in searches]  # the context of each search
            task = new_task(run, corpus, indices, constraints, run.tokenizer.encode(prompt_tokens), deadline)
            with run.scoring():
                results = options.write(task, start, texts_per_search)
            if options.method in ("beam", "stochastic") and time.monotonic() >= deadline:
                return  # a search that was cut may have found other texts
            for search, index, texts in zip(searches, indices, results, strict=True):
                for text_number, text in enumerate(texts, search * texts_per_search):
                    is_full = text.has_ended or len(text.tokens) >= constraints.max_tokens
                    if not is_full and time.monotonic() >= deadline:
                        return
                    if text_number >= first:
                        written = _join(run, [*prompt_tokens, *run.tokenizer.decode(text.tokens)], case)
                        context = dict(contexts[index])
                        yield {**origin, "number": text_number, "context": context, "text": written, **_facts(text)}

    return write()


def _facts(text: GeneratedText) -> files.Row:
    """Return the entries of a row about the tokens and the probability of a text."""
    return {
        "tokens": len(text.tokens),
        "log_probability": text.log_probability,
        "perplexity": math.exp(-text.log_probability / max(1, text.target_count)),
        "ended": text.has_ended,
    }


def _split_prompt(run: Run, prompt: str) -> list[str]:
    """Return the tokens of a prompt; raise `UserError` if it is not a text."""
    if not isinstance(prompt, str):
        raise UserError(f"prompt: expected a text, got {prompt!r:.60}")
    return run.tokenizer.split(prompt)


def provenance(run: Run, options: GenerationOptions, prompt: str = "") -> files.Row:
    """Return the entries `run` and `options` of the rows of `generate`, without options that have default values."""
    specified = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != field.default and field.name != "seconds"
    }
    specified |= {"prompt": prompt} if prompt else {}
    specified |= {"precision": run.precision} if run.precision != FLOAT32 else {}
    specified |= {"no_ngram_mixture": True} if run.mixture is None and run.has_mixture else {}
    return {"run": run.folder.name, "options": specified}


def repair_and_count_rows(file: Path, origin: files.Row, contexts: Sequence[Mapping[str, Any]], number: int) -> int:
    """Remove an incomplete last line of `generate`, and count the texts; raise a `UserError` if a row does not fit."""
    rows = files.read_rows(file)
    for index, row in enumerate(rows):
        context = contexts[index // number] if index < number * len(contexts) else "no more rows"
        for name, value in json.loads(to_json({**origin, "number": index, "context": context})).items():
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
    """Return a generator of the parts of one text, which yields each as soon as it is known, the prompt first.

    The text is the first one that `generate` yields for the same arguments.

    Args:
        run: The model.
        context: A mapping from column to value. A column without a value is read as its expected value.
        options: The options of generation; the method must be `sample` or `greedy`.
        prompt: The beginning of the text; it may contain out-of-vocabulary words.
        case: Whether sentences begin with capital letters.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        A generator of the parts of the text, in order; together they are the whole text.

    Raises:
        UserError: The method or the context is not valid.
    """
    if options.method not in ("sample", "greedy"):
        raise UserError(f"stream: {options.method} does not write from left to right; choose sample or greedy")
    prompt_tokens = _split_prompt(run, prompt)
    constraints = options.constraints(run, len(prompt_tokens))
    corpus = run.read([""], [context], unknown=unknown)
    report_request(run, prompt_tokens, to_row(context))

    def write() -> Iterator[str]:
        ids, tokens, yielded_text = run.tokenizer.encode(prompt_tokens), prompt_tokens, ""
        task = new_task(run, corpus, [0], constraints, ids, options.deadline())
        steps = write_step_by_step(task, options.requests(count=1, device=run.device))
        while True:
            # A letter that follows would change a final ς or the word "I": such an end waits for the next token.
            variants = zip(_join(run, tokens, case), _join(run, tokens, case, "a"), strict=False)
            text = "".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], variants))
            if len(text) > len(yielded_text):
                yield text[len(yielded_text) :]
                yielded_text = text
            with run.scoring():  # only within a step: between steps, the precision of the caller applies
                step = next(steps, None)
            if step is None:
                if rest := _join(run, tokens, case)[len(yielded_text) :]:
                    yield rest
                return
            _, new_tokens, _ = step
            if new_tokens != [constraints.end]:
                tokens = [*tokens, *run.tokenizer.decode(new_tokens)]

    return write()


def new_task(
    run: Run,
    corpus: Corpus,
    indices: Sequence[int],
    constraints: Constraints,
    prompt: Sequence[int] = (),
    deadline: float = math.inf,
) -> WritingTask:
    """Return the task to write a text in the context of each of the texts of `corpus` at `indices`."""
    distinct_indices, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
    with run.scoring():
        conditioning = run.predictor.condition(corpus.context(distinct_indices).to(run.device))
        conditioning = run.predictor.fold_head(conditioning)
        context_rows = torch.from_numpy(rows).to(run.device)
        return WritingTask(run.predictor, conditioning, context_rows, constraints, prompt, deadline)


def _join(run: Run, tokens: Sequence[str], case: bool, suffix: str = "") -> str:
    text = run.tokenizer.written(run.tokenizer.join(tokens) + suffix)
    return sentence_case(text) if case else text
