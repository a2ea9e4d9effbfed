"""Search for the most probable completions of a typed prefix.

    log p(y, end | prefix, context) = sum_t log p(y_t | prefix, y_<t, context) + log p(end | prefix, y, context)

y_1, y_2, ... are the tokens of a completion, and `end` is the end token. A *hypothesis* is the beginning of a
completion, and its score is the sum of the terms of its tokens. It is *expanded* once the model has read it, and
*finished* once the end token follows it. No term is positive, so no extension of a hypothesis has a higher score.
`PlainEngine.search` finds the k most probable completions exactly: it expands the best hypotheses in batches, and drops
those whose score does not exceed that of the k-th finished one, until no hypothesis is left.

Shapes: B expanded hypotheses, V vocabulary.
"""

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

INITIAL_BATCH_SIZE = 12  # small batches expand fewer useless hypotheses, large batches need fewer steps
GROWTH = 4  # the batch size grows by one per this many expanded hypotheses


@dataclass(frozen=True)
class Completion:
    """A completion of a prefix."""

    ids: Ids  # the tokens after the prefix
    log_probability: float  # of the tokens and of the end token
    text: Any = None  # the result of `SearchRequest.text_of` for the tokens


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for completions."""

    completions: tuple[Completion, ...]  # the most probable first
    expanded_count: int  # number of hypotheses that the model has read
    is_cut: bool  # whether a limit ended the search while better completions were possible


class Stop:
    """A flag that ends running searches early; any thread may set it."""

    def __init__(self) -> None:
        self.is_set = False
        self._structures: list[Any] = []  # of running searches in compiled code

    def set(self) -> None:
        """Set the flag, which ends all searches whose requests contain it."""
        self.is_set = True
        for structure in self._structures:
            structure.seconds = 0.0

    def watch(self, structure: Any) -> None:
        """Set `seconds` of a structure to 0, which ends its search in compiled code, as soon as the flag is set."""
        self._structures.append(structure)
        if self.is_set:  # another thread may have set it before it could see the structure
            structure.seconds = 0.0


@dataclass(frozen=True)
class SearchRequest:
    """A request for the best completions of a prefix, of each text the most probable one."""

    prefix_state: Any  # the search state of the prefix, from the engine that answers the request
    k: int  # maximum number of completions
    max_tokens: int  # maximum number of tokens after the prefix
    # Returns the whole text of the completion with these tokens, or None if it may not be returned.
    text_of: Callable[[Ids], Hashable | None] = lambda ids: ids
    min_log_prob: float = -math.inf  # completions with this log probability, or a lower one, are not returned
    deadline: float = math.inf  # when to end the search, as a value of `time.monotonic()`
    stop: Stop | None = None
    max_expanded: int = 10_000  # maximum number of hypotheses that the search expands
    max_waiting: int = 10_000  # maximum number of hypotheses that wait to be expanded


class Step(NamedTuple):
    """A model after a token, as the search in PyTorch reads it."""

    state: BackboneState
    log_probs: Tensor  # of the next token (1, V)


@dataclass(frozen=True)
class PrefixState:
    """A typed prefix in one context, in the form that an engine reads.

    `conditioning` belongs to the context. `states` are after the start token, and after each token of the prefix.
    """

    conditioning: Any
    ids: Ids
    states: tuple[Any, ...]

    def read(self, ids: Sequence[int], read_tokens: Callable[..., Iterable[Any]]) -> "PrefixState":
        """Return the state for the prefix `ids`; `read_tokens` returns the states after tokens that are new."""
        pairs = zip(self.ids, ids, strict=False)
        common_length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        states = self.states[: common_length + 1]
        new_states = read_tokens(self.conditioning, states[-1], ids[common_length:])
        return PrefixState(self.conditioning, tuple(ids), (*states, *new_states))


class PlainEngine:
    """Reads a typed prefix and searches for its completions in PyTorch, with any model."""

    def __init__(self, model: Predictor) -> None:
        self.model = model

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Any:
        """Return the search state of an empty prefix in one context, with vectors that override those of variables."""
        conditioning = self.model.fold(self.model.condition(context, override), shared=True)
        states = self._read_tokens(conditioning, None, [self.model.specials.start])
        return PrefixState(conditioning, (), tuple(states))

    def read_prefix(self, prefix_state: Any, ids: Sequence[int]) -> Any:
        """Return the search state of the prefix `ids`; reuse the states of tokens shared with `prefix_state`."""
        return prefix_state.read(ids, self._read_tokens)

    def _read_tokens(self, conditioning: Any, before: Step | None, tokens: Sequence[int]) -> Iterator[Step]:
        """Yield the model after each of the `tokens`."""
        state = None if before is None else before.state
        for token in tokens:
            log_probs, state = self.model.step(torch.tensor([token]).to(self.model.device), conditioning, state)
            yield Step(state, log_probs)

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the best completions that the search finds: the most probable ones unless `is_cut` is true."""
        frontier = self._begin(request)
        while frontier.scores.size:
            count = frontier.expanded_count
            batch_size = min(INITIAL_BATCH_SIZE + count // GROWTH, request.max_expanded - count)
            is_stopped = request.stop is not None and request.stop.is_set
            if batch_size <= 0 or is_stopped or time.monotonic() >= request.deadline:
                frontier.give_up()
                break
            scores, parents, hypotheses = frontier.take(batch_size)
            possible = [index for index, ids in enumerate(hypotheses) if self._may_begin(ids)]
            if not possible:
                continue
            hypotheses = [hypotheses[index] for index in possible]
            parent_states = frontier.states.select(torch.from_numpy(parents[possible]).to(self.model.device))
            last_tokens = torch.tensor([ids[-1] for ids in hypotheses]).to(self.model.device)
            log_probs, state = self.model.step(last_tokens, request.prefix_state.conditioning, parent_states)
            frontier.add(hypotheses, scores[possible], log_probs, state)
        return frontier.result()

    def _begin(self, request: SearchRequest) -> "Frontier":
        """Return the hypotheses at the beginning of a search."""
        state, log_probs = request.prefix_state.states[-1]
        frontier = Frontier(self.model, request, state.reserve(request.max_expanded + 1))
        frontier.add([()], np.zeros(1), log_probs, state)
        return frontier

    def _may_begin(self, ids: Ids) -> bool:
        """Return whether the tokens of a completion may begin with `ids`."""
        return True


class Frontier:
    """All hypotheses of one search: those that wait to be expanded, the best k finished ones and the expanded ones.

    The expanded hypotheses are numbered in the order of their expansion. `first_count` of them were expanded before the
    search. A waiting hypothesis is an expanded parent followed by a token; `codes` stores both as one number,
    parent * V + token.
    """

    def __init__(self, model: Predictor, request: SearchRequest, states: StateBuffer, first_count: int = 1) -> None:
        self.request, self.states, self.first_count = request, states, first_count
        self.vocabulary_size, self.specials = model.vocabulary_size, model.specials
        self.expanded: list[Ids] = []
        self.scores, self.codes = np.zeros(0), np.zeros(0, dtype=np.int64)
        self.finished: dict[Hashable, Completion] = {}  # by text
        self.min_score = request.min_log_prob  # the score that a hypothesis must exceed to be among the best
        self.best_dropped = -math.inf  # best score of a hypothesis that was dropped because of a limit

    @property
    def expanded_count(self) -> int:
        """The number of hypotheses that the model has read in this search."""
        return len(self.expanded) - self.first_count

    def take(self, count: int) -> tuple[Floats, Ints, list[Ids]]:
        """Remove the best `count` waiting hypotheses; return their scores, the numbers of their parents, and tokens."""
        best = _indices_of_largest(self.scores, count)
        scores, (parents, tokens) = self.scores[best], np.divmod(self.codes[best], self.vocabulary_size)
        self._select(np.delete(np.arange(len(self.scores)), best))
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        return scores, parents, [(*self.expanded[parent], token) for parent, token in pairs]

    def add(self, hypotheses: Sequence[Ids], scores: Floats, log_probs: Tensor, state: BackboneState) -> None:
        """Add expanded hypotheses with their scores (B,), and their extensions as waiting or finished hypotheses.

        `log_probs` (B, V) are those of the token that follows each, and `state` is that of the backbone after them.
        """
        first_number = len(self.expanded)
        self.expanded += hypotheses
        self.states.put(first_number, state)
        extended_scores = log_probs.cpu().double().numpy() + scores[:, None]
        extended_scores[:, self.specials.unknown] = -math.inf
        for ids, finished_score in zip(hypotheses, extended_scores[:, self.specials.end].tolist(), strict=True):
            self._finish(ids, finished_score)
        extended_scores[:, self.specials.end] = -math.inf
        extended_scores[[len(ids) >= self.request.max_tokens for ids in hypotheses]] = -math.inf
        rows, next_tokens = np.nonzero(extended_scores > self.min_score)
        codes = (first_number + rows) * self.vocabulary_size + next_tokens
        self.wait(extended_scores[rows, next_tokens], codes)
        if len(self.scores) > self.request.max_waiting:
            best = _indices_of_largest(self.scores, self.request.max_waiting)
            self.best_dropped = max(self.best_dropped, float(np.delete(self.scores, best).max()))
            self._select(best)

    def wait(self, scores: Floats, codes: Ints) -> None:
        """Add waiting hypotheses, and drop those that cannot be among the best."""
        self.scores, self.codes = np.concatenate([self.scores, scores]), np.concatenate([self.codes, codes])
        self._select(np.flatnonzero(self.scores > self.min_score))

    def give_up(self) -> None:
        """Drop all waiting hypotheses because of a limit."""
        self.best_dropped = max(self.best_dropped, float(self.scores.max()))
        self._select(np.zeros(0, dtype=np.int64))

    def result(self) -> SearchResult:
        completions = sorted(self.finished.values(), key=lambda entry: (-entry.log_probability, entry.ids))
        return SearchResult(tuple(completions), self.expanded_count, is_cut=self.best_dropped > self.min_score)

    def _finish(self, ids: Ids, score: float) -> None:
        """Finish a hypothesis if its `score`, which includes the end token, is among the k highest."""
        if score <= self.min_score or (text := self.request.text_of(ids)) is None:
            return
        duplicate = self.finished.get(text)
        if duplicate and (-score, ids) > (-duplicate.log_probability, duplicate.ids):
            return  # the duplicate is better
        self.finished[text] = Completion(ids, score, text)
        ranked = sorted(self.finished.values(), key=lambda entry: (entry.log_probability, entry.ids))
        if len(ranked) > self.request.k:
            worst, *ranked = ranked
            del self.finished[worst.text]
        if len(ranked) == self.request.k:
            self.min_score = ranked[0].log_probability

    def _select(self, indices: Ints) -> None:
        """Retain only the waiting hypotheses with these indices."""
        self.scores, self.codes = self.scores[indices], self.codes[indices]


def _indices_of_largest(scores: Floats, count: int) -> Ints:
    """Return the indices of the `count` largest scores, in any order."""
    if len(scores) <= count:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[len(scores) - count :]
