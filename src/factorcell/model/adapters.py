"""What a context does to the weights of a recurrent layer.

    W' = s (W + L(c) R(c))        b' = b + V c        s = 1 + C c

(TACL 2018, equations 2 to 4; s, a factor on every row of W as printed, on its columns here: thesis 2018, equation 3.2.)

Shapes: B texts, E inputs, H hidden, D = E + H, G gate columns, K context, R rank.
An adapter maps c to a `Shift`; `shifted` sums the shifts into `AdaptedWeights`. Both are values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from factorcell.config import ADAPTERS as NAMES
from factorcell.model.kernels.recurrence import Packed

Shapes = dict[str, tuple[int, ...]]  # of parameters, by their names


@dataclass(frozen=True)
class Shift:
    """What one adapter changes: `left` (B, D, R) times `right` (B, R, G) is added to W, `bias` (B, G) to b.

    `scale` is added to a factor of one on W': (B, 1, G) on all of it, (B, 2, G) on its inputs' and its hidden part.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None


@dataclass(frozen=True)
class AdaptedWeights:
    """The recurrent weights of B contexts: `matrix` (D, G), shared, or (B, D, G), folded; `bias` (G,) or (B, G).

    W' is `matrix` + `left` `right`, times `scale` (B, 1 or 2, G). `packed` is the hidden part of `matrix` again.
    """

    matrix: Tensor
    bias: Tensor
    left: Tensor | None = None
    right: Tensor | None = None
    scale: Tensor | None = None
    packed: Packed | None = None

    def select(self, rows: Tensor) -> "AdaptedWeights":
        """The weights of `rows` (B',) of the contexts; what all contexts share stays shared."""
        return AdaptedWeights(
            self.matrix if self.matrix.dim() == 2 else self.matrix[rows],
            self.bias if self.bias.dim() == 1 else self.bias[rows],
            None if self.left is None else self.left[rows],
            None if self.right is None else self.right[rows],
            None if self.scale is None else self.scale[rows],
            self.packed,
        )

    def shared(self) -> "AdaptedWeights":
        """The folded weights of one context, its matrix (D, G) without a dimension for contexts."""
        return self if self.matrix.dim() == 2 else replace(self, matrix=self.matrix[0])

    def parts(self, inputs: int) -> tuple["AdaptedWeights", "AdaptedWeights"]:
        """The first `inputs` rows of W', and the others. Taken once: a slice's gradient is as large as the whole."""
        both = []
        for rows, own in ((slice(inputs), slice(1)), (slice(inputs, None), slice(-1, None))):
            left = None if self.left is None else self.left[:, rows]
            scale = None if self.scale is None else self.scale[:, own]
            both.append(replace(self, matrix=self.matrix[..., rows, :], left=left, scale=scale))
        return both[0], both[1]

    def fold(self, inputs: int) -> "AdaptedWeights":
        """The same weights with L, R and s multiplied into one matrix (B, D, G) per context."""
        if self.left is None and self.scale is None:
            return self
        matrix = self.matrix
        if self.left is not None and self.right is not None:
            matrix = matrix + self.left @ self.right
        if self.scale is not None:
            ours, hidden = matrix[..., :inputs, :], matrix[..., inputs:, :]
            matrix = torch.cat([ours * self.scale[:, :1], hidden * self.scale[:, -1:]], dim=-2)
        return AdaptedWeights(matrix, self.bias)


def shifted(matrix: Tensor, bias: Tensor, shifts: Sequence[Shift]) -> AdaptedWeights:
    """W (D, G) and b (G,) with all `shifts`, W' still factored; the ranks of several lie side by side."""
    left = [shift.left for shift in shifts if shift.left is not None]
    right = [shift.right for shift in shifts if shift.right is not None]
    biases = [shift.bias for shift in shifts if shift.bias is not None]
    scales = [shift.scale for shift in shifts if shift.scale is not None]
    return AdaptedWeights(
        matrix,
        torch.stack(biases).sum(0) + bias if biases else bias,
        torch.cat(left, dim=2) if left else None,
        torch.cat(right, dim=1) if right else None,
        sum(scales, torch.ones_like(scales[0])) if scales else None,
    )


class Adapter(nn.Module):
    """What turns context vectors (B, K) into a `Shift`; made of K, D, G and R."""

    @classmethod
    def shapes(cls, context_size: int, inputs: int, gates: int, rank: int) -> Shapes:
        """Those of its parameters: a model is known to fit into memory before it is made."""
        raise NotImplementedError


class Concat(Adapter):
    """ConcatCell: the context as one more input, which is a shifted bias (TACL 2018, equation 2)."""

    def __init__(self, context_size: int, inputs: int, gates: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(context_size, gates) * context_size**-0.5)

    @classmethod
    def shapes(cls, context_size: int, inputs: int, gates: int, rank: int) -> Shapes:
        """See `Adapter`."""
        return {"weight": (context_size, gates)}

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> a shifted bias (B, G)."""
        return Shift(bias=vector @ self.weight)


class Scale(Adapter):
    """Row rescaling: W times 1 + C c (thesis 2018, equation 3.2).

    Printed there is C c alone, the same family where one number of c is constant; with the 1 it starts unadapted.
    """

    parts = 1

    def __init__(self, context_size: int, inputs: int, gates: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(context_size, self.parts * gates) * 0.1 * context_size**-0.5)

    @classmethod
    def shapes(cls, context_size: int, inputs: int, gates: int, rank: int) -> Shapes:
        """See `Adapter`."""
        return {"weight": (context_size, cls.parts * gates)}

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> what is added to the factors of the parts of W (B, parts, G)."""
        return Shift(scale=(vector @ self.weight).view(len(vector), self.parts, -1))


class ScaleSplit(Scale):
    """Row rescaling with factors of their own for the inputs' part of W and the hidden one (Jaech & Ostendorf 2017)."""

    parts = 2


class Factor(Adapter):
    """FactorCell: a rank-r change of W by two basis tensors, (K, D, R) and (K, R, G) (TACL 2018, equation 3)."""

    def __init__(self, context_size: int, inputs: int, gates: int, rank: int) -> None:
        super().__init__()
        # Left rows have unit expected norm; right starts small, so that training begins near the unadapted cell.
        self.left = nn.Parameter(torch.randn(context_size, inputs, rank) * inputs**-0.5)
        self.right = nn.Parameter(torch.randn(context_size, rank, gates) * 0.1 * rank**-0.5)

    @classmethod
    def shapes(cls, context_size: int, inputs: int, gates: int, rank: int) -> Shapes:
        """See `Adapter`."""
        return {"left": (context_size, inputs, rank), "right": (context_size, rank, gates)}

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> left (B, D, R) and right (B, R, G)."""
        left = vector @ self.left.flatten(1)
        right = vector @ self.right.flatten(1)
        return Shift(left.view(-1, *self.left.shape[1:]), right.view(-1, *self.right.shape[1:]))


# The class of a name among the options has the same name in CamelCase: scale_split is ScaleSplit. A prefix has none.
ADAPTERS: dict[str, type[Adapter]] = {
    name: globals()[name.title().replace("_", "")] for name in NAMES if name != "prefix"
}
