"""The most probable ways to finish a text that a user is typing.

    log p(y, end | typed, context) = sum_t log p(y_t | typed, y_<t, context) + log p(end | typed, y, context)

No term is above zero, so the score of a hypothesis bounds the scores of all that grow out of it. `PlainEngine.search`
finds the k most probable completions exactly: it expands the best hypotheses, a batch at a time, and drops those that
are no better than the k-th finished one, until none is left.

Shapes: B hypotheses, N of them waiting, V vocabulary, H hidden.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.context import Context
from factorcell.limits import NUMBER_LIMITS
from factorcell.model.backbone import BackboneState, StateBuffer
from factorcell.model.language_model import Conditioning, LanguageModel

Ids = tuple[int, ...]  # tokens of a completion: after what is typed, before the end token
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

BATCH = 12  # hypotheses expanded at once, at first: a small batch expands few in vain, a large one takes fewer steps
GROWTH = 4  # a batch grows by one for so many rows, so that a long search has large ones and wastes a share at most
MAX_ROWS = 10_000  # hypotheses that one search expands at most
MAX_WAITING = 10_000  # hypotheses that wait at most
MIN_PROPOSALS = 10  # texts that a source proposes at least: as many as when the weights of a blend are fitted
MAX_COUNT = int(NUMBER_LIMITS["count"].high)


@dataclass(frozen=True)
class Suggestion:
    """A whole text, its log probability by its `source` given what is typed, and that source.

    `typos` counts the typing errors that it assumes; without any it begins with what is typed. `parts` holds what each
    source of a blend adds to the score; `source` then names all that propose the text, such as `model+history`.
    """

    text: str
    log_probability: float
    source: str
    typos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


def round_sizes(k: int) -> list[int]:
    """Return the sizes of the rounds for `k` texts: 10, 20, 40, up to the first that is not below `k`."""
    rounds = [MIN_PROPOSALS]
    while rounds[-1] < k:
        rounds.append(min(2 * rounds[-1], MAX_COUNT))
    return rounds


def merge_rounds(best: Callable[[int], Iterable[Suggestion]], k: int) -> list[Suggestion]:
    """Return the first `k` texts of all rounds, so that a longer list begins with the shorter one.

    The texts that a source proposes affect the probabilities of all others. So each round, which is `best(size)`, only
    appends what is new in it, with no higher probability than a text before it.
    """
    kept: dict[str, Suggestion] = {}
    for size in round_sizes(k):
        least = min((one.log_probability for one in kept.values()), default=0.0)
        for one in best(size):
            kept.setdefault(one.text, replace(one, log_probability=min(one.log_probability, least)))
    return list(kept.values())[:k]


@dataclass(frozen=True)
class Completion:
    """Tokens that may follow what is typed, and their log probability, that of the end token included."""

    ids: Ids
    log_probability: float


@dataclass(frozen=True)
class SearchResult:
    """The best `completions` first, and the `rows` computed for them: hypotheses put through the model.

    `cut`: time or room ran out before it was certain that there are no better ones.
    """

    completions: tuple[Completion, ...]
    rows: int
    cut: bool


class Stop:
    """Ends searches before their time. Any thread may set it, once."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []

    def set(self) -> None:
        """End the searches that have it."""
        with self._lock:
            self.is_set = True
            for call in self._calls:
                call()

    @contextmanager
    def callback(self, call: Callable[[], object]) -> Iterator[None]:
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
class SearchRequest:
    """Request the `k` best completions of at most `most` tokens of what is `typed` (the state of an engine).

    Only those that `accept` takes, and whose log probability is above `least`. `stop` may end the search early. Of
    completions with the same `form` only the most probable is returned.
    """

    prefix_state: Any
    k: int
    max_tokens: int
    accept: Callable[[Ids], bool] = lambda ids: True
    min_log_prob: float = -math.inf
    stop: Stop | None = None
    duplicate_key: Callable[[Ids], Hashable] = lambda ids: ids


@dataclass(frozen=True)
class PrefixState:
    """What is typed, and what the model holds after the start token and each token; log probabilities are (1, V)."""

    conditioning: Conditioning  # of one context, folded
    ids: Ids
    states: tuple[BackboneState, ...]
    logs: tuple[Tensor, ...]


def common_prefix_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


class PlainEngine:
    """Types and searches with any model, in PyTorch."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Return the state before anything is typed, in one context; `override` as in `LanguageModel.condition`."""
        conditioning = self.model.fold(self.model.condition(context, override), shared=True)
        logs, state = self.model.step(_tokens(self.model, [self.model.specials.start]), conditioning)
        return PrefixState(conditioning, (), (state,), (logs,))

    def type(self, typed: PrefixState, ids: Sequence[int]) -> PrefixState:
        """Return the state for `ids`, reusing the common prefix and running the model on the rest."""
        kept = common_prefix_length(typed.ids, ids)
        states, logs = list(typed.states[: kept + 1]), list(typed.logs[: kept + 1])
        for token in ids[kept:]:
            log, state = self.model.step(_tokens(self.model, [token]), typed.conditioning, states[-1])
            states.append(state)
            logs.append(log)
        return PrefixState(typed.conditioning, tuple(ids), tuple(states), tuple(logs))

    def search(
        self,
        requests: Sequence[SearchRequest],
        deadline: float | None = None,
        threads: int = 1,
        *,
        batch: int = BATCH,
        max_rows: int = MAX_ROWS,
        max_waiting: int = MAX_WAITING,
    ) -> list[SearchResult]:
        """Return the completions of each request, one request after the other, whatever the `threads`.

        A result is exact unless it is `cut`: at the `deadline` (`time.monotonic()`) or when it is stopped, after `rows`
        of the model, or where more than `waiting` hypotheses would have had to wait, it has the best so far.
        """
        return [self._search(one, deadline, batch, max_rows, max_waiting) for one in requests]

    def _search(
        self, request: SearchRequest, deadline: float | None, batch: int, rows: int, waiting: int
    ) -> SearchResult:
        end = math.inf if deadline is None else deadline
        frontier = _Frontier(self.model, request, rows, waiting)
        while frontier.scores.size:
            room = min(batch + frontier.expanded // GROWTH, rows - frontier.expanded)
            if room <= 0 or time.monotonic() >= end or (request.stop is not None and request.stop.is_set):
                frontier.give_up()
                break
            scores, parents, tokens = frontier.take(room)
            before = frontier.states.select(torch.from_numpy(parents).to(self.model.device))
            logs, state = self.model.step(
                _tokens(self.model, tokens.tolist()), request.prefix_state.conditioning, before
            )
            frontier.add(scores, parents, tokens, logs, state)
        return frontier.result()


class _Frontier:
    """The hypotheses that wait, the best k that have ended, and what was computed of those expanded.

    Number 0 of the expanded is what is typed; of each there are its parent's number, its token and the states after
    it. One that waits is a parent and a token, as one number: parent V + token.
    """

    def __init__(self, model: LanguageModel, request: SearchRequest, rows: int, waiting: int) -> None:
        self.request, self.waiting, typed = request, waiting, request.prefix_state
        self.size, self.count, self.specials = model.vocabulary_size, 0, model.specials
        self.parents, self.tokens, self.depths = (np.zeros(rows + 1, dtype=np.int64) for _ in range(3))
        self.depths[0] = -1  # what is typed becomes 0, as a child of itself
        self.states: StateBuffer = typed.states[-1].reserve(rows + 1)
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
        """The score that a hypothesis must exceed: the k-th best of those that have ended, or the requested one."""
        return self.ended[0][0] if len(self.ended) == self.request.k else self.request.min_log_prob

    def take(self, most: int) -> tuple[Floats, Whole, Whole]:
        """Remove the best `most` that wait, and return their scores, parents and tokens."""
        chosen = _largest(self.scores, most)
        scores, codes = self.scores[chosen], self.codes[chosen]
        self._keep(np.delete(np.arange(len(self.scores)), chosen))
        return scores, codes // self.size, codes % self.size

    def add(self, scores: Floats, parents: Whole, tokens: Whole, logs: Tensor, state: BackboneState) -> None:
        """Add hypotheses (B,) that were expanded, with `logs` (B, V) and the `state` after them."""
        numbers = np.arange(self.count, self.count + len(scores))
        self.count += len(scores)
        self.parents[numbers], self.tokens[numbers], self.depths[numbers] = parents, tokens, self.depths[parents] + 1
        self.states.put(int(numbers[0]), state)
        totals = logs.cpu().double().numpy() + scores[:, None]
        totals[:, self.specials.unknown] = -math.inf
        for number, score in zip(numbers.tolist(), totals[:, self.specials.end].tolist(), strict=True):
            self._end(number, score)
        totals[:, self.specials.end] = -math.inf
        totals[self.depths[numbers] >= self.request.max_tokens] = -math.inf
        row, token = np.nonzero(totals > self.least)
        self.scores = np.concatenate([self.scores, totals[row, token]])
        self.codes = np.concatenate([self.codes, numbers[row] * self.size + token])
        self._keep(np.flatnonzero(self.scores > self.least))
        if len(self.scores) > self.waiting:
            kept = _largest(self.scores, self.waiting)
            self.lost = max(self.lost, float(np.delete(self.scores, kept).max()))
            self._keep(kept)

    def give_up(self) -> None:
        """Drop all that wait."""
        self.lost = max(self.lost, float(self.scores.max()))
        self._keep(np.zeros(0, dtype=np.int64))

    def result(self) -> SearchResult:
        best = sorted(self.ended, key=lambda one: (-one[0], one[1]))
        return SearchResult(tuple(Completion(ids, score) for score, ids in best), self.expanded, self.lost > self.least)

    def _end(self, number: int, score: float) -> None:
        """Note that an expanded hypothesis may end, if that is among the best k so far."""
        if score <= self.least or not self.request.accept(ids := self._ids(number)):
            return
        form = self.request.duplicate_key(ids)
        if twin := self.forms.get(form):
            if (-score, ids) > (-twin[0], twin[1]):
                return
            self.ended.remove(twin)
            heapq.heapify(self.ended)
        elif len(self.ended) == self.request.k:
            del self.forms[self.request.duplicate_key(heapq.heappop(self.ended)[1])]
        self.forms[form] = score, ids
        heapq.heappush(self.ended, (score, ids))

    def _ids(self, number: int) -> Ids:
        ids = []
        while number:
            ids.append(int(self.tokens[number]))
            number = int(self.parents[number])
        return tuple(reversed(ids))

    def _keep(self, which: Whole) -> None:
        self.scores, self.codes = self.scores[which], self.codes[which]


def _largest(scores: Floats, most: int) -> Whole:
    """Places of the `most` largest, in no order."""
    if len(scores) <= most:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - most)[len(scores) - most :]


def _tokens(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids).to(model.device)
