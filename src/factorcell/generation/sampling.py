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
from factorcell.model.backbone import BackboneState, Conditions
from factorcell.model.kernels.drawing import ForbiddenTokens, PackedTable, TokenRequest, TopRequest, next_tokens
from factorcell.model.language_model import Conditioning, LanguageModel
from factorcell.model.output import ContextBias, SoftmaxHead

ROWS = 64  # maximum number of texts whose log probabilities are computed at once, to fit into a processor's cache
READ_ROWS = 128  # maximum number of texts whose tokens `_Compiled` reads at once


@dataclass(frozen=True)
class Hypotheses:
    """Unfinished texts, with the state of the model.

    Attributes:
        tokens: The tokens of each text, including the start token (N, t).
        contexts: The row of a `Conditioning` that is the context of each text (N,).
        state: The state of the backbone before it reads the last token of each text; None for the initial state.
    """

    tokens: Tensor
    contexts: Tensor
    state: BackboneState | None = None

    def select(self, rows: Tensor) -> "Hypotheses":
        """Return the texts with the indices `rows` (N',), which may repeat."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.contexts[rows], state)

    def extend(self, tokens: Tensor, state: BackboneState, parents: Tensor | None = None) -> "Hypotheses":
        """Return texts with one more token.

        Args:
            tokens: The next tokens (N',).
            state: The state of the backbone after all tokens of these texts (N), but before the next tokens.
            parents: The indices of the texts to extend (N',); None for all.
        """
        texts = Hypotheses(self.tokens, self.contexts, state)
        texts = texts if parents is None else texts.select(parents)
        return Hypotheses(torch.cat([texts.tokens, tokens[:, None]], 1), texts.contexts, texts.state)

    def children(self, tokens: Tensor, selected: Tensor, state: BackboneState) -> "Hypotheses":
        """Return selected extensions of the texts of B contexts.

        The texts of a context are N / B neighbours, which have N / B * L possible extensions.

        Args:
            tokens: The L possible next tokens of each text (N, L).
            selected: The indices of K extensions among those of each context (B, K).
            state: The state of the backbone after all tokens of these texts (N).
        """
        first_rows = torch.arange(len(selected), device=selected.device)[:, None]
        first_rows = first_rows * (len(tokens) // max(1, len(selected)))
        parents = (first_rows + selected // tokens.shape[1]).flatten()
        return self.extend(tokens.view(len(selected), -1).gather(1, selected).flatten(), state, parents)


# Indices of texts (n,), log probabilities of their next tokens (n, V) -> values for these texts (n, ...).
Pick = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class WritingTask:
    """A request to generate one text for each entry of `contexts`.

    Attributes:
        model: The model.
        conditioning: The conditioning of the distinct contexts.
        contexts: The row of `conditioning` that is the context of each text (N,).
        constraints: The constraints on the texts.
        prompt: The tokens with which all texts begin.
        deadline: When to end, as a value of `time.monotonic()`; the texts then stay unfinished.
    """

    model: LanguageModel
    conditioning: Conditioning
    contexts: Tensor
    constraints: Constraints
    prompt: Sequence[int] = ()
    deadline: float = math.inf

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    @cached_property
    def _compiled(self) -> "_Compiled | None":
        table = self.model.head.pack()
        return None if table is None else _Compiled(self.model, table, self.conditioning)

    def begin(self) -> Hypotheses:
        """Return texts that consist only of the prompt."""
        start = self.model.specials.start
        texts = Hypotheses(torch.full_like(self.contexts[:, None], start), self.contexts)
        for token in self.prompt:
            if self._compiled is not None:
                _, state = self._compiled.read(texts)
            else:
                state, _ = self.read(texts, lambda _rows, logs: (logs[:, 0],))
            texts = texts.extend(torch.full_like(self.contexts, token), state)
        return texts

    def choose(self, texts: Hypotheses, request: TokenRequest, length: int) -> tuple[BackboneState, Tensor, Tensor]:
        """Read the last token of each text and choose the next tokens.

        Args:
            texts: The unfinished texts.
            request: How to choose the next tokens, and how many.
            length: Number of tokens of the texts after the prompt.

        Returns:
            The state of the backbone after the last tokens, the next tokens (N, S), and their log probabilities under
            the model without constraints (N, S).
        """
        if self._compiled is not None:
            forbidden = self.constraints.forbidden_tokens(texts.tokens, length)
            return self._compiled.choose(texts, request, forbidden)

        def pick(rows: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
            self.constraints.forbid(logs, texts.tokens[rows], length)
            tokens = choose_tokens(request.select(rows), logs)
            return tokens, logs.gather(1, tokens)

        state, (tokens, logs) = self.read(texts, pick)
        return state, tokens, logs

    def read(self, texts: Hypotheses, pick: Pick) -> tuple[BackboneState, tuple[Tensor, ...]]:
        """Read the last token of each text, for up to `ROWS` texts at once.

        Returns:
            The state of the backbone after these tokens, and the concatenated results of `pick`.
        """
        states, values = [], []
        with torch.inference_mode():
            for rows in torch.split(torch.arange(len(texts.tokens), device=texts.tokens.device), ROWS):
                part = texts.select(rows)
                logs, state = self.model.step(part.tokens[:, -1], self.conditioning.select(part.contexts), part.state)
                states.append(state)
                values.append(pick(rows, logs))
        return states[0].cat(states[1:]), tuple(torch.cat(parts) for parts in zip(*values, strict=True))


class _Compiled:
    """Chooses the next tokens in compiled code, for texts in the contexts of one `Conditioning`."""

    def __init__(self, model: LanguageModel, table: PackedTable, conditioning: Conditioning) -> None:
        self.model, self.table, self.conditioning = model, table, conditioning
        self.output, bias = cast(SoftmaxHead, model.head), cast(ContextBias, conditioning.head)
        self.bias = cast(Tensor, (self.output.fold(bias) if bias.bias is None else bias).bias)
        self.block_conditions: dict[
            int, tuple[Tensor, Conditions]
        ] = {}  # number of a block -> its contexts and conditions

    def choose(
        self, texts: Hypotheses, request: TokenRequest, forbidden: ForbiddenTokens
    ) -> tuple[BackboneState, Tensor, Tensor]:
        with torch.inference_mode():
            vectors, state = self.read(texts)
            values = vectors @ self.output.projection
            return state, *next_tokens(values, self.table, self.bias, texts.contexts, forbidden, request)

    def read(self, texts: Hypotheses) -> tuple[Tensor, BackboneState]:
        """Read the last token of each text; return the vectors (N, H) and the state of the backbone after them."""
        rows = torch.arange(len(texts.tokens))
        blocks = [texts] if len(rows) <= READ_ROWS else [texts.select(part) for part in torch.split(rows, READ_ROWS)]
        with torch.inference_mode():
            parts = [self._read_block(number, block) for number, block in enumerate(blocks)]
            return torch.cat([vectors for vectors, _ in parts]), parts[0][1].cat([state for _, state in parts[1:]])

    def _read_block(self, number: int, block: Hypotheses) -> tuple[Tensor, BackboneState]:
        """Read the last token of each text of a block.

        The conditions of the block are cached, because they are large and rarely change between steps.
        """
        contexts, start = block.contexts, self.conditioning.start
        cached = self.block_conditions.get(number)
        if cached is None or not torch.equal(cached[0], contexts):
            cached = self.block_conditions[number] = contexts, self.conditioning.conditions.select(contexts)
        state = start.select(contexts) if block.state is None else block.state
        inputs = self.model.embedding[block.tokens[:, -1]][:, None]
        vectors, new_state = self.model.backbone.forward(inputs, cached[1], state)
        return vectors[:, 0], new_state


class Step(NamedTuple):
    """One generation step: the indices `texts` of the unfinished texts, their next tokens and log probabilities."""

    texts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedText:
    """A generated text.

    Attributes:
        tokens: The tokens after the prompt, without the end token.
        log_probability: The log probability of the tokens, and of the end token if the model chose it.
        targets: The number of these tokens, including the end token.
        ended: Whether the end token or a stop ended the text, and not a limit of tokens or time.
    """

    tokens: tuple[int, ...]
    log_probability: float
    targets: int
    ended: bool


# Indices of the unfinished texts (n,), number of the step -> request for the next token of each text.
Choice = Callable[[Tensor, int], TokenRequest]


def greedy_choice(texts: Tensor, step: int) -> TokenRequest:
    """Request the most probable token of each text."""
    return TopRequest(1)


def sampling_choice(sampler: Sampler, count: int, max_tokens: int, seed: int = 0, first: int = 0) -> Choice:
    """Return a `Choice` that samples the tokens of `count` texts, which have the numbers `first`, `first` + 1, ...

    The random draws of a text depend only on `seed` and its number, not on the other texts of the batch.
    """
    values = [random_generator(seed, first + index).random(max_tokens) for index in range(count)]
    places = torch.from_numpy(np.stack(values)) if values else torch.zeros(0, max_tokens, dtype=torch.double)
    return lambda texts, step: sampler.draws(places.to(texts.device)[texts, step, None])


def random_generator(seed: int, text: int) -> np.random.Generator:
    """Return the random generator for the draws of the text with the number `text`."""
    return np.random.Generator(np.random.Philox(key=[seed, text]))


def generate_steps(task: WritingTask, choice: Choice) -> Iterator[Step]:
    """Yield steps, each with the next token of every unfinished text of `task`; the last token may be the end token."""
    constraints, texts = task.constraints, task.begin()
    active = torch.arange(len(task.contexts), device=task.contexts.device)
    for step in range(constraints.max_tokens):
        if task.is_late or not len(active):
            return
        state, *chosen = task.choose(texts, choice(active, step), step)
        tokens, logs = (values[:, 0] for values in chosen)
        yield Step(active.cpu().numpy(), tokens.cpu().numpy(), logs.double().cpu().numpy())
        texts = texts.extend(tokens, state)
        is_finished = (tokens == constraints.end) | constraints.ends_with_stop(texts.tokens, step + 1)
        unfinished = (~is_finished).nonzero()[:, 0]
        if len(unfinished) < len(active):
            texts, active = texts.select(unfinished), active[unfinished]


def collect_texts(count: int, steps: Iterator[Step], constraints: Constraints) -> list[GeneratedText]:
    """Collect the tokens of the steps; return the `count` generated texts."""
    texts: list[list[int]] = [[] for _ in range(count)]
    logs = np.zeros(count)
    for step in steps:
        logs[step.texts] += step.logs
        for index, token in zip(step.texts.tolist(), step.tokens.tolist(), strict=True):
            texts[index].append(token)
    return [to_generated_text(tokens, float(log), constraints) for tokens, log in zip(texts, logs, strict=True)]


def to_generated_text(tokens: Sequence[int], log_probability: float, constraints: Constraints) -> GeneratedText:
    """Return the generated text of `tokens`, which follow the prompt; the last of them may be the end token."""
    has_end = constraints.end in tokens[-1:]
    has_stop = any(tuple(tokens[-len(stop) :]) == tuple(stop) for stop in constraints.stops if stop)
    return GeneratedText(tuple(tokens[: len(tokens) - has_end]), log_probability, len(tokens), has_end or has_stop)
