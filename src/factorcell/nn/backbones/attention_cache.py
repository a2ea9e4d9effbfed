"""The state of a Transformer: keys and values of the tokens read so far, which later tokens attend to.

A `CacheState` has arrays in which the tokens of each text end at the last column; shorter texts are padded on the left.
A `CacheTree` stores the states of the thousands of hypotheses of a search. Hypotheses share their first tokens with
their parents, so the tree stores each token once: with L layers, k key heads of d numbers, a hypothesis needs 8 L k d
bytes, however long it is, and the typed prefix needs as much per token.

Shapes: N texts, S stored tokens, T new tokens, A attention heads of keys, d numbers per head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

INITIAL_ENTRIES = 64  # tokens for which a tree reserves memory first


@dataclass(frozen=True)
class TreePaths:
    """Where a `CacheTree` stores the tokens of N texts: `entries` (N, S) are rows of the tree, padded on the left."""

    tree: "CacheTree"
    entries: Tensor


@dataclass(frozen=True)
class CacheState:
    """Keys and values of the tokens that N texts have read.

    Attributes:
        lengths: Number of tokens of each text (N,).
        layers: For each layer, keys and values (N, A, S, d); empty if no text has a token.
        paths: The tree that already stores the first tokens of the texts, if they come from a tree.
    """

    lengths: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...] = ()
    paths: TreePaths | None = None

    @property
    def width(self) -> int:
        """The number of columns, S."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def select(self, rows: Tensor) -> "CacheState":
        """Return the state of the texts `rows`, which may repeat."""
        layers = tuple((keys[rows], values[rows]) for keys, values in self.layers)
        paths = None if self.paths is None else TreePaths(self.paths.tree, self.paths.entries[rows])
        return CacheState(self.lengths[rows], layers, paths)

    def without_last(self, count: int) -> "CacheState":
        """Return the state before the last `count` tokens of each text, which shares the memory of this state."""
        end = self.width - count
        layers = tuple((keys[:, :, :end], values[:, :, :end]) for keys, values in self.layers)
        return CacheState(self.lengths - count, layers)

    def cat(self, others: Sequence["CacheState"]) -> "CacheState":
        """Return the state of the texts of this state, followed by those of `others`."""
        if not others:
            return self  # without a copy
        states = [self, *others]
        lengths = torch.cat([state.lengths for state in states])
        template = next((state for state in states if state.layers), None)
        if template is None:
            return CacheState(lengths)
        width = max(state.width for state in states)
        layers = []
        for index, pair in enumerate(template.layers):
            parts = [
                tuple(
                    _pad_left(state.layers[index][part], width)
                    if state.layers
                    else pair[part].new_zeros(len(state.lengths), pair[part].shape[1], width, pair[part].shape[3])
                    for state in states
                )
                for part in (0, 1)
            ]
            layers.append((torch.cat(parts[0]), torch.cat(parts[1])))
        return CacheState(lengths, tuple(layers))

    def reserve(self, rows: int) -> "CacheTree":
        """Return empty space for the states of `rows` texts."""
        return CacheTree(rows, self.lengths.device)

    def is_stored(self) -> Tensor | None:
        """Return which columns (N, S) hold a token; None if all of them do."""
        if bool((self.lengths == self.width).all()):
            return None
        columns = torch.arange(self.width, device=self.lengths.device)
        return columns >= self.width - self.lengths[:, None]

    def after(self, layers: Sequence[tuple[Tensor, Tensor]], lengths: Tensor | None) -> "CacheState":
        """Return the state after T more tokens of each text.

        Args:
            layers: For each layer, keys and values (N, A, S + T, d) of the stored and the new tokens.
            lengths: How many of the T new tokens belong to each text (N,); the others are padding. Default: all.
        """
        width = layers[0][0].shape[2]
        new_count = width - self.width
        if lengths is None or bool((lengths == new_count).all()):
            return CacheState(self.lengths + new_count, tuple(layers), self.paths)
        all_lengths = self.lengths + lengths
        new_width = int(all_lengths.max())
        # The tokens of a text are consecutive columns, which end at column S + lengths. Move them to the last columns.
        columns = torch.arange(new_width, device=lengths.device) + (self.width + lengths - new_width)[:, None]
        columns = columns.clamp(min=0)[:, None, :, None]
        moved = tuple(
            (
                keys.gather(2, columns.expand(-1, keys.shape[1], -1, keys.shape[3])),
                values.gather(2, columns.expand(-1, values.shape[1], -1, values.shape[3])),
            )
            for keys, values in layers
        )
        return CacheState(all_lengths, moved)


class CacheTree:
    """The states of many texts that share their first tokens; each token is stored once.

    Attributes:
        stored_tokens: The number of tokens whose keys and values the tree stores.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []  # keys and values (entries, A, d) of each layer
        self.stored_tokens = 0
        self._entries = torch.zeros(rows, 0, dtype=torch.int64, device=device)  # (rows, S), padded on the right
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def put(self, first: int, state: CacheState) -> None:
        """Store the `state` of N texts in the rows from `first` on.

        Tokens that this tree stores already are not copied. New tokens are taken from the last columns of the state.
        """
        stored = self._stored_entries(state)
        count, width = len(state.lengths), state.width
        new_width = width - stored.shape[1]
        new_entries = self._append(state, new_width)
        entries = torch.cat([stored, new_entries], dim=1)
        # Move the tokens of each text to the first columns, where the parents of later texts have them, too.
        columns = torch.arange(width, device=entries.device) + (width - state.lengths)[:, None]
        entries = entries.gather(1, columns.clamp(max=max(0, width - 1))) if width else entries
        if width > self._entries.shape[1]:
            self._entries = _pad_right(self._entries, max(width, 2 * self._entries.shape[1]))
        rows = slice(first, first + count)
        self._entries[rows, :width] = entries
        self._lengths[rows] = state.lengths

    def select(self, rows: Tensor) -> CacheState:
        """Return the state of the texts in the rows `rows` (N,)."""
        lengths = self._lengths[rows]
        width = int(lengths.max()) if len(lengths) else 0
        if not width:
            return CacheState(lengths)
        columns = torch.arange(width, device=rows.device) - (width - lengths)[:, None]
        entries = self._entries[rows].gather(1, columns.clamp(min=0))  # (N, S), padded on the left
        layers = tuple(
            (keys[entries].transpose(1, 2), values[entries].transpose(1, 2)) for keys, values in self._layers
        )
        return CacheState(lengths, layers, TreePaths(self, entries))

    def _stored_entries(self, state: CacheState) -> Tensor:
        """Return the entries (N, S') of the first columns of `state`, which this tree stores already."""
        if state.paths is not None and state.paths.tree is self:
            return state.paths.entries
        return self._entries.new_zeros(len(state.lengths), 0)

    def _append(self, state: CacheState, width: int) -> Tensor:
        """Store the last `width` columns of `state`; return their entries (N, width)."""
        count = len(state.lengths) * width
        if self.stored_tokens + count > (len(self._layers[0][0]) if self._layers else 0):
            self._grow(state, max(INITIAL_ENTRIES, self.stored_tokens + count, 2 * self.stored_tokens))
        rows = slice(self.stored_tokens, self.stored_tokens + count)
        for stored_pair, pair in zip(self._layers, state.layers, strict=True):
            for stored, part in zip(stored_pair, pair, strict=True):
                stored[rows] = part[:, :, state.width - width :].transpose(1, 2).flatten(0, 1)
        self.stored_tokens += count
        return torch.arange(rows.start, rows.stop, device=self._entries.device).view(-1, width)

    def _grow(self, state: CacheState, capacity: int) -> None:
        """Reserve memory for `capacity` tokens."""
        grown = []
        for index, pair in enumerate(state.layers):
            parts = []
            for part_index, part in enumerate(pair):
                larger = part.new_empty(capacity, part.shape[1], part.shape[3])
                if self._layers:
                    larger[: self.stored_tokens] = self._layers[index][part_index][: self.stored_tokens]
                parts.append(larger)
            grown.append((parts[0], parts[1]))
        self._layers = grown


def _pad_left(part: Tensor, width: int) -> Tensor:
    """Pad keys or values (N, A, S, d) with zeros on the left to `width` columns."""
    return torch.nn.functional.pad(part, (0, 0, width - part.shape[2], 0))


def _pad_right(entries: Tensor, width: int) -> Tensor:
    """Pad entries (rows, S) with zeros on the right to `width` columns."""
    return torch.nn.functional.pad(entries, (0, width - entries.shape[1]))
