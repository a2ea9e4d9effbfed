"""The most probable ways to finish a text that somebody is typing.

    log p(y, end | typed, context) = sum_t log p(y_t | typed, y_<t, context) + log p(end | typed, y, context)

No term is above zero, so a hypothesis bounds all that grows out of it. `search` finds the k most probable completions
exactly: it expands the best hypotheses, a batch at a time, and drops those that are no better than the k-th finished
one, until none is left. `beam` is the search of the thesis (section 5.4.1) as published, the reference.

Shapes: B hypotheses, N of them waiting, V vocabulary, H hidden.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.context import Context
from factorcell.model.backbone import Reserve, State
from factorcell.model.language_model import Conditioned, LanguageModel

Ids = tuple[int, ...]  # tokens of a completion: after what is typed, before the end token
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
T = TypeVar("T")  # what is typed, as a search keeps it

WIDTH, BRANCHING = 100, 4  # of the published beam
BATCH = 12  # hypotheses expanded at once, at first: few compute no row in vain, many make few steps
GROWTH = 4  # a batch grows by one for so many rows, so that a long search has large ones and wastes a share at most
ROWS = 10_000  # hypotheses that one search expands at most
WAITING = 10_000  # hypotheses that wait at most


@dataclass(frozen=True)
class Suggestion:
    """A whole text that is proposed, how probable its `source` takes it to be given what is typed, and that source.

    `slips`: the typing errors that it takes for granted; without any it begins with what is typed. `parts`: what each
    source of a blend adds to the score, whose `source` are those that propose the text, such as `model+history`.
    """

    text: str
    log_probability: float
    source: str
    slips: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """What may follow what is typed: `ids` of it, and its log probability, that of the end token included."""

    ids: Ids
    log_probability: float


@dataclass(frozen=True)
class SearchResult:
    """The `completions` found, the best first, and the `rows` computed for it: hypotheses put through the model.

    `cut`: time or room ran out before it was certain that there are no better ones.
    """

    completions: tuple[Completion, ...]
    rows: int
    cut: bool


class Stop:
    """Ends searches before their time, as if it were up. Any thread may set it, once and for all."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []

    def set(self) -> None:
        """End what it was given to."""
        with self._lock:
            self.is_set = True
            for call in self._calls:
                call()

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Within it, `call` is called when this is set, at once if it is set already."""
        with self._lock:
            self._calls.append(call)
            if self.is_set:
                call()
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)


@dataclass(frozen=True)
class SearchRequest(Generic[T]):
    """What a search is asked for: of what is `typed` the `k` best completions of at most `most` tokens.

    Only those that `accept` takes, and whose log probability is above `least`. `stop` may end it early. Completions
    with the same `form` are one, of which the most probable is returned.
    """

    typed: T
    k: int
    most: int
    accept: Callable[[Ids], bool] = lambda ids: True
    least: float = -math.inf
    stop: Stop | None = None
    form: Callable[[Ids], Hashable] = lambda ids: ids


@dataclass(frozen=True)
class PrefixState:
    """What is typed so far, and what the model holds after the start token and each token: a value.

    `conditioned` is that of one context, folded; `logs` holds log probabilities (1, V) of the next token.
    """

    conditioned: Conditioned
    ids: Ids
    states: tuple[State, ...]
    logs: tuple[Tensor, ...]

    @classmethod
    def begin(cls, model: LanguageModel, conditioned: Conditioned) -> "PrefixState":
        """Nothing typed yet, in one context."""
        shared = model.fold(conditioned, shared=True)
        logs, states = model.step(_tokens(model, [model.specials.start]), shared)
        return cls(shared, (), (states,), (logs,))

    def to(self, model: LanguageModel, ids: Sequence[int]) -> "PrefixState":
        """The same with `ids` typed instead: a step for every token after the first that differs."""
        kept = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self.ids, ids, strict=False))))
        states, logs = list(self.states[: kept + 1]), list(self.logs[: kept + 1])
        for token in ids[kept:]:
            log, state = model.step(_tokens(model, [token]), self.conditioned, states[-1])
            states.append(state)
            logs.append(log)
        return PrefixState(self.conditioned, tuple(ids), tuple(states), tuple(logs))


class Engine(Protocol[T]):
    """What types and searches with a model; `T` is what it keeps of what is typed, which nobody else looks into."""

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> T:
        """Nothing typed yet, in one context; `override` as `LanguageModel.condition`."""
        ...

    def type(self, typed: T, ids: Sequence[int]) -> T:
        """The same person with `ids` typed instead: what both share is not read again. `typed` stays as it is."""
        ...

    def search(self, wanted: Sequence[SearchRequest[T]], seconds: float | None, threads: int) -> list[SearchResult]:
        """The completions of each request, within `seconds` for each if any, each done by one of `threads`."""
        ...


class PlainEngine:
    """The `Engine` of any model, in PyTorch."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Nothing typed yet, in one context; `override` as `LanguageModel.condition`."""
        return PrefixState.begin(self.model, self.model.condition(context, override))

    def type(self, typed: PrefixState, ids: Sequence[int]) -> PrefixState:
        """The same with `ids` typed instead."""
        return typed.to(self.model, ids)

    def search(
        self, wanted: Sequence[SearchRequest[PrefixState]], seconds: float | None, threads: int
    ) -> list[SearchResult]:
        """The completions of each; one after the other, whatever the `threads`."""
        return [search(self.model, one, seconds=seconds) for one in wanted]


def beam(
    model: LanguageModel, typed: PrefixState, k: int = 10, *, most: int, width: int = WIDTH, branching: int = BRANCHING
) -> SearchResult:
    """The `k` best of a beam search, completions of at most `most` tokens.

    Each step follows the `branching` most probable tokens of every hypothesis and keeps the `width` best texts,
    finished ones among them.
    """
    finished: list[Completion] = []
    end = model.specials.end
    waiting = [Completion((), 0.0)]
    logs, states, rows = typed.logs[-1], typed.states[-1], 0
    for length in range(most + 1):
        grown = []
        values, tokens = _without(model.specials.unknown, logs).topk(min(branching, logs.shape[1]))
        for row, hypothesis in enumerate(waiting):
            for value, token in zip(values[row].tolist(), tokens[row].tolist(), strict=True):
                grown.append((hypothesis.log_probability + value, hypothesis.ids, token, row))
        finished += [Completion(ids, score) for score, ids, token, _ in grown if token == end]
        going = [new for new in grown if new[2] != end and new[0] > -math.inf] if length < most else []
        kept = heapq.nlargest(width, [one.log_probability for one in finished] + [score for score, *_ in going])
        finished = [one for one in finished if one.log_probability >= kept[-1]]
        going = [new for new in going if new[0] >= kept[-1]]
        if not going:
            break
        waiting = [Completion((*ids, token), score) for score, ids, token, _ in going]
        parents = _tokens(model, [row for *_, row in going])
        before = states.select(parents)
        logs, states = model.step(_tokens(model, [one.ids[-1] for one in waiting]), typed.conditioned, before)
        rows += len(waiting)
    best = sorted(finished, key=lambda one: (-one.log_probability, one.ids))
    return SearchResult(tuple(best[:k]), rows, cut=False)


def search(
    model: LanguageModel,
    wanted: SearchRequest[PrefixState],
    *,
    batch: int = BATCH,
    rows: int = ROWS,
    waiting: int = WAITING,
    seconds: float | None = None,
) -> SearchResult:
    """The completions that are `wanted`; never a worse k-th.

    It is exact unless `cut`: after `seconds` or when it is stopped, after `rows` of the model, or where more than
    `waiting` hypotheses would have had to wait, it returns the best so far, unless what is left could not have been
    better.
    """
    stop = math.inf if seconds is None else time.monotonic() + seconds
    frontier = _Frontier(model, wanted, rows, waiting)
    while frontier.scores.size:
        room = min(batch + frontier.expanded // GROWTH, rows - frontier.expanded)
        if room <= 0 or time.monotonic() >= stop or (wanted.stop is not None and wanted.stop.is_set):
            frontier.give_up()
            break
        scores, parents, tokens = frontier.take(room)
        before = frontier.state_of(torch.from_numpy(parents).to(model.device))
        logs, state = model.step(_tokens(model, tokens.tolist()), wanted.typed.conditioned, before)
        frontier.add(scores, parents, tokens, logs, state)
    return frontier.found()


class _Frontier:
    """The hypotheses that wait, the best k that have ended, and what was computed of those expanded.

    Number 0 of the expanded is what is typed; of each there are its parent's number, its token and the states after
    it. One that waits is a parent and a token, as one number: parent V + token.
    """

    def __init__(self, model: LanguageModel, wanted: SearchRequest[PrefixState], rows: int, waiting: int) -> None:
        self.wanted, self.waiting, typed = wanted, waiting, wanted.typed
        self.size, self.count, self.specials = model.vocabulary_size, 0, model.specials
        self.parents, self.tokens, self.depths = (np.zeros(rows + 1, dtype=np.int64) for _ in range(3))
        self.depths[0] = -1  # what is typed becomes 0, as a child of itself
        self.states: Reserve = typed.states[-1].reserve(rows + 1)
        self.scores, self.codes = np.zeros(0), np.zeros(0, dtype=np.int64)
        self.ended: list[tuple[float, Ids]] = []  # a heap: the worst first
        self.forms: dict[Hashable, tuple[float, Ids]] = {}  # those of `ended`, by their form
        self.lost = -math.inf  # the best hypothesis that was dropped for want of time or room
        zero = np.zeros(1, dtype=np.int64)
        self.add(np.zeros(1), zero, zero + model.specials.start, typed.logs[-1], typed.states[-1])

    @property
    def expanded(self) -> int:
        """Rows of the model: what is typed was computed before."""
        return self.count - 1

    @property
    def least(self) -> float:
        """What a hypothesis must exceed: the k-th best score of those that have ended, or what was asked for."""
        return self.ended[0][0] if len(self.ended) == self.wanted.k else self.wanted.least

    def take(self, most: int) -> tuple[Floats, Whole, Whole]:
        """Scores, parents and tokens of the best `most` that wait; they wait no longer."""
        chosen = _largest(self.scores, most)
        scores, codes = self.scores[chosen], self.codes[chosen]
        self._keep(np.delete(np.arange(len(self.scores)), chosen))
        return scores, codes // self.size, codes % self.size

    def state_of(self, numbers: Tensor) -> State:
        """The state after the expanded hypotheses `numbers` (B,)."""
        state: State = self.states.select(numbers)
        return state

    def add(self, scores: Floats, parents: Whole, tokens: Whole, logs: Tensor, state: State) -> None:
        """Take in hypotheses (B,) that were expanded, with `logs` (B, V) and the `state` after them."""
        numbers = np.arange(self.count, self.count + len(scores))
        self.count += len(scores)
        self.parents[numbers], self.tokens[numbers], self.depths[numbers] = parents, tokens, self.depths[parents] + 1
        self.states.put(int(numbers[0]), state)
        totals = _without(self.specials.unknown, logs).cpu().double().numpy() + scores[:, None]
        for number, score in zip(numbers.tolist(), totals[:, self.specials.end].tolist(), strict=True):
            self._end(number, score)
        totals[:, self.specials.end] = -math.inf
        totals[self.depths[numbers] >= self.wanted.most] = -math.inf
        row, token = np.nonzero(totals > self.least)
        self.scores = np.concatenate([self.scores, totals[row, token]])
        self.codes = np.concatenate([self.codes, numbers[row] * self.size + token])
        self._prune()

    def give_up(self) -> None:
        """Drop all that wait."""
        self.lost = max(self.lost, float(self.scores.max()))
        self._keep(np.zeros(0, dtype=np.int64))

    def found(self) -> SearchResult:
        """What the search has come to."""
        best = sorted(self.ended, key=lambda one: (-one[0], one[1]))
        return SearchResult(tuple(Completion(ids, score) for score, ids in best), self.expanded, self.lost > self.least)

    def _end(self, number: int, score: float) -> None:
        """Note that an expanded hypothesis may end, if that is among the best k so far."""
        if score <= self.least or not self.wanted.accept(ids := self._ids(number)):
            return
        form = self.wanted.form(ids)
        if twin := self.forms.get(form):
            if (-score, ids) > (-twin[0], twin[1]):
                return
            self.ended.remove(twin)
            heapq.heapify(self.ended)
        elif len(self.ended) == self.wanted.k:
            del self.forms[self.wanted.form(heapq.heappop(self.ended)[1])]
        self.forms[form] = score, ids
        heapq.heappush(self.ended, (score, ids))

    def _ids(self, number: int) -> Ids:
        ids = []
        while number:
            ids.append(int(self.tokens[number]))
            number = int(self.parents[number])
        return tuple(reversed(ids))

    def _prune(self) -> None:
        """Drop what can no longer be among the best, and what there is no room for."""
        self._keep(np.flatnonzero(self.scores > self.least))
        if len(self.scores) > self.waiting:
            kept = _largest(self.scores, self.waiting)
            self.lost = max(self.lost, float(np.delete(self.scores, kept).max()))
            self._keep(kept)

    def _keep(self, which: Whole) -> None:
        self.scores, self.codes = self.scores[which], self.codes[which]


def _largest(scores: Floats, most: int) -> Whole:
    """Places of the `most` largest, in no order."""
    if len(scores) <= most:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - most)[len(scores) - most :]


def _without(unknown: int, logs: Tensor) -> Tensor:
    """Log probabilities (B, V) with nothing for the `unknown` token, which no text holds."""
    never = torch.zeros_like(logs[0])
    never[unknown] = -math.inf
    return logs + never


def _tokens(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids).to(model.device)
