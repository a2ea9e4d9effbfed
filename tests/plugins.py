"""A backbone, a tokenizer and a head of another package, as different from the built-in ones as possible.

The state of the backbone is a growing list of all tokens that each text has read:

    y_t = tanh(sum_s a_ts V x_s + U x_t + D c)        a_t. = softmax over s <= t of (Q x_t) (K x_s)

It is one attention head without positions, computed text by text. Code that reads a state or expects arrays of one
length fails on it. The tokenizer cuts texts into pieces of three characters, and its special ids come last. The head
has its own weights instead of the token embeddings.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import KindOptions, TokenizerOptions
from factorcell.data import Specials, Tokenizer
from factorcell.nn import AdaptedLinear, Backbone, BackboneSizes, Head, HeadSizes, Shift


class Lists:
    """State of N texts: a list of the vectors that each text has read; also reserved memory for such lists."""

    def __init__(self, texts: list[list[Tensor]]) -> None:
        self._texts = texts

    def select(self, rows: Tensor) -> "Lists":
        """Select texts."""
        return Lists([self._texts[row] for row in rows.tolist()])

    def cat(self, others: Sequence["Lists"]) -> "Lists":
        """Join the texts of several states."""
        return Lists([text for lists in (self, *others) for text in lists._texts])

    def reserve(self, rows: int) -> "Lists":
        """Reserve memory for texts."""
        return Lists([[]] * rows)

    def put(self, first: int, state: "Lists") -> None:
        """Store texts from row `first` on."""
        self._texts[first : first + len(state._texts)] = state._texts

    def read(self, vectors: Tensor) -> list[list[Tensor]]:
        """Return each list with one of `vectors` (N, E) appended."""
        return [[*text, vector] for text, vector in zip(self._texts, vectors, strict=True)]


class Offsets:
    """Conditions of texts: one vector per text, or one vector for all texts."""

    def __init__(self, vectors: list[Tensor], shared: bool = False) -> None:
        self._vectors, self._shared = vectors, shared

    def select(self, rows: Tensor) -> "Offsets":
        """Select texts."""
        return Offsets([self._vectors[row] for row in rows.tolist()])

    def of(self, text: int) -> Tensor:
        """Return the vector of one text."""
        return self._vectors[0 if self._shared else text]

    def for_all(self) -> "Offsets":
        """Return the vector of the only context, for any number of texts."""
        (only,) = self._vectors
        return Offsets([only], shared=True)


@dataclass(frozen=True)
class GrowingOptions(KindOptions):
    """The options of `Growing`."""

    kind: str = "growing"
    width: int = 6


class Growing(Backbone):
    """Attention over a growing list."""

    Options = GrowingOptions

    def __init__(self, options: GrowingOptions, sizes: BackboneSizes) -> None:
        super().__init__(options, sizes)
        self.size = options.width
        self.query, self.key, self.value, self.direct = (
            nn.Linear(sizes.inputs, self.size, bias=False) for _ in range(4)
        )
        self.offset = nn.Linear(sizes.context, self.size) if sizes.context else None

    def condition(self, vector: Tensor, packed: Any = None) -> Offsets:
        """Compute one vector per context."""
        assert packed is None
        return Offsets(list(vector.new_zeros(len(vector), self.size) if self.offset is None else self.offset(vector)))

    def fold(self, conditions: Offsets, shared: bool = False) -> Offsets:
        """Share the only context if asked to."""
        return conditions.for_all() if shared else conditions

    def start(self, conditions: Offsets, count: int) -> Lists:
        """Start with empty lists."""
        return Lists([[] for _ in range(count)])

    def step(self, inputs: Tensor, conditions: Offsets, state: Lists) -> tuple[Tensor, Lists]:
        """Read one token of each text."""
        texts = state.read(inputs)
        vectors = [self._last(torch.stack(text), conditions.of(row)) for row, text in enumerate(texts)]
        return torch.stack(vectors) if vectors else inputs.new_zeros(0, self.size), Lists(texts)

    def forward(
        self, inputs: Tensor, conditions: Offsets, state: Lists, lengths: Tensor | None = None
    ) -> tuple[Tensor, Lists]:
        """Read all tokens of each text."""
        counts = [inputs.shape[1]] * len(inputs) if lengths is None else lengths.tolist()
        outputs, lasts = list(inputs.new_zeros(*inputs.shape[:2], self.size)), []
        for row, count in enumerate(counts):
            last, vectors = state.select(torch.tensor([row])), []
            for step in range(count):
                (text,) = last.read(inputs[row, step, None])
                last = Lists([text])
                vectors.append(self._last(torch.stack(text), conditions.of(row)))
            outputs[row] = torch.stack([*vectors, *outputs[row][count:]])
            lasts.append(last)
        return torch.stack(outputs), lasts[0].cat(lasts[1:])

    def _last(self, inputs: Tensor, offset: Tensor) -> Tensor:
        """Return the vector that predicts the token after the last of `inputs` (t, E)."""
        attention = torch.softmax(self.key(inputs) @ self.query(inputs[-1]), 0)
        vector: Tensor = torch.tanh(attention @ self.value(inputs) + self.direct(inputs[-1]) + offset)
        return vector


@dataclass(frozen=True)
class PieceOptions(TokenizerOptions):
    """The options of `Pieces`."""

    kind: str = "pieces"
    length: int = 3


class Pieces(Tokenizer):
    """Pieces of three characters; the ids of special tokens come after those of pieces."""

    Options = PieceOptions
    FILES = ("pieces.json",)

    def __init__(self, options: PieceOptions, pieces: Sequence[str] = ()) -> None:
        super().__init__(options)
        self.pieces = list(pieces)
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}
        first = len(self.pieces)  # the special tokens have the last three ids, the end first
        self.specials = Specials(unknown=first + 2, start=first + 1, end=first)

    @property
    def tokens(self) -> list[str]:
        """The pieces and the names of special tokens."""
        return [*self.pieces, "</s>", "<s>", "<unk>"]

    def split(self, text: str) -> list[str]:
        """Cut a text."""
        size = self.options.length
        return [text[i : i + size] for i in range(0, len(text), size)]

    def join(self, tokens: Sequence[str]) -> str:
        """Join pieces."""
        return "".join(tokens)

    def encode(self, tokens: Any) -> list[int]:
        """Look up pieces."""
        return [self.ids.get(token, self.specials.unknown) for token in tokens]

    def train(self, counts: Mapping[str, int]) -> Self:
        """Keep all pieces, in the order of the alphabet."""
        return type(self)(self.options, sorted(counts))

    def contents(self) -> dict[str, bytes]:
        """Write JSON."""
        return {"pieces.json": json.dumps(self.pieces).encode()}

    @classmethod
    def from_contents(cls, options: Any, contents: Mapping[str, bytes]) -> Self:
        """Read JSON."""
        return cls(options, json.loads(contents["pieces.json"]))


@dataclass(frozen=True)
class UntiedOptions(KindOptions):
    """The options of `Untied`."""

    kind: str = "untied"
    depth: int = 1


class Untied(Head):
    """A softmax with its own weights, whose bias the context shifts."""

    Options = UntiedOptions

    def __init__(self, options: UntiedOptions, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__(options, embedding, sizes)
        context = sizes.model.context_size if sizes.schema.variables else 0
        self.hidden = nn.ModuleList(nn.Linear(sizes.vector_size, sizes.vector_size) for _ in range(options.depth))
        adapt = ("concat",) if context else ()
        self.linear = AdaptedLinear(sizes.vector_size, len(embedding), context, adapt=adapt)
        self.start = sizes.specials.start

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Any) -> Shift:
        """Shift the bias."""
        return self.linear.condition(vector)

    def nats(self, vectors: Tensor, targets: Tensor, conditions: Shift) -> Tensor:
        """Compute all logits."""
        logs = self._logs(vectors, conditions)
        return -logs.gather(-1, targets[..., None])[..., 0]

    def log_probabilities(self, vectors: Tensor, conditions: Shift) -> Tensor:
        """Compute all logits."""
        return self._logs(vectors, conditions)

    def _logs(self, vectors: Tensor, conditions: Shift) -> Tensor:
        for layer in self.hidden:
            vectors = torch.relu(layer(vectors))
        logits = self.linear(vectors, conditions)
        forbidden = torch.zeros(logits.shape[-1], device=logits.device)
        forbidden[self.start] = -torch.inf
        return F.log_softmax(logits + forbidden, -1)


ENTRY_POINTS = """
[factorcell.backbones]
growing = their_plugins:Growing

[factorcell.tokenizers]
pieces = their_plugins:Pieces

[factorcell.heads]
untied = their_plugins:Untied
"""
