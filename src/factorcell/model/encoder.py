"""The context encoder, which maps context variables to a context vector or to control codes.

    c = tanh(sum_i M_i F_i f_i + b0)        (thesis 2018, equation 2.4)

F_i f_i is the embedding of one variable: a row of the table of a category, the sum of the words of a text, or the map
of a vector. All numbers are standardized and share one small network; a periodic number enters it as the sines and
cosines of its first harmonics. The papers also use a ReLU in place of tanh, and c = F_1 f_1 for a single variable.

Shapes: B texts, C categorical variables, N numeric ones, I inputs of the network over them, W words in the bags of B
texts, D numbers of a vector, K context, k embedding of one variable, P control codes, E token embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import ModelConfig, UserError, choose
from factorcell.data.context import Bags, Context
from factorcell.data.schema import MISSING, ContextSchema, Variable, waves
from factorcell.model.initial import normal

# Standard deviation of initial embeddings. It is small, because training hardly moves the embeddings of rare values, so
# that their random initial values remain as noise.
SPREAD = 0.1

# Activations after the layer that joins the variables; None means that there is no such layer.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "linear": nn.Identity(),
    "none": None,
}


class NumberInputs(nn.Module):
    """Map of raw numbers (B, N) to inputs (B, I) of a network: numbers and waves, standardized on training texts."""

    column: Tensor
    frequency: Tensor
    phase: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, numbers: tuple[Variable, ...]) -> None:
        super().__init__()
        inputs: list[tuple[int, float, float, float, float]] = []
        for column, v in enumerate(numbers):
            if v.period:
                frequencies_and_phases = waves(v.period, len(v.means) // 2)
                inputs += zip([column] * len(v.means), *frequencies_and_phases, v.means, v.deviations, strict=True)
            else:
                inputs.append((column, 0.0, 0.0, v.mean, v.deviation))
        self.counts = [len(v.means) if v.period else 1 for v in numbers for _ in range(len(v.means) if v.period else 1)]
        for index, name in enumerate(("column", "frequency", "phase", "mean", "deviation")):
            self.register_buffer(name, torch.tensor([values[index] for values in inputs]), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Map numbers (B, N) to inputs (B, I); a missing number has zeros, the means of its inputs."""
        values = numbers[:, self.column]
        values = torch.where(self.frequency > 0, torch.sin(values * self.frequency + self.phase), values)
        return ((values - self.mean) / self.deviation).nan_to_num(0.0)

    def weight_factors(self) -> Tensor:
        """Return factors (I,) on initial weights that give all waves of a number together the weight of one input."""
        return torch.tensor(self.counts) ** -0.5


class WordBag(nn.Module):
    """The embedding of a text: the sum of the embeddings of its words over the square root of their number.

    Its initial variance is that of a category's embedding for any number of words, and the evidence of words adds up.
    """

    shares: Tensor

    def __init__(self, variable: Variable, size: int, spread: float) -> None:
        """Create the table; `spread` is the initial standard deviation of a word's embedding."""
        super().__init__()
        self.table = nn.Parameter(normal((len(variable.values), size), spread))
        self.register_buffer("shares", torch.tensor(variable.shares), persistent=False)

    def forward(self, bags: Bags) -> Tensor:
        """Return the embeddings (B, k); a text without known words has the mean embedding of all training texts."""
        sizes = bags.sizes[:, None]
        total = F.embedding_bag(bags.words, self.table, bags.offsets, mode="sum", include_last_offset=True)
        known = total / sizes.clamp(min=1).to(total.dtype).sqrt()
        if bool((sizes > 0).all()):
            return known
        return torch.where(sizes > 0, known, self.shares @ self.table)


class VectorMap(nn.Module):
    """The embedding of a vector: a linear map of its standardized numbers."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, variable: Variable, size: int, spread: float) -> None:
        """Create the map; `spread` is the initial standard deviation of its outputs."""
        super().__init__()
        width = len(variable.means)
        self.weight = nn.Parameter(normal((size, width), spread, width**-0.5))
        self.register_buffer("mean", torch.tensor(variable.means), persistent=False)
        self.register_buffer("deviation", torch.tensor(variable.deviations), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (B, D) to embeddings (B, k); a missing vector has zeros, the embedding of the mean vector."""
        return F.linear(((vectors - self.mean) / self.deviation).nan_to_num(0.0), self.weight)


class VariableEmbeddings(nn.Module):
    """Embeddings (B, k) of all variables except numbers: a table for a category, a `WordBag`, a `VectorMap`."""

    def __init__(self, schema: ContextSchema, size: int, spread: float) -> None:
        super().__init__()
        self.schema = schema
        self.tables = nn.ParameterList(normal((len(v.values), size), spread) for v in schema.categories)
        self.inputs = NumberInputs(schema.numbers) if schema.numbers else None

    def add_texts_and_vectors(self, size: int, spread: float) -> None:
        """Create the embeddings of texts and vectors, which subclasses draw after other parameters."""
        self.texts = nn.ModuleList(WordBag(variable, size, spread) for variable in self.schema.texts)
        self.vectors = nn.ModuleList(VectorMap(variable, size, spread) for variable in self.schema.vectors)

    def embeddings(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """Return the embeddings of categories, texts and vectors; `override` replaces some of them by name."""
        override, schema = override or {}, self.schema
        variables = (*schema.categories, *schema.texts, *schema.vectors)
        for name in override:
            choose("context variable", name, [variable.name for variable in variables])
        functions: list[Callable[[], Tensor]] = [
            *(partial(self.embed_category, column, rows) for column, rows in enumerate(context.categories.unbind(1))),
            *(partial(bag, words) for bag, words in zip(self.texts, context.bags, strict=True)),
            *(partial(linear, vector) for linear, vector in zip(self.vectors, context.vectors, strict=True)),
        ]
        return [
            override[variable.name] if variable.name in override else function()
            for variable, function in zip(variables, functions, strict=True)
        ]

    def embed_category(self, column: int, rows: Tensor) -> Tensor:
        """Return `rows` (B,) of one category's table (B, k); a missing value has the frequency-weighted mean of all."""
        table: Tensor = self.tables[column]
        known = table[rows.clamp(min=0)]
        if not bool((rows == MISSING).any()):
            return known
        expected = table.new_tensor(self.schema.categories[column].frequencies()) @ table
        return torch.where(rows[:, None] == MISSING, expected, known)


class Prefix(VariableEmbeddings):
    """Control codes: embeddings that the model reads before the start token (CTRL, Keskar et al. 2019).

    There is one code for each category, text and vector, then one for all numbers, which is linear in them.
    """

    def __init__(self, schema: ContextSchema, size: int) -> None:
        spread = size**-0.5  # the same standard deviation as for token embeddings
        super().__init__(schema, size, spread)
        self.add_texts_and_vectors(size, spread)
        self.linear = nn.Linear(len(self.inputs.column), size) if self.inputs is not None else None

    def forward(self, context: Context) -> Tensor:
        """Return the codes (B, P, E); a missing category or text has its expected code, a number its mean."""
        codes = self.embeddings(context)
        if self.inputs is not None and self.linear is not None:
            codes.append(self.linear(self.inputs(context.numbers)))
        return torch.stack(codes, dim=1)


class ContextEncoder(VariableEmbeddings):
    """The map of contexts to context vectors: an embedding per variable, a network over numbers, a layer over all."""

    def __init__(self, config: ModelConfig, schema: ContextSchema) -> None:
        super().__init__(schema, config.variable_size, SPREAD)
        # The unknown value starts neutral, in case training has no rare value. Without a context layer, c is that
        # embedding itself and could stay zero: L(c) R(c) is quadratic in c, so that its gradient at zero is zero.
        if config.context_layer != "none":
            for table in self.tables:
                table.data[0] = 0.0
        widths = [] if self.inputs is None else [len(self.inputs.column), *[config.number_size] * config.number_layers]
        layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
        self.network = nn.Sequential(*layers) if layers else None
        embedded = len(schema.categories) + len(schema.texts) + len(schema.vectors)
        self.variable_sizes = [config.variable_size] * embedded + widths[-1:]
        self.activation = ACTIVATIONS[config.context_layer]
        self.joint = nn.Linear(sum(self.variable_sizes), config.context_size) if self.activation is not None else None
        if self.joint is None and self.variable_sizes != [config.context_size]:
            raise UserError(
                f"context_layer: none expects one variable whose embedding has context_size ({config.context_size}) "
                f"numbers, got {', '.join(map(str, self.variable_sizes))}"
            )
        if self.network is not None and self.inputs is not None:
            # Large initial weights separate neighbouring coordinates, as random features do.
            first = self.network[0]
            assert isinstance(first, nn.Linear)
            if not first.weight.is_meta:
                nn.init.normal_(first.weight, std=2.0)
                nn.init.normal_(first.bias, std=1.0)
                with torch.no_grad():
                    first.weight.mul_(self.inputs.weight_factors())
        self.add_texts_and_vectors(config.variable_size, SPREAD)

    def forward(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Tensor:
        """Compute the context vectors (B, K) of B contexts.

        `override` replaces embeddings (B, k) of variables by name; numbers have none of their own.
        """
        return self.join(self.variable_embeddings(context, override))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Compute the context vectors (B, K) from the embeddings `parts` of all variables."""
        if self.joint is None or self.activation is None:
            return parts[0]
        return self.activation(self.joint(torch.cat(list(parts), dim=1)))

    def variable_embeddings(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """Return the embeddings (B, k) of categories, texts and vectors, then (B, width) of all numbers."""
        parts = self.embeddings(context, override)
        if self.inputs is not None:
            numbers = self.inputs(context.numbers)
            parts.append(numbers if self.network is None else self.network(numbers))
        return parts
