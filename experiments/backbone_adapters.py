"""An adapter that the study of backbones compares with FactorCells, and that the package does not need.

    hypernetwork    W + L(c) R(c), where a network of two layers computes L and R: (L, R) = U tanh(H c)

The hidden layer of the hypernetwork has the size of the context vector, so at the same rank it has nearly as many
parameters as `factor`, which is U without the hidden layer.
"""

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import Adapter, Factor, LayerSizes, Shift, register_adapter


class Hypernetwork(Adapter):
    """A change of W of rank R from a network with two layers of the context vector."""

    needs_rank = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.factor = Factor(sizes)
        self.hidden = nn.Parameter(torch.randn(sizes.context, sizes.context) * sizes.context**-0.5)

    def forward(self, vector: Tensor) -> Shift:
        """Return L (B, D, R) and R (B, R, O)."""
        return self.factor.forward(torch.tanh(vector @ self.hidden))

    def start_unadapted(self) -> None:
        """Set R to zero."""
        self.factor.start_unadapted()


register_adapter("hypernetwork", Hypernetwork)
