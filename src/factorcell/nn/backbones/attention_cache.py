"""The state of a Transformer: keys and values of the tokens read so far, which later tokens attend to.

A `CacheState` has arrays in which the tokens of each text end at the last column; shorter texts are padded on the left.
A `CacheTree` stores the states of the thousands of hypotheses of a search, and each token once, because hypotheses
share their first tokens with their parents.

Shapes: N texts, S stored tokens, T new tokens, A attention heads of keys, d numbers per head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

INITIAL_ENTRIES = 64  # tokens for which a tree reserves memory first


@dataclass(frozen=True)
class CacheState:
    """Keys and values of the tokens that N texts have read."""

    lengths: Tensor  # number of tokens of each text (N,)
    # the keys, then the values (N, A, S, d) of each layer; empty if no text has a token
    arrays: tuple[Tensor, ...] = ()
    # the tree that already stores the first tokens of the texts, if they come from a tree
    tree: "CacheTree | None" = None
    entries: Tensor | None = None  # the rows of the tree that store these tokens (N, S), padded on the left
    caches: list[Any] = field(default_factory=list)  # that of `transformers` with these arrays, until it is taken

    @property
    def width(self) -> int:
        """The number of columns, S."""
        return self.arrays[0].shape[2] if self.arrays else 0

    def select(self, rows: Tensor) -> "CacheState":
        arrays = tuple(array[rows] for array in self.arrays)
        return CacheState(self.lengths[rows], arrays, self.tree, None if self.entries is None else self.entries[rows])

    def without_last(self, count: int) -> "CacheState":
        """Return the state before the last `count` tokens of each text, which shares the memory of this state."""
        end = self.width - count
        return CacheState(self.lengths - count, tuple(array[:, :, :end] for array in self.arrays))

    def cat(self, others: Sequence["CacheState"]) -> "CacheState":
        if not others:
            return self  # without a copy
        states = [self, *others]
        width = max(state.width for state in states)
        template = next((state.arrays for state in states if state.arrays), ())
        empty = [array[:0, :, :0] for array in template]
        parts = [state.arrays or [x.new_zeros(len(state.lengths), *x.shape[1:]) for x in empty] for state in states]
        padded = [[F.pad(array, (0, 0, width - array.shape[2], 0)) for array in arrays] for arrays in parts]
        return CacheState(
            torch.cat([state.lengths for state in states]), tuple(map(torch.cat, zip(*padded, strict=True)))
        )

    def reserve(self, rows: int) -> "CacheTree":
        return CacheTree(rows, self.lengths.device)

    def take_cache(self) -> Any:
        """Return the cache of `transformers`, which grows in place, or None if another text or thread has taken it."""
        try:
            return self.caches.pop()
        except IndexError:
            return None

    def is_stored(self) -> Tensor | None:
        """Return which columns (N, S) hold a token; None if all of them do."""
        if bool((self.lengths == self.width).all()):
            return None
        columns = torch.arange(self.width, device=self.lengths.device)
        return columns >= self.width - self.lengths[:, None]

    def after(self, cache: Any, lengths: Tensor | None) -> "CacheState":
        """Return the state after T more tokens of each text, of which the first `lengths` (N,), by default all, count.

        The layers of the `cache` have the keys and the values (N, A, S + T, d) of the stored and the new tokens.
        """
        arrays = tuple(array for layer in cache.layers for array in (layer.keys, layer.values))
        new_count = arrays[0].shape[2] - self.width
        if lengths is None or bool((lengths == new_count).all()):
            return replace(self, lengths=self.lengths + new_count, arrays=arrays, caches=[cache])
        all_lengths = self.lengths + lengths
        new_width = int(all_lengths.max())
        # The tokens of a text are consecutive columns, which end at column S + lengths. Move them to the last columns.
        columns = torch.arange(new_width, device=lengths.device) + (self.width + lengths - new_width)[:, None]
        columns = columns.clamp(min=0)[:, None, :, None]
        moved = (array.gather(2, columns.expand(-1, array.shape[1], -1, array.shape[3])) for array in arrays)
        return CacheState(all_lengths, tuple(moved))


class CacheTree:
    """The states of many texts that share their first tokens; each token is stored once.

    Attributes:
        stored_tokens: The number of tokens whose keys and values the tree stores.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._arrays: list[Tensor] = []  # the keys, then the values (entries, A, d) of each layer
        self.stored_tokens = 0
        self._entries = torch.zeros(rows, 0, dtype=torch.int64, device=device)  # (rows, S), padded on the left
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def put(self, first: int, state: CacheState) -> None:
        """Store the `state` of N texts in the rows from `first` on; copy only tokens that this tree does not store."""
        count, width = len(state.lengths), state.width
        stored = state.entries if state.tree is self else None
        stored = self._entries.new_zeros(count, 0) if stored is None else stored
        entries = torch.cat([stored, self._append(state, width - stored.shape[1])], dim=1)
        stored_width = self._entries.shape[1]
        if width > stored_width:
            self._entries = F.pad(self._entries, (max(width, 2 * stored_width) - stored_width, 0))
        rows = slice(first, first + count)
        self._entries[rows, self._entries.shape[1] - width :] = entries
        self._lengths[rows] = state.lengths

    def select(self, rows: Tensor) -> CacheState:
        """Return the state of the texts in the rows `rows` (N,)."""
        lengths = self._lengths[rows]
        width = int(lengths.max()) if len(lengths) else 0
        if not width:
            return CacheState(lengths)
        entries = self._entries[rows, self._entries.shape[1] - width :]
        arrays = tuple(array[entries].transpose(1, 2) for array in self._arrays)
        return CacheState(lengths, arrays, self, entries)

    def _append(self, state: CacheState, width: int) -> Tensor:
        """Store the last `width` columns of `state`; return their entries (N, width)."""
        first = self.stored_tokens
        self.stored_tokens += len(state.lengths) * width
        if self.stored_tokens > (len(self._arrays[0]) if self._arrays else 0):
            capacity = max(INITIAL_ENTRIES, self.stored_tokens, 2 * first)
            larger = [array.new_empty(capacity, array.shape[1], array.shape[3]) for array in state.arrays]
            for new, old in zip(larger, self._arrays, strict=False):  # there are no old arrays at first
                new[:first] = old[:first]
            self._arrays = larger
        for stored, array in zip(self._arrays, state.arrays, strict=True):
            new_columns = array[:, :, state.width - width :]
            stored[first : self.stored_tokens] = new_columns.transpose(1, 2).flatten(0, 1)
        return torch.arange(first, self.stored_tokens, device=self._entries.device).view(len(state.lengths), width)
