"""The base class of backbones, which turn token embeddings into the vectors that predict the next tokens.

The vector after a token depends only on this token and those before it. Code outside a backbone does not read the
values in its `Conditions` and its `BackboneState`: a recurrent layer stores a hidden state, an attention layer a cache.

Shapes: B contexts, N texts, T steps, E token embedding, H vector of the backbone, K context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, KindOptions, check_kind


class Conditions(Protocol):
    """Everything that B contexts determine in a backbone or a head."""

    def select(self, rows: Tensor) -> Self:
        """Return the conditions of the contexts `rows` (B',), which may repeat."""
        ...


class BackboneState(Conditions, Protocol):
    """The state of a backbone after reading N texts, which may differ in length."""

    def cat(self, others: Sequence[Self]) -> Self:
        """Return the state of the texts of this state, followed by the texts of `others`."""
        ...

    def reserve(self, rows: int) -> "StateBuffer":
        """Return empty space for the states of `rows` texts."""
        ...


class StateBuffer(Protocol):
    """Preallocated space for the states of many texts."""

    def put(self, first: int, state: Any) -> None:
        """Store the `state` of some texts in consecutive rows of the buffer, starting at row `first`."""
        ...

    def select(self, rows: Tensor) -> Any:
        """Return the state of the texts in the rows `rows` (N,) of the buffer."""
        ...


@dataclass(frozen=True)
class BackboneSizes:
    """Sizes and adapters that the rest of a model determines for its backbone.

    Attributes:
        inputs: Size of a token embedding, E.
        context: Size of the context vector, K; 0 if no context changes the backbone.
        adapt: Names of the adapters of the backbone's linear maps (`AdaptedLinear`); empty if `context` is 0.
        rank: Rank of the adapters that need a rank.
    """

    inputs: int
    context: int = 0
    adapt: tuple[str, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class Footprint:
    """Estimates of how many float32 values a backbone stores, used to check memory before allocating it.

    Attributes:
        token: Values per token of a training batch, including gradients.
        state: Values in the `BackboneState` of one text.
        conditions: Values in the `Conditions` of one context.
    """

    token: int
    state: int
    conditions: int


class Backbone(nn.Module):
    """Base class of backbones.

    Args:
        options: An instance of `Options`, the options of this kind.
        sizes: Sizes and adapters that the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions
    size: int  # H, which `__init__` of a subclass must set
    max_tokens: int | None = None  # largest number of tokens of a text, with the start token; None: any number

    def __init__(self, options: Any, sizes: BackboneSizes) -> None:
        super().__init__()

    @classmethod
    def embedding_size(cls, options: Any) -> int | None:
        """Return the size of token embeddings that a backbone with these `options` needs; by default None: any size."""
        return None

    def condition(self, vector: Tensor, packed: Any = None) -> Any:
        """Return the `Conditions` of B contexts.

        Args:
            vector: Context vectors (B, K).
            packed: The result of `pack` for the current weights.
        """
        raise NotImplementedError

    def fold(self, conditions: Any, shared: bool = False) -> Any:
        """Return equivalent conditions with which reading many tokens is faster.

        Args:
            conditions: The conditions of B contexts.
            shared: Whether the conditions belong to one context, in which any number of texts are read at once.
        """
        raise NotImplementedError

    def start(self, conditions: Any, count: int) -> Any:
        """Return the `BackboneState` of `count` texts before their first token."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, conditions: Any, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read texts in B contexts.

        In training mode the backbone applies dropout, also to `inputs`.

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
        """Read one token of each text, `inputs` (N, E), without dropout; return vectors (N, H) and the next state."""
        raise NotImplementedError

    def footprint(self) -> Footprint:
        """Estimate how many values this backbone stores; by default, those of one layer of its size."""
        return Footprint(token=8 * self.size, state=2 * self.size, conditions=self.size)

    def token_tables(
        self, vocabulary_size: int, known_count: int, end: int
    ) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Return the token embeddings (V, E) of the input and of the output layer if the backbone is pretrained.

        By default return None: the language model creates the embeddings. The tokens from `known_count` on were added
        to the vocabulary of the backbone; `end` is the end token.
        """
        return None

    def output_bias(self, vocabulary_size: int, known_count: int) -> Tensor | None:
        """Return the bias (V,) of the output layer if the backbone is pretrained and has one; by default None."""
        return None

    def pack(self) -> Any:
        """Return weights in a form with which reading few texts is faster; by default None: there is no such form."""
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


def apply_dropout(values: Tensor, rate: float, shared_by_steps: bool) -> Tensor:
    """Multiply `values` (B, T, N) by a dropout mask; with `shared_by_steps`, all steps of a text have the same mask."""
    if not rate:
        return values
    batch, steps, width = values.shape
    return values * dropout_mask((batch, 1 if shared_by_steps else steps, width), rate, values)


def dropout_mask(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """Draw a mask: 0 with probability `rate`, otherwise 1 / (1 - rate), in the dtype and on the device of `like`.

    The random numbers depend on PyTorch's random state. On the CPU, NumPy draws the mask, which takes a fifth of the
    time of PyTorch's generator.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)
    seed = int(torch.randint(1 << 62, (1,)))
    uniform = np.random.Generator(np.random.SFC64(seed)).random(shape, dtype=np.float32)
    mask = torch.from_numpy((uniform >= rate).astype(np.float32)).to(like.dtype)
    return mask.mul_(1 / (1 - rate))
