"""A linear map that a context changes, from which adapted models are built.

    y = s(c) * (x W + (x L(c)) R(c)) + V c + b

Shapes: B contexts, T steps, D inputs, O outputs, K context, R rank.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from factorcell.model.adapters import LayerSizes, Shift, find_adapter
from factorcell.model.initial import uniform

UNCHANGED = Shift()


class AdaptedLinear(nn.Module):
    """A linear map y = x W + b whose weights a context changes.

    The change is computed once per context and then applied to any number of inputs:

        linear = AdaptedLinear(64, 128, context=16, rank=4)
        shift = linear.condition(vector)     # (B, 16): once per context
        y = linear(x, shift)                 # (B, 64) -> (B, 128), or (B, T, 64) -> (B, T, 128)

    A context vector of zeros gives the plain linear map with every built-in adapter.

    Attributes:
        weight: W (D, O).
        bias: b (O,), or None.
        adapters: The adapters by name.

    References:
        Jaech and Ostendorf, Low-Rank RNN Adaptation for Context-Aware Language Modeling, TACL 2018, equations 2 to 4.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        context: int,
        *,
        adapt: Sequence[str] = ("concat", "factor"),
        rank: int = 0,
        bias: bool = True,
        weight: Tensor | None = None,
    ) -> None:
        """Create the map.

        Args:
            inputs: Number of inputs, D.
            outputs: Number of outputs, O.
            context: K, the size of context vectors.
            adapt: Names of adapters: concat, factor, scale, and those that `register_adapter` has added.
            rank: R; if it is 0, adapters that need a rank are omitted.
            bias: Whether there is a bias b, which starts at zero.
            weight: Initial W (D, O), such as that of a pretrained layer; default: uniform (Glorot and Bengio 2010).
        """
        super().__init__()
        sizes = LayerSizes(context, inputs, outputs, rank)
        self.weight = nn.Parameter(
            uniform((inputs, outputs), (6 / (inputs + outputs)) ** 0.5) if weight is None else weight
        )
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        classes = {name: find_adapter(name) for name in adapt}
        self.adapters = nn.ModuleDict(
            {name: adapter(sizes) for name, adapter in classes.items() if rank or not adapter.needs_rank}
        )

    def condition(self, vector: Tensor) -> Shift:
        """Compute the change of this map in B contexts.

        Args:
            vector: Context vectors (B, K).

        Returns:
            The combined shift of all adapters.
        """
        return Shift.sum([adapter(vector) for adapter in self.adapters.values()])

    def forward(self, x: Tensor, shift: Shift = UNCHANGED) -> Tensor:
        """Apply the map in B contexts.

        Args:
            x: Inputs (B, D) or (B, T, D).
            shift: The result of `condition` or `fold`, for B contexts or for one context that all rows share; default:
                no change.

        Returns:
            Outputs (B, O) or (B, T, O).
        """
        steps = x[:, None] if x.dim() == 2 else x
        y = steps @ self.matrix(shift)
        if shift.left is not None and shift.right is not None:
            y = y + (steps @ shift.left) @ shift.right
        if shift.scale is not None:
            y = y * shift.scale[:, None]
        bias = self.shifted_bias(shift)
        if bias is not None:
            y = y + (bias[:, None] if bias.dim() == 2 else bias)
        return y[:, 0] if x.dim() == 2 else y

    def fold(self, shift: Shift, shared: bool = False) -> Shift:
        """Multiply L, R and s into one matrix per context, which takes no longer to apply than W.

        Args:
            shift: The shift of B contexts.
            shared: Whether `shift` belongs to a single context, so that its matrix (D, O) serves any number of rows.

        Returns:
            A shift with a `matrix` (B, D, O), or (D, O) if `shared`.
        """
        matrix = self.matrix(shift)
        if shift.left is not None and shift.right is not None:
            matrix = matrix + shift.left @ shift.right
        if shift.scale is not None:
            matrix = matrix * shift.scale[:, None]
        return Shift(bias=shift.bias, matrix=matrix.view(matrix.shape[-2:]) if shared else matrix)

    def split(self, shift: Shift, inputs: int) -> tuple[Shift, Shift]:
        """Split W into its first `inputs` rows and the others, and return the shift of each part, with its `matrix`.

        Call it once per forward pass rather than once per step: each slice of W adds a gradient of the size of W.
        """
        matrix, parts = self.matrix(shift), []
        for rows in (slice(inputs), slice(inputs, None)):
            left = None if shift.left is None else shift.left[:, rows]
            # A view per part, so that the backward pass sums the gradients of the part before it adds them to s.
            scale = None if shift.scale is None else shift.scale[:]
            parts.append(replace(shift, left=left, scale=scale, matrix=matrix[..., rows, :]))
        return parts[0], parts[1]

    def matrix(self, shift: Shift) -> Tensor:
        """Return W (D, O), or the matrix (B, D, O) or (D, O) of a folded shift."""
        return self.weight if shift.matrix is None else shift.matrix

    def shifted_bias(self, shift: Shift) -> Tensor | None:
        """Return b + V c (B, O), or b (O,) if the shift has no bias; None if there is neither."""
        if shift.bias is None or self.bias is None:
            return self.bias if shift.bias is None else shift.bias
        return shift.bias + self.bias
