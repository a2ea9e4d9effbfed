"""Search for the most probable completions of a typed prefix.

    log p(y, end | prefix, context) = sum_t log p(y_t | prefix, y_<t, context) + log p(end | prefix, y, context)

y_1, y_2, ... are the tokens of a completion, and `end` is the end token. A *hypothesis* is the beginning of a
completion, and its score is the sum of the terms of its tokens. It is *expanded* once the model has read it, and
*finished* once the end token follows it. No term is positive, so no extension of a hypothesis has a higher score.
`PlainEngine.search` finds the k most probable completions exactly: it expands the best hypotheses in batches, and drops
those whose score does not exceed that of the k-th finished one, until no hypothesis is left.

Shapes: B expanded hypotheses, V vocabulary.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.columns.context import Context
from factorcell.ngram.mixture import Predictor
from factorcell.nn.backbones.backbone import BackboneState, StateBuffer

Ids = tuple[int, ...]  # tokens of a completion, without the prefix and the end token
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INITIAL_BATCH_SIZE = (
    12  # initial batch size: small batches expand fewer useless hypotheses, large batches need fewer steps
)
GROWTH = 4  # the batch size grows by one per this many expanded hypotheses
MAX_EXPANDED = 10_000  # maximum number of hypotheses that one search expands
MAX_WAITING = 10_000  # maximum number of hypotheses that wait to be expanded


@dataclass(frozen=True)
class Completion:
    """A completion of a prefix.

    Attributes:
        ids: The tokens after the prefix.
        log_probability: The log probability of the tokens and of the end token.
        text: The result of `SearchRequest.text_of` for the tokens.
    """

    ids: Ids
    log_probability: float
    text: Any = None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for completions.

    Attributes:
        completions: The completions, the most probable first.
        expanded_count: Number of hypotheses that the model has read.
        is_cut: Whether a limit of time or of hypotheses ended the search while better completions were possible.
    """

    completions: tuple[Completion, ...]
    expanded_count: int
    is_cut: bool


class Stop:
    """A flag that ends running searches early; any thread may set it, at most once."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def set(self) -> None:
        """Set the flag, which ends all searches whose requests contain it."""
        with self._lock:
            self.is_set = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def on_set(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` as soon as the flag is set during the `with` block, or at once if the flag is already set."""
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
        prefix_state: The search state of the prefix, from the engine that answers the request.
        k: Maximum number of completions.
        max_tokens: Maximum number of tokens after the prefix.
        text_of: Returns the whole text of the completion with these tokens, or None if it may not be returned. The
            search returns only the most probable completion with each text.
        min_log_prob: Only completions whose log probability exceeds this value are returned.
        stop: Ends the search early.
    """

    prefix_state: Any
    k: int
    max_tokens: int
    text_of: Callable[[Ids], Hashable | None] = lambda ids: ids
    min_log_prob: float = -math.inf
    stop: Stop | None = None


@dataclass(frozen=True)
class PrefixState:
    """A typed prefix in one context, in the form that the search in PyTorch reads.

    Attributes:
        conditioning: The folded conditioning of one context.
        ids: The tokens of the prefix.
        states: The states of the backbone after the start token and after each token of the prefix.
        log_probs: The log probabilities (1, V) of the next token after each of these states.
    """

    conditioning: Any
    ids: Ids
    states: tuple[BackboneState, ...]
    log_probs: tuple[Tensor, ...]


def common_prefix_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens at the beginning that are the same in both sequences."""
    length = 0
    while length < min(len(ids), len(others)) and ids[length] == others[length]:
        length += 1
    return length


class PlainEngine:
    """Reads a typed prefix and searches for its completions in PyTorch, with any model."""

    def __init__(self, model: Predictor) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> PrefixState:
        """Return the search state of an empty prefix in one context.

        Args:
            context: The context.
            override: Context variable -> vector that replaces that of the context, as in `LanguageModel.condition`.
        """
        conditioning = self.model.fold(self.model.condition(context, override), shared=True)
        log_probs, state = self.model.step(_to_tensor(self.model, [self.model.specials.start]), conditioning)
        return PrefixState(conditioning, (), (state,), (log_probs,))

    def read_prefix(self, prefix_state: PrefixState, ids: Sequence[int]) -> PrefixState:
        """Return the search state of the prefix `ids`; reuse the states of tokens shared with `prefix_state`."""
        common_length = common_prefix_length(prefix_state.ids, ids)
        states = list(prefix_state.states[: common_length + 1])
        log_probs = list(prefix_state.log_probs[: common_length + 1])
        for token in ids[common_length:]:
            token_tensor = _to_tensor(self.model, [token])
            next_log_probs, state = self.model.step(token_tensor, prefix_state.conditioning, states[-1])
            states.append(state)
            log_probs.append(next_log_probs)
        return PrefixState(prefix_state.conditioning, tuple(ids), tuple(states), tuple(log_probs))

    def search(
        self,
        requests: Sequence[SearchRequest],
        deadline: float | None = None,
        threads: int = 1,
        *,
        initial_batch_size: int = INITIAL_BATCH_SIZE,
        max_expanded: int = MAX_EXPANDED,
        max_waiting: int = MAX_WAITING,
    ) -> list[SearchResult]:
        """Return the most probable completions of each request, one request after the other.

        A result is exact unless `is_cut` is true, in which case it has the best completions that the search found.

        Args:
            requests: The requests.
            deadline: When to end all searches, as a value of `time.monotonic()`.
            threads: Ignored; `CompiledEngine.search` uses it.
            initial_batch_size: Initial number of hypotheses that are expanded at once.
            max_expanded: Maximum number of expanded hypotheses per request.
            max_waiting: Maximum number of waiting hypotheses per request.
        """
        return [self._search(request, deadline, initial_batch_size, max_expanded, max_waiting) for request in requests]

    def _search(
        self,
        request: SearchRequest,
        deadline: float | None,
        initial_batch_size: int,
        max_expanded: int,
        max_waiting: int,
    ) -> SearchResult:
        end = math.inf if deadline is None else deadline
        frontier = self._new_frontier(request, max_expanded, max_waiting)
        while frontier.scores.size:
            batch_size = min(
                initial_batch_size + frontier.expanded_count // GROWTH, max_expanded - frontier.expanded_count
            )
            if batch_size <= 0 or time.monotonic() >= end or (request.stop is not None and request.stop.is_set):
                frontier.give_up()
                break
            scores, parents, tokens = frontier.take(batch_size)
            if not scores.size:
                continue
            parent_states = frontier.states.select(torch.from_numpy(parents).to(self.model.device))
            log_probs, state = self.model.step(
                _to_tensor(self.model, tokens.tolist()), request.prefix_state.conditioning, parent_states
            )
            frontier.add(scores, parents, tokens, log_probs, state)
        return frontier.result()

    def _new_frontier(self, request: SearchRequest, max_expanded: int, max_waiting: int) -> "Frontier":
        return Frontier(self.model, request, max_expanded, max_waiting)


class Frontier:
    """All hypotheses of one search: those that wait to be expanded, the best k finished ones and the expanded ones.

    The expanded hypotheses form a tree. They are numbered in the order of their expansion; number 0 is the prefix. For
    each expanded hypothesis, the arrays `parents`, `tokens` and `depths` have the number of its parent, its last token
    and its number of tokens. A waiting hypothesis is an expanded parent followed by a token; `codes` stores both as one
    number, parent * V + token.
    """

    def __init__(self, model: Predictor, request: SearchRequest, max_expanded: int, max_waiting: int) -> None:
        self.request, self.max_waiting = request, max_waiting
        self.vocabulary_size, self.tree_size, self.specials = model.vocabulary_size, 0, model.specials
        capacity = max_expanded + self.first_count
        self.parents, self.tokens, self.depths = (np.zeros(capacity, dtype=np.int64) for _ in range(3))
        self.states: StateBuffer = self._first_state.reserve(capacity)
        self.scores, self.codes = np.zeros(0), np.zeros(0, dtype=np.int64)
        # Score, tokens and text; a heap, whose first entry is the worst
        self.finished: list[tuple[float, Ids, Hashable]] = []
        self.finished_by_text: dict[Hashable, tuple[float, Ids, Hashable]] = {}  # text -> entry of `finished`
        self.best_dropped = -math.inf  # best score of a hypothesis that was dropped because of a limit
        self._begin()

    @property
    def first_count(self) -> int:
        """The number of expanded hypotheses that the model has read before the search: the prefix."""
        return 1

    @property
    def _first_state(self) -> BackboneState:
        """A state after the prefix or its beginning, which reserves memory for others."""
        state: BackboneState = self.request.prefix_state.states[-1]
        return state

    def _begin(self) -> None:
        """Add the prefix as an expanded hypothesis."""
        self._add_root(self.request.prefix_state.log_probs[-1], self._first_state)

    def _add_root(self, log_probs: Tensor, state: BackboneState) -> None:
        """Add expanded hypothesis 0, which has no tokens."""
        self.depths[0] = -1  # it is added as a child of itself, which gives it depth 0
        zero = np.zeros(1, dtype=np.int64)
        self.add(np.zeros(1), zero, zero + self.specials.start, log_probs, state)

    @property
    def expanded_count(self) -> int:
        """The number of hypotheses that the model has read in this search."""
        return self.tree_size - self.first_count

    @property
    def min_score(self) -> float:
        """The score that a hypothesis must exceed: that of the k-th finished one, or the minimum of the request."""
        if len(self.finished) < self.request.k:
            return self.request.min_log_prob
        worst_score, _, _ = self.finished[0]
        return worst_score

    def take(self, count: int) -> tuple[Floats, Ints, Ints]:
        """Remove the best `count` waiting hypotheses and return their scores, parents and tokens."""
        best = _indices_of_largest(self.scores, count)
        scores, codes = self.scores[best], self.codes[best]
        self._select(np.delete(np.arange(len(self.scores)), best))
        return scores, codes // self.vocabulary_size, codes % self.vocabulary_size

    def add(self, scores: Floats, parents: Ints, tokens: Ints, log_probs: Tensor, state: BackboneState) -> None:
        """Add expanded hypotheses, and their extensions as waiting or finished hypotheses.

        Args:
            scores: The scores of the expanded hypotheses (B,).
            parents: The number of the parent of each (B,).
            tokens: The last token of each (B,).
            log_probs: The log probabilities of the token that follows each (B, V).
            state: The state of the backbone after the expanded hypotheses.
        """
        numbers = np.arange(self.tree_size, self.tree_size + len(scores))
        self.tree_size += len(scores)
        self.parents[numbers], self.tokens[numbers], self.depths[numbers] = parents, tokens, self.depths[parents] + 1
        self.states.put(int(numbers[0]), state)
        extended_scores = log_probs.cpu().double().numpy() + scores[:, None]
        extended_scores[:, self.specials.unknown] = -math.inf
        for number, finished_score in zip(
            numbers.tolist(), extended_scores[:, self.specials.end].tolist(), strict=True
        ):
            self._finish(number, finished_score)
        extended_scores[:, self.specials.end] = -math.inf
        extended_scores[self.depths[numbers] >= self.request.max_tokens] = -math.inf
        rows, next_tokens = np.nonzero(extended_scores > self.min_score)
        self.scores = np.concatenate([self.scores, extended_scores[rows, next_tokens]])
        self.codes = np.concatenate([self.codes, numbers[rows] * self.vocabulary_size + next_tokens])
        self._select(np.flatnonzero(self.scores > self.min_score))
        if len(self.scores) > self.max_waiting:
            best = _indices_of_largest(self.scores, self.max_waiting)
            self.best_dropped = max(self.best_dropped, float(np.delete(self.scores, best).max()))
            self._select(best)

    def give_up(self) -> None:
        """Drop all waiting hypotheses because of a limit."""
        self.best_dropped = max(self.best_dropped, float(self.scores.max()))
        self._select(np.zeros(0, dtype=np.int64))

    def result(self) -> SearchResult:
        completions = [Completion(ids, score, text) for score, ids, text in self.finished]
        completions.sort(key=lambda completion: (-completion.log_probability, completion.ids))
        return SearchResult(tuple(completions), self.expanded_count, is_cut=self.best_dropped > self.min_score)

    def _finish(self, number: int, score: float) -> None:
        """Finish the expanded hypothesis `number` if `score`, which includes the end token, is among the k highest."""
        if score <= self.min_score:
            return
        ids = self._ids(number)
        text = self.request.text_of(ids)
        if text is None:
            return
        if duplicate := self.finished_by_text.get(text):
            duplicate_score, duplicate_ids, _ = duplicate
            if (-score, ids) > (-duplicate_score, duplicate_ids):
                return  # the duplicate is better
            self.finished.remove(duplicate)
            heapq.heapify(self.finished)
        elif len(self.finished) == self.request.k:
            _, _, worst_text = heapq.heappop(self.finished)
            del self.finished_by_text[worst_text]
        self.finished_by_text[text] = score, ids, text
        heapq.heappush(self.finished, (score, ids, text))

    def _ids(self, number: int) -> Ids:
        """Return the tokens of the expanded hypothesis `number` after the prefix."""
        ids = []
        while number:
            ids.append(int(self.tokens[number]))
            number = int(self.parents[number])
        return tuple(reversed(ids))

    def _select(self, indices: Ints) -> None:
        """Retain only the waiting hypotheses with these indices."""
        self.scores, self.codes = self.scores[indices], self.codes[indices]


def _indices_of_largest(scores: Floats, count: int) -> Ints:
    """Return the indices of the `count` largest scores, in any order."""
    if len(scores) <= count:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[len(scores) - count :]


def _to_tensor(model: Predictor, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids).to(model.device)
