"""The context as control codes: embeddings that the model reads before the start token (CTRL, Keskar et al. 2019).

Shapes: B texts, P codes, E embedding.
"""

from typing import cast

import torch
from torch import Tensor, nn

from factorcell.data.context import Context
from factorcell.data.schema import ContextSchema
from factorcell.model.encoder import NumberInputs, VectorMap, WordBag, embedded
from factorcell.model.initial import normal


class Prefix(nn.Module):
    """A code for each category, text and vector, of tables of its own, then one for all numbers, linear in them."""

    def __init__(self, schema: ContextSchema, size: int) -> None:
        super().__init__()
        self.schema, spread = schema, size**-0.5  # that of the token embeddings
        self.tables = nn.ParameterList(normal((len(v.values), size), spread) for v in schema.categories)
        self.texts = nn.ModuleList(WordBag(variable, size, spread) for variable in schema.texts)
        self.vectors = nn.ModuleList(VectorMap(variable, size, spread) for variable in schema.vectors)
        self.inputs = NumberInputs(schema.numbers) if schema.numbers else None
        self.linear = nn.Linear(len(self.inputs.column), size) if self.inputs is not None else None

    def forward(self, context: Context) -> Tensor:
        """The codes of B contexts (B, P, E). A missing category or text has its expected code, a number its mean."""
        codes = [
            embedded(cast(Tensor, table), variable, context.categories[:, column])
            for column, (table, variable) in enumerate(zip(self.tables, self.schema.categories, strict=True))
        ]
        codes += [bag(words) for bag, words in zip(self.texts, context.bags, strict=True)]
        codes += [chart(vector) for chart, vector in zip(self.vectors, context.vectors, strict=True)]
        if self.inputs is not None and self.linear is not None:
            codes.append(self.linear(self.inputs(context.numbers)))
        return torch.stack(codes, dim=1)
