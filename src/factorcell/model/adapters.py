"""The change of a linear map by a context, and the adapters that compute it.

    y = s(c) * (x W + (x L(c)) R(c)) + V c + b

These are equations 2 to 4 of Jaech and Ostendorf (TACL 2018). s(c) is equation 3.2 of Jaech's thesis (2018), which
scales the rows of W because its W is transposed. `AdaptedLinear` (`adapted_linear`) contains W and b and applies the
change.

Shapes: B contexts, D inputs, O outputs, K context, R rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, ModelConfig, UserError
from factorcell.model.initial import normal
from factorcell.option_fields import PREFIX


@dataclass(frozen=True)
class Shift:
    """The change of a linear map in B contexts; a part that is None changes nothing.

    Attributes:
        left: L (B, D, R).
        right: R (B, R, O); `left` times `right` is added to W.
        bias: V c (B, O), added to b.
        scale: s (B, O), a factor on the outputs before the bias.
        matrix: (B, D, O), or (D, O) for all contexts, in place of W; set by `AdaptedLinear.fold`, not by adapters.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    matrix: Tensor | None = None

    @classmethod
    def sum(cls, shifts: Sequence["Shift"]) -> "Shift":
        """Combine shifts: concatenate ranks, add biases, multiply factors."""
        left = [shift.left for shift in shifts if shift.left is not None]
        right = [shift.right for shift in shifts if shift.right is not None]
        biases = [shift.bias for shift in shifts if shift.bias is not None]
        scales = [shift.scale for shift in shifts if shift.scale is not None]
        return cls(
            torch.cat(left, dim=2) if left else None,
            torch.cat(right, dim=1) if right else None,
            torch.stack(biases).sum(0) if biases else None,
            torch.stack(scales).prod(0) if len(scales) > 1 else scales[0] if scales else None,
        )

    def select(self, rows: Tensor) -> "Shift":
        """Return the shift of the contexts `rows` (B',), which may repeat."""
        return Shift(
            None if self.left is None else self.left[rows],
            None if self.right is None else self.right[rows],
            None if self.bias is None else self.bias[rows],
            None if self.scale is None else self.scale[rows],
            self.matrix if self.matrix is None or self.matrix.dim() == 2 else self.matrix[rows],
        )

    def values_per_context(self) -> int:
        """Return the number of values that one context determines."""
        return sum(part[0].numel() for part in (self.left, self.right, self.bias, self.scale) if part is not None)


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of the linear map that an adapter modifies.

    Attributes:
        context: Size of a context vector, K.
        inputs: Number of inputs, D.
        outputs: Number of outputs, O.
        rank: R; 0 if the change has no low-rank part.
    """

    context: int
    inputs: int
    outputs: int
    rank: int


class Adapter(nn.Module):
    """Base class of adapters, which compute the `Shift` of a linear map from context vectors (B, K).

    An adapter is constructed for each linear map. It must return the same parts, of the same sizes except B, for all
    contexts, and each row must depend only on its own context vector.

    Attributes:
        needs_rank: Whether the adapter is omitted if the rank is 0.

    Args:
        sizes: Sizes of the linear map.
    """

    needs_rank: ClassVar[bool] = False

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()

    def forward(self, vector: Tensor) -> Shift:
        """Return the shift of B contexts from their context vectors (B, K), in the dtype of `vector`."""
        raise NotImplementedError


class Concat(Adapter):
    """The ConcatCell: the context as an additional input, which shifts the bias (TACL 2018, equation 2)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.outputs), sizes.context**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """Return the shift V c (B, O) of the bias."""
        return Shift(bias=vector @ self.weight)


class Scale(Adapter):
    """Rescaled outputs: s = 1 + C c (thesis 2018, equation 3.2; the 1 makes training start nearly unadapted)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.outputs), 0.1, sizes.context**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """Return the factors s (B, O)."""
        return Shift(scale=1 + vector @ self.weight)


class Factor(Adapter):
    """The FactorCell: a rank-R change of W by two basis tensors, (K, D, R) and (K, R, O) (TACL 2018, equation 3)."""

    needs_rank = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        # The columns of L have unit expected norm for a unit context; R starts small, near the unadapted map.
        self.left = nn.Parameter(normal((sizes.context, sizes.inputs, sizes.rank), sizes.inputs**-0.5))
        self.right = nn.Parameter(normal((sizes.context, sizes.rank, sizes.outputs), 0.1, sizes.rank**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """Return L (B, D, R) and R (B, R, O)."""
        left = vector @ self.left.flatten(1)
        right = vector @ self.right.flatten(1)
        return Shift(left.view(-1, *self.left.shape[1:]), right.view(-1, *self.right.shape[1:]))


ADAPTERS: dict[str, type[Adapter]] = {"concat": Concat, "scale": Scale, "factor": Factor}


def register_adapter(name: str, adapter: type[Adapter]) -> None:
    """Make an adapter available to the option `adapt` in this process.

    Args:
        name: Lower-case letters, digits and underscores.
        adapter: Class that extends `Adapter`.

    Raises:
        UserError: The name is taken, or the class does not extend `Adapter`.
    """
    EXTENSIBLE["adapt"].register(name, adapter, _check)


def find_adapter(name: str) -> type[Adapter]:
    """Return the class of the adapter called `name`: built in, registered, or from an installed package."""
    adapter: type[Adapter] = EXTENSIBLE["adapt"].find_class(name, ADAPTERS, _check)
    return adapter


def weight_adapters(config: ModelConfig) -> tuple[str, ...]:
    """Return the adapters of a config that change weights: all but the prefix and, at rank 0, those that need one."""
    return tuple(name for name in config.adapt if name != PREFIX and (config.rank or not find_adapter(name).needs_rank))


def _check(name: str, adapter: type[Adapter]) -> None:
    """Raise `UserError` unless `adapter` is an adapter and PyTorch accepts its name."""
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        expected = "expected a class that extends factorcell.model.Adapter"
        raise UserError(f"adapter {name!r}: {expected}, got {adapter!r:.60}")
    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"adapter {name!r}: PyTorch reserves this name; choose another")
