"""Search for the most probable completions of a typed prefix.

    log p(y, end | prefix, context) = sum_t log p(y_t | prefix, y_<t, context) + log p(end | prefix, y, context)

No term is positive, so the score of a hypothesis is an upper bound of the scores of all its extensions.
`PlainEngine.search` finds the k most probable completions exactly: it expands the best hypotheses in batches and drops
those that do not exceed the k-th finished one, until none is left.

Shapes: B expanded hypotheses, N waiting hypotheses, V vocabulary, H hidden.
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

Ids = tuple[int, ...]  # tokens of a completion, without the prefix and the end token
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH = 12  # initial batch size: small batches expand few hypotheses in vain, large batches need fewer steps
GROWTH = 4  # the batch grows by one per this many expanded rows, which bounds the wasted share of a long search
MAX_ROWS = 10_000  # hypotheses that one search expands
MAX_WAITING = 10_000  # hypotheses that wait to be expanded
MIN_PROPOSALS = 10  # minimum proposals of each source; the weights of a blend are fitted to lists of this length
MAX_COUNT = int(NUMBER_LIMITS["count"].high)


@dataclass(frozen=True)
class Suggestion:
    """A suggested text.

    Attributes:
        text: The whole text, including the prefix.
        log_probability: Its log probability given the prefix, according to `source`.
        source: The source that proposes it, or several, such as `model+history`.
        typos: Typing errors that it assumes; without typos it begins with the prefix.
        parts: What each source of a blend adds to the score.
    """

    text: str
    log_probability: float
    source: str
    typos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


def round_sizes(k: int) -> list[int]:
    """Return the sizes of the rounds for `k` texts: 10, 20, 40, up to the first size of at least `k`."""
    rounds = [MIN_PROPOSALS]
    while rounds[-1] < k:
        rounds.append(min(2 * rounds[-1], MAX_COUNT))
    return rounds


def merge_rounds(best: Callable[[int], Iterable[Suggestion]], k: int) -> list[Suggestion]:
    """Return the first `k` texts of all rounds, so that a longer list begins with the shorter one.

    The number of texts that a source proposes affects all probabilities. Therefore each round, `best(size)`,
    only appends texts that earlier rounds do not have, with probabilities no higher than theirs.
    """
    merged: dict[str, Suggestion] = {}
    for size in round_sizes(k):
        bound = min((suggestion.log_probability for suggestion in merged.values()), default=0.0)
        for suggestion in best(size):
            capped = replace(suggestion, log_probability=min(suggestion.log_probability, bound))
            merged.setdefault(suggestion.text, capped)
    return list(merged.values())[:k]


@dataclass(frozen=True)
class Completion:
    """The tokens after a prefix, and their log probability, including the end token."""

    ids: Ids
    log_probability: float


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        completions: The most probable first.
        rows: Hypotheses that the model has read.
        cut: Whether the search ended at a limit of time or of hypotheses while better completions were possible.
    """

    completions: tuple[Completion, ...]
    rows: int
    cut: bool


class Stop:
    """A flag that ends searches early; any thread may set it once."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def set(self) -> None:
        """End the searches that were started with this flag."""
        with self._lock:
            self.is_set = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def callback(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` when the flag is set within the block, or immediately if it is set already."""
        with self._lock:
            self._callbacks.append(callback)
            if self.is_set:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


@dataclass(frozen=True)
class SearchRequest:
    """A request for the best completions of a prefix.

    Attributes:
        prefix_state: The prefix, as the state of an engine.
        k: Number of completions.
        max_tokens: Maximum number of tokens after the prefix.
        accept: Returns whether a completion may be returned.
        min_log_prob: Only completions above this log probability are returned.
        stop: Ends the search early.
        duplicate_key: Only the most probable completion of each key is returned.
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
    """A prefix as the plain search reads it.

    Attributes:
        conditioning: The folded conditioning of one context.
        ids: The tokens of the prefix.
        states: The states of the model after the start token and after each token.
        logs: The log probabilities (1, V) of the next token after each of these states.
    """

    conditioning: Conditioning
    ids: Ids
    states: tuple[BackboneState, ...]
    logs: tuple[Tensor, ...]


def common_prefix_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens with which both sequences begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


class PlainEngine:
    """Typing and search with any model, in PyTorch."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Return the state of the empty prefix in one context.

        Args:
            context: The context.
            override: Vectors that replace those of context variables, as in `LanguageModel.condition`.
        """
        conditioning = self.model.fold(self.model.condition(context, override), shared=True)
        logs, state = self.model.step(_to_tensor(self.model, [self.model.specials.start]), conditioning)
        return PrefixState(conditioning, (), (state,), (logs,))

    def type(self, prefix_state: PrefixState, ids: Sequence[int]) -> PrefixState:
        """Return the state for `ids`, reusing the common prefix and running the model on the rest."""
        common = common_prefix_length(prefix_state.ids, ids)
        states, logs = list(prefix_state.states[: common + 1]), list(prefix_state.logs[: common + 1])
        for token in ids[common:]:
            log, state = self.model.step(_to_tensor(self.model, [token]), prefix_state.conditioning, states[-1])
            states.append(state)
            logs.append(log)
        return PrefixState(prefix_state.conditioning, tuple(ids), tuple(states), tuple(logs))

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
        """Return the completions of each request; the requests are answered one after the other.

        A result is exact unless it is `cut`. A result that is cut has the best completions so far.

        Args:
            requests: The requests.
            deadline: When to end, as a `time.monotonic()`.
            threads: Ignored.
            batch: Hypotheses that are expanded at once, initially.
            max_rows: Maximum number of expanded hypotheses per request.
            max_waiting: Maximum number of waiting hypotheses per request.
        """
        return [self._search(request, deadline, batch, max_rows, max_waiting) for request in requests]

    def _search(
        self, request: SearchRequest, deadline: float | None, batch: int, max_rows: int, max_waiting: int
    ) -> SearchResult:
        end = math.inf if deadline is None else deadline
        frontier = _Frontier(self.model, request, max_rows, max_waiting)
        while frontier.scores.size:
            size = min(batch + frontier.expanded // GROWTH, max_rows - frontier.expanded)
            if size <= 0 or time.monotonic() >= end or (request.stop is not None and request.stop.is_set):
                frontier.give_up()
                break
            scores, parents, tokens = frontier.take(size)
            before = frontier.states.select(torch.from_numpy(parents).to(self.model.device))
            logs, state = self.model.step(
                _to_tensor(self.model, tokens.tolist()), request.prefix_state.conditioning, before
            )
            frontier.add(scores, parents, tokens, logs, state)
        return frontier.result()


class _Frontier:
    """The waiting hypotheses, the best k finished ones, and the expanded ones with their states.

    Expanded hypotheses are numbered from 0, the prefix; each has the number of its parent, its token and its depth. A
    waiting hypothesis is a parent and a token, encoded as parent * V + token.
    """

    def __init__(self, model: LanguageModel, request: SearchRequest, max_rows: int, max_waiting: int) -> None:
        self.request, self.max_waiting, prefix_state = request, max_waiting, request.prefix_state
        self.size, self.count, self.specials = model.vocabulary_size, 0, model.specials
        self.parents, self.tokens, self.depths = (np.zeros(max_rows + 1, dtype=np.int64) for _ in range(3))
        self.depths[0] = -1  # the prefix is added as a child of itself, which gives it depth 0
        self.states: StateBuffer = prefix_state.states[-1].reserve(max_rows + 1)
        self.scores, self.codes = np.zeros(0), np.zeros(0, dtype=np.int64)
        self.finished: list[tuple[float, Ids]] = []  # a heap: the worst first
        self.by_key: dict[Hashable, tuple[float, Ids]] = {}  # the entries of `finished` by their duplicate key
        self.best_dropped = -math.inf  # score of the best hypothesis that was dropped at a limit
        zero = np.zeros(1, dtype=np.int64)
        self.add(np.zeros(1), zero, zero + model.specials.start, prefix_state.logs[-1], prefix_state.states[-1])

    @property
    def expanded(self) -> int:
        """Hypotheses that the model has read in this search; the prefix was read before."""
        return self.count - 1

    @property
    def min_score(self) -> float:
        """The score that a hypothesis must exceed, which is that of the k-th finished one, or the requested minimum."""
        return self.finished[0][0] if len(self.finished) == self.request.k else self.request.min_log_prob

    def take(self, count: int) -> tuple[Floats, Ints, Ints]:
        """Remove the best `count` waiting hypotheses and return their scores, parents and tokens."""
        chosen = _largest(self.scores, count)
        scores, codes = self.scores[chosen], self.codes[chosen]
        self._select(np.delete(np.arange(len(self.scores)), chosen))
        return scores, codes // self.size, codes % self.size

    def add(self, scores: Floats, parents: Ints, tokens: Ints, logs: Tensor, state: BackboneState) -> None:
        """Add expanded hypotheses (B,) with the log probabilities `logs` (B, V) and the `state` after them."""
        numbers = np.arange(self.count, self.count + len(scores))
        self.count += len(scores)
        self.parents[numbers], self.tokens[numbers], self.depths[numbers] = parents, tokens, self.depths[parents] + 1
        self.states.put(int(numbers[0]), state)
        totals = logs.cpu().double().numpy() + scores[:, None]
        totals[:, self.specials.unknown] = -math.inf
        for number, score in zip(numbers.tolist(), totals[:, self.specials.end].tolist(), strict=True):
            self._finish(number, score)
        totals[:, self.specials.end] = -math.inf
        totals[self.depths[numbers] >= self.request.max_tokens] = -math.inf
        row, token = np.nonzero(totals > self.min_score)
        self.scores = np.concatenate([self.scores, totals[row, token]])
        self.codes = np.concatenate([self.codes, numbers[row] * self.size + token])
        self._select(np.flatnonzero(self.scores > self.min_score))
        if len(self.scores) > self.max_waiting:
            best = _largest(self.scores, self.max_waiting)
            self.best_dropped = max(self.best_dropped, float(np.delete(self.scores, best).max()))
            self._select(best)

    def give_up(self) -> None:
        """Drop all waiting hypotheses."""
        self.best_dropped = max(self.best_dropped, float(self.scores.max()))
        self._select(np.zeros(0, dtype=np.int64))

    def result(self) -> SearchResult:
        best = sorted(self.finished, key=lambda entry: (-entry[0], entry[1]))
        completions = tuple(Completion(ids, score) for score, ids in best)
        return SearchResult(completions, self.expanded, self.best_dropped > self.min_score)

    def _finish(self, number: int, score: float) -> None:
        """Add an expanded hypothesis to the finished ones if it is among the best k."""
        if score <= self.min_score or not self.request.accept(ids := self._ids(number)):
            return
        key = self.request.duplicate_key(ids)
        if duplicate := self.by_key.get(key):
            if (-score, ids) > (-duplicate[0], duplicate[1]):
                return
            self.finished.remove(duplicate)
            heapq.heapify(self.finished)
        elif len(self.finished) == self.request.k:
            del self.by_key[self.request.duplicate_key(heapq.heappop(self.finished)[1])]
        self.by_key[key] = score, ids
        heapq.heappush(self.finished, (score, ids))

    def _ids(self, number: int) -> Ids:
        """Return the tokens of an expanded hypothesis."""
        ids = []
        while number:
            ids.append(int(self.tokens[number]))
            number = int(self.parents[number])
        return tuple(reversed(ids))

    def _select(self, rows: Ints) -> None:
        self.scores, self.codes = self.scores[rows], self.codes[rows]


def _largest(scores: Floats, count: int) -> Ints:
    """Return the indices of the `count` largest scores, in any order."""
    if len(scores) <= count:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[len(scores) - count :]


def _to_tensor(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids).to(model.device)
