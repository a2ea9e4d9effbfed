"""Texts of token ids from a model: greedy and drawn, for many contexts at once, a token at a time.

Shapes: N unfinished texts, B contexts, t tokens written, S tokens for each text, V vocabulary.
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

ROWS = 64  # texts whose log probabilities exist at one time, so that they stay in a processor's cache
READ_ROWS = 128  # texts that are read at one time in compiled code


@dataclass(frozen=True)
class Hypotheses:
    """N unfinished texts: `tokens` (N, t) from the start token on, the `state` before the last, and their contexts.

    `contexts` (N,) are rows of a `Conditioning`; without a `state` it is that before the start token.
    """

    tokens: Tensor
    contexts: Tensor
    state: BackboneState | None = None

    def select(self, rows: Tensor) -> "Hypotheses":
        """Return the texts of `rows` (N',), repeated where a row is named twice."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.contexts[rows], state)

    def extend(self, tokens: Tensor, state: BackboneState, parents: Tensor | None = None) -> "Hypotheses":
        """Return the texts of `parents` (N',), or all, with one more token (N',) and the `state` before it."""
        front = Hypotheses(self.tokens, self.contexts, state)
        front = front if parents is None else front.select(parents)
        return Hypotheses(torch.cat([front.tokens, tokens[:, None]], 1), front.contexts, front.state)

    def children(self, tokens: Tensor, kept: Tensor, state: BackboneState) -> "Hypotheses":
        """Return the children `kept` (B, K) of B groups of texts that may grow by `tokens` (N, L).

        `kept` holds places among all children of a group.
        """
        firsts = torch.arange(len(kept), device=kept.device)[:, None] * (len(tokens) // max(1, len(kept)))
        parents = (firsts + kept // tokens.shape[1]).flatten()
        return self.extend(tokens.view(len(kept), -1).gather(1, kept).flatten(), state, parents)


Pick = Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # rows (n,), log probabilities (n, V) -> values (n, ...)


@dataclass(frozen=True)
class WritingTask:
    """Request a text for each of `contexts` (N,), rows of `conditioning`, under `rules`; all begin with `prompt`.

    After the `deadline`, a `time.monotonic()`, the texts stay as they are.
    """

    model: LanguageModel
    conditioning: Conditioning
    contexts: Tensor
    rules: Constraints
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
        """Return the texts with nothing but the prompt."""
        start = self.model.specials.start
        front = Hypotheses(torch.full_like(self.contexts[:, None], start), self.contexts)
        for token in self.prompt:
            if self._compiled is not None:
                _, state = self._compiled.read(front)
            else:
                state, _ = self.read(front, lambda _rows, logs: (logs[:, 0],))
            front = front.extend(torch.full_like(self.contexts, token), state)
        return front

    def choose(self, front: Hypotheses, wanted: TokenRequest, written: int) -> tuple[BackboneState, Tensor, Tensor]:
        """Read the last tokens; return the state, the next tokens (N, S) as `wanted`, and their log probabilities.

        Texts have `written` tokens after the prompt.
        """
        if self._compiled is not None:
            return self._compiled.choose(front, wanted, self.rules.barred(front.tokens, written))

        def pick(rows: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
            self.rules.forbid(logs, front.tokens[rows], written)
            tokens = choose_tokens(wanted.select(rows), logs)
            return tokens, logs.gather(1, tokens)

        state, (tokens, logs) = self.read(front, pick)
        return state, tokens, logs

    def read(self, front: Hypotheses, pick: Pick) -> tuple[BackboneState, tuple[Tensor, ...]]:
        """Read the last tokens; return the state, and what `pick` makes of the log probabilities of `ROWS` texts."""
        states, picked = [], []
        with torch.inference_mode():
            for rows in torch.split(torch.arange(len(front.tokens), device=front.tokens.device), ROWS):
                here = front.select(rows)
                logs, after = self.model.step(here.tokens[:, -1], self.conditioning.select(here.contexts), here.state)
                states.append(after)
                picked.append(pick(rows, logs))
        return states[0].cat(states[1:]), tuple(torch.cat(values) for values in zip(*picked, strict=True))


class _Compiled:
    """A model that chooses next tokens in compiled code, for texts in some contexts."""

    def __init__(self, model: LanguageModel, table: PackedTable, conditioning: Conditioning) -> None:
        self.model, self.table, self.conditioning = model, table, conditioning
        self.output, bias = cast(SoftmaxHead, model.head), cast(ContextBias, conditioning.head)
        self.bias = cast(Tensor, (self.output.fold(bias) if bias.bias is None else bias).bias)
        self.known: dict[int, tuple[Tensor, Conditions]] = {}  # of each block, its contexts and their conditions

    def choose(
        self, front: Hypotheses, wanted: TokenRequest, barred: ForbiddenTokens
    ) -> tuple[BackboneState, Tensor, Tensor]:
        with torch.inference_mode():
            vectors, state = self.read(front)
            values = vectors @ self.output.projection
            return state, *next_tokens(values, self.table, self.bias, front.contexts, barred, wanted)

    def read(self, front: Hypotheses) -> tuple[Tensor, BackboneState]:
        """Return vectors (N, H) and the state after the last tokens."""
        rows = torch.arange(len(front.tokens))
        blocks = [front] if len(rows) <= READ_ROWS else [front.select(part) for part in torch.split(rows, READ_ROWS)]
        with torch.inference_mode():
            parts = [self._of_block(number, block) for number, block in enumerate(blocks)]
            return torch.cat([vectors for vectors, _ in parts]), parts[0][1].cat([after for _, after in parts[1:]])

    def _of_block(self, number: int, block: Hypotheses) -> tuple[Tensor, BackboneState]:
        """Read a block of texts; its conditions are large, and mostly those of the step before."""
        contexts, start = block.contexts, self.conditioning.start
        known = self.known.get(number)
        if known is None or not torch.equal(known[0], contexts):
            known = self.known[number] = contexts, self.conditioning.conditions.select(contexts)
        before = start.select(contexts) if block.state is None else block.state
        inputs = self.model.embedding[block.tokens[:, -1]][:, None]
        vectors, after = self.model.backbone.forward(inputs, known[1], before)
        return vectors[:, 0], after


class Step(NamedTuple):
    """The next tokens of the `texts` (n,) that go on, and their log probabilities."""

    texts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedText:
    """A text: its `tokens` after the prompt, without the end token.

    `log_probability` is that of its `targets`: the tokens, and the end token if it was written. `ended`: the text ended
    by that token or by a stop, not for lack of room or time.
    """

    tokens: tuple[int, ...]
    log_probability: float
    targets: int
    ended: bool


Choice = Callable[[Tensor, int], TokenRequest]  # texts (n,), which step -> the one token that is wanted of each


def greedy(texts: Tensor, step: int) -> TokenRequest:
    """The most probable token of each text: a `Choice`."""
    return TopRequest(1)


def sampled(draw: Sampler, count: int, max_tokens: int, seed: int = 0, first: int = 0) -> Choice:
    """Return a `Choice` that draws the tokens of `count` texts, numbered from `first` on.

    The draws of a text depend on `seed` and its number only, not on the other texts of the batch.
    """
    own = [random_generator(seed, first + text).random(max_tokens) for text in range(count)]
    places = torch.from_numpy(np.stack(own)) if own else torch.zeros(0, max_tokens, dtype=torch.double)
    return lambda texts, step: draw.draws(places.to(texts.device)[texts, step, None])


def random_generator(seed: int, text: int) -> np.random.Generator:
    """The random numbers of one text."""
    return np.random.Generator(np.random.Philox(key=[seed, text]))


def generate_steps(task: WritingTask, choice: Choice) -> Iterator[Step]:
    """Write the texts of `task`, one token of each per step, the end token included; finished texts leave."""
    rules, front = task.rules, task.begin()
    going = torch.arange(len(task.contexts), device=task.contexts.device)
    for step in range(rules.max_tokens):
        if task.is_late or not len(going):
            return
        state, *found = task.choose(front, choice(going, step), step)
        tokens, logs = (one[:, 0] for one in found)
        yield Step(going.cpu().numpy(), tokens.cpu().numpy(), logs.double().cpu().numpy())
        front = front.extend(tokens, state)
        keep = ((tokens != rules.end) & ~rules.ends_with_stop(front.tokens, step + 1)).nonzero()[:, 0]
        if len(keep) < len(going):
            front, going = front.select(keep), going[keep]


def collect_texts(count: int, chosen: Iterator[Step], rules: Constraints) -> list[GeneratedText]:
    """Return the `count` texts that were `chosen` a step at a time."""
    texts: list[list[int]] = [[] for _ in range(count)]
    logs = np.zeros(count)
    for step in chosen:
        logs[step.texts] += step.logs
        for text, token in zip(step.texts.tolist(), step.tokens.tolist(), strict=True):
            texts[text].append(token)
    return [finished_text(text, float(log), rules) for text, log in zip(texts, logs, strict=True)]


def finished_text(tokens: Sequence[int], log_probability: float, rules: Constraints) -> GeneratedText:
    """Return the text of `tokens` after the prompt, of which the last may be the end token."""
    ended = rules.end in tokens[-1:]
    stopped = any(tuple(tokens[-len(stop) :]) == tuple(stop) for stop in rules.stops if stop)
    return GeneratedText(tuple(tokens[: len(tokens) - ended]), log_probability, len(tokens), ended or stopped)
