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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorcell.completion.search import Frontier, Ids, PlainEngine, SearchRequest
from factorcell.data.columns.context import Context
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.ngram.mixture import Predictor
from factorcell.nn.backbones.attention_cache import CacheState
from factorcell.nn.backbones.backbone import BackboneState

# The covers of a prefix have similar numbers of tokens, and Z includes those that are slightly longer than a text.
MORE_TOKENS = 8


@dataclass(frozen=True)
class Beginning:
    """The model after the start token and the tokens of a beginning."""

    log_probability: float  # of the tokens
    state: BackboneState
    log_probs: Tensor  # of the next token (1, V)


@dataclass(frozen=True)
class PiecePrefix:
    """A typed prefix in one context."""

    conditioning: Any  # of the context, folded
    typed: bytes
    beginnings: Mapping[Ids, Beginning]  # each after the beginning without its last token
    covers: Mapping[Ids, float]  # the log probability of each cover

    @property
    def log_probability(self) -> float:
        """The log probability of the prefix, log Z."""
        return float(np.logaddexp.reduce([-math.inf, *self.covers.values()]))


class PieceEngine(PlainEngine):
    """Reads a typed prefix, as bytes, and searches for its completions, with a model of pieces of words.

    Texts have at most `max_tokens` tokens. Beginnings have at most `MORE_TOKENS` more; so a long prefix without spaces
    has no cover, and is read in little time.
    """

    def __init__(self, model: Predictor, tokenizer: BpeTokenizer, max_tokens: int) -> None:
        super().__init__(model)
        self.tokenizer, self.max_beginning = tokenizer, max_tokens + MORE_TOKENS
        self.tokens = defaultdict[bytes, list[int]](list)  # by the bytes for which they stand
        for token, content in enumerate(tokenizer.bytes_by_id):
            if content:
                self.tokens[content].append(token)
        self.contents = sorted(self.tokens)
        self.max_size = max(map(len, self.contents), default=0)

    def begin(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Any:
        """Return the search state of an empty prefix in one context, with the arguments of `PlainEngine.begin`."""
        plain = super().begin(context, override)
        beginning = Beginning(0.0, *plain.states[0])
        return PiecePrefix(plain.conditioning, b"", {(): beginning}, {(): 0.0})

    def read_prefix(self, prefix_state: Any, ids: Sequence[int]) -> Any:
        """Return the search state of the prefix with the bytes `ids`; reuse the beginnings in `prefix_state`."""
        typed, cached = bytes(ids), prefix_state.beginnings
        beginnings: dict[Ids, Beginning] = {(): cached[()]}
        covers = dict[Ids, float]()
        if not typed:
            return PiecePrefix(prefix_state.conditioning, typed, beginnings, {(): 0.0})

        def read(tokens: Ids) -> None:
            if tokens in cached:
                beginnings[tokens] = cached[tokens]
                return
            shorter, last_token = beginnings[tokens[:-1]], tokens[-1]
            log_probability = shorter.log_probability + float(shorter.log_probs[0, last_token])
            last_tokens = torch.tensor([last_token]).to(self.model.device)
            log_probs, state = self.model.step(last_tokens, prefix_state.conditioning, shorter.state)
            beginnings[tokens] = Beginning(log_probability, state, log_probs)

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
            for token in self.tokens_beginning_with(remaining):
                covers[(*tokens, token)] = beginning.log_probability + float(beginning.log_probs[0, token])
            for size in range(1, min(len(remaining), self.max_size + 1)):
                for token in self.tokens.get(remaining[:size], ()):
                    longer = (*tokens, token)
                    if self.tokenizer.may_begin(self.tokenizer.decode(longer)):
                        read(longer)
                        queue.append(longer)
        return PiecePrefix(prefix_state.conditioning, typed, beginnings, covers)

    def tokens_beginning_with(self, content: bytes) -> Iterator[int]:
        """Yield the tokens whose bytes begin with `content`."""
        for place in range(bisect.bisect_left(self.contents, content), len(self.contents)):
            if not self.contents[place].startswith(content):
                return
            yield from self.tokens[self.contents[place]]

    def _begin(self, request: SearchRequest) -> Frontier:
        """Return the beginnings of the prefix as expanded hypotheses, and its covers as waiting ones."""
        prefix: PiecePrefix = request.prefix_state
        start, first_count = prefix.beginnings[()], len(prefix.beginnings)
        states = start.state.reserve(request.max_expanded + first_count)
        frontier = Frontier(self.model, request, states, first_count)
        if not prefix.typed:
            frontier.add([()], np.zeros(1), start.log_probs, start.state)
            return frontier
        frontier.expanded += prefix.beginnings
        numbers = {tokens: number for number, tokens in enumerate(prefix.beginnings)}
        for tokens in {cover[:-1]: None for cover in prefix.covers}:  # the search reads the states of these only
            states.put(numbers[tokens], prefix.beginnings[tokens].state)
        log_z = prefix.log_probability
        waiting = [
            (score - log_z, numbers[cover[:-1]] * self.model.vocabulary_size + cover[-1])
            for cover, score in prefix.covers.items()
            if len(cover) <= request.max_tokens and cover[-1] != self.model.specials.end
        ]
        scores, codes = zip(*waiting, strict=True) if waiting else ((), ())
        frontier.wait(np.array(scores, dtype=np.float64), np.array(codes, dtype=np.int64))
        return frontier

    def _may_begin(self, ids: Ids) -> bool:
        return self.tokenizer.may_begin(self.tokenizer.decode(ids))


def _share_memory(beginnings: dict[Ids, Beginning], longest: Ids) -> None:
    """Let the beginnings of `longest` share the memory of its keys and values, if the model is a Transformer."""
    state = beginnings[longest].state
    if not isinstance(state, CacheState):
        return
    for length in range(1, len(longest)):
        shorter = longest[:length]
        beginnings[shorter] = replace(beginnings[shorter], state=state.without_last(len(longest) - length))
