"""Generation of texts token by token, greedily or by sampling, for many contexts at once.

Shapes: N unfinished texts, N' or n a selection of them, t tokens of a text, S chosen tokens per text, V vocabulary,
H vector of the backbone.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.generation.choosing import Constraints, Sampler, choose_tokens
from factorcell.ngram.mixture import Predictor
from factorcell.nn.backbones.backbone import BackboneState, Conditions
from factorcell.nn.kernels.drawing import ForbiddenTokens, PackedTable, TokenRequest, TopRequest, next_tokens
from factorcell.nn.language_model import Conditioning, LanguageModel
from factorcell.nn.output import ContextBias, SoftmaxHead

# Maximum number of texts whose log probabilities are computed at once, so that they fit into a processor's cache.
MAX_TEXTS_PER_STEP = 64
MAX_TEXTS_PER_BLOCK = 128  # maximum number of texts whose tokens `_CompiledTask` reads at once


@dataclass(frozen=True)
class Hypotheses:
    """Unfinished texts, with the state of the model.

    Attributes:
        tokens: The tokens of each text, including the start token (N, t).
        context_rows: The row of a `Conditioning` that is the context of each text (N,).
        state: The state of the backbone before it reads the last token of each text; None for the initial state.
    """

    tokens: Tensor
    context_rows: Tensor
    state: BackboneState | None = None

    def select(self, rows: Tensor) -> "Hypotheses":
        """Return the texts with the indices `rows` (N',), which may repeat."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.context_rows[rows], state)

    def extend(self, tokens: Tensor, state: BackboneState | None, parents: Tensor | None = None) -> "Hypotheses":
        """Return these texts, or those with the indices `parents`, with one more token each.

        Args:
            tokens: The next tokens (N',).
            state: The state of the backbone after all tokens of these texts (N), but before the next tokens.
            parents: The indices of the texts to extend (N',); None means all texts.
        """
        texts = Hypotheses(self.tokens, self.context_rows, state)
        texts = texts if parents is None else texts.select(parents)
        return Hypotheses(torch.cat([texts.tokens, tokens[:, None]], 1), texts.context_rows, texts.state)

    def select_extensions(self, tokens: Tensor, selected: Tensor, state: BackboneState | None) -> "Hypotheses":
        """Return selected extensions of the texts of B contexts.

        Each context has N / B texts, in consecutive rows, and therefore N / B * L possible extensions.

        Args:
            tokens: The L possible next tokens of each text (N, L).
            selected: The indices of K extensions among those of each context (B, K).
            state: The state of the backbone after all tokens of these texts (N); None if it is not needed.
        """
        context_count = len(selected)
        texts_per_context = len(tokens) // max(1, context_count)
        first_rows = torch.arange(context_count, device=selected.device)[:, None] * texts_per_context
        parents = (first_rows + selected // tokens.shape[1]).flatten()
        selected_tokens = tokens.view(context_count, -1).gather(1, selected).flatten()
        return self.extend(selected_tokens, state, parents)


# Indices of texts (n,), log probabilities of their next tokens (n, V) -> values for these texts (n, ...).
PickValues = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class WritingTask:
    """A request to generate one text for each entry of `context_rows`.

    Attributes:
        model: The model.
        conditioning: The conditioning of the distinct contexts.
        context_rows: The row of `conditioning` that is the context of each text (N,).
        constraints: The constraints on the texts.
        prompt: The tokens with which all texts begin.
        deadline: The time at which generation ends, as a value of `time.monotonic()`, even if texts are unfinished.
    """

    model: Predictor
    conditioning: Conditioning
    context_rows: Tensor
    constraints: Constraints
    prompt: Sequence[int] = ()
    deadline: float = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @cached_property
    def _compiled(self) -> "_CompiledTask | None":
        """The compiled implementation of `choose`; None if the model or its head has no compiled form."""
        if not isinstance(self.model, LanguageModel):
            return None
        table = self.model.head.pack()
        return None if table is None else _CompiledTask(self.model, table, self.conditioning)

    def begin(self) -> Hypotheses:
        """Return texts that consist only of the prompt."""
        tokens = self.context_rows.new_tensor([self.model.specials.start, *self.prompt])
        if not self.prompt:
            return Hypotheses(tokens.expand(len(self.context_rows), -1), self.context_rows)
        contexts, positions = torch.unique(self.context_rows, return_inverse=True)
        prompts = tokens.expand(len(contexts), -1)  # each context reads the prompt once
        if self._compiled is not None:
            _, state = self._compiled.read(Hypotheses(prompts[:, :-1], contexts), len(self.prompt))
            return Hypotheses(prompts, contexts, state).select(positions)
        texts = Hypotheses(prompts[:, :1], contexts)
        for token in self.prompt:
            state, _ = self.read(texts, lambda _rows, log_probs: (log_probs[:, 0],))  # only the state is used
            texts = texts.extend(torch.full_like(contexts, token), state)
        return texts.select(positions)

    def choose(self, texts: Hypotheses, request: TokenRequest, length: int) -> tuple[BackboneState, Tensor, Tensor]:
        """Read the last token of each text and choose the next tokens.

        Args:
            texts: The unfinished texts.
            request: How to choose the next tokens, and how many.
            length: Number of tokens of each text after the prompt.

        Returns:
            The state of the backbone after the last tokens, the next tokens (N, S), and their log probabilities under
            the model without constraints (N, S).
        """
        if self._compiled is not None:
            forbidden = self.constraints.forbidden_tokens(texts.tokens, length)
            return self._compiled.choose(texts, request, forbidden)

        def choose_in_rows(rows: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
            self.constraints.forbid(log_probs, texts.tokens[rows], length)
            tokens = choose_tokens(request.select(rows), log_probs)
            return tokens, log_probs.gather(1, tokens)

        state, (tokens, log_probs) = self.read(texts, choose_in_rows)
        return state, tokens, log_probs

    def read(self, texts: Hypotheses, pick: PickValues) -> tuple[BackboneState, tuple[Tensor, ...]]:
        """Read the last token of each text, for up to `MAX_TEXTS_PER_STEP` texts at once.

        Args:
            texts: The unfinished texts.
            pick: A function that computes values from the log probabilities of the next tokens, which are not stored.

        Returns:
            The state of the backbone after these tokens, and the concatenated results of `pick`.
        """
        states, values = [], []
        with torch.inference_mode():
            for rows in torch.split(torch.arange(len(texts.tokens), device=texts.tokens.device), MAX_TEXTS_PER_STEP):
                part = texts.select(rows)
                conditioning = self.conditioning.select(part.context_rows)
                log_probs, state = self.model.step(part.tokens[:, -1], conditioning, part.state)
                states.append(state)
                values.append(pick(rows, log_probs))
        first_state, *other_states = states
        return first_state.cat(other_states), tuple(torch.cat(parts) for parts in zip(*values, strict=True))


class _CompiledTask:
    """Chooses the next tokens in compiled code, for texts in the contexts of one `Conditioning`."""

    def __init__(self, model: LanguageModel, table: PackedTable, conditioning: Conditioning) -> None:
        self.model, self.table, self.conditioning = model, table, conditioning
        self.head, context_bias = cast(SoftmaxHead, model.head), cast(ContextBias, conditioning.head)
        folded = self.head.fold(context_bias) if context_bias.bias is None else context_bias
        self.bias = cast(Tensor, folded.bias)
        self.cached_blocks: dict[int, tuple[Tensor, Conditions]] = {}  # by block number: context rows, conditions

    def choose(
        self, texts: Hypotheses, request: TokenRequest, forbidden: ForbiddenTokens
    ) -> tuple[BackboneState, Tensor, Tensor]:
        """Read the last token of each text; return the new state, the next tokens, and their log probabilities."""
        with torch.inference_mode():
            vectors, state = self.read(texts)
            projected = self.head.project(vectors)
            tokens, log_probs = next_tokens(projected, self.table, self.bias, texts.context_rows, forbidden, request)
            return state, tokens, log_probs

    def read(self, texts: Hypotheses, count: int = 1) -> tuple[Tensor, BackboneState]:
        """Read the last `count` tokens of each text.

        Returns:
            The vectors (N, H) after the last token, and the state of the backbone after it.
        """
        rows = torch.arange(len(texts.tokens))
        if len(rows) <= MAX_TEXTS_PER_BLOCK:
            blocks = [texts]  # without the copies of `select`
        else:
            blocks = [texts.select(block_rows) for block_rows in torch.split(rows, MAX_TEXTS_PER_BLOCK)]
        with torch.inference_mode():
            results = [self._read_block(number, block, count) for number, block in enumerate(blocks)]
            first_state, *other_states = [state for _, state in results]
            return torch.cat([vectors for vectors, _ in results]), first_state.cat(other_states)

    def _read_block(self, number: int, block: Hypotheses, count: int) -> tuple[Tensor, BackboneState]:
        """Read the last `count` tokens of each text of a block.

        The conditions of the block are cached, because they are large and rarely change between steps.
        """
        cached_context_rows, conditions = self.cached_blocks.get(number, (None, None))
        if (
            cached_context_rows is None
            or conditions is None
            or not torch.equal(cached_context_rows, block.context_rows)
        ):
            conditions = self.conditioning.conditions.select(block.context_rows)
            self.cached_blocks[number] = block.context_rows, conditions
        state = self.conditioning.start.select(block.context_rows) if block.state is None else block.state
        inputs = self.model.embedding[block.tokens[:, -count:]]
        vectors, new_state = self.model.backbone.forward(inputs, conditions, state)
        return vectors[:, -1], new_state


class Step(NamedTuple):
    """One generation step: the indices of the unfinished texts, their next tokens and log probabilities, each (n,)."""

    text_indices: NDArray[np.int64]
    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedText:
    """A generated text.

    Attributes:
        tokens: The tokens after the prompt, without the end token.
        log_probability: The log probability of the tokens, and of the end token if the model chose it.
        target_count: The number of tokens in this log probability.
        has_ended: Whether the end token or a stop ended the text, and not a limit of tokens or time.
    """

    tokens: tuple[int, ...]
    log_probability: float
    target_count: int
    has_ended: bool


# Indices of the unfinished texts (n,), number of the step -> request for the next token of each text.
RequestTokens = Callable[[Tensor, int], TokenRequest]


def request_most_probable(_texts: Tensor, _step: int) -> TokenRequest:
    """Request the most probable token of each text."""
    return TopRequest(1)


def sampling_requests(sampler: Sampler, count: int, max_tokens: int, seed: int = 0, first: int = 0) -> RequestTokens:
    """Return a `RequestTokens` function that samples the tokens of `count` texts with the numbers from `first` on.

    The random draws of a text depend only on `seed` and the number of the text, not on the other texts of the batch.
    """
    draws = [random_generator(seed, first + index).random(max_tokens) for index in range(count)]
    places = torch.from_numpy(np.stack(draws)) if draws else torch.zeros(0, max_tokens, dtype=torch.double)
    return lambda texts, step: sampler.request_draws(places.to(texts.device)[texts, step, None])


def random_generator(seed: int, text_number: int) -> np.random.Generator:
    """Return the random generator for the draws of one text; it depends only on the seed and the number of the text."""
    return np.random.Generator(np.random.Philox(key=[seed, text_number]))


def generate_steps(task: WritingTask, request_tokens: RequestTokens) -> Iterator[Step]:
    """Yield steps, each with the next token of every unfinished text of `task`; the last token may be the end token."""
    constraints, texts = task.constraints, task.begin()
    active = torch.arange(len(task.context_rows), device=task.context_rows.device)
    for step in range(constraints.max_tokens):
        if task.is_late or not len(active):
            return
        state, tokens, log_probs = task.choose(texts, request_tokens(active, step), step)
        tokens, log_probs = tokens[:, 0], log_probs[:, 0]
        yield Step(active.cpu().numpy(), tokens.cpu().numpy(), log_probs.double().cpu().numpy())
        texts = texts.extend(tokens, state)
        is_finished = (tokens == constraints.end) | constraints.ends_with_stop(texts.tokens, step + 1)
        unfinished = (~is_finished).nonzero()[:, 0]
        if len(unfinished) < len(active):
            texts, active = texts.select(unfinished), active[unfinished]


def collect_texts(count: int, steps: Iterator[Step], constraints: Constraints) -> list[GeneratedText]:
    """Collect the tokens of the steps; return the `count` generated texts."""
    tokens_by_text: list[list[int]] = [[] for _ in range(count)]
    log_probs = np.zeros(count)
    for step in steps:
        log_probs[step.text_indices] += step.log_probs
        for index, token in zip(step.text_indices.tolist(), step.tokens.tolist(), strict=True):
            tokens_by_text[index].append(token)
    texts = zip(tokens_by_text, log_probs, strict=True)
    return [to_generated_text(tokens, float(log_prob), constraints) for tokens, log_prob in texts]


def to_generated_text(tokens: Sequence[int], log_probability: float, constraints: Constraints) -> GeneratedText:
    """Return the generated text of `tokens`, which follow the prompt; the last of them may be the end token."""
    has_end = constraints.end in tokens[-1:]
    has_stop = any(tuple(tokens[-len(stop) :]) == tuple(stop) for stop in constraints.stops if stop)
    text_tokens = tokens[:-1] if has_end else tokens
    return GeneratedText(tuple(text_tokens), log_probability, len(tokens), has_end or has_stop)
