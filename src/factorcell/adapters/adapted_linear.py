"""A linear map whose weights a context vector c changes, the building block of adapted models.

    y = s(c) * (x W + (x L(c)) R(c)) + V c + b

x is the input, W and b the map's own matrix and bias. L(c), R(c), s(c) and V c form the change, which the adapters
compute (`adapters`). In a frozen pretrained model, W + P Q takes the place of W, with a LoRA P Q.

Shapes: B contexts, T steps, D inputs, O outputs, K context, R rank.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import LayerSizes, Shift, new_adapters, uniform

UNCHANGED = Shift()


class AdaptedLinear(nn.Module):
    """A linear map y = x W + b whose weights a context changes.

    The change is computed once per context and then applied to any number of inputs:

        linear = AdaptedLinear(64, 128, context=16, rank=4)
        shift = linear.condition(vector)     # (B, 16): once per context
        y = linear(x, shift)                 # (B, 64) -> (B, 128), or (B, T, 64) -> (B, T, 128)

    With the built-in adapters, a context vector of zeros gives the map y = x W + b.

    Attributes:
        weight: W (D, O).
        bias: b (O,), or None.
        adapters: The adapters by name.
        scaling: A factor on L R.

    References:
        Jaech and Ostendorf, Low-Rank RNN Adaptation for Context-Aware Language Modeling, TACL 2018, equations 2 to 4.
    """

    scaling: float = 1.0

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
            rank: Rank of the change of W, R; if it is 0, adapters that need a rank are omitted.
            bias: Whether there is a bias b, which starts at zero.
            weight: Initial W (D, O), such as that of a pretrained layer; default: uniform (Glorot and Bengio 2010).
        """
        super().__init__()
        self.weight = nn.Parameter(
            uniform((inputs, outputs), (6 / (inputs + outputs)) ** 0.5) if weight is None else weight
        )
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.adapters = nn.ModuleDict(new_adapters(adapt, LayerSizes(context, inputs, outputs, rank)))

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
            x: Inputs (B, D), (B, T, D), or with more dimensions after B.
            shift: The result of `condition` or `fold`, for B contexts or for one context that all inputs share.
                Default: no change.

        Returns:
            Outputs (B, O), (B, T, O), or with the other dimensions of x.
        """
        inputs = x[:, None] if x.dim() == 2 else x.flatten(1, -2)  # (B, T, D)
        matrix, bias = self.matrix(shift), shift.bias
        if self.bias is not None and matrix.dim() == 2 and shift.scale is None:
            # In bfloat16, this product with the bias is rounded once, as that of a linear map of PyTorch.
            y = torch.addmm(self.bias, inputs.flatten(0, 1), matrix).reshape(*inputs.shape[:2], matrix.shape[1])
        else:
            y, bias = inputs @ matrix, self.shifted_bias(shift)
        if shift.shared_left is not None and shift.shared_right is not None:
            y = y.add_((inputs @ shift.shared_left) @ shift.shared_right, alpha=self.scaling)
        if shift.left is not None and shift.right is not None:
            if len(shift.left) == 1:  # all inputs share the change: products of matrices are faster than of batches
                y = y.add_((inputs @ shift.left[0]) @ shift.right[0], alpha=self.scaling)
            else:  # in place, because PyTorch would copy y before it adds the product; autocast does not cast for it
                y = y.baddbmm_(inputs @ shift.left, shift.right.to(y.dtype), alpha=self.scaling)
        if shift.scale is not None:
            y = y * shift.scale[:, None]
        if bias is not None:
            y = y + (bias[:, None] if bias.dim() == 2 else bias)
        return y if x.dim() == 3 else y.reshape(*x.shape[:-1], y.shape[-1])

    def fold(self, shift: Shift, shared: bool = False) -> Shift:
        """Multiply W and its changes into a matrix per context, so that applying the map takes no longer than x W + b.

        Args:
            shift: The shift of B contexts.
            shared: Whether `shift` belongs to one context. The resulting matrix (D, O) applies to any number of inputs.

        Returns:
            A shift with a `matrix` (B, D, O), or (D, O) if `shared`.
        """
        matrix = self.matrix(shift)
        if shift.shared_left is not None and shift.shared_right is not None:
            matrix = torch.add(matrix, shift.shared_left @ shift.shared_right, alpha=self.scaling)
        if shift.left is not None and shift.right is not None:
            matrix = torch.add(matrix, shift.left @ shift.right, alpha=self.scaling)
        if shift.scale is not None:
            matrix = matrix * shift.scale[:, None]
        return Shift(bias=shift.bias, matrix=matrix.view(matrix.shape[-2:]) if shared else matrix)

    def split(self, shift: Shift, inputs: int) -> tuple[Shift, Shift]:
        """Split W into its first `inputs` rows and the others; return the shift of each part, with its `matrix`.

        Call it once per forward pass rather than once per step, because the backward pass joins the gradients of the
        parts to a gradient of the size of W.
        """
        matrix = self.matrix(shift)
        sizes = [inputs, matrix.shape[-2] - inputs]
        matrices = torch.split(matrix, sizes, dim=-2)
        left_factors = (None, None) if shift.left is None else torch.split(shift.left, sizes, dim=1)
        # Each part has its own view of s: the backward pass adds up the gradients of the part, then adds them to s.
        of_first_rows, of_other_rows = (
            replace(shift, left=left, scale=None if shift.scale is None else shift.scale[:], matrix=part)
            for left, part in zip(left_factors, matrices, strict=True)
        )
        return of_first_rows, of_other_rows

    def matrix(self, shift: Shift) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight if shift.matrix is None else shift.matrix

    def shifted_bias(self, shift: Shift) -> Tensor | None:
        """Return b + V c (B, O), or b (O,) if the shift has no bias; None if the map has no bias either."""
        if shift.bias is None or self.bias is None:
            return self.bias if shift.bias is None else shift.bias
        return shift.bias + self.bias
