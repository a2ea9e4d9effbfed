"""A backbone as unlike the recurrent one as can be: its state is a growing list of all that each text has read.

    y_t = tanh(sum_s a_ts V x_s + U x_t + D c)        a_t. = softmax over s <= t of (Q x_t) (K x_s)

One head of attention without positions, text by text. Whoever looks inside a state, or takes it for arrays of one
length, fails on it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from factorcell.config import ModelConfig
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run


class Lists:
    """What N texts have read so far: a list of vectors for each. Also the room for such lists."""

    def __init__(self, texts: list[list[Tensor]]) -> None:
        self._texts = texts

    def select(self, rows: Tensor) -> "Lists":
        return Lists([self._texts[row] for row in rows.tolist()])

    def cat(self, others: Sequence["Lists"]) -> "Lists":
        return Lists([text for one in (self, *others) for text in one._texts])

    def reserve(self, rows: int) -> "Lists":
        return Lists([[]] * rows)

    def put(self, first: int, state: "Lists") -> None:
        self._texts[first : first + len(state._texts)] = state._texts

    def read(self, vectors: Tensor) -> list[list[Tensor]]:
        """Each list with one more of `vectors` (N, E)."""
        return [[*text, vector] for text, vector in zip(self._texts, vectors, strict=True)]


class Offsets:
    """What contexts decide: a vector each, or one for all texts."""

    def __init__(self, vectors: list[Tensor], shared: bool = False) -> None:
        self._vectors, self._shared = vectors, shared

    def select(self, rows: Tensor) -> "Offsets":
        return Offsets([self._vectors[row] for row in rows.tolist()])

    def of(self, text: int) -> Tensor:
        """The vector of one of the texts."""
        return self._vectors[0 if self._shared else text]

    def for_all(self) -> "Offsets":
        """The vector of the only context, for any number of texts."""
        (only,) = self._vectors
        return Offsets([only], shared=True)


class Growing(nn.Module):
    """A `Backbone`: see the head of this file."""

    def __init__(self, config: ModelConfig, context_size: int, adapt: Sequence[str]) -> None:
        super().__init__()
        self.size = config.hidden_size
        self.query, self.key, self.value, self.own = (
            nn.Linear(config.embedding_size, self.size, bias=False) for _ in range(4)
        )
        self.offset = nn.Linear(context_size, self.size) if context_size else None

    def condition(self, vector: Tensor, packed: Any = None) -> Offsets:
        assert packed is None
        return Offsets(list(vector.new_zeros(len(vector), self.size) if self.offset is None else self.offset(vector)))

    def adapted_share(self) -> float:
        return self.size / sum(part.numel() for part in self.parameters()) if self.offset else 0.0

    def fold(self, conditions: Offsets, shared: bool = False) -> Offsets:
        return conditions.for_all() if shared else conditions

    def start(self, conditions: Offsets, count: int) -> Lists:
        return Lists([[] for _ in range(count)])

    def step(self, inputs: Tensor, conditions: Offsets, state: Lists) -> tuple[Tensor, Lists]:
        texts = state.read(inputs)
        vectors = [self._last(torch.stack(text), conditions.of(row)) for row, text in enumerate(texts)]
        return torch.stack(vectors) if vectors else inputs.new_zeros(0, self.size), Lists(texts)

    def forward(
        self, inputs: Tensor, conditions: Offsets, state: Lists, lengths: Tensor | None = None
    ) -> tuple[Tensor, Lists]:
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

    def pack(self) -> None:
        """See `Backbone`: nothing to gain."""

    def _last(self, inputs: Tensor, offset: Tensor) -> Tensor:
        """What predicts after the last of `inputs` (t, E)."""
        attention = torch.softmax(self.key(inputs) @ self.query(inputs[-1]), 0)
        vector: Tensor = torch.tanh(attention @ self.value(inputs) + self.own(inputs[-1]) + offset)
        return vector


def regrown(run: Run, spread: float = 0.6) -> Run:
    """`run` with a model of the same sizes whose backbone is `Growing`, its weights random."""
    run.model = LanguageModel(run.config.model, len(run.vocabulary), run.schema, Growing)
    run.model.eval()
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, spread)
    return run
