"""The plug point for backbones, which turn embedded tokens into the vectors that predict the next tokens.

Each vector depends only on the tokens up to its own. `Conditions` (everything that a context determines in the
backbone) and `BackboneState` (what it remembers of the tokens read so far) are opaque: no code outside a
backbone reads them, so that the hidden state of a recurrent layer and the cache of an attention layer fit behind the
same calls.

Shapes: B contexts, N texts, T steps, E token embedding, H vector of the backbone, K context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from factorcell.option_fields import EXTENSIBLE, KindOptions, check_kind


class Conditions(Protocol):
    """Everything that B contexts determine in a backbone or a head."""

    def select(self, rows: Tensor) -> Self:
        """Return the conditions of the contexts `rows` (B',), which may repeat."""
        ...


class StateBuffer(Protocol):
    """Preallocated space for the states of many texts, which arrive a few at a time."""

    def put(self, first: int, state: Any) -> None:
        """Store the `state` of some texts in the rows from `first` on."""
        ...

    def select(self, rows: Tensor) -> Any:
        """Return the state of the texts in `rows` (N,)."""
        ...


class BackboneState(Conditions, Protocol):
    """The state of a backbone after reading N texts, which may differ in length."""

    def cat(self, others: Sequence[Self]) -> Self:
        """Return the state of these texts followed by those of `others`."""
        ...

    def reserve(self, rows: int) -> StateBuffer:
        """Return empty space for the states of `rows` texts."""
        ...


@dataclass(frozen=True)
class BackboneSizes:
    """Sizes and adapters that the rest of a model determines for its backbone.

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
    """Estimated numbers of float32 values that a backbone stores, to check memory before it is allocated.

    Attributes:
        token: For each token of a training batch, gradients included.
        text: For each text of a training batch, in addition.
        state: For the `BackboneState` of one text.
        conditions: For the `Conditions` of one context.
    """

    token: int
    text: int
    state: int
    conditions: int


class Backbone(nn.Module):
    """Base of all backbones.

    Args:
        options: An instance of `Options`, the options of this kind.
        sizes: Sizes and adapters that the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions
    size: int  # H

    def __init__(self, options: Any, sizes: BackboneSizes) -> None:
        super().__init__()

    def condition(self, vector: Tensor, packed: Any = None) -> Any:
        """Return the `Conditions` of B contexts.

        Args:
            vector: Context vectors (B, K).
            packed: The result of `pack` for the current weights.
        """
        raise NotImplementedError

    def fold(self, conditions: Any, shared: bool = False) -> Any:
        """Return equivalent conditions that are faster for many tokens.

        Args:
            conditions: The conditions of B contexts.
            shared: Whether they belong to one context and are used for any number of texts at once.
        """
        raise NotImplementedError

    def start(self, conditions: Any, count: int) -> Any:
        """Return the `BackboneState` of `count` texts before their first token."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, conditions: Any, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read texts in B contexts.

        In training mode it applies dropout, including dropout of its inputs.

        Args:
            inputs: Token embeddings (B, T, E).
            conditions: The conditions of the contexts.
            state: The state before the first token.
            lengths: Number of steps (B,) after which the state of a text no longer changes; default: T.

        Returns:
            Vectors (B, T, H) after each token, and the last state.
        """
        raise NotImplementedError

    def step(self, inputs: Tensor, conditions: Any, state: Any) -> tuple[Tensor, Any]:
        """Read one token, `inputs` (N, E), without dropout; return vectors (N, H) and the state after it."""
        raise NotImplementedError

    def footprint(self) -> Footprint:
        """Return how much memory this backbone needs; by default an estimate for one layer of its size."""
        return Footprint(token=8 * self.size, text=0, state=2 * self.size, conditions=self.size)

    def pack(self) -> Any:
        """Return weights in a form with which `condition` reads few texts faster; None if there is no such form."""
        return None

    def adapted_share(self) -> float | None:
        """Return the number of values that a context sets, relative to the parameters of the backbone, if known."""
        return None


def register_backbone(name: str, backbone: type[Backbone]) -> None:
    """Make a kind of backbone available to the option `backbone` in this process.

    Args:
        name: Kind of the backbone: lower-case letters, digits and underscores.
        backbone: Class that extends `Backbone` and has `Options` of this kind.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["backbone"].register(name, backbone, check_kind)
