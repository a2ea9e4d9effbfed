"""The plug point for backbones: what reads embedded tokens and returns the vectors that predict the next token.

A backbone turns embedded tokens into vectors; each vector follows from the tokens up to its own alone.
`Conditions` (everything that a context determines in the backbone) and `BackboneState` (what it keeps of tokens read
so far) are opaque: no code outside a backbone reads them, so that the hidden state of a recurrent layer and the cache
of an attention layer fit behind the same calls.

Shapes: B contexts, N texts, T steps, E size of a token embedding, H size of a vector that predicts, K context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from factorcell.option_fields import EXTENSIBLE, KindOptions, check_kind


class Conditions(Protocol):
    """Everything that B contexts determine in a backbone or a head."""

    def select(self, rows: Tensor) -> Self:
        """Return those of `rows` (B',), repeated where a row is named twice."""
        ...


class StateBuffer(Protocol):
    """Space for the states of many texts, which arrive a few at a time."""

    def put(self, first: int, state: Any) -> None:
        """Store the `state` of some texts in the places from `first` on."""
        ...

    def select(self, rows: Tensor) -> Any:
        """Return the state of the texts in the places `rows` (N,)."""
        ...


class BackboneState(Conditions, Protocol):
    """What a backbone keeps of N texts after their tokens so far; texts may differ in length."""

    def cat(self, others: Sequence[Self]) -> Self:
        """Return the state of these texts and of those of `others`, in that order."""
        ...

    def reserve(self, rows: int) -> StateBuffer:
        """Return empty space for `rows` states of this kind."""
        ...


@dataclass(frozen=True)
class BackboneSizes:
    """What the rest of a model determines about its backbone.

    Attributes:
        inputs: Size of a token embedding, E.
        context: Size of the context vector, K; 0 if no context changes the backbone.
        adapt: Names of the adapters of its linear maps (`AdaptedLinear`); empty if `context` is 0.
        rank: Rank of the adapters that have one.
    """

    inputs: int
    context: int = 0
    adapt: tuple[str, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class Footprint:
    """Estimated float32 values that a backbone keeps, so that memory is checked before it is allocated.

    Attributes:
        token: For each token of a training batch, gradients included.
        text: For each text of a training batch, in addition.
        state: Of the `BackboneState` of one text.
        conditions: Of the `Conditions` of one context.
    """

    token: int
    text: int
    state: int
    conditions: int


class Backbone(nn.Module):
    """Base of all backbones.

    Args:
        options: An instance of `Options`, the options of this kind.
        sizes: What the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions
    size: int  # H

    def __init__(self, options: Any, sizes: BackboneSizes) -> None:
        super().__init__()

    def condition(self, vector: Tensor, packed: Any = None) -> Any:
        """Return the `Conditions` of context vectors (B, K); `packed`: the result of `pack` for the current weights."""
        raise NotImplementedError

    def fold(self, conditions: Any, shared: bool = False) -> Any:
        """Return the same conditions, prepared for many tokens.

        If `shared` they are of one context and are used for any number of texts at once.
        """
        raise NotImplementedError

    def start(self, conditions: Any, count: int) -> Any:
        """Return the `BackboneState` of `count` texts before their first token."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, conditions: Any, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read `inputs` (B, T, E) of texts in B contexts; return vectors (B, T, H) after each and the last state.

        A text ends after `lengths` (B,) steps: its state does not change after that. In training mode with dropout,
        that of the inputs included.
        """
        raise NotImplementedError

    def step(self, inputs: Tensor, conditions: Any, state: Any) -> tuple[Tensor, Any]:
        """Read one token, `inputs` (N, E), without dropout; return vectors (N, H) and the state after it."""
        raise NotImplementedError

    def footprint(self) -> Footprint:
        """Return how much memory this backbone needs; by default an estimate for one layer of its size."""
        return Footprint(token=8 * self.size, text=0, state=2 * self.size, conditions=self.size)

    def pack(self) -> Any:
        """Return what `condition` takes to read few texts many times faster; None where nothing would be gained."""
        return None

    def adapted_share(self) -> float | None:
        """Return the number of values that a context sets, relative to the parameters of the backbone, if known."""
        return None


def register_backbone(name: str, backbone: type[Backbone]) -> None:
    """Make `made` the backbone of the kind `name`, in this process.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["backbone"].register(name, backbone, check_kind)
