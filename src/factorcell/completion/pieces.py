"""Search for the most probable completions of a typed prefix, with a model of pieces of words.

    log p(text | prefix) = log p(tokens of the text, end) - log Z(prefix)

The typed prefix may end within a piece, so the search finds all token sequences whose bytes begin with those of the
prefix. A *beginning* is a sequence of tokens that ends before the end of the prefix, and a *cover* is a beginning
followed by one token that reaches the end of the prefix. Z(prefix) is the sum of the probabilities of all covers.
A text is counted once, with the tokens into which the tokenizer splits it: beginnings and hypotheses with which no text
can begin are dropped, and the tokens of every completion are compared with those of its text.
"""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorcell.completion.search import Floats, Frontier, Ids, Ints, PlainEngine, SearchRequest
from factorcell.data.columns.context import Context
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.ngram.mixture import Predictor
from factorcell.nn.backbones.attention_cache import CacheState
from factorcell.nn.backbones.backbone import BackboneState

# The covers of a prefix have similar numbers of tokens, and Z includes those that are slightly longer than a text.
MORE_TOKENS = 8


@dataclass(frozen=True)
class Beginning:
    """The model after the start token and the tokens of a beginning.

    Attributes:
        log_probability: The log probability of the tokens.
        state: The state of the backbone after them.
        log_probs: The log probabilities (1, V) of the next token.
    """

    log_probability: float
    state: BackboneState
    log_probs: Tensor


@dataclass(frozen=True)
class PiecePrefix:
    """A typed prefix in one context.

    Attributes:
        conditioning: The folded conditioning of one context.
        typed: The bytes of the prefix.
        beginnings: The beginnings of the prefix, each after the beginning without its last token.
        covers: The log probability of each cover.
    """

    conditioning: Any
    typed: bytes
    beginnings: Mapping[Ids, Beginning]
    covers: Mapping[Ids, float]

    @property
    def log_probability(self) -> float:
        """The log probability of the prefix, log Z."""
        return float(np.logaddexp.reduce([-math.inf, *self.covers.values()]))


class PieceIndex:
    """Finds the tokens by the bytes for which they stand."""

    def __init__(self, bytes_by_id: Sequence[bytes]) -> None:
        self.rows = sorted((content, token_id) for token_id, content in enumerate(bytes_by_id) if content)
        self.max_size = max((len(content) for content, _ in self.rows), default=0)

    def equal_to(self, content: bytes) -> Iterator[int]:
        """Yield the tokens that stand for `content`."""
        for index in range(bisect.bisect_left(self.rows, (content, -1)), len(self.rows)):
            row_content, token_id = self.rows[index]
            if row_content != content:
                return
            yield token_id

    def beginning_with(self, content: bytes) -> Iterator[int]:
        """Yield the tokens whose bytes begin with `content`."""
        for index in range(bisect.bisect_left(self.rows, (content, -1)), len(self.rows)):
            row_content, token_id = self.rows[index]
            if not row_content.startswith(content):
                return
            yield token_id


class PieceEngine(PlainEngine):
    """Reads a typed prefix, as bytes, and searches for its completions, with a model of pieces of words.

    Args:
        model: The model.
        tokenizer: The tokenizer of the pieces.
        max_tokens: The largest number of tokens of a text. Beginnings have at most `MORE_TOKENS` more; so a long
            prefix without spaces has no cover, and is read in little time.
    """

    def __init__(self, model: Predictor, tokenizer: BpeTokenizer, max_tokens: int) -> None:
        super().__init__(model)
        self.tokenizer, self.index = tokenizer, PieceIndex(tokenizer.bytes_by_id)
        self.max_beginning = max_tokens + MORE_TOKENS

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Any:
        """Return the search state of an empty prefix in one context, with the arguments of `PlainEngine.begin`."""
        plain = super().begin(context, override)
        beginning = Beginning(0.0, plain.states[0], plain.log_probs[0])
        return PiecePrefix(plain.conditioning, b"", {(): beginning}, {(): 0.0})

    def read_prefix(self, prefix_state: Any, ids: Sequence[int]) -> Any:
        """Return the search state of the prefix with the bytes `ids`; reuse the beginnings in `prefix_state`."""
        typed, cached = bytes(ids), prefix_state.beginnings
        beginnings: dict[Ids, Beginning] = {(): cached[()]}
        covers = dict[Ids, float]()
        if not typed:
            return PiecePrefix(prefix_state.conditioning, typed, beginnings, {(): 0.0})

        def read(tokens: Ids) -> None:
            beginnings[tokens] = cached.get(tokens) or self._extend(
                prefix_state.conditioning, beginnings[tokens[:-1]], tokens[-1]
            )

        target = (b" " if self.tokenizer.adds_space else b"") + typed
        certain = tuple(self.tokenizer.encode(self.tokenizer.certain_tokens(typed.decode())))
        for length in range(1, len(certain) + 1):
            read(certain[:length])
        _share_memory(beginnings, certain)
        queue = [certain]
        for tokens in queue:  # the loop extends the queue
            if len(tokens) >= self.max_beginning:
                continue
            remaining = target[sum(len(self.tokenizer.bytes_by_id[token]) for token in tokens) :]
            beginning = beginnings[tokens]
            for token in self.index.beginning_with(remaining):
                covers[(*tokens, token)] = beginning.log_probability + float(beginning.log_probs[0, token])
            for size in range(1, min(len(remaining), self.index.max_size + 1)):
                for token in self.index.equal_to(remaining[:size]):
                    longer = (*tokens, token)
                    if self.tokenizer.may_begin(self.tokenizer.decode(longer)):
                        read(longer)
                        queue.append(longer)
        return PiecePrefix(prefix_state.conditioning, typed, beginnings, covers)

    def _extend(self, conditioning: Any, beginning: Beginning, token: int) -> Beginning:
        """Return `beginning` followed by `token`."""
        log_probability = beginning.log_probability + float(beginning.log_probs[0, token])
        log_probs, state = self.model.step(torch.tensor([token]).to(self.model.device), conditioning, beginning.state)
        return Beginning(log_probability, state, log_probs)

    def _new_frontier(self, request: SearchRequest, max_expanded: int, max_waiting: int) -> Frontier:
        return _PieceFrontier(self, request, max_expanded, max_waiting)


def _share_memory(beginnings: dict[Ids, Beginning], longest: Ids) -> None:
    """Let the beginnings of `longest` share the memory of its keys and values, if the model is a Transformer."""
    state = beginnings[longest].state
    if not isinstance(state, CacheState):
        return
    for length in range(1, len(longest)):
        shorter = longest[:length]
        beginnings[shorter] = replace(beginnings[shorter], state=state.without_last(len(longest) - length))


class _PieceFrontier(Frontier):
    """The hypotheses of one search, which begins with the covers of a prefix as waiting hypotheses."""

    def __init__(self, engine: PieceEngine, request: SearchRequest, max_expanded: int, max_waiting: int) -> None:
        self.tokenizer = engine.tokenizer
        super().__init__(engine.model, request, max_expanded, max_waiting)

    def _begin(self) -> None:
        """Add the beginnings of the prefix as expanded hypotheses, and its covers as waiting ones."""
        prefix_state: PiecePrefix = self.request.prefix_state
        log_z = prefix_state.log_probability
        number_by_tokens = {tokens: number for number, tokens in enumerate(prefix_state.beginnings)}
        extended = {tokens[:-1] for tokens in prefix_state.covers}  # the search reads the states of these only
        for tokens, beginning in prefix_state.beginnings.items():
            number = number_by_tokens[tokens]
            if tokens in extended:
                self.states.put(number, beginning.state)
            self.depths[number] = len(tokens)
            if tokens:
                self.parents[number], self.tokens[number] = number_by_tokens[tokens[:-1]], tokens[-1]
        self.tree_size = len(number_by_tokens)
        if not prefix_state.typed:
            self.tree_size = 0
            self._add_root(prefix_state.beginnings[()].log_probs, prefix_state.beginnings[()].state)
            return
        scored = [
            (score - log_z, number_by_tokens[tokens[:-1]] * self.vocabulary_size + tokens[-1])
            for tokens, score in prefix_state.covers.items()
            if len(tokens) <= self.request.max_tokens and tokens[-1] != self.specials.end
        ]
        self.scores = np.array([score for score, _ in scored], dtype=np.float64)
        self.codes = np.array([code for _, code in scored], dtype=np.int64)
        self._select(np.flatnonzero(self.scores > self.min_score))

    @property
    def first_count(self) -> int:
        """The number of expanded hypotheses that the model has read before the search."""
        return len(self.request.prefix_state.beginnings)

    @property
    def _first_state(self) -> BackboneState:
        """The state after the start token."""
        prefix_state: PiecePrefix = self.request.prefix_state
        return prefix_state.beginnings[()].state

    def take(self, count: int) -> tuple[Floats, Ints, Ints]:
        """Remove the best `count` waiting hypotheses; return those of them with which a text may begin."""
        scores, parents, tokens = super().take(count)
        may_begin = self.tokenizer.may_begin
        is_possible = np.array(
            [
                may_begin(self.tokenizer.decode((*self._ids(parent), token)))
                for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )
        return scores[is_possible], parents[is_possible], tokens[is_possible]
