"""Search for the most probable completions of a typed prefix.

    log p(y, end | prefix, context) = sum_t log p(y_t | prefix, y_<t, context) + log p(end | prefix, y, context)

y_1, y_2, ... are the tokens of a completion, and `end` is the end token. A *hypothesis* is the beginning of a
completion, and its score is the sum of its terms. It is *expanded* when the model has read it, and *finished* with the
end token. No term is positive, so no extension of a hypothesis has a higher score. `PlainEngine.search` finds the k
most probable completions exactly: it expands the best hypotheses in batches, and drops those whose score does not
exceed that of the k-th finished one, until no hypothesis is left.

Shapes: B expanded hypotheses, V vocabulary.
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

BATCH = 12  # initial batch size: small batches expand fewer useless hypotheses, large batches need fewer steps
GROWTH = 4  # the batch size grows by one per this many expanded hypotheses
MAX_EXPANDED = 10_000  # maximum number of hypotheses that one search expands
MAX_WAITING = 10_000  # maximum number of hypotheses that wait to be expanded
MIN_PROPOSALS = 10  # minimum number of texts that each source of a blend proposes, as in the lists that fit its weights
MAX_COUNT = int(NUMBER_LIMITS["count"].high)


@dataclass(frozen=True)
class Suggestion:
    """A suggested text.

    Attributes:
        text: The whole text, including the prefix.
        log_probability: The log probability of the text given the prefix, according to `source`.
        source: The sources that propose the text, such as `model` or `model+history`.
        typos: Number of typing errors in the prefix that the text assumes; with 0, the text begins with the prefix.
        parts: Source of a blend -> the number that it adds to the score of the text.
    """

    text: str
    log_probability: float
    source: str
    typos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


def round_sizes(k: int) -> list[int]:
    """Return the list sizes that `merge_rounds` merges for `k` texts: 10, 20, 40, ..., the last at least `k`."""
    rounds = [MIN_PROPOSALS]
    while rounds[-1] < k:
        rounds.append(min(2 * rounds[-1], MAX_COUNT))
    return rounds


def merge_rounds(best: Callable[[int], Iterable[Suggestion]], k: int) -> list[Suggestion]:
    """Return the best `k` texts, as a list that begins with the list for any smaller `k`.

    The number of proposed texts affects the probabilities of all texts. The lists of `round_sizes` are therefore
    merged: each appends its new texts, with probabilities no higher than those of the texts before.

    Args:
        best: Returns the best texts if a number of texts is proposed.
        k: Maximum number of texts.
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
    """The tokens `ids` of a completion after the prefix, and their log probability including the end token."""

    ids: Ids
    log_probability: float


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for completions.

    Attributes:
        completions: The completions, the most probable first.
        rows: Number of hypotheses that the model has read.
        cut: Whether a limit of time or of hypotheses ended the search while better completions were possible.
    """

    completions: tuple[Completion, ...]
    expanded_count: int
    is_cut: bool


class Stop:
    """A flag that ends running searches early; any thread may set it, once."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def set(self) -> None:
        """Set the flag, which ends the searches that were started with it."""
        with self._lock:
            self.is_set = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def on_set(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` when the flag is set during the `with` block, or at once if the flag is set already."""
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
        prefix_state: The prefix, as the search state of the engine that answers the request.
        k: Maximum number of completions.
        max_tokens: Maximum number of tokens after the prefix.
        accept: Returns whether a completion, given by its tokens, may be returned.
        min_log_prob: Only completions above this log probability are returned.
        stop: Ends the search early.
        duplicate_key: Returns the key of a completion; only the most probable completion of each key is returned.
    """

    prefix_state: Any
    k: int
    max_tokens: int
    is_accepted: Callable[[Ids], bool] = lambda ids: True
    min_log_prob: float = -math.inf
    stop: Stop | None = None
    duplicate_key: Callable[[Ids], Hashable] = lambda ids: ids


@dataclass(frozen=True)
class PrefixState:
    """A typed prefix in one context, in the form that the search in PyTorch reads.

    Attributes:
        conditioning: The folded conditioning of one context.
        ids: The tokens of the prefix.
        states: The states of the backbone after the start token and after each token of the prefix.
        logs: The log probabilities (1, V) of the next token after each of these states.
    """

    conditioning: Conditioning
    ids: Ids
    states: tuple[BackboneState, ...]
    log_probs: tuple[Tensor, ...]


def common_prefix_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens at the beginning that are the same in both sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


class PlainEngine:
    """Reads a typed prefix and searches for its completions in PyTorch, with any model."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Return the search state of an empty prefix in one context.

        Args:
            context: The context.
            override: Context variable -> vector that replaces its own, as in `LanguageModel.condition`.
        """
        conditioning = self.model.fold(self.model.condition(context, override), shared=True)
        logs, state = self.model.step(_to_tensor(self.model, [self.model.specials.start]), conditioning)
        return PrefixState(conditioning, (), (state,), (logs,))

    def read_prefix(self, prefix_state: PrefixState, ids: Sequence[int]) -> PrefixState:
        """Return the search state of the prefix `ids`; the model reads only tokens after the common beginning."""
        common = common_prefix_length(prefix_state.ids, ids)  # states after these tokens are reused
        states, logs = list(prefix_state.states[: common + 1]), list(prefix_state.log_probs[: common + 1])
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
        max_expanded: int = MAX_EXPANDED,
        max_waiting: int = MAX_WAITING,
    ) -> list[SearchResult]:
        """Return the most probable completions of each request; the requests are answered one after the other.

        A result is exact unless it is `cut`; a `cut` result has the best completions that the search found.

        Args:
            requests: The requests.
            deadline: When to end, as a value of `time.monotonic()`.
            threads: Ignored.
            batch: Initial number of hypotheses that are expanded at once.
            max_expanded: Maximum number of expanded hypotheses per request.
            max_waiting: Maximum number of waiting hypotheses per request.
        """
        return [self._search(request, deadline, batch, max_expanded, max_waiting) for request in requests]

    def _search(
        self, request: SearchRequest, deadline: float | None, batch: int, max_expanded: int, max_waiting: int
    ) -> SearchResult:
        end = math.inf if deadline is None else deadline
        frontier = _Frontier(self.model, request, max_expanded, max_waiting)
        while frontier.scores.size:
            size = min(batch + frontier.expanded_count // GROWTH, max_expanded - frontier.expanded_count)
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
    """All hypotheses of one search: those that wait to be expanded, the best k finished ones and the expanded ones.

    The expanded hypotheses form a tree. They are numbered in the order of their expansion; number 0 is the prefix. The
    arrays `parents`, `tokens` and `depths` have the number of the parent, the last token and the number of tokens of
    each. A waiting hypothesis is an expanded parent and a next token, stored as the code parent * V + token.
    """

    def __init__(self, model: LanguageModel, request: SearchRequest, max_expanded: int, max_waiting: int) -> None:
        self.request, self.max_waiting, prefix_state = request, max_waiting, request.prefix_state
        self.vocabulary_size, self.tree_size, self.specials = model.vocabulary_size, 0, model.specials
        self.parents, self.tokens, self.depths = (np.zeros(max_expanded + 1, dtype=np.int64) for _ in range(3))
        self.depths[0] = -1  # the prefix is added as a child of itself, which gives it depth 0
        self.states: StateBuffer = prefix_state.states[-1].reserve(max_expanded + 1)
        self.scores, self.codes = np.zeros(0), np.zeros(0, dtype=np.int64)
        self.finished: list[tuple[float, Ids]] = []  # a heap, whose first entry is the worst
        self.by_key: dict[Hashable, tuple[float, Ids]] = {}  # duplicate key -> entry of `finished`
        self.best_dropped = -math.inf  # best score of a hypothesis that was dropped because of a limit
        zero = np.zeros(1, dtype=np.int64)
        self.add(np.zeros(1), zero, zero + model.specials.start, prefix_state.log_probs[-1], prefix_state.states[-1])

    @property
    def expanded_count(self) -> int:
        """The number of hypotheses that the model has read in this search, without the prefix, which it read before."""
        return self.tree_size - 1

    @property
    def min_score(self) -> float:
        """The score that a hypothesis must exceed: that of the k-th finished one, or the minimum of the request."""
        return self.finished[0][0] if len(self.finished) == self.request.k else self.request.min_log_prob

    def take(self, count: int) -> tuple[Floats, Ints, Ints]:
        """Remove the best `count` waiting hypotheses and return their scores, parents and tokens."""
        chosen = _largest(self.scores, count)
        scores, codes = self.scores[chosen], self.codes[chosen]
        self._select(np.delete(np.arange(len(self.scores)), chosen))
        return scores, codes // self.vocabulary_size, codes % self.vocabulary_size

    def add(self, scores: Floats, parents: Ints, tokens: Ints, logs: Tensor, state: BackboneState) -> None:
        """Add expanded hypotheses, and their extensions as waiting or finished hypotheses.

        Args:
            scores: The scores of the expanded hypotheses (B,).
            parents: The numbers of their parents (B,).
            tokens: Their last tokens (B,).
            logs: The log probabilities of the next token (B, V).
            state: The state of the backbone after them.
        """
        numbers = np.arange(self.tree_size, self.tree_size + len(scores))
        self.tree_size += len(scores)
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
        self.codes = np.concatenate([self.codes, numbers[row] * self.vocabulary_size + token])
        self._select(np.flatnonzero(self.scores > self.min_score))
        if len(self.scores) > self.max_waiting:
            best = _largest(self.scores, self.max_waiting)
            self.best_dropped = max(self.best_dropped, float(np.delete(self.scores, best).max()))
            self._select(best)

    def give_up(self) -> None:
        """Drop all waiting hypotheses because of a limit."""
        self.best_dropped = max(self.best_dropped, float(self.scores.max()))
        self._select(np.zeros(0, dtype=np.int64))

    def result(self) -> SearchResult:
        best = sorted(self.finished, key=lambda entry: (-entry[0], entry[1]))
        completions = tuple(Completion(ids, score) for score, ids in best)
        return SearchResult(completions, self.expanded_count, self.best_dropped > self.min_score)

    def _finish(self, number: int, score: float) -> None:
        """Finish the expanded hypothesis `number` with the score `score` if it is then among the best k."""
        if score <= self.min_score or not self.request.is_accepted(ids := self._ids(number)):
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
        """Return the tokens of the expanded hypothesis `number` after the prefix."""
        ids = []
        while number:
            ids.append(int(self.tokens[number]))
            number = int(self.parents[number])
        return tuple(reversed(ids))

    def _select(self, rows: Ints) -> None:
        """Retain only these waiting hypotheses."""
        self.scores, self.codes = self.scores[rows], self.codes[rows]


def _largest(scores: Floats, count: int) -> Ints:
    """Return the indices of the `count` largest scores, in any order."""
    if len(scores) <= count:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[len(scores) - count :]


def _to_tensor(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids).to(model.device)
