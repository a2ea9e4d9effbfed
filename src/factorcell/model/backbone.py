"""What a language model reads texts with: the seam for other backbones than the recurrent one.

A backbone turns embedded tokens into vectors that predict the next token, each after all tokens before it. What a
context decides in it (`Conditions`) and what it keeps of a text under way (`State`) are opaque: nobody outside this
room looks inside, so that the hidden state of a recurrent layer and the cache of an attention layer fit behind the
same words.

Shapes: B contexts, N texts under way, T steps, E size of a token embedding, H size of what predicts, K context.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from torch import Tensor


class Conditions(Protocol):
    """All that B context vectors decide in a backbone."""

    def select(self, rows: Tensor) -> Self:
        """The conditions of `rows` (B',), repeated where a row is named twice."""
        ...


class Reserve(Protocol):
    """Room for the states of many texts, which come a few at a time."""

    def put(self, first: int, state: Any) -> None:
        """Keep the `state` of some texts in the places from `first` on."""
        ...

    def select(self, rows: Tensor) -> Any:
        """The state of the texts in the places `rows` (N,)."""
        ...


class State(Protocol):
    """What a backbone keeps of N texts after the tokens that they have so far; texts may differ in length."""

    def select(self, rows: Tensor) -> Self:
        """The state of the texts `rows` (N',), repeated where one is named twice."""
        ...

    def cat(self, others: Sequence[Self]) -> Self:
        """The state of these texts and of those of `others`, in that order."""
        ...

    def reserve(self, rows: int) -> Reserve:
        """Empty room for `rows` states of this kind."""
        ...


class Backbone(Protocol):
    """A module from embedded tokens to what predicts the next one; `size` is that of its vectors, H."""

    size: int

    def condition(self, vector: Tensor, packed: Any = None) -> Any:
        """The `Conditions` of context vectors (B, K); `packed`: what `pack` made of the weights as they are now."""
        ...

    def adapted_share(self) -> float:
        """So many numbers as a context sets in it, as a share of its own parameters."""
        ...

    def fold(self, conditions: Any, shared: bool = False) -> Any:
        """The same conditions, made ready for many tokens.

        If `shared` they are of one context, and are read by any number of texts at once.
        """
        ...

    def start(self, conditions: Any, count: int) -> Any:
        """The `State` of `count` texts before their first token."""
        ...

    def forward(self, inputs: Tensor, conditions: Any, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """`inputs` (B, T, E) of texts in B contexts -> vectors (B, T, H) after each, and the last state.

        A text ends after `lengths` (B,) steps: its state stands still there. In training mode with dropout.
        """
        ...

    def step(self, inputs: Tensor, conditions: Any, state: Any) -> tuple[Tensor, Any]:
        """One token: `inputs` (N, E) -> vectors (N, H), and the state after it. Never dropped."""
        ...

    def pack(self) -> Any:
        """What `condition` takes to read few texts many times faster, None where nothing would be gained."""
        ...
