"""Generation of texts for contexts, with the model of a run.

`generate` yields whole texts as rows, and `stream` yields one text token by token. The random draws of a text depend
only on the seed and on the number of the text. A text therefore does not depend on the batch in which it is generated,
and an interrupted list can be continued at any number.
"""

import difflib
import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorcell.data.columns.rows import to_row, to_rows
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.data.tokenizers.tokenizer import sentence_case
from factorcell.errors import UserError, check_choice
from factorcell.generation import beam_search
from factorcell.generation.beam_search import Beam
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import (
    GeneratedText,
    RequestTokens,
    WritingTask,
    collect_texts,
    generate_steps,
    request_most_probable,
    sampling_requests,
)
from factorcell.io import files, memory
from factorcell.io.findings import Finding, report
from factorcell.nn import sizes
from factorcell.nn.devices import FLOAT32
from factorcell.nn.language_model import Conditioning, max_prompt_length
from factorcell.options import limits
from factorcell.options.choices import GENERATION_METHODS
from factorcell.runs.model_card import has_mixture
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
        for name in ("banned", "stops"):
            if isinstance(words := getattr(self, name), set | frozenset):
                object.__setattr__(self, name, tuple(sorted(words, key=str)))
        limits.make_plain(self)
        for name in ("banned", "stops"):
            if not limits.is_names(words := getattr(self, name)):
                raise UserError(f"{name}: expected a list of words, got {words!r:.60}")
        check_choice("method", self.method, GENERATION_METHODS)
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
        """Return the distribution from which tokens are sampled."""
        return Sampler(self.temperature, self.top_k, self.top_p)

    def beam_sizes(self, text_count: int) -> tuple[int, int]:
        """Return the number of hypotheses of a search for `text_count` texts, and the extensions of each hypothesis."""
        if self.method == "stochastic":
            return self.width or STOCHASTIC_BEAM_WIDTH, self.branching
        hypothesis_count = max(text_count, self.width or BEAM_WIDTH) if self.method == "beam" else 1
        return hypothesis_count, hypothesis_count

    def constraints(self, run: Run) -> Constraints:
        """Return the constraints on generated texts, with the token ids of `run`.

        Raises:
            UserError: A banned word or a stop contains an out-of-vocabulary word.
        """
        specials = run.tokenizer.specials
        if run.tokenizer.is_subword and (self.banned or self.stops):
            kind = f"the tokenizer {run.config.tokenizer.kind} cuts a word into pieces that other words contain"
            raise UserError(f"{run.folder}: cannot ban words or stop after a text, because {kind}; omit these options")
        banned = {specials.unknown}
        for word in self.banned:
            banned.update(encode_known(run, word, "banned"))
        stops = tuple(encode_known(run, text, "a stop") for text in self.stops)
        return Constraints(
            self.max_tokens, self.min_tokens, tuple(sorted(banned)), self.no_repeat_ngram, stops, specials.end
        )


DEFAULT = GenerationOptions()


def unknown_tokens(run: Run, text: str) -> dict[str, list[str]]:
    """Return the out-of-vocabulary tokens of `text`, each with similar tokens of the vocabulary."""
    tokens, unknown_id = run.tokenizer.split(text), run.tokenizer.specials.unknown
    tokens_with_ids = zip(tokens, run.tokenizer.encode(tokens), strict=True)
    unknown = dict.fromkeys(token for token, token_id in tokens_with_ids if token_id == unknown_id)
    return {token: difflib.get_close_matches(token, run.tokenizer.tokens, n=3) for token in unknown}


def report_request(run: Run, prompt: str, columns: Collection[str]) -> None:
    """Report what is doubtful about a run and a request with values of `columns`, and unknown words of the prompt."""
    run.report_findings(columns)
    descriptions = [
        repr(word) + (f" (similar: {', '.join(map(repr, similar_words))})" if similar_words else "")
        for word, similar_words in unknown_tokens(run, prompt).items()
    ]
    if descriptions:
        text = f"prompt: words that are not in the vocabulary of {run.folder}: {', '.join(descriptions)}"
        report(Finding("unknown words", text))


def encode_known(run: Run, text: str, where: str) -> tuple[int, ...]:
    """Return the token ids of `text`.

    Raises:
        UserError: A word is out of vocabulary, or the text has no token; the message begins with `where`.
    """
    tokens = run.tokenizer.split(text)
    for token, similar in unknown_tokens(run, text).items():
        hint = f"; similar words: {', '.join(similar)}" if similar else ""
        raise UserError(f"{where}: {token!r} is not in the vocabulary of {run.folder}{hint}")
    if not tokens:
        raise UserError(f"{where}: {text!r} has no token")
    return tuple(run.tokenizer.encode(tokens))


def category_values(schema: ContextSchema, column: str) -> list[str]:
    """Return the sorted values of a categorical context column, or raise a `UserError` if it has another kind."""
    variable = schema.variable(column)
    if variable.kind != "category":
        remedy = f"name its values in --context, or train with --context {variable.source_column}:category"
        raise UserError(f"{column}: expected a column of kind category, got {variable.kind}; {remedy}")
    _unknown, *values = variable.values
    return sort_values(values)


def sort_values(values: Sequence[str]) -> list[str]:
    """Sort values by number if every value is a number, otherwise alphabetically."""
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
        contexts: A mapping from column to value, a list of mappings, or any table. A column without a value is read as
            its expected value.
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
        UserError: A number, a context or a word of the options is not valid.
    """
    number, first = limits.check(number=number, first=first)
    contexts = to_rows(contexts)
    if options.method == "greedy" and number > 1:
        raise UserError(f"{number} greedy texts of a context would be the same; choose sample, stochastic or beam")
    prompt_tokens = _split_prompt(run, prompt)
    ids, origin = run.tokenizer.encode(prompt_tokens), provenance(run, options, prompt)
    constraints = options.constraints(run).limited_to(_room(run, len(prompt_tokens)))
    texts_per_search = number if options.method == "beam" else 1
    searches_per_context, batch_size = number // texts_per_search, BATCH_SIZES[options.method]
    search_count = len(contexts) * searches_per_context
    _check_memory(run, min(search_count, batch_size), options.beam_sizes(texts_per_search), constraints)
    if not contexts:
        return iter(())
    corpus = corpus_of_contexts(run, contexts, unknown)
    report_request(run, prompt, contexts[0])

    def write() -> Iterator[files.Row]:
        deadline = options.deadline()
        for start in range(first // texts_per_search, search_count, batch_size):
            if time.monotonic() >= deadline:
                break
            searches = range(start, min(search_count, start + batch_size))
            indices = [search // searches_per_context for search in searches]  # the context of each search
            conditioning, rows = condition_contexts(run, corpus, indices)
            with run.scoring():
                task = WritingTask(run.predictor, conditioning, rows, constraints, ids, deadline)
                results = _write_texts(task, options, texts_per_search, start)
            for search, index, texts in zip(searches, indices, results, strict=True):
                for text_number, text in enumerate(texts, search * texts_per_search):
                    if text_number >= first:
                        yield {
                            **origin,
                            "number": text_number,
                            "context": dict(contexts[index]),
                            "text": _join(run, [*prompt_tokens, *run.tokenizer.decode(text.tokens)], case),
                            **_figures(text),
                        }

    return write()


def _split_prompt(run: Run, prompt: str) -> list[str]:
    """Return the tokens of a prompt; raise `UserError` if it is not a text."""
    if not isinstance(prompt, str):
        raise UserError(f"prompt: expected a text, got {prompt!r:.60}")
    return run.tokenizer.split(prompt)


def _figures(text: GeneratedText) -> files.Row:
    """Return the entries of a row of `generate` that only depend on the generated tokens."""
    return {
        "tokens": len(text.tokens),
        "log_probability": text.log_probability,
        "perplexity": math.exp(-text.log_probability / max(1, text.target_count)),
        "ended": text.has_ended,
    }


def _check_memory(run: Run, count: int, beam_sizes: tuple[int, int], constraints: Constraints) -> None:
    """Raise `UserError` if `count` searches of these sizes (`beam_sizes`) need too much memory."""
    required = sizes.beam_bytes(run.model, count, *beam_sizes, constraints.max_tokens)
    memory.check(required, f"{count:,} contexts with {beam_sizes[0]:,} hypotheses each")


def _room(run: Run, prompt_length: int) -> int | None:
    """Return the number of tokens that the model can read after a prompt of `prompt_length` tokens; None: no limit."""
    limit: int | None = run.model.max_tokens
    if limit is None:
        return None
    return limit - 1 - prompt_length - max_prompt_length(run.config, run.schema)  # 1: the start token


def provenance(run: Run, options: GenerationOptions, prompt: str = "") -> files.Row:
    """Return the entries `run` and `options` of the rows of `generate`; options with default values are left out.

    The options include the precision, and whether the mixture of the run is left out, because the same seed then draws
    other texts.
    """
    specified = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != field.default and field.name != "seconds"
    }
    specified = {name: list(value) if isinstance(value, tuple) else value for name, value in specified.items()}
    specified |= {"prompt": prompt} if prompt else {}
    specified |= {"precision": run.precision} if run.precision != FLOAT32 else {}
    specified |= {"no_ngram_mixture": True} if run.mixture is None and has_mixture(run) else {}
    return {"run": run.folder.name, "options": specified}


def repair_and_count_rows(file: Path, origin: files.Row, contexts: Sequence[Mapping[str, Any]], number: int) -> int:
    """Remove an incomplete last line from a file of generated texts, and return the number of its texts.

    Args:
        file: A file with rows that `generate` yielded.
        origin: The result of `provenance`, which every row must contain.
        contexts: The contexts for which texts are generated.
        number: Number of texts per context.

    Raises:
        UserError: A row has another provenance or context.
    """
    rows = files.read_rows(file)
    for index, row in enumerate(rows):
        context_index = index // max(1, number)
        context = contexts[context_index] if context_index < len(contexts) else "no more rows"
        for name, value in {**origin, "number": index, "context": context}.items():
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
        UserError: The method, the context or a word of the options is not valid.
    """
    if options.method not in ("sample", "greedy"):
        raise UserError(f"stream: {options.method} does not write from left to right; choose sample or greedy")
    prompt_tokens = _split_prompt(run, prompt)
    constraints = options.constraints(run).limited_to(_room(run, len(prompt_tokens)))
    corpus = corpus_of_contexts(run, [context], unknown)
    report_request(run, prompt, to_row(context))

    def write() -> Iterator[str]:
        conditioning, rows = condition_contexts(run, corpus, [0])
        ids, tokens, yielded_text = run.tokenizer.encode(prompt_tokens), prompt_tokens, ""
        task = WritingTask(run.predictor, conditioning, rows, constraints, ids, options.deadline())
        steps = generate_steps(task, _token_requests(options, count=1, first=0))
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
            if step.tokens[0] != constraints.end:
                tokens = [*tokens, *run.tokenizer.decode(step.tokens.tolist())]

    return write()


def corpus_of_contexts(run: Run, contexts: Sequence[Mapping[str, Any]], unknown: str = "error") -> Corpus:
    """Return empty texts with these contexts."""
    return run.read([""] * len(contexts), contexts, unknown=unknown)


def condition_contexts(run: Run, corpus: Corpus, indices: Sequence[int]) -> tuple[Conditioning, Tensor]:
    """Return the `Conditioning` of the distinct texts of `corpus` at `indices`, with folded biases of the head.

    Returns:
        The conditioning, and for each of the `indices` (N,) the row of the conditioning with this context (N,).
    """
    distinct_indices, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
    with run.scoring():
        conditioning = run.predictor.condition(corpus.context(distinct_indices).to(run.device))
        conditioning = run.predictor.fold_head(conditioning)
    return conditioning, torch.from_numpy(rows).to(run.device)


def _write_texts(
    task: WritingTask, options: GenerationOptions, texts_per_search: int, first: int
) -> list[list[GeneratedText]]:
    """Generate the texts of one search for each of `task.context_rows`; `first` is the number of the first search."""
    width, _ = options.beam_sizes(texts_per_search)
    beam = Beam(width, options.length_penalty, texts_per_search)
    if options.method == "beam":
        return beam_search.search_beam(task, beam)
    if options.method == "stochastic":
        return beam_search.search_stochastic_beam(
            task, beam, options.sampler(), branching=options.branching, seed=options.seed, first=first
        )
    steps = generate_steps(task, _token_requests(options, len(task.context_rows), first))
    return [[text] for text in collect_texts(len(task.context_rows), steps, task.constraints)]


def _token_requests(options: GenerationOptions, count: int, first: int) -> RequestTokens:
    """Return the function that requests the tokens of `count` texts, greedily or by sampling."""
    if options.method == "greedy":
        return request_most_probable
    return sampling_requests(options.sampler(), count, options.max_tokens, options.seed, first)


def _join(run: Run, tokens: Sequence[str], case: bool, suffix: str = "") -> str:
    text = run.tokenizer.written(run.tokenizer.join(tokens) + suffix)
    return sentence_case(text) if case else text
