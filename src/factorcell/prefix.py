"""The context as control codes: embeddings that the model reads before the start token (CTRL, Keskar et al. 2019).

Shapes: B texts, P codes, E embedding.
"""

from typing import cast

import torch
from torch import Tensor, nn

from factorcell.context import Context, ContextSchema, embedded


class Prefix(nn.Module):
    """A code for each categorical variable, from a table of its own, then one for all numbers, linear in them."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, schema: ContextSchema, size: int) -> None:
        super().__init__()
        self.schema = schema
        scale = size**-0.5  # that of the token embeddings
        self.tables = nn.ParameterList(torch.randn(len(v.values), size) * scale for v in schema.categories)
        numbers = schema.numbers
        self.register_buffer("mean", torch.tensor([v.mean for v in numbers]), persistent=False)
        self.register_buffer("deviation", torch.tensor([v.deviation for v in numbers]), persistent=False)
        self.linear = nn.Linear(len(numbers), size) if numbers else None

    def forward(self, context: Context) -> Tensor:
        """The codes of B contexts (B, P, E). A missing category has its expected code, a missing number its mean."""
        codes = [
            embedded(cast(Tensor, table), variable, context.categories[:, column])
            for column, (table, variable) in enumerate(zip(self.tables, self.schema.categories, strict=True))
        ]
        if self.linear is not None:
            codes.append(self.linear(((context.numbers - self.mean) / self.deviation).nan_to_num(0.0)))
        return torch.stack(codes, dim=1)
