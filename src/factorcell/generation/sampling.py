"""Texts out of a model, ids only: greedy and drawn, many contexts at once, a token at a time.

Shapes: N texts under way, B contexts, t tokens written, S tokens for each text, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.vocabulary import Specials
from factorcell.generation.choosing import Constraints, Sampler, chosen
from factorcell.model.backbone import Conditions, State
from factorcell.model.kernels.drawing import Barred, Likeliest, PackedTable, Wanted, next_tokens
from factorcell.model.language_model import Conditioned, LanguageModel
from factorcell.model.output import ContextBias, SoftmaxHead

ROWS = 64  # texts whose log probabilities exist at one time, so that they stay in a processor's cache
READ = 128  # texts that are read at one time in compiled code


class Steps(Protocol):
    """What texts are written from: a `LanguageModel`, or whatever else has its `step`."""

    specials: Specials

    def step(self, token: Tensor, conditioned: Conditioned, state: State | None = None) -> tuple[Tensor, State]:
        """`token` (N,) -> log probabilities (N, V) of the next, and the state after it."""
        ...


@dataclass(frozen=True)
class Hypotheses:
    """N texts under way: all `tokens` (N, t) from the start token on, the `state` before the last, and their contexts.

    `contexts` (N,) are rows of a `Conditioned`; without a `state` it is that before the start token.
    """

    tokens: Tensor
    contexts: Tensor
    state: State | None = None

    def select(self, rows: Tensor) -> "Hypotheses":
        """The texts of `rows` (N',), repeated where a row is named twice."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.contexts[rows], state)

    def split(self, size: int) -> list["Hypotheses"]:
        """So many texts at a time."""
        if len(self.tokens) <= size:
            return [self]
        return [self.select(rows) for rows in torch.split(torch.arange(len(self.tokens)), size)]

    def grown(self, tokens: Tensor, state: State, parents: Tensor | None = None) -> "Hypotheses":
        """The texts of `parents` (N',), else all, a token (N',) longer, with the `state` after what was their last."""
        front = Hypotheses(self.tokens, self.contexts, state)
        front = front if parents is None else front.select(parents)
        return Hypotheses(torch.cat([front.tokens, tokens[:, None]], 1), front.contexts, front.state)

    def children(self, tokens: Tensor, kept: Tensor, state: State) -> "Hypotheses":
        """As `grown`, for B groups of as many texts each, whose texts may grow by `tokens` (N, L).

        Of each group the children at the places `kept` (B, K) among all of its own.
        """
        firsts = torch.arange(len(kept), device=kept.device)[:, None] * (len(tokens) // max(1, len(kept)))
        parents = (firsts + kept // tokens.shape[1]).flatten()
        return self.grown(tokens.view(len(kept), -1).gather(1, kept).flatten(), state, parents)


Pick = Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # rows (n,), log probabilities (n, V) -> values (n, ...)


@dataclass(frozen=True)
class WritingTask:
    """What is to be written: by `model` a text for each of `contexts` (N,), rows of `conditioned`, under `rules`.

    All begin with `prompt`. After `seconds` what is written so far will do.
    """

    model: Steps
    conditioned: Conditioned
    contexts: Tensor
    rules: Constraints
    prompt: Sequence[int] = ()
    seconds: float | None = None

    @cached_property
    def _compiled(self) -> "_Compiled | None":
        return _Compiled.of(self.model, self.conditioned)

    def begin(self) -> Hypotheses:
        """The texts with nothing but the prompt."""
        start = self.model.specials.start
        front = Hypotheses(torch.full_like(self.contexts[:, None], start), self.contexts)
        for token in self.prompt:
            front = front.grown(torch.full_like(self.contexts, token), self._after(front))
        return front

    def _after(self, front: Hypotheses) -> State:
        """The state after the last tokens."""
        if self._compiled is not None:
            return self._compiled.read(front)[1]
        return self.look(front, lambda _rows, logs: (logs[:, 0],))[0]

    def choose(self, front: Hypotheses, wanted: Wanted, written: int) -> tuple[State, Tensor, Tensor]:
        """Read the last tokens: the state after, the tokens that are `wanted` next, their log probabilities (N, S).

        Texts have `written` so many tokens that are no prompt.
        """
        if self._compiled is not None:
            return self._compiled.choose(front, wanted, self.rules.barred(front.tokens, written))

        def pick(rows: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
            self.rules.forbid(logs, front.tokens[rows], written)
            tokens = chosen(wanted.select(rows), logs)
            return tokens, logs.gather(1, tokens)

        state, (tokens, logs) = self.look(front, pick)
        return state, tokens, logs

    def look(self, front: Hypotheses, pick: Pick) -> tuple[State, tuple[Tensor, ...]]:
        """Read the last tokens: the state after, and what `pick` makes of log probabilities, `ROWS` texts at a time."""
        states, picked = [], []
        with torch.inference_mode():
            for rows in torch.split(torch.arange(len(front.tokens), device=front.tokens.device), ROWS):
                here = front.select(rows)
                logs, after = self.model.step(here.tokens[:, -1], self.conditioned.select(here.contexts), here.state)
                states.append(after)
                picked.append(pick(rows, logs))
        return states[0].cat(states[1:]), tuple(torch.cat(values) for values in zip(*picked, strict=True))


class _Compiled:
    """A model that chooses next tokens in compiled code, for texts in some contexts."""

    def __init__(self, model: LanguageModel, table: PackedTable, conditioned: Conditioned) -> None:
        self.model, self.table, self.conditioned = model, table, conditioned
        self.output, bias = cast(SoftmaxHead, model.head), cast(ContextBias, conditioned.head)
        self.bias = cast(Tensor, (self.output.fold(bias) if bias.bias is None else bias).bias)
        self.known: dict[int, tuple[Tensor, Conditions]] = {}  # of each block, its contexts and their conditions

    @classmethod
    def of(cls, model: Steps, conditioned: Conditioned) -> "_Compiled | None":
        """None where there is no such code for `model`."""
        if not isinstance(model, LanguageModel) or (table := model.head.pack()) is None:
            return None
        return cls(model, table, conditioned)

    def choose(self, front: Hypotheses, wanted: Wanted, barred: Barred) -> tuple[State, Tensor, Tensor]:
        """See `WritingTask`."""
        with torch.inference_mode():
            vectors, state = self.read(front)
            values = vectors @ self.output.projection
            return state, *next_tokens(values, self.table, self.bias, front.contexts, barred, wanted)

    def read(self, front: Hypotheses) -> tuple[Tensor, State]:
        """Vectors (N, H) and the state after the last tokens."""
        with torch.inference_mode():
            parts = [self._of_block(number, block) for number, block in enumerate(front.split(READ))]
            return torch.cat([vectors for vectors, _ in parts]), parts[0][1].cat([after for _, after in parts[1:]])

    def _of_block(self, number: int, block: Hypotheses) -> tuple[Tensor, State]:
        """The same of a block of texts, whose conditions are large, and mostly those of the step before."""
        contexts, start = block.contexts, self.conditioned.start
        known = self.known.get(number)
        if known is None or not torch.equal(known[0], contexts):
            known = self.known[number] = contexts, self.conditioned.conditions.select(contexts)
        before = start.select(contexts) if block.state is None else block.state
        return self.model.advance(block.tokens[:, -1], known[1], before)


@dataclass(frozen=True)
class Step:
    """A step of a decoder: for each of the `texts` (n,) that go on, its next token and the log probability of that."""

    texts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedText:
    """A text: its `tokens` after the prompt, without the end token.

    `log_probability` is of its `targets`: the tokens, and the end token where there was one. `ended`: by that or by a
    stop, not for want of room or time.
    """

    tokens: tuple[int, ...]
    log_probability: float
    targets: int
    ended: bool


class Clock:
    """Whether `seconds` are over; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """The seconds that are left."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def late(self) -> bool:
        """Whether no further step is to be begun."""
        return self.end is not None and time.monotonic() >= self.end


Choice = Callable[[Tensor, int], Wanted]  # texts (n,), which step -> the one token that is wanted of each


def greedy(texts: Tensor, step: int) -> Wanted:
    """The most probable token of each text: a `Choice`."""
    return Likeliest(1)


def drawing(draw: Sampler, count: int, max_tokens: int, seed: int = 0, first: int = 0) -> Choice:
    """A `Choice` that draws the tokens of `count` texts, numbered from `first` on.

    What a text draws follows from `seed` and its own number, not from the texts beside it.
    """
    own = [generator(seed, first + text).random(max_tokens) for text in range(count)]
    places = torch.from_numpy(np.stack(own)) if own else torch.zeros(0, max_tokens, dtype=torch.double)
    return lambda texts, step: draw.at(places.to(texts.device)[texts, step, None])


def generator(seed: int, text: int) -> np.random.Generator:
    """The random numbers of one text."""
    return np.random.Generator(np.random.Philox(key=[seed, text]))


def steps(task: WritingTask, choice: Choice) -> Iterator[Step]:
    """Write the texts of `task`, a token of all that go on at a time.

    The end token is chosen as any other; whoever is done is not in the next step.
    """
    rules, clock, front = task.rules, Clock(task.seconds), task.begin()
    going = torch.arange(len(task.contexts), device=task.contexts.device)
    for step in range(rules.max_tokens):
        if clock.late() or not len(going):
            return
        state, *found = task.choose(front, choice(going, step), step)
        tokens, logs = (one[:, 0] for one in found)
        yield Step(going.cpu().numpy(), tokens.cpu().numpy(), logs.double().cpu().numpy())
        front = front.grown(tokens, state)
        keep = ((tokens != rules.end) & ~rules.stopped(front.tokens, step + 1)).nonzero()[:, 0]
        if len(keep) < len(going):
            front, going = front.select(keep), going[keep]


def write(count: int, chosen: Iterator[Step], rules: Constraints) -> list[GeneratedText]:
    """The `count` texts that were `chosen` a step at a time."""
    texts: list[list[int]] = [[] for _ in range(count)]
    logs = np.zeros(count)
    for step in chosen:
        logs[step.texts] += step.logs
        for text, token in zip(step.texts.tolist(), step.tokens.tolist(), strict=True):
            texts[text].append(token)
    return [written(text, float(log), rules) for text, log in zip(texts, logs, strict=True)]


def written(tokens: Sequence[int], log_probability: float, rules: Constraints) -> GeneratedText:
    """A text of `tokens` after the prompt, of which the last may be the end token."""
    ended = rules.end in tokens[-1:]
    stopped = any(tuple(tokens[-len(stop) :]) == tuple(stop) for stop in rules.stops if stop)
    return GeneratedText(tuple(tokens[: len(tokens) - ended]), log_probability, len(tokens), ended or stopped)
