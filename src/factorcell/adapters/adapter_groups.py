"""The adapters of several linear maps, such as those of a layer, which compute the changes of all maps in one product.

The parameters P of the built-in adapters are only multiplied with the context vector c (`LinearAdapter`). Therefore a
group stores the parameters of all its maps in the columns of one matrix, and computes

    c [P_1 ... P_n]

whose columns are L, R, V c and s - 1 of each map. On a GPU, where the start of an operation takes longer than a small
product, this matters: PyTorch starts 300 operations for the 210 maps of SmolLM2-135M in a training step instead of
1,700 (rank 4).

Shapes: B contexts, K context, N values of the changes of all maps in a context.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import Adapter, LinearAdapter, Shift
from factorcell.adapters.initial import normal

# Largest number of contexts of one product on a processor. With more, separate products are faster: they stay in the
# cache, and the values of a map are consecutive in memory. (The adapters of an attention layer took 44 instead of 58 ms
# of a training step with 400 texts of 8 tokens in bfloat16.)
MAX_CONTEXTS = 32


class AdapterGroup(nn.Module):
    """The adapters of several linear maps.

    All contexts share a further change of each map of rank S, a LoRA; it is zero before training.

    Attributes:
        weight: The parameters of all linear adapters (K, N), each flattened, in the order of the maps; None without
            linear adapters.
        others: The other adapters, in the order of the maps.
        shared_left: P (D, S) of the change that all contexts share, in the order of the maps; empty if S is 0.
        shared_right: Q (S, O).

    Args:
        adapters: The adapters of each map. The group takes the values of the parameters of linear adapters, and the
            other adapters themselves.
        shapes: The numbers of inputs D and outputs O of each map with a change that all contexts share.
        shared_rank: The rank S of this change.
    """

    def __init__(
        self, adapters: Sequence[Sequence[Adapter]], shapes: Sequence[tuple[int, int]] = (), shared_rank: int = 0
    ) -> None:
        super().__init__()
        self._map_sizes = [len(adapters_of_map) for adapters_of_map in adapters]
        flat = list(itertools.chain.from_iterable(adapters))
        self.others = nn.ModuleList(adapter for adapter in flat if not isinstance(adapter, LinearAdapter))
        # The class and the shapes of the products of each linear adapter; None stands for an adapter of `others`.
        self._linear = [
            (type(adapter), [parameter.shape[1:] for parameter in adapter.parameters()])
            if isinstance(adapter, LinearAdapter)
            else None
            for adapter in flat
        ]
        columns = [
            parameter.detach().flatten(1)
            for adapter in flat
            if isinstance(adapter, LinearAdapter)
            for parameter in adapter.parameters()
        ]
        self._column_counts = [matrix.shape[1] for matrix in columns]
        self.weight = nn.Parameter(torch.cat(columns, dim=1)) if columns else None
        shared_shapes = shapes if shared_rank else ()
        self.shared_left = nn.ParameterList(normal((inputs, shared_rank), inputs**-0.5) for inputs, _ in shared_shapes)
        self.shared_right = nn.ParameterList(torch.zeros(shared_rank, outputs) for _, outputs in shared_shapes)

    def forward(self, vector: Tensor, dtype: torch.dtype) -> list[Shift]:
        """Return the shift of each map in B contexts.

        Args:
            vector: Context vectors (B, K).
            dtype: The number type of the shifts.
        """
        products = iter(self._products(vector, dtype))
        others = iter(self.others)
        shifts = [
            cast(Shift, next(others)(vector)).to(dtype)
            if linear is None
            else linear[0].shift(*(next(products).view(-1, *shape) for shape in linear[1]))
            for linear in self._linear
        ]
        ends = itertools.accumulate(self._map_sizes)
        sums = [Shift.sum(shifts[end - size : end]) for end, size in zip(ends, self._map_sizes, strict=True)]
        if not self.shared_left:
            return sums
        shared = zip(sums, self.shared_left, self.shared_right, strict=True)
        return [
            replace(shift, shared_left=left.to(dtype), shared_right=right.to(dtype)) for shift, left, right in shared
        ]

    def _products(self, vector: Tensor, dtype: torch.dtype) -> Sequence[Tensor]:
        """Return the products (B, ...) of the context vectors and each parameter of the linear adapters."""
        if self.weight is None:
            return ()
        if vector.device.type == "cpu" and len(vector) > MAX_CONTEXTS:
            return [(vector @ columns).to(dtype) for columns in torch.split(self.weight, self._column_counts, dim=1)]
        return torch.split((vector @ self.weight).to(dtype), self._column_counts, dim=1)
